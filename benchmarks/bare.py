"""What one would write in an hour: `python -m benchmarks.bare TOPIC PARTITIONS`. Two processes, one commit, no checks whatever.

It reads what is there when it starts, into a table partitioned by day, as Penstock's is. A record that is no JSON ends it.
"""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition  # noqa: TID253

INSTANT = pa.timestamp("us", tz="UTC")
READ = pa.schema(
    [("id", pa.string()), ("at", pa.string()), ("count", pa.int64()), ("ratio", pa.float64()), ("kind", pa.string())]
)
TABLE = Path(os.environ["PENSTOCK_LAKE"]) / "bare"


def read(topic: str, partition: int) -> list[tuple[str, str, int, int]]:
    """Read one partition into files. Returns for each its path, day, size and rows."""
    settings = {"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"], "group.id": "bare", "enable.auto.commit": False}
    consumer = Consumer(settings)
    start, end = consumer.get_watermark_offsets(TopicPartition(topic, partition))
    consumer.assign([TopicPartition(topic, partition, start)])
    writers: dict[str, tuple[str, pq.ParquetWriter]] = {}
    rows: dict[str, int] = {}
    values: list[bytes] = []
    left = end - start
    while left:
        came = consumer.consume(min(10_000, left), 1.0)
        values += [message.value() for message in came]
        left -= len(came)
        if len(values) < 100_000 and left:
            continue
        table = pj.read_json(
            pa.BufferReader(b"\n".join(values)), pj.ReadOptions(block_size=8 << 20), pj.ParseOptions(explicit_schema=READ)
        )
        values = []
        at = table.column("at").cast(INSTANT)
        table = table.set_column(1, "at", at)
        days = at.cast(pa.date32())
        for day in pc.unique(days):
            some = table.filter(pc.equal(days, day))
            name = str(day)
            if name not in writers:
                path = f"event_date={name}/{partition}.parquet"
                (TABLE / path).parent.mkdir(parents=True, exist_ok=True)
                writers[name] = (path, pq.ParquetWriter(TABLE / path, some.schema, compression="snappy"))
            writers[name][1].write_table(some)
            rows[name] = rows.get(name, 0) + len(some)
    consumer.close()
    for _, writer in writers.values():
        writer.close()
    return [(path, name, (TABLE / path).stat().st_size, rows[name]) for name, (path, _) in writers.items()]


def main() -> None:
    """Read all partitions and commit the files."""
    topic, partitions = sys.argv[1], int(sys.argv[2])
    began = time.monotonic()
    # Forked before anything has threads: the quickest way to have two.
    with multiprocessing.Pool(2) as pool:
        written = [one for files in pool.starmap(read, [(topic, number) for number in range(partitions)], 1) for one in files]
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    schema = pa.schema(
        [*[field if field.name != "at" else pa.field("at", INSTANT) for field in READ], ("event_date", pa.date32())]
    )
    table = DeltaTable.create(str(TABLE), schema, partition_by=["event_date"])
    now = int(time.time() * 1000)
    actions = [
        AddAction(path, size, {"event_date": day}, now, True, json.dumps({"numRecords": n})) for path, day, size, n in written
    ]
    table.create_write_transaction(actions, "append", schema, ["event_date"])
    print(json.dumps({"session": 0.0, "work": time.monotonic() - began}))


if __name__ == "__main__":
    main()
