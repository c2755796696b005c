"""Rows out of a Delta table without a word of them in its log.

`DELETE` would write its condition there. So the files that hold such rows are written again without them, and one commit swaps
them: compare and set against whoever commits meanwhile. Of the new files the log learns the ends of positions and instants alone.
"""

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

from jobs import lake, store
from jobs.erase.person import Mask
from jobs.files import parquet_settings

log = logging.getLogger(__name__)

_ROWS = 65_536
Test = Callable[[pa.Table], Mask]
"""Which of some rows have to go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A file that a table holds."""

    path: str
    size: int
    partition: dict[str, str | None]


def held(table: DeltaTable) -> list[Held]:
    """The files of a table, as a handle shows them."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = table.metadata().partition_columns
    return [
        Held(
            path=row["path"],
            size=row["size_bytes"],
            partition={name: None if row[f"partition.{name}"] is None else str(row[f"partition.{name}"]) for name in names},
        )
        for row in actions.to_pylist()
    ]


def blocks(table_uri: str, path: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """A file's rows, block by block: all columns, or those of `columns` that it has."""
    filesystem, base = store.place(table_uri)
    with filesystem.open_input_file(f"{base}/{path}") as stream:
        file = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
        names = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(_ROWS, columns=names):
            yield pa.Table.from_batches([batch])


def count(table_uri: str, path: str, columns: Sequence[str], test: Test) -> int:
    """How many rows of a file have to go."""
    return sum(int(test(block).sum()) for block in blocks(table_uri, path, columns))


def swap(
    table_uri: str,
    table: DeltaTable,
    doomed: Sequence[Held],
    test: Test,
    *,
    metadata: Mapping[str, Any],
    transactions: Mapping[str, int],
) -> None:
    """Write the files again without the rows for which the test holds, and commit.

    Raises CommitFailedError where anybody has committed since the handle was loaded.
    """
    now = int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = []
    for file in doomed:
        actions.append(RemoveAction(file.path, True, now, file.size, file.partition))
        written = _without(table_uri, file, test)
        if written is not None:
            actions.append(written)
    table.create_write_transaction(
        actions,
        mode="append",
        schema=table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=CommitProperties(
            app_transactions=[Transaction(name, version) for name, version in transactions.items()],
            custom_metadata=dict(metadata),
            max_commit_retries=0,
        ),
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
    )


def _without(table_uri: str, file: Held, test: Test) -> AddAction | None:
    """The file's other rows in a new file; None where there are none."""
    filesystem, base = store.place(table_uri)
    path = f"{file.path.rpartition('/')[0]}/rewritten-{uuid.uuid4().hex}.parquet".lstrip("/")
    statistics = _Statistics()
    writer = None
    with filesystem.open_output_stream(f"{base}/{path}") as out:
        for block in blocks(table_uri, file.path):
            rest = _instants(block.filter(pa.array(~test(block))))
            if not len(rest):
                continue
            writer = writer or pq.ParquetWriter(out, rest.schema, **parquet_settings(rest))
            writer.write_table(rest)
            statistics.add(rest)
        if writer is not None:
            writer.close()
        size = out.tell()
    if writer is None:
        store.delete(table_uri, path)
        return None
    return AddAction(
        path=path,
        size=size,
        partition_values=file.partition,
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=statistics.text(),
    )


def _instants(rows: pa.Table) -> pa.Table:
    """Spark's old form of instants has no zone; Delta's are UTC."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type) and column.type.tz is None:
            utc = pa.timestamp("us", tz="UTC")
            rows = rows.set_column(place, pa.field(column.name, utc), rows.column(place).cast(utc))
    return rows


@dataclass(slots=True)
class _Statistics:
    """What the log says of a file."""

    rows: int = 0
    least: dict[str, Any] = field(default_factory=dict)
    greatest: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        self.rows += len(rows)
        for name in set(lake.ENDS).intersection(rows.column_names):
            column = rows.column(name)
            self.nulls[name] = self.nulls.get(name, 0) + column.null_count
            if column.null_count < len(column):
                ends = pc.min_max(column).as_py()
                self.least[name] = min(self.least.get(name, ends["min"]), ends["min"])
                self.greatest[name] = max(self.greatest.get(name, ends["max"]), ends["max"])

    def text(self) -> str:
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {name: _plain(value) for name, value in self.least.items()},
                "maxValues": {name: _plain(value) for name, value in self.greatest.items()},
                "nullCount": self.nulls,
            }
        )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value if isinstance(value, int | str) else str(value)
