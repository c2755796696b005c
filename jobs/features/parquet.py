"""A feature set as plain Parquet: `<p>/parquet/features_<set>/event_date=D/data.parquet`, see `jobs.plain`.

A file is made from the files of a version of the Delta table, as a stream, sorted by entity. Of runs that meet, the last to put
its file in place looks whether it is still the newest version's.
"""

import logging
from collections.abc import Iterator, Sequence
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow import fs

from jobs import lake, plain, store
from jobs.errors import RetryError
from jobs.features.tables import Output
from jobs.interval import Interval

log = logging.getLogger(__name__)

ROWS = 65_536
"""Rows of each file that are held at once."""
TRIES = 10


def write(output: Output, table_uri: str, version: int, days: Interval | None = None) -> int:
    """Put the files of an output's days (or of `days`) in place, as they are in a version. Returns the rows.

    Raises RetryError where the lake is away, or the days were written again each time.
    """
    return sum(_put(table_uri, version, day, output.partition, output.order) for day in (days or output.days).days())


def missing(table_uri: str, days: Interval) -> list[date]:
    """The days that have no file: computed before the set asked for plain files."""
    filesystem, base = store.place(plain.folder(table_uri))
    with store.asked(f"the files of {table_uri} could not be looked at"):
        found = filesystem.get_file_info([f"{base}/event_date={day}/{plain.FILE}" for day in days.days()])
    return [day for day, info in zip(days.days(), found, strict=True) if info.type != fs.FileType.File]


def _put(table_uri: str, version: int, day: date, partition: str, order: Sequence[str]) -> int:
    table = lake.load(table_uri, version)
    for _ in range(TRIES):
        assert table is not None
        paths = _paths(table, partition, day)
        try:
            rows = _write(table, table_uri, paths, day, partition, order)
        except FileNotFoundError:
            # Only a newer version's vacuum takes files away.
            log.info("%s, %s: files of version %d are gone; taking the newest version", table_uri, day, table.version())
            table = lake.load(table_uri)
            continue
        table = lake.load(table_uri)
        assert table is not None
        if _paths(table, partition, day) == paths:
            return rows
    raise RetryError(f"{table_uri}, {day}, was written again each of {TRIES} times that it was copied. Run this one again.")


def _paths(table: DeltaTable, partition: str, day: date) -> list[str]:
    actions = pa.table(table.get_add_actions(flatten=True))
    ours = pc.equal(actions[f"partition.{partition}"].cast(pa.date32()), pa.scalar(day))
    return sorted(actions.filter(ours)["path"].to_pylist())


def _write(table: DeltaTable, table_uri: str, paths: list[str], day: date, partition: str, order: Sequence[str]) -> int:
    """Make the day's file and put it in place."""
    declared = pa.schema(table.schema().to_arrow())
    schema = pa.schema([field for field in declared if field.name != partition])
    filesystem, base = store.place(table_uri)
    target = f"{plain.folder(table_uri)}/{partition}={day}"
    rows = 0
    with (
        plain.placed(target) as part,
        store.asked(f"the files of {table_uri} could not be copied"),
        pq.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        for block in merged([_blocks(filesystem, f"{base}/{path}", schema) for path in paths], order):
            writer.write_table(block)
            rows += block.num_rows
    return rows


def _blocks(filesystem: fs.FileSystem, path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    with filesystem.open_input_file(path) as file:
        # Spark may have written instants with nanoseconds.
        for batch in pq.ParquetFile(file, coerce_int96_timestamp_unit="us").iter_batches(ROWS, columns=schema.names):
            if batch.num_rows:
                yield pa.Table.from_batches([batch]).select(schema.names).cast(schema)


def merged(files: Sequence[Iterator[pa.Table]], order: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of files that are sorted each, sorted together. Of each file one block is held at a time."""
    heads: dict[int, pa.Table] = {}
    ended: set[int] = set()
    keys = [(name, "ascending") for name in order]
    while True:
        for number, file in enumerate(files):
            if number not in heads and number not in ended:
                block = next(file, None)
                if block is None:
                    ended.add(number)
                else:
                    heads[number] = block
        if not heads:
            return
        if len(heads) == 1 and len(ended) == len(files) - 1:
            yield heads.popitem()[1]
            continue
        tagged = pa.concat_tables(_tagged(block, number) for number, block in heads.items()).sort_by(
            [*keys, ("__last", "ascending")]
        )
        # What is still to come of a file lies behind its last row here: up to the first such row, all is in order.
        end = pc.index(tagged["__last"], True).as_py() + 1
        yield tagged.slice(0, end).drop_columns(["__last", "__file"])
        rest = tagged.slice(end)
        for number in list(heads):
            left = rest.filter(pc.equal(rest["__file"], number)).drop_columns(["__last", "__file"])
            if left.num_rows:
                heads[number] = left
            else:
                del heads[number]


def _tagged(block: pa.Table, number: int) -> pa.Table:
    last = pa.array([False] * (block.num_rows - 1) + [True])
    return block.append_column("__last", last).append_column("__file", pa.repeat(pa.scalar(number, pa.int32()), block.num_rows))
