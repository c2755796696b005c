"""Where the services are: from the environment, else from the embedded services that `make up` started.

The environment holds endpoints and secrets, nothing else. On a laptop nothing has to be exported: `penstock up` writes
the addresses of what it started to `.penstock/endpoints.json`, and they are the defaults while that file stands.
"""

import json
import os
from pathlib import Path

from jobs.errors import UsageError

PROJECT = Path(__file__).resolve().parent.parent

_MEANING = {
    "PENSTOCK_LAKE": "the lake's root, a folder or an s3:// URI",
    "KAFKA_BOOTSTRAP_SERVERS": "the Kafka brokers, as host:port,host:port",
    "MLFLOW_TRACKING_URI": "the MLflow server, as http://host:port",
    "PENSTOCK_WAREHOUSE": "the SQL warehouse, as postgresql://user:password@host:port/database",
}
_OUTSIDE = ("PENSTOCK_WAREHOUSE",)
"""What no embedded service stands in for."""


def state_folder() -> Path:
    """The folder of all that the embedded services keep: logs, data, process records, addresses."""
    return Path(os.environ.get("PENSTOCK_STATE") or PROJECT / ".penstock")


def endpoint(name: str) -> str:
    """The address called `name`, one of PENSTOCK_LAKE, KAFKA_BOOTSTRAP_SERVERS, MLFLOW_TRACKING_URI and PENSTOCK_WAREHOUSE.

    Raises UsageError where neither the environment nor the embedded services give one.
    """
    value = os.environ.get(name) or local_endpoints().get(name)
    if not value:
        remedy = "Export it." if name in _OUTSIDE else "Export it, or start the embedded services with `make up`."
        raise UsageError(f"{name} is not set: it names {_MEANING[name]}. {remedy}")
    return value


def local_endpoints() -> dict[str, str]:
    """The addresses of the embedded services that are up; empty where none is."""
    try:
        return dict(json.loads((state_folder() / "endpoints.json").read_text()))
    except FileNotFoundError:
        return {}
