"""`ranges/<source>`: what each batch read, as rows, and the closing of days.

The rows are a projection of what the commits on the events table say of themselves, so whatever a killed run left out is
mended by the next one. `settle` does both: it looks at the commits since the last that is known to be accounted for, and
adds the rows that are missing. How far it has looked is an application transaction of the ranges table, moved by compare
and set, so that two runs can't add the same rows.

A run that finds nothing new adds no event, but it has learnt that everything up to its moment is in the table: it adds rows of
empty ranges with that moment, and no commit on the events table. Those rows need no partner: if they are lost, days stay open
until the next ingest, and the events table, which the later stages pin by version, stays as it was.
"""

import json
import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from jobs import batches, lake
from jobs.errors import RetryError
from jobs.ingest.commit import METADATA
from jobs.ingest.plan import Plan
from pipelines.declare import Source

log = logging.getLogger(__name__)

_SETTLED = "settled"
_TRIES = 10


def settle(source: Source, closure: Plan | None = None) -> int:
    """Add the rows of all commits that have none yet, and those of `closure`, a plan with nothing to read.

    Returns the number of commits whose rows were added.

    Raises RetryError where neighbours were always first.
    """
    for _ in range(_TRIES):
        ranges = _ranges(source)
        settled = ranges.transaction_version(_SETTLED) or 0
        events, commits = lake.log(batches.events_uri(source), after=settled)
        missing = _missing(commits, ranges, settled)
        rows = [row for entry in missing for row in _rows(entry[METADATA], entry["version"])]
        if closure is not None:
            rows += _rows(_closed(closure), closure.table.version())
        if not rows:
            return 0
        try:
            write_deltalake(
                ranges,
                pa.Table.from_pylist(rows, schema=batches.RANGES),
                mode="append",
                commit_properties=CommitProperties(app_transactions=[Transaction(_SETTLED, events.version())]),
            )
            return len(missing)
        except CommitFailedError:
            log.info("%s: a neighbour wrote its account at the same time", source.name)
    raise RetryError(
        f"the account of {source.name} was lost to neighbours {_TRIES} times. Its events are safe; run the ingest again."
    )


def _ranges(source: Source) -> DeltaTable:
    """The ranges table as it stands; a first one is made."""
    uri = batches.ranges_uri(source)
    table = lake.load(uri)
    if table is None:
        lake.create(uri, batches.RANGES)
        table = lake.load(uri)
        assert table is not None
    return table


def _missing(commits: Iterable[dict[str, Any]], ranges: DeltaTable, settled: int) -> list[dict[str, Any]]:
    """Of the commits after version `settled`, those with a batch that has no rows yet, the oldest first."""
    ours = [entry for entry in commits if METADATA in entry]
    if not ours:
        return []
    found = lake.query(ranges, f"select distinct batch from t where version > {settled}").column("batch").to_pylist()
    return [entry for entry in reversed(ours) if entry[METADATA]["batch"] not in set(found)]


def _rows(account: dict[str, Any], version: int) -> list[dict[str, Any]]:
    moment = datetime.fromisoformat(account["read_up_to"]) if account["read_up_to"] else None
    return [
        {
            "batch": account["batch"],
            "run_id": account["run_id"],
            "version": version,
            "topic": account["topic"],
            "topic_epoch": account["topic_epoch"],
            "kafka_partition": partition["partition"],
            "start_offset": partition["start"],
            "end_offset": partition["end"],
            "good": partition["good"],
            "dead": partition["dead"],
            "counts": json.dumps(partition["counts"]),
            "read_up_to": moment,
        }
        for partition in account["partitions"]
    ]


def _closed(plan: Plan) -> dict[str, Any]:
    """The account of a run that found nothing new."""
    assert not plan.ranges
    return {
        "batch": plan.batch,
        "run_id": plan.run_id,
        "topic": plan.source.topic,
        "topic_epoch": plan.epoch,
        "read_up_to": plan.read_up_to.isoformat() if plan.read_up_to else None,
        "partitions": [
            {"partition": partition, "start": position, "end": position, "good": 0, "dead": 0, "counts": []}
            for partition, position in sorted(plan.positions.items())
        ],
    }
