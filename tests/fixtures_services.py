"""The embedded services as fixtures: each starts once for a whole test run, on free ports, in a folder of its own.

A test that asks for one carries the mark that names it (`kafka`, `mlflow`, `airflow`).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.local import process, services
from jobs.local.ports import Ports


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of its own, as `host:port`."""
    yield from _served(tmp_path_factory.mktemp("kafka"), "kafka", "KAFKA_BOOTSTRAP_SERVERS")


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow server of its own, as a tracking URI."""
    yield from _served(tmp_path_factory.mktemp("mlflow"), "mlflow", "MLFLOW_TRACKING_URI")


@pytest.fixture(scope="session")
def airflow_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of `airflow_server`: its password, logs and database, and the lake that its tasks write to."""
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="session")
def airflow_server(airflow_state: Path) -> Iterator[str]:
    """Airflow over the project's DAGs, as the address of its page."""
    yield from _served(airflow_state, "airflow", "AIRFLOW_URL")


def _served(state: Path, service: str, address: str) -> Iterator[str]:
    endpoints = services.start(state, [service], Ports.free())
    tokens = {record.token for record in services.recorded(state, service)}
    yield endpoints[address]
    services.stop(state)
    # Part of the fixture, so that each service's one start in a test run also shows that stopping leaves nobody behind.
    assert process.carriers(tokens) == [], f"{service} left processes behind"
