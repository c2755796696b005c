"""One range read from Kafka: the offsets without a record, records with impossible clocks, and what can't be read at all."""

import random
import time
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import KafkaError, Message, Producer
from small_topic import MORNING, assert_accounted, create, decided, declare, ingest, offsets, order, produce, rows

from jobs import record, stream
from jobs.errors import RetryError
from jobs.ingest import holes, plan, reader
from jobs.ingest.ranges import Range
from jobs.ingest.reader import Reader
from jobs.kafka import Cluster, client_settings
from pipelines.declare import Source

FAR = 10**10


def judged(
    missing: list[tuple[int, int]], seen: set[int], first: int, erased: list[tuple[int, int]]
) -> list[tuple[int, int, str]]:
    """The spans, one offset after the other."""
    found: list[tuple[int, int, str]] = []
    for offset in (offset for start, end in missing for offset in range(start, end)):
        if any(start <= offset < end for start, end in erased):
            reason = "erased"
        elif offset in seen:
            reason = "aborted"
        else:
            reason = "expired" if offset < first else "marker"
        if found and found[-1][1:] == (offset, reason):
            found[-1] = (found[-1][0], offset + 1, reason)
        else:
            found.append((offset, offset + 1, reason))
    return found


def cuts(draw: random.Random, length: int) -> list[tuple[int, int]]:
    """Ascending spans below `length`; some touch."""
    edges = sorted(draw.choices(range(length), k=2 * draw.randrange(6)))
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


@pytest.mark.parametrize("seed", range(300))
def test_spans_are_those_of_offset_after_offset(seed: int) -> None:
    draw = random.Random(seed)
    length, first = draw.randrange(1, 60), draw.randrange(20)
    missing = cuts(draw, length)
    # What a rebuild and an erasure accounted may overlap, in any order.
    erased = [*cuts(draw, length), *cuts(draw, length)]
    seen = sorted(draw.sample(range(first, first + 60), draw.randrange(40)))
    at = draw.randrange(len(seen) + 1)
    blocks = [np.array(block, np.int64) for block in (seen[:at], seen[at:])]
    told = holes.classify(missing, blocks, first=first, compacted=False, erased=erased)
    assert told == judged(missing, set(seen), first, erased)


@pytest.mark.parametrize("first", [FAR, 0])
def test_a_gap_as_long_as_a_topics_past_costs_nothing(first: int) -> None:
    """What retention took from a long-lived topic, and what compaction took from its head."""
    began = time.monotonic()
    tracemalloc.start()
    try:
        told = holes.classify(
            [(0, FAR), (FAR + 5, FAR + 7)],
            [np.array([FAR + 4, FAR + 5])],
            first=first,
            compacted=True,
            erased=[(10, 20)],
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    reason = "expired" if first else "compacted"
    assert told == [
        *((0, 10, reason), (10, 20, "erased"), (20, FAR, reason)),
        *((FAR + 5, FAR + 6, "aborted"), (FAR + 6, FAR + 7, "compacted")),
    ]
    assert time.monotonic() - began < 0.1
    assert peak < 100_000


def test_near_gaps_are_read_again_together() -> None:
    missing = [(5, 6), (10, 12), (30, 31), (31, 40)]
    assert list(holes.stretches(missing, 0)) == missing
    assert list(holes.stretches(missing, 1)) == [(5, 6), (10, 12), (30, 40)]
    assert list(holes.stretches(missing, 5)) == [(5, 12), (30, 40)]
    assert list(holes.stretches([], 5)) == []


def planned(source: Source) -> Range:
    """The range of partition 0 that the next ingest would read."""
    made = plan.make(Cluster(), source, plan.reach(Cluster(), (source,))[source.name], "run")
    return made.ranges[0]


@pytest.mark.kafka
def test_the_first_ingest_of_a_long_lived_topic_accounts_for_its_past(source: Source) -> None:
    produce(source, [order(n) for n in range(3)])
    # A broker of a test has no past of this length, but the offsets may just as well begin below zero.
    work = replace(planned(source), start=-FAR)
    here = Reader()
    done = here.read(work)
    here.close()
    assert (done.good, done.spans) == (3, [(-FAR, 0, "expired")])


@pytest.mark.kafka
def test_only_the_gaps_are_read_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    producer = Producer(client_settings() | {"transactional.id": source.topic})
    producer.init_transactions()
    for number in range(30):
        producer.begin_transaction()
        produce(source, [order(number)] * draw.randrange(1, 40), producer=producer)
        producer.abort_transaction() if number % 3 == 0 else producer.commit_transaction()
    decided(source)
    work = planned(source)
    here = Reader()
    whole = here.read(work)
    again: list[tuple[int, int]] = []
    whole_read = stream.messages

    def noted(client: stream.Consumer, topic: str, partition: int, start: int, end: int) -> object:
        again.append((start, end))
        return whole_read(client, topic, partition, start, end)

    monkeypatch.setattr(reader, "messages", noted)
    monkeypatch.setattr(reader, "NEAR", 0)
    apart = here.read(work)
    here.close()
    assert apart.spans == whole.spans and {reason for _, _, reason in apart.spans} == {"aborted", "marker"}
    # An aborted transaction and the marker behind it are one gap, with the marker before it where it is the next.
    assert again[0] == (work.start, work.end)
    assert sum(end - start for start, end in again[1:]) == sum(end - start for start, end, _ in apart.spans)


@pytest.mark.kafka
@pytest.mark.parametrize("stamp", [1364810400000 * 1000, 2**63 - 1, int(datetime(2200, 1, 1, tzinfo=UTC).timestamp() * 1000), -1])
def test_a_record_from_an_impossible_time_is_a_dead_letter(source: Source, stamp: int) -> None:
    """Microseconds where milliseconds were meant, among others."""
    create(f"{source.topic}-any", 1, message_timestamp_after_max_ms=str(2**63 - 1))
    future = declare(f"{source.topic}-any", name="future")
    produce(future, [order(0), order(1), b"{"], timestamp=stamp)
    produce(future, [order(2)])
    told = ingest(future)
    assert told["reasons"] == {"implausible known time": 2, "not JSON": 1}
    assert offsets(future, "rejected_reason is null") == [(0, 3)]
    kept = datetime.fromtimestamp((record.LATEST if stamp > 0 else 0) / 1e6, UTC)
    assert {row["known_time"] for row in rows(future)} == {kept, MORNING}
    assert {row["known_time"] for row in rows(future, where="rejected_reason is null")} == {MORNING}
    assert kept.date() in (date(1970, 1, 1), date(2101, 1, 1))
    assert_accounted(future)


@pytest.mark.kafka
def test_a_record_that_can_not_be_decompressed_is_not_passed_over(
    source: Source, tmp_path_factory: pytest.TempPathFactory
) -> None:
    produce(source, [order(n) for n in range(3)])
    batch = Producer(client_settings() | {"compression.type": "gzip", "linger.ms": 100})
    produce(source, [order(n, text="x" * 300) for n in range(3, 9)], producer=batch)
    produce(source, [order(9)])
    _damage(tmp_path_factory.getbasetemp().glob(f"kafka[0-9]*/**/{source.topic}-0/*.log"))
    with pytest.raises(RetryError, match="can't read a record"):
        ingest(source)


def _damage(segments: Iterable[Path]) -> None:
    """Overwrite bytes within the one compressed batch of a partition."""
    gzip = b"\x1f\x8b\x08"
    (log,) = (segment for segment in segments if gzip in segment.read_bytes())
    with log.open("r+b") as file:
        file.seek(log.read_bytes().index(gzip) + 20)
        file.write(b"\xff" * 16)


def told(code: int, *, topic: str | None = "t", partition: int = 0, offset: int = 7) -> Message:
    """What Kafka's client has to say."""
    return Message(topic=topic, partition=partition, offset=offset, error=KafkaError(code))


def test_what_passes_is_waited_for_and_what_may_lose_a_record_is_not() -> None:
    for passing in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError.NOT_LEADER_FOR_PARTITION):
        assert stream._ended("t/0", [told(passing)], ("t", 0)) is None
    # Reading by assignment needs no group, so no right to one.
    assert stream._ended("t/0", [told(KafkaError.GROUP_AUTHORIZATION_FAILED, topic=None)], ("t", 0)) is None
    for losing in (KafkaError._BAD_MSG, KafkaError._NOT_IMPLEMENTED, KafkaError._BAD_COMPRESSION, KafkaError.MSG_SIZE_TOO_LARGE):
        with pytest.raises(RetryError, match="can't read a record"):
            stream._ended("t/0", [told(losing)], ("t", 0))
    assert stream._ended("t/0", [told(KafkaError._PARTITION_EOF)], ("t", 0)) == 7
    with pytest.raises(AssertionError, match="another partition"):
        stream._ended("t/0", [told(KafkaError._PARTITION_EOF, partition=1)], ("t", 0))


class _Complaining:
    """A client that only ever says that its connection is lost."""

    def assign(self, _: object) -> None:
        """Nothing is asked for."""

    def consume(self, *_: object, **__: object) -> list[Message]:
        """What a lost connection brings."""
        time.sleep(0.05)
        return [told(KafkaError._TRANSPORT)]


def test_complaints_are_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STALLED", 0.5)
    with pytest.raises(RetryError, match="nothing came from Kafka"):
        list(stream.messages(_Complaining(), "t", 0, 0, 10))  # type: ignore[arg-type]
