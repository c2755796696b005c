"""Writing a range of days to the lake: replaced as a whole, in one commit for each table.

A table is of one declaration: where what it depends on has changed, another one is made beside it, see `jobs.versions`.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from jobs import lake, versions
from jobs.errors import DataError, RetryError, UsageError
from jobs.interval import Interval
from pipelines.declare import Pipeline

UNFIT = ("ARITHMETIC_OVERFLOW", "BINARY_ARITHMETIC_OVERFLOW", "CAST_", "DIVIDE_BY_ZERO", "NUMERIC_", "INVALID_ARRAY_INDEX")
"""How Spark's errors begin that say that a value doesn't fit an expression."""
PLAN = 20_000
"""The most characters of a physical plan that a report keeps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """The rows that a table shall hold for some days, and nothing else for these days."""

    table: str
    frame: DataFrame
    partition: str
    """The partition column: a date."""
    days: Interval
    """The days of the partition column that are replaced. A day without rows is empty afterwards."""
    order: tuple[str, ...]
    """How rows lie within a day."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What a commit left in the table."""

    version: int
    rows: Mapping[date, int]
    """Rows by day of the partition column; an empty day has no entry."""


def write(output: Output, pipeline: Pipeline, *, run_id: str, inputs: Mapping[str, Any]) -> Written:
    """Replace the days of the output in one commit.

    Raises RetryError where a neighbour wrote one of the days at the same time, DataError where a value doesn't fit an expression,
    UsageError where the table of this declaration has other columns than the frame.
    """
    before = _made(output, pipeline)
    uri = before.table_uri
    _same_columns(uri, before, output.frame)
    note = json.dumps({"run_id": run_id, "inputs": inputs, "days": str(output.days)}, sort_keys=True)
    # The hint spreads by day: a small day is one file, and adaptive execution joins small days' tasks and splits large days.
    spread = output.frame.hint("rebalance", output.partition).sortWithinPartitions(output.partition, *output.order)
    writer = (
        spread.write.format("delta")
        .mode("overwrite")
        .partitionBy(output.partition)
        .option("replaceWhere", f"{output.partition} >= '{output.days.start}' AND {output.partition} < '{output.days.end}'")
        .option("userMetadata", note)
    )
    try:
        writer.save(uri)
    except Exception as failure:
        if "io.delta.exceptions" in str(failure) or "DELTA_CONCURRENT" in str(failure):
            raise RetryError(f"another run wrote {uri}, {output.days}, at the same time. Run this one again.") from failure
        unfit = next((name for name in UNFIT if f"[{name}" in str(failure)), None)
        if unfit is not None:
            # Without the cause, whose words hold the value: it may be a person's.
            raise DataError(
                f"{output.table}, {output.days}: an expression can't be computed of some event ({unfit}). Let the declaration "
                "say what such values are: try_cast, try_divide, coalesce, or a where= that leaves them out."
            ) from None
        raise
    return _written(uri, output, note, after=before.version())


def _made(output: Output, pipeline: Pipeline) -> DeltaTable:
    """The table of this declaration, made where it was not there: Spark's writer drops properties that are not Delta's own."""
    settings = lake.settings(output.frame.columns) | versions.properties(pipeline, output.table)
    while True:
        uri = versions.uri(pipeline, output.table)
        found = lake.load(uri)
        # A neighbour with another declaration may take a free name first; then there is a next one.
        if found is not None and versions.declaration_of(found) == versions.digest(pipeline, output.table):
            return found
        lake.create(
            uri, to_arrow_schema(output.frame.schema, timezone="UTC"), partition_by=[output.partition], configuration=settings
        )


def physical(frame: DataFrame) -> str:
    """How Spark means to compute a frame, at most PLAN characters; empty where Spark runs behind Spark Connect."""
    inside = getattr(frame, "_jdf", None)
    return "" if inside is None else str(inside.queryExecution().executedPlan().toString())[:PLAN]


def _same_columns(uri: str, table: DeltaTable, frame: DataFrame) -> None:
    there = [field.name for field in table.schema().fields]
    if sorted(there) != sorted(frame.columns):
        missing = ", ".join(sorted(set(frame.columns) - set(there))) or "nothing"
        extra = ", ".join(sorted(set(there) - set(frame.columns))) or "nothing"
        raise UsageError(
            f"{uri} was written by other code for the same declaration: it lacks {missing}, and {extra} is no longer computed. "
            "Move the table away, and compute its days again."
        )


def _written(uri: str, output: Output, note: str, *, after: int) -> Written:
    """Our commit's version, by the note that it carries, and its rows by day, from the log alone."""
    table, commits = lake.log(uri, after=after)
    # A write that takes nothing away and adds nothing makes no commit: then the table as it stands is what we left.
    version = next((entry["version"] for entry in commits if entry.get("userMetadata") == note), table.version())
    files = pa.table(lake.load(uri, version).get_add_actions(flatten=True))  # type: ignore[union-attr]
    days = files.column(f"partition.{output.partition}").cast(pa.date32())
    ours = pc.and_(pc.greater_equal(days, pa.scalar(output.days.start)), pc.less(days, pa.scalar(output.days.end)))
    rows: Counter[date] = Counter()
    for file in pa.table({"day": days, "rows": files.column("num_records")}).filter(ours).to_pylist():
        rows[file["day"]] += file["rows"]
    return Written(version=version, rows=rows)
