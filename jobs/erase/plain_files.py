"""A table's plain Parquet files, see `jobs.plain`: those that hold rows of the person are written again without them."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs import plain, store
from jobs.erase import rewriting
from jobs.erase.derived import Target


def count(target: Target) -> int:
    """How many of their rows have to go."""
    return sum(rows for _, rows in _doomed(target))


def erase(target: Target) -> int:
    """Take the rows out, after they went from the table itself, so that nobody copies them again. Returns how many."""
    folder = plain.folder(target.uri)
    erased = 0
    for path, rows in _doomed(target):
        filesystem, base = store.place(folder)
        with filesystem.open_input_file(f"{base}/{path}") as stream:
            schema = pq.ParquetFile(stream).schema_arrow
        with (
            plain.placed(f"{folder}/{path.rpartition('/')[0]}") as part,
            pq.ParquetWriter(part, schema, compression="zstd") as writer,
        ):
            for block in rewriting.blocks(folder, path):
                writer.write_table(block.filter(pc.invert(pa.array(target.test(block)))))
        erased += rows
    return erased


def _doomed(target: Target) -> list[tuple[str, int]]:
    folder = plain.folder(target.uri)
    counted = ((path, rewriting.count(folder, path, target.columns, target.test)) for path in plain.files(target.uri))
    return [(path, rows) for path, rows in counted if rows]
