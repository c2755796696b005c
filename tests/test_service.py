"""The continuous ingest: it commits every so often, stops cleanly, outlives a broker's absence, and tells Prometheus."""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from small_topic import apart, assert_accounted, create, declare, offsets, order, produce, recreate, until, version

from jobs import batches, kafka, lake
from jobs.errors import RetryError
from jobs.kafka import client_settings
from jobs.local import services
from jobs.local.ports import Ports
from pipelines.declare import Source

pytestmark = pytest.mark.kafka


def held(source: Source) -> int:
    return len(offsets(source)) if lake.load(batches.events_uri(source)) else 0


def stop(service: "subprocess.Popen[str]") -> str:
    service.send_signal(signal.SIGTERM)
    _, errors = service.communicate(timeout=30)
    assert service.returncode == 0, errors
    return errors


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def scraped(port: int) -> dict[str, float]:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_it_commits_again_and_again_and_stops_when_told(source: Source) -> None:
    port = free_port()
    produce(source, [order(n) for n in range(10)])
    service = apart(source, continuous=True, every=0.5, metrics=str(port))
    try:
        until(lambda: held(source) == 10)
        produce(source, [order(n) if n % 5 else b"{" for n in range(10, 20)])
        until(lambda: held(source) == 20)
        until(lambda: scraped(port)['penstock_ingest_records_total{outcome="dead",source="orders"}'] == 2)
        told = scraped(port)
        assert told['penstock_ingest_records_total{outcome="good",source="orders"}'] == 18
        assert told['penstock_ingest_lag_records{partition="0",source="orders"}'] == 0
        assert 0 <= told['penstock_ingest_freshness_seconds{source="orders"}'] < 30
        assert told['penstock_ingest_batches_total{source="orders"}'] == 2
    finally:
        stop(service)
    assert batches.read_up_to(source) is not None
    assert_accounted(source)


def test_what_weighs_much_is_committed_sooner(source: Source) -> None:
    service = apart(source, continuous=True, every=600.0, megabytes=0.02)
    try:
        until(lambda: lake.load(batches.ranges_uri(source)) is not None)
        standing = version(source)
        produce(source, [order(n) for n in range(20)])
        time.sleep(3)
        # Twenty records of 500 bytes, as they are taken to weigh, are too few.
        assert version(source) == standing
        produce(source, [order(n) for n in range(20, 60)])
        until(lambda: held(source) == 60)
    finally:
        stop(service)
    assert_accounted(source)


def test_a_batch_at_hand_is_committed_before_it_stops(source: Source) -> None:
    produce(source, [order(n) for n in range(60_000)])
    service = apart(source, continuous=True, every=600.0)
    # Its rows are of 2,500 days, so it writes for a while.
    until(lambda: any(Path(batches.events_uri(source)).glob("event_date=*/*.parquet")))
    assert held(source) == 0
    stop(service)
    assert held(source) == 60_000
    assert_accounted(source)


def test_what_a_person_must_decide_ends_it(source: Source) -> None:
    produce(source, [order(n) for n in range(5)])
    service = apart(source, continuous=True, every=0.3)
    until(lambda: held(source) == 5)
    recreate(source)
    _, errors = service.communicate(timeout=60)
    assert (service.returncode, "--accept-new-topic" in errors) == (65, True), errors


def test_a_topic_that_is_away_is_waited_for_but_not_at_the_start(source: Source) -> None:
    port = free_port()
    produce(source, [order(n) for n in range(5)])
    service = apart(source, continuous=True, every=0.3, metrics=str(port))
    until(lambda: held(source) == 5)
    admin = AdminClient(client_settings())
    admin.delete_topics([source.topic])[source.topic].result(10)
    until(lambda: scraped(port)["penstock_ingest_failed_rounds_total"] >= 2)
    assert service.poll() is None
    create(source.topic)
    _, errors = service.communicate(timeout=60)
    assert (service.returncode, "created again" in errors) == (65, True), errors
    service = apart(declare("nowhere"), continuous=True)
    _, errors = service.communicate(timeout=60)
    assert (service.returncode, "there is no topic 'nowhere'" in errors) == (64, True), errors


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """A lake on a disk that fails meanwhile, with an error of the operating system that may pass."""
    aside = folder.with_name("aside")
    folder.mkdir(exist_ok=True)
    folder.rename(aside)
    folder.symlink_to(folder)
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


LAG = 'penstock_ingest_lag_records{partition="0",source="orders"}'


def test_it_outlives_a_store_that_is_away_for_a_while(source: Source, tmp_path: Path) -> None:
    port = free_port()
    produce(source, [order(n) for n in range(10)])
    service = apart(source, continuous=True, every=0.2, megabytes=0.001, metrics=str(port))
    try:
        until(lambda: held(source) == 10)
        # The round has ended, and told its figures.
        until(lambda: LAG in scraped(port))
        with away(tmp_path / "lake"):
            produce(source, [order(n) for n in range(10, 17)])
            until(lambda: scraped(port)["penstock_ingest_failed_rounds_total"] >= 2)
            assert scraped(port)[LAG] == 7, "what waits is told, whatever fails"
            time.sleep(4)
            assert service.poll() is None
            assert scraped(port)["penstock_ingest_failed_rounds_total"] < 6, "it waits longer after each failure"
            assert scraped(port)[LAG] == 7
        until(lambda: held(source) == 17)
        until(lambda: scraped(port)[LAG] == 0)
    finally:
        stop(service)
    assert_accounted(source)


def test_what_it_does_not_know_is_no_lag(source: Source, tmp_path: Path) -> None:
    """The table may hold all that Kafka does: before it was looked at, nobody knows how much waits."""
    port = free_port()
    produce(source, [order(n) for n in range(50)])
    with away(tmp_path / "lake"):
        service = apart(source, continuous=True, every=600.0, megabytes=0.001, metrics=str(port))
        until(lambda: answers(port) and scraped(port)["penstock_ingest_failed_rounds_total"] >= 1)
        time.sleep(4)
        told = scraped(port)
        assert told["penstock_ingest_failed_rounds_total"] < 5 and LAG not in told
    try:
        until(lambda: held(source) == 50)
    finally:
        stop(service)
    assert_accounted(source)


def test_a_refusal_of_long_ago_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker refused us while it started, months ago; now it is slow."""
    state, ports = tmp_path / "state", Ports.free()
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", services.start(state, ["kafka"], ports)["KAFKA_BOOTSTRAP_SERVERS"])
    monkeypatch.setattr(kafka, "PATIENCE", 5.0)
    (broker,) = services.recorded(state, "kafka")
    try:
        create("orders")
        cluster = kafka.Cluster()
        cluster.topics(["orders"])
        cluster._heard.append(KafkaError(KafkaError._AUTHENTICATION, "refused while it started"))
        assert set(cluster.topics(["orders"])) == {"orders"}
        os.kill(broker.pid, signal.SIGSTOP)
        # On a busy machine one of its threads may answer still.
        tasks = [task / "stat" for task in Path(f"/proc/{broker.pid}/task").iterdir()]
        while any(stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in tasks):
            time.sleep(0.01)
        with pytest.raises(RetryError, match="did not answer"):
            cluster.topics(["orders"])
    finally:
        os.kill(broker.pid, signal.SIGCONT)
        services.stop(state)


def test_an_address_that_is_taken_is_refused(source: Source) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        service = apart(source, continuous=True, metrics=str(taken.getsockname()[1]))
        _, errors = service.communicate(timeout=60)
    assert (service.returncode, "give an address that is free" in errors) == (64, True)


def test_it_outlives_a_broker_that_is_away_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, ports = tmp_path / "state", Ports.free()
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", services.start(state, ["kafka"], ports)["KAFKA_BOOTSTRAP_SERVERS"])
    source = declare()
    create(source.topic)
    produce(source, [order(n) for n in range(5)])
    service = apart(source, continuous=True, every=0.3)
    try:
        until(lambda: held(source) == 5)
        services.stop(state)
        time.sleep(2)
        assert service.poll() is None
        services.start(state, ["kafka"], ports)
        produce(source, [order(n) for n in range(5, 8)])
        until(lambda: held(source) == 8, seconds=40)
    finally:
        stop(service)
        services.stop(state)
    assert_accounted(source)
