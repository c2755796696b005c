"""A feature set as plain Parquet: `<p>/parquet/features_<set>/event_date=D/data.parquet`, see `jobs.plain`.

A file is made from the files of a version of the Delta table, as a stream, sorted by entity. Of runs that meet, the last to put
its file in place looks whether it is still the newest version's.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow import fs

from jobs import lake, plain, store
from jobs.errors import RetryError
from jobs.interval import Interval
from pipelines.declare import Pipeline

log = logging.getLogger(__name__)

ROWS = 65_536
"""Rows of each file that are held at once."""
TRIES = 10


def write(table_uri: str, version: int, days: Iterable[date], *, partition: str, order: Sequence[str]) -> int:
    """Put the files of the days in place, as they are in a version of the table. Returns the rows.

    Raises RetryError where the lake is away, or the days were written again each time.
    """
    rows: dict[date, int] = {}
    left = list(days)
    table = lake.load(table_uri, version)
    for _ in range(TRIES):
        assert table is not None
        put = plain.sources(table, partition)
        for day in left:
            try:
                rows[day] = _write(table, table_uri, put[day], day, partition, order)
            except FileNotFoundError:
                # Only what a newer version no longer needs is taken away.
                put.pop(day)
        table = lake.load(table_uri)
        assert table is not None
        newest = plain.sources(table, partition)
        left = [day for day in left if put.get(day) != newest[day]]
        if not left:
            return sum(rows.values())
        log.info("%s was written while its plain files were: %d days are copied again", table_uri, len(left))
    raise RetryError(f"{table_uri} was written again each of {TRIES} times that it was copied. Run this one again.")


def fill(pipeline: Pipeline, interval: Interval) -> dict[str, int]:
    """Make the plain files that computed days lack, or that show other rows than the table, because their sets did not ask for
    them then. Returns the days by set."""
    made: dict[str, int] = {}
    for declared, table, days in plain.missing(pipeline, interval):
        name = f"features_{declared.name}"
        write(table.table_uri, table.version(), days, partition="event_date", order=declared.entity)
        made[name] = len(days)
    return made


def _write(table: DeltaTable, table_uri: str, paths: list[str], day: date, partition: str, order: Sequence[str]) -> int:
    """Make the day's file and put it in place."""
    declared = pa.schema(table.schema().to_arrow())
    schema = pa.schema([field for field in declared if field.name != partition], metadata=plain.made_of(paths))
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
