"""Rows of events as Parquet files under their table's folder, with what a commit has to say about each.

A file holds one event day of one offset range. Nothing refers to it until it is committed: one that never is, is an orphan, which
vacuum takes.
"""

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction
from pyarrow import fs

from jobs import store

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_STATISTICS = ("event_time", "known_time", "topic_epoch", "kafka_partition", "kafka_offset", "batch")
"""The columns by which readers skip files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A Parquet file, as its commit describes it."""

    path: str
    """Relative to the table."""
    size: int
    rows: int
    event_date: date | None
    """The partition; None for dead letters."""
    modified: int
    """Milliseconds since 1970."""
    statistics: str
    """Rows, and least, greatest and number of nulls of some columns, as JSON, as Delta has it."""

    def action(self) -> AddAction:
        """The file as a commit adds it."""
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values={"event_date": str(self.event_date) if self.event_date else None},
            modification_time=self.modified,
            data_change=True,
            stats=self.statistics,
        )


class Folder:
    """A table's folder, on a disk or in an object store."""

    def __init__(self, table_uri: str) -> None:
        self._uri = table_uri

    @cached_property
    def _place(self) -> tuple[fs.FileSystem, str]:
        return store.place(self._uri)

    def write(self, rows: pa.Table, *, prefix: str) -> list[Written]:
        """Write rows, which have all columns of the table, one file for each event day."""
        with store.asked(f"rows of {self._uri} could not be written"):
            return [self._write(part, day, prefix) for day, part in _by_day(rows)]

    def open(self, path: str) -> pa.NativeFile:
        """A file of the table, to be read."""
        filesystem, base = self._place
        return filesystem.open_input_file(f"{base}/{path}")

    def _write(self, rows: pa.Table, day: date | None, prefix: str) -> Written:
        filesystem, base = self._place
        folder = f"event_date={day or _NULL_FOLDER}"
        path = f"{folder}/{prefix}-{uuid.uuid4().hex[:8]}.parquet"
        if isinstance(filesystem, fs.LocalFileSystem):
            Path(base, folder).mkdir(parents=True, exist_ok=True)
        with filesystem.open_output_stream(f"{base}/{path}") as out:
            pq.write_table(rows, out, **parquet_settings(rows))
            size = out.tell()
        return Written(
            path=path, size=size, rows=len(rows), event_date=day, modified=int(time.time() * 1000), statistics=_statistics(rows)
        )


def count_days(rows: pa.Table) -> "Counter[tuple[Any, Any]]":
    """Rows by event day and known day."""
    days = pa.table({"event": rows.column("event_date"), "known": pc.cast(rows.column("known_time"), pa.date32())})
    found = days.group_by(["event", "known"]).aggregate([([], "count_all")])
    return Counter({(row["event"], row["known"]): row["count_all"] for row in found.to_pylist()})


_SAMPLE = 1_000
"""Rows in which a column's repeats are looked for."""


def parquet_settings(rows: pa.Table) -> dict[str, Any]:
    """How a file of events is encoded. Measured, this takes half the time and half the space of the writer's own choice."""
    dictionary, differences = [], {}
    for column in rows.schema:
        if pa.types.is_timestamp(column.type) or column.name == "kafka_offset":
            # Neighbours are near each other.
            differences[column.name] = "DELTA_BINARY_PACKED"
        elif pa.types.is_nested(column.type):
            continue
        elif pc.count_distinct(sample := rows.column(column.name).slice(0, _SAMPLE), mode="all").as_py() <= len(sample) / 2:
            dictionary.append(column.name)
    # The Arrow schema beside Parquet's own says nothing that readers of the table need, and costs a third of the time.
    return {"compression": "snappy", "store_schema": False, "use_dictionary": dictionary, "column_encoding": differences}


def completed(rows: pa.Table, schema: pa.Schema, same: dict[str, Any]) -> pa.Table:
    """The rows with all columns of the table: those of their own, what is the `same` in all of them, null for the others."""
    columns = [
        rows.column(column.name)
        if column.name in rows.column_names
        else pa.repeat(pa.scalar(same.get(column.name), column.type), len(rows))
        for column in schema
    ]
    return pa.table(columns, schema=schema)


def _by_day(rows: pa.Table) -> Iterator[tuple[date | None, pa.Table]]:
    """The rows of each event day, in their order, without the partition's column."""
    days = rows.column("event_date")
    rest = rows.drop_columns(["event_date"])
    if len(unique := pc.unique(days)) == 1:
        yield unique[0].as_py(), rest
        return
    # Sorting once and slicing beats one filter for each of many days. Arrow's sort of several keys keeps offsets in order.
    order = pc.sort_indices(
        pa.table({"day": days, "offset": rows.column("kafka_offset")}), [("day", "ascending"), ("offset", "ascending")]
    )
    days, rest = days.take(order).combine_chunks(), rest.take(order)
    start = 0
    for run in pc.run_end_encode(days).run_ends.to_pylist():
        yield days[start].as_py(), rest.slice(start, run - start)
        start = run


def _statistics(rows: pa.Table) -> str:
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in _STATISTICS:
        column = rows.column(name)
        nulls[name] = column.null_count
        if column.null_count < len(column):
            ends = pc.min_max(column).as_py()
            least[name], greatest[name] = _plain(ends["min"]), _plain(ends["max"])
    return json.dumps({"numRecords": len(rows), "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _plain(value: Any) -> Any:
    """Instants as Delta writes them."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value
