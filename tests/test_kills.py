"""Proof by killing: a run dies at a named step or at any moment, another comes, and the table is Kafka, record by record."""

import random
import signal
import subprocess
import time
from typing import Any

import pytest
from small_topic import STEPS, apart, assert_accounted, decided, declare, ingest, order, produce, rows, version

from jobs import stream
from jobs.command import Job
from jobs.kafka import Cluster
from pipelines.declare import Source

pytestmark = pytest.mark.kafka


def in_kafka(source: Source) -> list[tuple[int, int, bytes | None]]:
    """What a reader of committed records finds, in order."""
    cluster = Cluster()
    bounds = cluster.bounds(cluster.topics([source.topic]).values())[source.topic]
    reader = stream.consumer("read_committed")
    found = [
        (number, message.offset(), message.value())
        for number, held in sorted(bounds.items())
        for some in stream.messages(reader, source.topic, number, held.earliest, held.end)
        for message in some
    ]
    reader.close()
    return found


def assert_is_kafka(source: Source) -> None:
    """Every record of Kafka is one row, with its values, in its place; and there is no other row."""
    there = in_kafka(source)
    here = rows(source)
    assert [(row["kafka_partition"], row["kafka_offset"]) for row in here] == [(number, offset) for number, offset, _ in there]
    for row, (_, offset, value) in zip(here, there, strict=True):
        if row["rejected_reason"] is None:
            expected = order(row["cents"])
            assert value == expected and row["id"] == f"o{row['cents']}", f"offset {offset} has another record's values"
        else:
            assert row["raw_value"] == value
    assert_accounted(source)


def audited(source: Source) -> None:
    """The audit, which reads Kafka too, has nothing to find."""
    from argparse import Namespace

    from jobs.audit import stage

    stage.run(Job(command="audit", options=Namespace(json=True, read_kafka=True), run_id="audit", source=(source,)))


def fill(source: Source, draw: random.Random, count: int) -> None:
    for partition in range(2):
        produce(source, [order(n) if draw.random() > 0.05 else b"\xff{" for n in range(draw.randrange(1, count))], partition)


def end(run: "subprocess.Popen[str]", seconds: float) -> int:
    """Kill the run after so many seconds, if it still runs. Returns its exit code."""
    try:
        return run.wait(seconds)
    except subprocess.TimeoutExpired:
        run.kill()
        return run.wait()
    finally:
        if run.stderr:
            run.stderr.close()


def murder(source: Source, seed: int, rounds: int) -> int:
    """Rounds of news, a run that dies somewhere, and now and then one that doesn't. Returns how many died."""
    draw = random.Random(seed)
    died = 0
    fastest = 1.0
    for number in range(rounds):
        fill(source, draw, 2_000)
        if number % 2:
            code = end(apart(source, STEPS[number // 2 % len(STEPS)]), 60)
            assert code == -signal.SIGKILL
        else:
            began = time.monotonic()
            code = end(apart(source), draw.uniform(0.6, 2.5) * fastest)
            fastest = max(fastest, min(3.0, time.monotonic() - began)) if code == 0 else fastest
        died += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL)
    ingest(source)
    return died


def test_a_run_killed_again_and_again_leaves_each_record_once(source: Source) -> None:
    assert murder(source, seed=1, rounds=4) >= 2
    assert_is_kafka(source)
    audited(source)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
def test_killed_fifty_times_and_more(source: Source, seed: int) -> None:
    # Four times twenty rounds: at least ten of each die at a named step, most of the others at a random moment.
    assert murder(source, seed=seed, rounds=26) >= 13
    assert_is_kafka(source)
    audited(source)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_ingests_at_once_fifty_times(source: Source) -> None:
    draw = random.Random(5)
    for _ in range(50):
        fill(source, draw, 400)
        pair = [apart(source), apart(source)]
        # The loser goes on from there, or may be tried again.
        assert {end(run, 120) for run in pair} <= {0, 75}
    ingest(source)
    assert_is_kafka(source)
    audited(source)


def test_a_service_killed_at_any_moment_goes_on_where_its_table_stands(source: Source) -> None:
    draw = random.Random(3)
    for _ in range(3):
        service = apart(source, continuous=True, every=0.05)
        for _ in range(3):
            fill(source, draw, 100)
            time.sleep(draw.random() / 2)
        assert end(service, draw.uniform(0.5, 1.5)) == -signal.SIGKILL
    ingest(source)
    assert version(source) > 1
    assert_is_kafka(source)


def test_a_retry_that_finds_its_earlier_self_doubles_nothing(source: Source) -> None:
    produce(source, [order(n) for n in range(500)])
    # Airflow gives a retry the run id of the try before; a pod that was thought dead may still be at work.
    earlier: Any = apart(source)
    later = apart(source)
    assert {end(earlier, 60), end(later, 60)} <= {0, 75}
    assert ingest(source, run_id="apart")["good"] == 0
    assert_is_kafka(source)


def test_transactions_survive_kills(source: Source) -> None:
    from confluent_kafka import Producer

    from jobs.kafka import client_settings

    producer = Producer(client_settings() | {"transactional.id": source.topic})
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        produce(source, [order(n) for n in range(20)], producer=producer)
        producer.commit_transaction() if number % 3 else producer.abort_transaction()
        decided(source)
        assert end(apart(source, STEPS[number]), 60) == -signal.SIGKILL
    ingest(source)
    assert_is_kafka(source)
    audited(source)
    other = declare(source.topic, name="other")
    ingest(other)
    assert_is_kafka(other)
