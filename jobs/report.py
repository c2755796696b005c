"""The run report: one JSON object for each job, also for a job that failed.

It is kept in the lake under `reports/`, printed by `--json`, and written to the file of `--report` for whoever started
the job (Airflow shows it on the task's page).
"""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

from jobs import settings
from jobs.secrets import mask_all


def dumps(report: dict[str, Any]) -> str:
    """The report as JSON, indented, without secrets; days and instants in ISO 8601."""
    return json.dumps(mask_all(report), indent=2, default=_plain)


def keep(report: dict[str, Any]) -> None:
    """Write the report to the lake."""
    text = dumps(report)
    root = settings.endpoint("PENSTOCK_LAKE").rstrip("/")
    folder = f"reports/{report['subject'] or 'none'}/{_safe(report['command'])}"
    name = f"{folder}/{_safe(report['started'])}-{_safe(report['run_id'])}.json"
    if "://" not in root:
        path = Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    from pyarrow import fs

    filesystem, base = fs.FileSystem.from_uri(root)
    with filesystem.open_output_stream(f"{base}/{name}") as out:
        out.write(text.encode())


def _safe(text: str) -> str:
    """A part of a file's name: Airflow's run ids carry colons and plus signs."""
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in text)


def _plain(value: Any) -> str:
    if isinstance(value, date | datetime):
        return value.isoformat()
    raise TypeError(f"a run report can't hold {type(value).__name__} {value!r}: turn it into text or a number first.")
