"""Airflow for a laptop: its four components as four processes over SQLite, all on loopback.

Not `airflow standalone`: it runs the same four, but costs a fifth process, serves logs on two more ports, and leaves its
children behind when it is told to go.
"""

import importlib.metadata
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from jobs.errors import RetryError
from jobs.local.ports import HOST
from jobs.local.web import get
from jobs.settings import PROJECT

USER = "admin"

COMPONENTS = {
    "airflow-api": ("api-server",),
    # Logs are files of this machine, which the page reads by itself: no need for two servers that hand them to other machines.
    "airflow-scheduler": ("scheduler", "--skip-serve-logs"),
    "airflow-dags": ("dag-processor",),
    "airflow-triggerer": ("triggerer", "--skip-serve-logs"),
}
"""The processes, by the name of their record, with the arguments of `airflow`."""


def password_file(state: Path) -> Path:
    """The file that holds the page's user and password, as a JSON object; only its owner reads it."""
    return state / "airflow" / "passwords.json"


def password_in(file: str | Path) -> str:
    """The password of the page's `admin`."""
    return str(json.loads(Path(file).read_text())[USER])


def environment(state: Path, port: int, dags: Path = PROJECT / "dags") -> dict[str, str]:
    """Airflow's settings. Everything is here, so that airflow.cfg may keep its defaults."""
    home = state / "airflow"
    # Made at the first start and kept; Airflow would make one itself, but tells it only in its log.
    _kept(password_file(state), lambda: json.dumps({USER: secrets.token_urlsafe(12)}))
    page = f"http://{HOST}:{port}"
    settings = {
        "core": {
            "executor": "LocalExecutor",
            # The default of 32 workers would hold 4.7 GB. A chain of stages needs one, and two more let somebody look around.
            "parallelism": "3",
            "dags_folder": str(dags),
            "load_examples": "False",
            "dags_are_paused_at_creation": "True",
            "execution_api_server_url": f"{page}/execution/",
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": str(password_file(state)),
        },
        "database": {"sql_alchemy_conn": f"sqlite:///{home / 'airflow.db'}"},
        "api": {"host": HOST, "port": str(port), "base_url": page, "workers": "1", "secret_key": _key(state, "page")},
        "api_auth": {"jwt_secret": _key(state, "tasks")},
        # A pipeline's file changes rarely and costs seconds to parse; an edit shows within two minutes.
        "dag_processor": {"parsing_processes": "1", "min_file_process_interval": "120", "refresh_interval": "60"},
        "triggerer": {"capacity": "100"},
        "usage_data_collection": {"enabled": "False"},
    }
    variables = {"AIRFLOW_HOME": str(home), "SCARF_ANALYTICS": "false", "DO_NOT_TRACK": "true"}
    for section, keys in settings.items():
        variables |= {f"AIRFLOW__{section}__{key}".upper(): value for key, value in keys.items()}
    return variables


def prepare(state: Path, variables: Mapping[str, str]) -> dict[str, list[str]]:
    """Makes or migrates Airflow's database, once for each version of Airflow, and returns the components' commands.

    Raises RetryError where the database can't be made.
    """
    _migrate(state, variables)
    return {name: [program(), *arguments] for name, arguments in COMPONENTS.items()}


def _migrate(state: Path, variables: Mapping[str, str]) -> None:
    done = state / "airflow" / "migrated"
    version = importlib.metadata.version("apache-airflow-core")
    if done.exists() and done.read_text() == version:
        return
    if not done.exists():
        # A first try that was killed half-way leaves tables that a second one stumbles over, and nothing worth keeping.
        (done.parent / "airflow.db").unlink(missing_ok=True)
    log = state / "logs" / "airflow-migrate.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        command = [program(), "db", "migrate"]
        status = subprocess.run(command, env=dict(variables), stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode
    if status != 0:
        raise RetryError(
            f"Airflow's database in {state / 'airflow'} can't be made (`airflow db migrate` gave {status}): see {log}."
        )
    done.write_text(version)


def program() -> str:
    """The command `airflow` of this environment."""
    return str(Path(sys.executable).with_name("airflow"))


def ready(port: int) -> bool:
    """Whether the page answers and all four components have reported in."""
    answer = get(f"http://{HOST}:{port}/api/v2/monitor/health")
    return answer is not None and all(part.get("status") == "healthy" for part in json.loads(answer).values())


def _key(state: Path, name: str) -> str:
    """A random key that the components share, kept over restarts so that a session of the page lives on."""
    return _kept(state / "airflow" / f"{name}.key", lambda: secrets.token_urlsafe(48))


def _kept(path: Path, make: Callable[[], str]) -> str:
    """The text of a file that only its owner may read, made the first time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(make())
        part.rename(path)
    return path.read_text()
