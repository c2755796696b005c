"""The MLflow server: one worker over SQLite, which also serves the artifacts, so that clients need no shared folder."""

import sys
from pathlib import Path

from jobs.local.ports import HOST
from jobs.local.web import get


def environment() -> dict[str, str]:
    """What is switched off: telemetry, and the runner of server-side jobs, a third process that nothing here uses."""
    return {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def prepare(state: Path, port: int) -> list[str]:
    """Makes its folder and returns the command that runs it."""
    home = state / "mlflow"
    home.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).with_name("mlflow")), "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    return [
        *command,
        "--backend-store-uri",
        f"sqlite:///{home / 'mlflow.db'}",
        "--artifacts-destination",
        str(home / "artifacts"),
    ]


def ready(port: int) -> bool:
    """Whether the server answers."""
    return get(f"http://{HOST}:{port}/health") == b"OK"
