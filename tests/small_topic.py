"""A small source on a topic of its own: to fill it, to ingest it here or in a process apart, and to look at what its tables
hold."""

import base64
import json
import pickle
import subprocess
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from jobs import batches, lake, stream
from jobs.command import Job
from jobs.errors import RetryError
from jobs.ingest import stage
from jobs.kafka import Cluster, client_settings
from pipelines.declare import Field, Source

MORNING = datetime(2013, 4, 1, 10, tzinfo=UTC)
FIELDS = (Field("id", required=True), Field("at", "timestamp", required=True), Field("cents", "int64"))


def declare(topic: str | None = None, *, name: str = "orders", **more: Any) -> Source:
    """A source of orders. Dead letters never fail it, unless a test says so."""
    settings = {"fields": FIELDS, "event_time": "at", "event_id": "id", "dead_letter_limit": 1.0}
    return Source(name=name, topic=topic or f"orders-{uuid.uuid4().hex[:8]}", **(settings | more))


def create(topic: str, partitions: int = 2, **configuration: str) -> None:
    """Make a topic that keeps what it gets; `cleanup_policy="compact"` and the like are its settings."""
    settings = {name.replace("_", "."): value for name, value in configuration.items()}
    Cluster().create(topic, partitions=partitions, configuration={"retention.ms": "-1"} | settings)


def drop(*topics: str) -> None:
    """Delete those of the topics that are there."""
    admin = AdminClient(client_settings())
    held = [topic for topic in topics if topic in admin.list_topics(timeout=10).topics]
    for future in admin.delete_topics(held).values() if held else ():
        future.result(10)


def recreate(source: Source, partitions: int = 2) -> None:
    """Delete the topic and create it again."""
    admin = AdminClient(client_settings())
    admin.delete_topics([source.topic])[source.topic].result(10)
    create(source.topic, partitions)
    for _ in range(100):
        # The broker's parts learn of both one after the other.
        cluster = Cluster()
        try:
            if len(cluster.bounds(cluster.topics([source.topic]).values())[source.topic]) == partitions:
                return
        except (KeyError, RetryError):
            pass
        time.sleep(0.1)
    raise AssertionError("the topic that was created again is not there")
    # The broker answers before all that it tells of topics is up to date.
    for _ in range(100):
        if source.topic in Cluster().topics([source.topic]):
            return
        time.sleep(0.1)
    raise AssertionError(f"{source.topic} did not come back")


def forget(source: Source, offset: int, partition: int = 0) -> None:
    """Delete the records below an offset, as retention does."""
    admin, gone = AdminClient(client_settings()), TopicPartition(source.topic, partition, offset)
    admin.delete_records([gone])[gone].result(10)


def wait_for_compaction(source: Source) -> None:
    """Give the cleaner closed segments until it has taken something of partition 0."""
    day = 86_400_000
    for number in range(60):
        # A segment closes when a record comes after its time.
        known = int(MORNING.timestamp() * 1000) + day * (number + 1)
        produce(source, [order(1000 + number)], key=b"tick", timestamp=known)
        time.sleep(0.5)
        cluster = Cluster()
        held = cluster.bounds(cluster.topics([source.topic]).values())[source.topic][0]
        reader = stream.consumer("read_committed")
        there = sum(len(some) for some in stream.messages(reader, source.topic, 0, held.earliest, held.end))
        reader.close()
        if there < held.end - held.earliest - 5:
            return
    raise AssertionError("the broker did not compact the topic within 30 s")


def order(number: int, **more: Any) -> bytes:
    """The record of an order, one hour after the one before."""
    return json.dumps(
        {"id": f"o{number}", "at": (MORNING + timedelta(hours=number)).isoformat(), "cents": number} | more
    ).encode()


def produce(
    source: Source, values: list[bytes | None], partition: int = 0, producer: Producer | None = None, **more: Any
) -> None:
    """Put records into a partition, with the keys k0, k1, … and known times of one hour after the other."""
    producer = producer or Producer(client_settings())
    refused: list[Any] = []

    def delivered(failure: Any, _: Any) -> None:
        if failure is not None:
            refused.append(failure)

    for number, value in enumerate(values):
        # Kafka refuses what claims to come from the future.
        known = int((MORNING + timedelta(hours=number % 10_000)).timestamp() * 1000)
        settings = {"key": b"k%d" % number, "timestamp": known} | more
        producer.produce(source.topic, value, partition=partition, on_delivery=delivered, **settings)
        producer.poll(0)
    assert producer.flush(30) == 0
    assert not refused, refused[0]


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


def decided(source: Source) -> None:
    """Wait until no transaction is open: a commit returns before its markers are written."""
    for _ in range(100):
        cluster = Cluster()
        bounds = cluster.bounds(cluster.topics([source.topic]).values())[source.topic]
        if not any(held.undecided for held in bounds.values()):
            return
        time.sleep(0.1)
    raise AssertionError("a transaction is still open")


def job(source: Source, run_id: str = "run", **options: Any) -> Job:
    """A call of `penstock ingest`."""
    return Job(command="ingest", options=Namespace(json=True, **options), run_id=run_id, source=(source,))


def ingest(source: Source, run_id: str = "run", **options: Any) -> dict[str, Any]:
    """Ingest the source in this process. Returns what the run report says of it."""
    made = job(source, run_id, **options)
    stage.run(made)
    return made.report["sources"][source.name]  # type: ignore[no-any-return]


def apart(source: Source, death: str = "none", **options: Any) -> "subprocess.Popen[str]":
    """An ingest as a process of its own, which kills itself at a step of our choice (see `_APART`)."""
    told = base64.b64encode(pickle.dumps((source, options))).decode()
    return subprocess.Popen([sys.executable, "-c", _APART, told, death], stderr=subprocess.PIPE, text=True)


STEPS = ("planned", "reading", "writing", "written", "committing", "committed", "accounting", "accounted")
"""Where a run can be made to die."""

DYING = """
import os, signal

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def after(owner, name):
    whole = getattr(owner, name)
    def first(*arguments, **options):
        whole(*arguments, **options)
        die()
    setattr(owner, name, first)
"""
"""How a process of ours, given as a text, dies: at once, or after a function has done its work."""

_APART = (
    DYING
    + """
import base64, pickle, sys
from argparse import Namespace
from collections.abc import Callable
from jobs import account, files, lake
from jobs.command import Job
from jobs.errors import JobError
from jobs.ingest import catch_up, local_engine, plan, reader, rebuild, stage, writer

match sys.argv[2]:
    case "planned":
        local_engine.read_here = die
    case "reading":
        writer.Writer.add = die
    case "writing":
        write, seen = files.Folder._write, []
        def second(self, rows, day, prefix):
            seen.append(day)
            return die() if len(seen) == 2 else write(self, rows, day, prefix)
        files.Folder._write = second
    case "written":
        after(writer.Writer, "flush")
    case "committing":
        catch_up.commit = rebuild.commit = die
    case "committed":
        after(catch_up, "commit")
        after(rebuild, "commit")
    case "accounting":
        account.write_deltalake = die
    case "accounted":
        after(account, "settle")
source, options = pickle.loads(base64.b64decode(sys.argv[1]))
try:
    stage.run(Job(command="ingest", options=Namespace(json=True, **options), run_id="apart", source=(source,)))
except JobError as failure:
    print(failure, file=sys.stderr)
    sys.exit(failure.exit_code)
"""
)


def rows(source: Source, columns: str = "*", where: str = "true") -> list[dict[str, Any]]:
    """Rows of the events table, in the order of their positions."""
    table = lake.load(batches.events_uri(source))
    assert table is not None
    order_by = "topic_epoch, kafka_partition, kafka_offset"
    return lake.query(table, f"select {columns} from t where {where} order by {order_by}").to_pylist()


def offsets(source: Source, where: str = "true") -> list[tuple[int, int]]:
    """Partition and offset of rows of the events table."""
    return [(row["kafka_partition"], row["kafka_offset"]) for row in rows(source, "kafka_partition, kafka_offset", where)]


def ranges(source: Source) -> list[dict[str, Any]]:
    """All rows of the account, those that a rebuild voided too."""
    table = lake.load(batches.ranges_uri(source))
    assert table is not None
    return lake.query(table, "select * from t order by version, kafka_partition, start_offset").to_pylist()


def spans(source: Source) -> dict[str, int]:
    """How many offsets have no row, by reason."""
    found: dict[str, int] = {}
    for row in ranges(source):
        for span in row["spans"]:
            found[span["reason"]] = found.get(span["reason"], 0) + span["end"] - span["start"]
    return found


def version(source: Source) -> int:
    """The events table's version."""
    table = lake.load(batches.events_uri(source))
    assert table is not None
    return table.version()


def assert_accounted(source: Source) -> None:
    """The account holds each partition's offsets from the start, without gap or overlap, and counts just what the table has."""
    reached: dict[tuple[int, int], int] = {}
    account = batches.ranges(source).to_pylist()
    for row in account:
        key = (row["topic_epoch"], row["kafka_partition"])
        without = sum(span["end"] - span["start"] for span in row["spans"])
        assert row["good"] + row["dead"] + without == row["end_offset"] - row["start_offset"]
        if row["start_offset"] == row["end_offset"]:
            continue  # A run that found nothing new.
        assert row["start_offset"] == reached.get(key, 0)
        reached[key] = row["end_offset"]
    assert sum(row["good"] for row in account) == len(offsets(source, "rejected_reason is null"))
    assert sum(row["dead"] for row in account) == len(offsets(source, "rejected_reason is not null"))
    counted = sum(count for row in account for _, _, count in json.loads(row["counts"]))
    assert counted == sum(row["good"] for row in account)
    buried = sum(count for row in account for _, _, count in json.loads(row["dead_counts"]))
    assert buried == sum(row["dead"] for row in account)
