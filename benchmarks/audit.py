"""The audit's look at the table, as one process: `python -m benchmarks.audit SOURCE POSITIONS`, after `build` made the table.

Kafka's part is left out, a few questions about where partitions end: a topic of this size would take longer to fill than all else
takes. Prints what it took, as JSON.
"""

import base64
import json
import pickle
import sys
import time
from typing import Any

from benchmarks.records import PARTITIONS, START, Load
from jobs.audit import findings, positions
from jobs.audit.positions import Partition

FILE_ROWS = 500_000
"""About what the ingest writes into one file."""


def build(positions_wanted: int) -> Load:
    """An events table in the lake, as an ingest of so many records leaves it, but for the fields, which are null."""
    import pyarrow as pa

    from jobs import batches, contract
    from jobs.decode import events_schema
    from jobs.files import Folder

    load = Load(records=positions_wanted)
    table = contract.table(load.source)
    schema = events_schema(load.source)
    folder = Folder(batches.events_uri(load.source))
    same = {
        "event_time": START,
        "known_time": START,
        "topic": load.topic,
        "topic_epoch": 0,
        "batch": "benchmark",
        "event_date": START.date(),
    }
    actions: list[Any] = []
    each = positions_wanted // PARTITIONS
    for number in range(PARTITIONS):
        for start in range(0, each, FILE_ROWS):
            rows = min(FILE_ROWS, each - start)
            given = {"kafka_offset": pa.array(range(start, start + rows), pa.int64())}
            given |= {
                name: pa.repeat(pa.scalar(value, schema.field(name).type), rows)
                for name, value in (same | {"kafka_partition": number}).items()
            }
            columns = [given[field.name] if field.name in given else pa.nulls(rows, field.type) for field in schema]
            written = folder.write(pa.table(columns, schema=schema), prefix=f"benchmark-{number}-{start}")
            actions += [one.action() for one in written]
    table.create_write_transaction(actions, "append", schema, ["event_date"])
    return load


def main() -> None:
    """Read every position and judge it. Ends with 1 where not all are there."""
    from jobs import batches, lake

    source, wanted = pickle.loads(base64.b64decode(sys.argv[1])), int(sys.argv[2])
    began = time.monotonic()
    table = lake.load(batches.events_uri(source))
    assert table is not None
    partitions = {(0, number): Partition(epoch=0, number=number, next=wanted // PARTITIONS) for number in range(PARTITIONS)}
    rows = positions.read(table, partitions)
    found = [finding for partition in partitions.values() for finding in findings.of_partition(partition)]
    done = time.monotonic()
    if rows != wanted or found:
        raise SystemExit(f"{rows} rows instead of {wanted}, and {len(found)} findings: {[str(one) for one in found[:3]]}")
    print(json.dumps({"session": 0.0, "work": done - began}))


if __name__ == "__main__":
    main()
