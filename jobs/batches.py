"""What ingest writes down about each batch, and what the later stages ask of it.

`ranges/<source>` has one row for each Kafka partition of a commit on `events/<source>`, whose metadata says the same: where the
two differ, the commit is right and `jobs.account` mends this.
"""

from datetime import date, datetime
from typing import Any

import pyarrow as pa

from jobs import lake, store
from jobs.errors import RetryError, UsageError
from jobs.interval import DAY, Interval, midnight
from pipelines.declare import Pipeline, Source, Table

SPANS = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("reason", pa.string())]))
"""Runs of offsets, [start, end), and why each has no row, or what happened to it."""

RANGES = pa.schema(
    [
        ("kind", pa.string()),
        ("batch", pa.string()),
        ("run_id", pa.string()),
        ("version", pa.int64()),
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("topic_epoch", pa.int32()),
        ("kafka_partition", pa.int32()),
        ("start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("good", pa.int64()),
        ("dead", pa.int64()),
        ("counts", pa.string()),
        ("dead_counts", pa.string()),
        ("spans", SPANS),
        ("read_up_to", lake.INSTANT),
        ("note", pa.string()),
    ]
)
"""`version` is the events table's version that holds the batch; [start_offset, end_offset) what was read; `counts` the good rows
as JSON, [[event day, known day, rows], ...]; `dead_counts` the dead letters, [[known day, reason, rows], ...]; `read_up_to` the
moment at which the end offsets were taken. Where a row is about no partition, `kafka_partition` is null. `jobs.account` says what
each `kind` means by them."""


def events_uri(source: Source) -> str:
    """Where a source's events and dead letters lie."""
    return lake.uri("events", source.name)


def table_uri(table: Table) -> str:
    """Where a snapshot table lies."""
    return table.path if "://" in table.path or table.path.startswith("/") else lake.uri(table.path)


def ranges_uri(source: Source) -> str:
    """Where the account of a source's batches lies."""
    return lake.uri("ranges", source.name)


def position_id(source: Source, epoch: int, partition: int) -> str:
    """The application transaction of the events table that holds a partition's next offset."""
    return f"kafka/{source.topic}/{epoch}/{partition}"


def epoch_id(source: Source) -> str:
    """The application transaction that holds the epoch in which the topic is read; none means 0."""
    return f"kafka/{source.topic}/epoch"


def topic_id(source: Source, kafkas_own: str) -> str:
    """The application transaction that holds the epoch in which the topic with this id of Kafka's is read."""
    return f"kafka/{source.topic}/id/{kafkas_own}"


def same_id(source: Source, kafkas_own: str, epoch: int, partition: int) -> str:
    """The application transaction that holds where a partition of this topic ended when the epoch began: offsets below it mean
    the records that they meant in the epochs before in which the same topic was read; none means all of them."""
    return f"kafka/{source.topic}/id/{kafkas_own}/{epoch}/{partition}"


REWRITE = "rewrite"
"""The application transaction moved by whatever changes rows that were read already: of two such at once, one is refused."""


def ranges(source: Source, columns: str = "*", where: str = "true", *, version: int | None = None) -> pa.Table:
    """The rows of the account that describe the table as it is, or was at a version of the events: a rebuild voids those of the
    epochs before it.

    `columns` and `where` are SQL over RANGES; the oldest row comes first. Without an account there are no rows, and no columns.
    """
    table = lake.load(ranges_uri(source))
    if table is None:
        return pa.table({})
    return lake.query(
        table, f"select {columns} from t where ({where}) and {_valid(version)} order by version, kafka_partition, start_offset"
    )


def read_up_to(source: Source) -> datetime | None:
    """The newest moment such that all that had reached Kafka by then is in the table; None where nothing was ingested."""
    table = lake.load(ranges_uri(source))
    if table is None:
        return None
    found = lake.query(table, f"select max(read_up_to) as moment from t where {_valid()}")
    moment: datetime | None = found.column("moment")[0].as_py()
    return moment


def _valid(version: int | None = None) -> str:
    """The SQL condition on rows of the account that no rebuild has voided, as of a version of the events."""
    by_then = "true" if version is None else f"version <= {version}"
    return f"{by_then} and topic_epoch >= (select coalesce(max(topic_epoch), 0) from t where kind = 'rebuild' and {by_then})"


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
    """For each source of the pipeline the events table's version as it stands, to read all from the same one, and each snapshot
    table's. One of plain Parquet has none: what its files are called, how large and how old they are stands for it.

    Raises RetryError for a source without events, UsageError for a table that isn't there.
    """
    found: dict[str, Any] = {}
    for source in pipeline.sources:
        table = lake.load(events_uri(source))
        if table is None:
            raise RetryError(f"{source.name} has no events yet. Run `penstock ingest {pipeline.name}` first.")
        found[source.name] = table.version()
    for declared in pipeline.tables:
        if declared.format == "parquet":
            found[declared.name] = store.state(table_uri(declared))
        else:
            table = lake.load(table_uri(declared))
            if table is None:
                raise UsageError(
                    f"table {declared.name!r} of {pipeline.name!r} is not at {table_uri(declared)}: is its path right?"
                )
            found[declared.name] = table.version()
    return found
