"""The embedded services: they really serve, stay small, and stopping ends just what was started."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jobs import jars
from jobs.errors import JobError, RetryError, UsageError
from jobs.local import airflow_server as airflow_service
from jobs.local import broker, process, services
from jobs.local.ports import HOST, Ports


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[process.Started]:
    """A process of ours that does nothing, with a child that lives on when it ends."""
    program = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"
    )
    started = process.start(
        "kafka", [sys.executable, "-c", program], port=1, log=tmp_path / "log", environment=os.environ, folder=tmp_path
    )
    deadline = time.monotonic() + 20
    while len(family(started)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    yield started
    process.end([started])


@pytest.fixture
def foreigner() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's process."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdin=subprocess.DEVNULL)
    yield child
    child.kill()
    child.wait()


def family(started: process.Started) -> list[psutil.Process]:
    """A process that was started, with all its descendants."""
    return process.carriers({started.token})


def test_end_ends_children_too(sleeper: process.Started) -> None:
    process.end([sleeper])
    assert family(sleeper) == []
    assert sleeper.process() is None


def test_end_finds_an_orphan(sleeper: process.Started) -> None:
    os.kill(sleeper.pid, 9)
    deadline = time.monotonic() + 20
    while sleeper.process() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(family(sleeper)) == 1
    process.end([sleeper])
    assert family(sleeper) == []


def test_a_process_starts_in_its_own_session_without_stdin(sleeper: process.Started) -> None:
    assert os.getsid(sleeper.pid) == sleeper.pid
    if sys.platform == "linux":
        assert Path(f"/proc/{sleeper.pid}/fd/0").readlink() == Path(os.devnull)


def test_stop_leaves_a_recycled_process_id_alone(tmp_path: Path, foreigner: subprocess.Popen[bytes]) -> None:
    since = psutil.Process(foreigner.pid).create_time()
    record = process.Started(
        name="kafka", pid=foreigner.pid, started=since - 100, token="of a process that is gone", port=1, command=[], log=""
    )
    record.write(tmp_path / "run" / "kafka.json")
    (tmp_path / "endpoints.json").write_text("{}")

    assert record.process() is None
    assert services.stop(tmp_path) == ["kafka"]

    assert foreigner.poll() is None
    assert not list((tmp_path / "run").iterdir())
    assert not (tmp_path / "endpoints.json").exists()


def test_stop_where_nothing_ever_ran(tmp_path: Path) -> None:
    assert services.stop(tmp_path / "nowhere") == []
    assert not (tmp_path / "nowhere").exists()


def test_a_taken_port_is_refused_before_any_work(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(UsageError) as refused:
            services.start(tmp_path, ["kafka"], dataclasses.replace(Ports.free(), kafka=port))
    message = str(refused.value)
    assert f"Port {port}" in message
    assert f"process {os.getpid()}" in message
    assert "\n" not in message
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("only", [[], ["kafka", "zookeeper"]])
def test_an_unknown_service_is_refused(tmp_path: Path, only: list[str]) -> None:
    with pytest.raises(UsageError, match="choose from kafka, mlflow, airflow"):
        services.start(tmp_path, only, Ports.free())


def test_a_service_that_dies_shows_the_end_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = [sys.executable, "-c", "print('the disk is made of cheese'); raise SystemExit(3)"]
    monkeypatch.setattr(broker, "prepare", lambda _state, _ports: program)
    with pytest.raises(RetryError) as failed:
        services.start(tmp_path, ["kafka"], Ports.free())
    assert "the disk is made of cheese" in str(failed.value)
    assert str(tmp_path / "logs" / "kafka.log") in str(failed.value)
    assert not list((tmp_path / "run").iterdir())
    assert not (tmp_path / "endpoints.json").exists()


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    with services._alone(tmp_path), pytest.raises(JobError, match="at work"):
        services.start(tmp_path, ["kafka"], Ports.free())


def test_free_ports_differ() -> None:
    ports = dataclasses.astuple(Ports.free())
    assert len(set(ports)) == len(ports)


def test_a_state_folder_that_kafka_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="comma"):
        broker.prepare(tmp_path / "a,b", Ports.free())


def test_spark_gets_only_what_its_wheel_lacks() -> None:
    resolved = [path.name.partition("_")[2] for path in jars.fetch("spark")]
    wheel = {jars.artifact(path.name) for path in jars.wheel_jars().glob("*.jar")}
    assert any(name.startswith("delta-spark_4.2_2.13-4.4.0") for name in resolved)
    assert any(name.startswith("delta-storage-4.4.0") for name in resolved)
    assert {jars.artifact(name) for name in resolved}.isdisjoint(wheel)


def test_jars_come_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    jars.fetch("kafka")
    monkeypatch.setattr(jars, "_download", lambda _: pytest.fail("downloads again"))
    assert any("kafka-tools-4.2.2" in path.name for path in jars.fetch("kafka"))


def test_a_failed_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fail(_jars: jars.JarSet, work: Path) -> list[Path]:
        (work / "half.jar").touch()
        raise RetryError("no network")

    monkeypatch.setattr(jars, "_resolve", fail)
    with pytest.raises(RetryError):
        jars.fetch("kafka")
    assert [path.name for path in jars.cache_folder().iterdir()] == [".lock"]


def test_an_unknown_set_of_jars() -> None:
    with pytest.raises(UsageError, match="declares kafka, spark"):
        jars.fetch("flink")


@pytest.mark.kafka
def test_the_broker_serves_and_stays_small(kafka: str) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import NewTopic

    topic = f"local-{uuid.uuid4().hex[:8]}"
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    admin.create_topics([NewTopic(name=topic, num_partitions=1, replication_factor=1)])
    # By its own clock a record of 2013: with Kafka's default retention it would be gone within a minute.
    producer = KafkaProducer(bootstrap_servers=kafka)
    producer.send(topic, b"taken", key=b"k", timestamp_ms=1_357_000_000_000).get(timeout=30)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=kafka, consumer_timeout_ms=20_000, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    record = next(consumer)
    consumer.close()
    admin.close()
    assert (record.key, record.value, record.timestamp) == (b"k", b"taken", 1_357_000_000_000)
    port = int(kafka.rpartition(":")[2])
    assert resident(port) < 512e6


@pytest.mark.kafka
def test_a_misspelt_topic_is_not_made(kafka: str) -> None:
    from kafka import KafkaAdminClient, KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(bootstrap_servers=kafka, max_block_ms=2000)
    with pytest.raises(KafkaError):
        producer.send("no-such-topic", b"x").get(timeout=5)
    producer.close(timeout=1)
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    assert "no-such-topic" not in {name if isinstance(name, str) else name["name"] for name in admin.list_topics()}
    admin.close()


@pytest.mark.kafka
def test_a_broker_lives_from_start_to_stop_and_keeps_its_data(tmp_path: Path, foreigner: subprocess.Popen[bytes]) -> None:
    """Through a process of its own that ends, as `penstock up` does."""
    ports = Ports.free()
    program = (
        "import sys; from pathlib import Path; from jobs.local import services; from jobs.local.ports import Ports; "
        f"services.start(Path(sys.argv[1]), ['kafka'], {ports!r})"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, stdin=subprocess.DEVNULL, timeout=120)
    record = process.Started.read(tmp_path / "run" / "kafka.json")
    assert record is not None
    assert record.process() is not None
    endpoints = json.loads((tmp_path / "endpoints.json").read_text())
    assert endpoints == {"PENSTOCK_LAKE": str(tmp_path / "lake"), "KAFKA_BOOTSTRAP_SERVERS": f"{HOST}:{ports.kafka}"}
    cluster = (tmp_path / "kafka" / "data" / "meta.properties").read_text()

    said: list[str] = []
    services.start(tmp_path, ["kafka"], ports, say=said.append)
    assert said == [f"kafka is already running on port {ports.kafka}"]

    assert services.stop(tmp_path) == ["kafka"]
    assert family(record) == []
    assert foreigner.poll() is None
    assert (tmp_path / "kafka" / "data" / "meta.properties").read_text() == cluster


@pytest.mark.mlflow
def test_mlflow_answers_and_serves_artifacts(mlflow_server: str) -> None:
    with urllib.request.urlopen(f"{mlflow_server}/version") as answer:
        assert answer.read() == b"3.17.2"
    request = urllib.request.Request(
        f"{mlflow_server}/api/2.0/mlflow-artifacts/artifacts/probe/a.txt", data=b"kept", method="PUT"
    )
    with urllib.request.urlopen(request):
        pass
    with urllib.request.urlopen(f"{mlflow_server}/api/2.0/mlflow-artifacts/artifacts/probe/a.txt") as answer:
        assert answer.read() == b"kept"


@pytest.mark.airflow
def test_airflow_lets_in_only_with_its_password(airflow_server: str, airflow_state: Path) -> None:
    secret = airflow_service.password_file(airflow_state)
    assert secret.stat().st_mode & 0o777 == 0o600
    assert token(airflow_server, airflow_service.password_in(secret)) == 201
    assert token(airflow_server, "admin") == 401
    port = int(airflow_server.rpartition(":")[2])
    listening = {
        connection.laddr.ip for connection in psutil.net_connections("tcp") if connection.laddr and connection.laddr.port == port
    }
    assert listening == {HOST}


def test_airflow_keeps_its_secrets(tmp_path: Path) -> None:
    first = airflow_service.environment(tmp_path, 1)
    secret = airflow_service.password_in(airflow_service.password_file(tmp_path))
    second = airflow_service.environment(tmp_path, 1)
    assert first == second
    assert airflow_service.password_in(airflow_service.password_file(tmp_path)) == secret
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "airflow").iterdir())


def test_airflow_begins_its_database_anew_only_if_it_never_was_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_service, "program", lambda: "true")
    database = tmp_path / "airflow" / "airflow.db"
    database.parent.mkdir()
    database.touch()
    airflow_service.prepare(tmp_path, os.environ)
    assert not database.exists()
    database.touch()
    (tmp_path / "airflow" / "migrated").write_text("an older version")
    airflow_service.prepare(tmp_path, os.environ)
    assert database.exists()


def token(page: str, password: str) -> int:
    """The status with which Airflow answers a log-in."""
    body = json.dumps({"username": airflow_service.USER, "password": password}).encode()
    request = urllib.request.Request(f"{page}/auth/token", data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def resident(port: int) -> int:
    """The memory of the process that listens on a port, in bytes."""
    holder = next(
        c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.status == psutil.CONN_LISTEN
    )
    return int(psutil.Process(holder).memory_info().rss)
