"""What the demo asks of Airflow, by REST: each call of its command line would cost 12 to 19 CPU seconds."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import UTC, date, datetime
from typing import Any

from jobs.errors import RetryError

FINISHED = ("success", "failed")


class Airflow:
    """One Airflow at `url`, as the user that its password file names."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._token = ""
        self._token = self._call("POST", "/auth/token", {"username": user, "password": password})["access_token"]

    def wait_for_dag(self, dag: str, seconds: float = 180) -> None:
        """Wait until the DAG was parsed. Raises RetryError with Airflow's own import errors where it was not."""
        deadline = time.monotonic() + seconds
        while self._call("GET", f"/api/v2/dags/{dag}", missing={}) == {}:
            if time.monotonic() > deadline:
                errors = self._call("GET", "/api/v2/importErrors")["import_errors"]
                raise RetryError(f"Airflow has no DAG {dag!r} after {seconds:.0f} s; its import errors: {errors or 'none'}.")
            time.sleep(1)

    def unpause(self, dag: str) -> None:
        """Let the DAG's schedule and its waiting runs go."""
        self._call("PATCH", f"/api/v2/dags/{dag}?update_mask=is_paused", {"is_paused": False})

    def trigger(self, dag: str, conf: dict[str, Any], *, before: date | None = None) -> str:
        """Start a manual run, as the page's form does, ahead of the scheduled runs of `before` and later. Returns its id."""
        # Without a logical date a run has no data interval at all; the page sends the present too.
        body: dict[str, Any] = {"logical_date": datetime.now(UTC).isoformat(), "conf": conf}
        if before is not None:
            # Of runs that wait, Airflow starts the one with the earliest `run_after`.
            body["run_after"] = f"{before}T00:00:00Z"
        return str(self._call("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"])

    def backfill(self, dag: str, first: str, last: str) -> int:
        """Start Airflow's own backfill over two inclusive days, also where runs exist. Returns its id."""
        body = {
            "dag_id": dag,
            "from_date": f"{first}T00:00:00Z",
            "to_date": f"{last}T00:00:00Z",
            "reprocess_behavior": "completed",
            "max_active_runs": 1,
            "run_backwards": False,
            "dag_run_conf": {},
        }
        return int(self._call("POST", "/api/v2/backfills", body)["id"])

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """The DAG's runs, the oldest first."""
        answer = self._call("GET", f"/api/v2/dags/{dag}/dagRuns?order_by=id&limit=100")
        return list(answer["dag_runs"])

    def run(self, dag: str, run_id: str) -> dict[str, Any]:
        """One run."""
        return dict(self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{_quoted(run_id)}"))

    def tasks(self, dag: str, run_id: str) -> dict[str, dict[str, Any]]:
        """The run's task instances, by the task's name."""
        answer = self._call("GET", f"/api/v2/dags/{dag}/dagRuns/{_quoted(run_id)}/taskInstances")
        return {task["task_id"]: task for task in answer["task_instances"]}

    def log(self, dag: str, run_id: str, task: str, attempt: int) -> str:
        """The log of one attempt of a task, as lines of text."""
        path = f"/api/v2/dags/{dag}/dagRuns/{_quoted(run_id)}/taskInstances/{task}/logs/{attempt}"
        content = self._call("GET", path, missing={"content": []})["content"]
        return "\n".join(str(line.get("event", line)) if isinstance(line, dict) else str(line) for line in content)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None, *, missing: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self.url + path, method=method, data=json.dumps(body).encode() if body is not None else None
        )
        request.add_header("Content-Type", "application/json")
        request.add_header("Accept", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        for attempt in range(5):
            try:
                with self._opener.open(request, timeout=60) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as refused:
                if refused.code == 404 and missing is not None:
                    return missing
                raise RetryError(
                    f"Airflow answered {method} {path} with {refused.code}: {refused.read().decode()[:500]}"
                ) from refused
            except OSError as away:
                # Only reading may be tried again: a second POST could start a second run.
                if method != "GET" or attempt == 4:
                    raise RetryError(f"Airflow at {self.url} does not answer {method} {path}: {away}") from away
                time.sleep(2)
        raise AssertionError("unreachable: the last attempt returned or raised")


def _quoted(run_id: str) -> str:
    return urllib.parse.quote(run_id, safe="")
