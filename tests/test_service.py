"""The continuous ingest: it commits every so often, stops cleanly, outlives a broker's absence, and tells Prometheus."""

import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from small_topic import apart, assert_accounted, create, declare, offsets, order, produce, recreate, version

from jobs import batches, lake
from jobs.local import services
from jobs.local.ports import Ports
from pipelines.declare import Source

pytestmark = pytest.mark.kafka


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


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
    until(lambda: lake.load(batches.events_uri(source)) is not None)
    stop(service)
    assert held(source) in (0, 60_000)
    assert_accounted(source)


def test_what_a_person_must_decide_ends_it(source: Source) -> None:
    produce(source, [order(n) for n in range(5)])
    service = apart(source, continuous=True, every=0.3)
    until(lambda: held(source) == 5)
    recreate(source)
    _, errors = service.communicate(timeout=60)
    assert service.returncode in (64, 65), errors


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
