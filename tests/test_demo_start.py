"""The demo begins with nothing, and takes nothing that is not its own."""

import os
import socket
import time
from pathlib import Path

import pytest

from jobs.errors import UsageError
from jobs.local import demo
from jobs.local.ports import HOST, Ports
from jobs.settings import endpoint


def state_of(tmp_path: Path, *, demos: bool) -> Path:
    """A state folder with a lake in it."""
    (tmp_path / "lake" / "events").mkdir(parents=True)
    if demos:
        (tmp_path / "demo.json").write_text("{}")
    return tmp_path


def test_an_earlier_demo_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = Ports.free()
    monkeypatch.setattr(demo, "Ports", lambda: ports)
    demo._begin_anew(state_of(tmp_path, demos=True), demo.Clock())
    assert not (tmp_path / "lake").exists() and (tmp_path / "demo.json").exists()


def test_data_that_are_not_the_demos_stay(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds lake that are not the demo's"):
        demo._begin_anew(state_of(tmp_path, demos=False), demo.Clock())
    assert (tmp_path / "lake" / "events").exists()


def test_running_services_are_not_pulled_away(tmp_path: Path) -> None:
    (state_of(tmp_path, demos=True) / "endpoints.json").write_text("{}")
    with pytest.raises(UsageError, match="make down"):
        demo._begin_anew(tmp_path, demo.Clock())
    assert (tmp_path / "lake" / "events").exists()


@pytest.mark.parametrize("service", ["kafka", "mlflow", "airflow"])
def test_a_taken_port_is_found_before_anything_goes(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = Ports.free()
    monkeypatch.setattr(demo, "Ports", lambda: ports)
    with socket.socket() as taken:
        taken.bind((HOST, getattr(ports, service)))
        taken.listen()
        with pytest.raises(UsageError, match=f"Port {getattr(ports, service)}, which the embedded {service} needs"):
            demo._begin_anew(state_of(tmp_path, demos=True), demo.Clock())
    assert (tmp_path / "lake" / "events").exists()


def test_the_demo_speaks_to_its_own_services_whatever_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = ("SPARK_MASTER", "SPARK_REMOTE", "KAFKA_SECURITY_PROTOCOL")
    for name in (*demo.ADDRESSES, "PENSTOCK_STATE", *foreign):
        monkeypatch.setenv(name, "a-company.example:9092")
    demo._use(
        tmp_path, {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:19092", "PENSTOCK_LAKE": str(tmp_path / "lake"), "AIRFLOW_URL": "x"}
    )
    assert endpoint("KAFKA_BOOTSTRAP_SERVERS") == "127.0.0.1:19092"
    assert endpoint("PENSTOCK_LAKE") == str(tmp_path / "lake")
    assert os.environ["PENSTOCK_STATE"] == str(tmp_path)
    assert not {"AIRFLOW_URL", *foreign} & set(os.environ)


def test_a_step_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    clock = demo.Clock()
    for state in ("queued", "running", "running", "success", "success"):
        clock.state("run", "ingest", state, 4.2)
    clock.took("a step", time.monotonic() - 2)
    assert [line.split("s  ")[1].strip() for line in capsys.readouterr().err.splitlines()] == [
        "ingest: running",
        "ingest: success after 4 s",
    ]
    assert 2 <= clock.steps["a step"] < 3
