"""`penstock ingest SOURCE --rebuild`: all that Kafka still has, read again by today's contract, in place of what the table holds.

The files lie beside the table's own, where nobody sees them, until one commit takes the old ones out and these in. So a rebuild
that dies leaves orphans and nothing else, and starts from the beginning. It is a new epoch: the account of the old ones no longer
counts.
"""

import logging
from collections.abc import Callable, Sequence

from deltalake import DeltaTable

from jobs import account, batches, contract, lake
from jobs.commit import commit
from jobs.errors import DataError, RetryError
from jobs.ingest import plan
from jobs.ingest.plan import Plan, Reach
from jobs.ingest.ranges import Done, Range
from pipelines.declare import Source

log = logging.getLogger(__name__)

TRIES = 10


def rebuild(
    source: Source, reach: Reach, read_all: Callable[[Sequence[Range]], list[Done]], run_id: str, *, accept_loss: bool
) -> tuple[Plan, list[Done]]:
    """Read everything and swap it in.

    Raises DataError where the table holds records that Kafka no longer has, and nobody accepted their loss; RetryError where
    something else than an ingest changed the table meanwhile.
    """
    table = contract.table(source)
    epoch = _epoch(source, table)
    rewrites = table.transaction_version(batches.REWRITE) or 0
    if not accept_loss:
        _refuse_loss(source, table, reach, epoch)
    planned = plan.batch(
        source,
        table,
        reach,
        run_id,
        epoch=epoch + 1,
        starts=dict.fromkeys(reach.bounds, 0),
        begins=True,
        records=1 << 62,
        kind="rebuild",
        erased=account.erased(source, reach.topic.id),
    )
    log.info("%s: reading %d records again", source.name, sum(map(len, planned.ranges)))
    done = read_all(planned.ranges)
    files = [written for one in done for written in one.files]
    for _ in range(TRIES):
        table = contract.table(source)
        if _epoch(source, table) != epoch or (table.transaction_version(batches.REWRITE) or 0) != rewrites:
            raise RetryError(
                f"{source.name} was rebuilt, erased from or replayed into while this rebuild read. Nothing was changed; "
                "run it again."
            )
        # What neighbours have read meanwhile goes too: it lies beyond this reach, and the next ingest reads it in the new epoch.
        moved = planned.transactions() | {batches.REWRITE: rewrites + 1}
        if commit(source, table, files, planned.account(done), moved, mode="overwrite"):
            account.settle(source)
            return planned, done
    raise RetryError(f"{source.name}: the rebuild was lost to other writers {TRIES} times. Stop them, or try again.")


def _epoch(source: Source, table: DeltaTable) -> int:
    return table.transaction_version(batches.epoch_id(source)) or 0


def _refuse_loss(source: Source, table: DeltaTable, reach: Reach, epoch: int) -> None:
    """Raise DataError where a rebuild would lose rows that can't be read again."""
    same_topic = table.transaction_version(batches.topic_id(source, reach.topic.id)) == epoch
    kept = " or ".join(
        f"(kafka_partition = {partition} and kafka_offset >= {held.earliest})" for partition, held in sorted(reach.bounds.items())
    )
    still = f"topic_epoch = {epoch} and ({kept})" if same_topic else "false"
    found = lake.query(
        table,
        f"select topic_epoch, kafka_partition, count(*) as lost, min(kafka_offset) as first, max(kafka_offset) as last from t "
        f"where not ({still}) group by topic_epoch, kafka_partition order by topic_epoch, kafka_partition",
    ).to_pylist()
    if found:
        lines = "".join(
            f"\n  epoch {row['topic_epoch']}, partition {row['kafka_partition']}: {row['lost']:,} rows, offsets "
            f"{row['first']} to {row['last']}"
            for row in found
        )
        raise DataError(
            f"Kafka no longer has {sum(row['lost'] for row in found):,} records that {source.name} holds; a rebuild "
            "would lose them:"
            f"{lines}\nNothing was changed. `--accept-loss` rebuilds without them."
        )
