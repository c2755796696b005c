"""What ingest writes down about each batch, and what the later stages ask of it.

`ranges/<source>` has one row for each Kafka partition of a batch, appended after the batch's own commit on
`events/<source>`, whose metadata says the same: where the two differ, the commit is right and the next run mends this.
"""

from datetime import date, datetime
from typing import Any

import pyarrow as pa

from jobs import lake
from jobs.errors import RetryError
from jobs.interval import DAY, Interval, midnight
from pipelines.declare import Pipeline, Source

RANGES = pa.schema(
    [
        ("batch", pa.string()),
        ("run_id", pa.string()),
        ("version", pa.int64()),
        ("topic", pa.string()),
        ("topic_epoch", pa.int32()),
        ("kafka_partition", pa.int32()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("good", pa.int64()),
        ("dead", pa.int64()),
        ("counts", pa.string()),
        ("read_up_to", lake.INSTANT),
    ]
)
"""`version` is the events table's version that holds the batch; [start_offset, end_offset) what was read; `counts` the good
rows as JSON, [[event day, known day, rows], ...]; `read_up_to` the moment at which the end offsets were taken."""


def events_uri(source: Source) -> str:
    """Where a source's events and dead letters lie."""
    return lake.uri("events", source.name)


def ranges_uri(source: Source) -> str:
    """Where the account of a source's batches lies."""
    return lake.uri("ranges", source.name)


def read_up_to(source: Source) -> datetime | None:
    """The newest moment such that all that had reached Kafka by then is in the table; None where nothing was ingested."""
    table = lake.load(ranges_uri(source))
    if table is None:
        return None
    newest = lake.query(table, "select max(read_up_to) as newest from t")
    return newest.column("newest")[0].as_py()  # type: ignore[no-any-return]


def closes_at(pipeline: Pipeline, day: date) -> datetime:
    """When a day may be closed: its end plus the pipeline's lateness. Features of the day are available from then."""
    return midnight(day + DAY) + pipeline.lateness


def require_closed(pipeline: Pipeline, interval: Interval) -> None:
    """Raise RetryError unless every source of the pipeline was read up to a moment at which the last day had closed."""
    closing = closes_at(pipeline, interval.last)
    for source in pipeline.sources:
        moment = read_up_to(source)
        if moment is None or moment < closing:
            raise RetryError(
                f"{interval.last} is still open: {source.name} was read up to {moment or 'nothing'}, "
                f"and the day closes at {closing}. Run `penstock ingest {pipeline.name}` after that."
            )


def snapshot(pipeline: Pipeline) -> dict[str, Any]:
    """For each source of the pipeline, the events table's version as it stands, to read all from the same one."""
    found: dict[str, Any] = {}
    for source in pipeline.sources:
        table = lake.load(events_uri(source))
        if table is None:
            raise RetryError(f"{source.name} has no events yet. Run `penstock ingest {pipeline.name}` first.")
        found[source.name] = table.version()
    return found
