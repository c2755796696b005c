"""The one commit of a batch: all its files, and the next offset of each of its partitions.

Compare and set: the commit uses the table handle on which the plan was made, so delta-rs refuses it where a neighbour has moved
one of the same partitions since. A refused commit deletes nothing: it may be its own, with the answer lost.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import Any

from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from jobs import batches, lake
from jobs.decode import events_schema
from jobs.errors import RetryError
from jobs.ingest.files import Written
from jobs.ingest.plan import Plan, app_id
from jobs.ingest.reader import Done

log = logging.getLogger(__name__)

METADATA = "penstock"
"""Where a commit's own metadata keeps the account of its batch."""


def commit(plan: Plan, done: Sequence[Done]) -> bool:
    """Commit a batch. Returns False where a neighbour was first, so that the batch has to be planned again.

    Raises RetryError where the store failed.
    """
    try:
        plan.table.create_write_transaction(
            [_action(written) for one in done for written in one.files],
            mode="append",
            schema=events_schema(plan.source),
            partition_by=["event_date"],
            commit_properties=CommitProperties(
                app_transactions=[Transaction(app_id(plan.source, plan.epoch, work.partition), work.end) for work in plan.ranges],
                custom_metadata={METADATA: account(plan, done)},
            ),
        )
    except (DeltaError, OSError) as failure:
        if not is_committed(plan):
            if not isinstance(failure, CommitFailedError):
                raise RetryError(
                    f"{plan.source.name}: batch {plan.batch} could not be committed ({failure}). Try again."
                ) from failure
            log.info("%s: batch %s was not committed: %s", plan.source.name, plan.batch, failure)
            return False
        log.info("%s: the answer to batch %s was lost, but it is committed", plan.source.name, plan.batch)
    return True


def is_committed(plan: Plan) -> bool:
    """Whether the table's log has the batch."""
    _, commits = lake.log(batches.events_uri(plan.source), after=plan.table.version())
    return any(entry.get(METADATA, {}).get("batch") == plan.batch for entry in commits)


def account(plan: Plan, done: Sequence[Done]) -> dict[str, Any]:
    """What the batch read, partition by partition; a partition may have been read in several parts."""
    return {
        "batch": plan.batch,
        "run_id": plan.run_id,
        "topic": plan.source.topic,
        "topic_epoch": plan.epoch,
        "read_up_to": plan.read_up_to.isoformat() if plan.read_up_to else None,
        "partitions": [
            {
                "partition": work.partition,
                "start": work.start,
                "end": work.end,
                "good": sum(part.good for part in parts),
                "dead": sum(part.dead for part in parts),
                "counts": _counts(parts),
            }
            for work in plan.ranges
            for parts in ([one for one in done if one.range.partition == work.partition],)
        ],
    }


def _counts(parts: Sequence[Done]) -> list[list[Any]]:
    counts: Counter[tuple[date, date]] = sum((part.counts for part in parts), Counter())
    return [[str(event), str(known), rows] for (event, known), rows in sorted(counts.items())]


def _action(written: Written) -> AddAction:
    return AddAction(
        path=written.path,
        size=written.size,
        partition_values={"event_date": str(written.event_date) if written.event_date else None},
        modification_time=written.modified,
        data_change=True,
        stats=written.statistics,
    )
