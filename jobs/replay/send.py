"""Histories -> Kafka: topics made where they are missing, what Kafka holds already left out, the rest sent by known time.

What goes to a partition, and in which order, is a function of the command's arguments alone. So a replay that was cut off
goes on where it stopped: of each partition's sequence it skips what the partition holds with timestamps in the range, once
that has been read back and is the same.
"""

import logging
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from confluent_kafka import KafkaException, Producer  # noqa: TID253

from jobs.errors import DataError, RetryError, UsageError
from jobs.interval import Interval
from jobs.kafka import Cluster, Topic, client_settings, failed
from jobs.replay import held
from jobs.replay.history import History, milliseconds

log = logging.getLogger(__name__)

CONFIGURATION = {
    # History is older than any retention: the default would delete it within a minute.
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
    # Segments roll by the records' own time: a week of history would be a segment.
    "segment.ms": "315360000000",
}
_NEEDED = ("retention.ms", "message.timestamp.type")

_SAY_EVERY = 5.0
"""Seconds between two lines of progress."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One partition's share of a history."""

    history: History
    partition: int
    records: list[int]
    """Indexes into the history, ascending."""
    skip: int = 0
    """How many of them Kafka holds already."""


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: the same in each version of this project, whatever a client library thinks."""
    return zlib.crc32(key) % partitions


def topics(cluster: Cluster, histories: Sequence[History]) -> dict[str, Topic]:
    """The histories' topics, made where they are missing. Raises UsageError for one that would lose or redate them."""
    names = [history.source.topic for history in histories]
    found = cluster.topics(names)
    for history in histories:
        topic = history.source.topic
        if topic not in found:
            log.info("creating topic %s", topic)
            cluster.create(topic, partitions=history.partitions, configuration=CONFIGURATION)
            continue
        actual = cluster.configuration(topic)
        for name in _NEEDED:
            if actual[name] != CONFIGURATION[name]:
                raise UsageError(
                    f"topic {topic!r} has {name}={actual[name]}, and history needs {CONFIGURATION[name]}: "
                    "set it so, or delete the topic."
                )
        if len(found[topic].partitions) < history.partitions:
            raise UsageError(f"topic {topic!r} has fewer than {history.partitions} partitions: add some, or delete the topic.")
    deadline = time.monotonic() + 15
    while len(found := cluster.topics(names)) < len(names):
        if time.monotonic() > deadline:
            raise RetryError(
                f"Kafka does not show the topics it has just made: {', '.join(sorted(set(names) - set(found)))}. Try again."
            )
        time.sleep(0.2)
    return found


def lanes(cluster: Cluster, topic: Topic, history: History, interval: Interval, *, again: bool) -> list[Lane]:
    """Each partition's share, with how much of it Kafka holds already.

    Raises DataError where a partition holds other records of these days, as an earlier replay of other days or with another
    --broken-every leaves them: skipping would lose some and double others. And where it holds later records but not all of
    these: what is sent now would stand behind them, and the next replay could not tell what is there.
    """
    shares: list[list[int]] = [[] for _ in range(history.partitions)]
    for index, key in enumerate(history.keys):
        shares[partition_of(key, history.partitions)].append(index)
    if again:
        return [Lane(history, partition, share) for partition, share in enumerate(shares)]
    start, end = milliseconds(interval)
    first, after, newest = cluster.since(topic, start), cluster.since(topic, end), cluster.newest(topic)
    found = []
    for partition, share in enumerate(shares):
        skip = held.prefix(history, share, partition, first[partition], after[partition], interval)
        if skip < len(share) and newest[partition] >= end:
            raise DataError(
                f"{topic.name}, partition {partition}, holds records known after {interval.last}, "
                f"but only {skip} of the {len(share)} of {interval}. "
                "A history is replayed in order of time: replay into new topics, or send them all with --again."
            )
        if (there := after[partition] - first[partition]) > len(share):
            log.warning(
                "%s, partition %d, holds %d records of %s, more than the %d of this history",
                topic.name,
                partition,
                there,
                interval,
                len(share),
            )
        found.append(Lane(history, partition, share, skip))
    return found


def send(work: Sequence[Lane]) -> int:
    """Send what is to be sent. Returns the number of records. Raises RetryError where the broker does not take them all."""
    total = sum(len(lane.records) - lane.skip for lane in work)
    if not total:
        return 0
    failures: list[Any] = []
    producer = Producer(
        client_settings()
        | {
            "acks": "all",
            "enable.idempotence": True,
            # Better to stop than to leave a hole that a later replay would fill with the wrong records.
            "enable.gapless.guarantee": True,
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "compression.type": "lz4",
            "message.timeout.ms": 60_000,
            "delivery.report.only.error": True,
        }
    )

    def report(error: Any, _: Any) -> None:
        failures.append(error)

    said = time.monotonic()
    sent = 0
    try:
        for topic, partition, key, value, known in _in_order(work):
            while True:
                try:
                    producer.produce(topic, value, key=key, partition=partition, timestamp=known, on_delivery=report)
                    break
                except BufferError:
                    producer.poll(0.1)
            sent += 1
            if sent % 5_000 == 0:
                producer.poll(0)
                if failures:
                    break
                if time.monotonic() - said > _SAY_EVERY:
                    said = time.monotonic()
                    log.info("%d of %d records sent", sent, total)
        left = producer.flush(60)
    except KafkaException as failure:
        raise failed(failure) from failure
    if failures or left:
        raise RetryError(
            f"Kafka did not take {len(failures) + left} records ({failures[0] if failures else 'no answer'}). "
            "Run it again: it goes on from there."
        )
    return sent


def _in_order(work: Sequence[Lane]) -> Iterator[tuple[str, int, bytes, bytes, int]]:
    """All that is to be sent, by known time, over all topics; a partition's own order stays."""
    lane_of = np.concatenate([np.full(len(lane.records) - lane.skip, number) for number, lane in enumerate(work)])
    index = np.concatenate([np.asarray(lane.records[lane.skip :], dtype=np.int64) for lane in work])
    known = np.concatenate([np.asarray(lane.history.times, dtype=np.int64)[lane.records[lane.skip :]] for lane in work])
    order = np.argsort(known, kind="stable")
    for number, at in zip(lane_of[order].tolist(), index[order].tolist(), strict=True):
        lane = work[number]
        yield lane.history.source.topic, lane.partition, lane.history.keys[at], lane.history.values[at], lane.history.times[at]
