"""An Airflow task that is one `penstock` command, and the one policy by which its failures are retried.

The job runs as a process of its own, its words go to the task's log as they come, and its run report becomes the task's
XCom, from which later tasks take their days.
"""

import json
import os
import shlex
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException

from dags.child import Child

PENSTOCK = (sys.executable, "-m", "jobs.cli")

FINAL = {64: "wrong arguments or declaration", 65: "the data breaks a rule", 70: "a bug of ours"}
"""The exit codes of the job contract for which the same call can't succeed."""

WORDS = 15
"""Lines of a failed job's output that the failure repeats, where it left no message of its own."""

REPORT_BYTES = 16_000
"""The longest report that goes into Airflow's database as a whole; the lake keeps all of it anyway."""


class JobFailed(AirflowException):  # type: ignore[misc]
    """A job ended with another exit code than 0, or was killed: a negative code is minus the signal."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ExitCodePolicy(RetryPolicy):  # type: ignore[misc]
    """Fails at once where the job contract says so; retries all else as the task's `retries` and delays say.

    A task whose own process was killed never asks: Airflow retries it by itself.
    """

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,  # noqa: ARG002
        max_tries: int,  # noqa: ARG002
        context: Any = None,  # noqa: ARG002
    ) -> RetryDecision:
        """What to do about a task's failure."""
        if isinstance(exception, JobFailed) and exception.exit_code in FINAL:
            return RetryDecision.fail(f"exit code {exception.exit_code}, {FINAL[exception.exit_code]}: a retry can't help")
        return RetryDecision.default()


class JobOperator(BaseOperator):  # type: ignore[misc]
    """Runs `penstock ARGUMENTS`. Returns its run report.

    Raises JobFailed, with the job's own words, where it does not end with 0.
    """

    template_fields: Sequence[str] = ("arguments",)
    template_fields_renderers = {"arguments": "json"}
    ui_color = "#d8ecf3"

    def __init__(self, *, arguments: Sequence[str], program: Sequence[str] = PENSTOCK, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.arguments = list(arguments)
        self.program = tuple(program)
        self._child: Child | None = None

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Run the job to its end."""
        self.log.info("penstock %s", shlex.join(self.arguments))
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            path = Path(folder) / "report.json"
            self._child = Child([*self.program, *self.arguments, "--report", str(path)], environment())
            words: deque[str] = deque(maxlen=WORDS)
            try:
                for line in self._child.lines():
                    self.log.info("%s", line)
                    words.append(line)
                code = self._child.wait()
            finally:
                self._child.end()
            report = _read(path)
        if code:
            said = report.get("message") or "\n".join(words) or "it said nothing"
            raise JobFailed(f"penstock {self.arguments[0]} {_ending(code)}: {said}", code)
        self.log.info("%s", summary(report))
        return brief(report)

    def on_kill(self) -> None:
        """End the job with all it started; Airflow allows five seconds."""
        if self._child is not None:
            self._child.end()


def environment() -> dict[str, str]:
    """The job's environment: this process's without Airflow's own settings and keys, which are none of its business."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW__", "_AIRFLOW"))}
    # Beside this package lies `jobs`, in a clone as in an installation.
    paths = [kept.get("PYTHONPATH", ""), str(Path(__file__).resolve().parent.parent)]
    return kept | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def summary(report: Mapping[str, Any]) -> str:
    """A report in one line: its figures."""
    shown = {
        key: value for key, value in report.items() if isinstance(value, str | int | float) and key not in ("run_id", "exit_code")
    }
    return "report: " + ", ".join(f"{key}={value}" for key, value in shown.items())


def brief(report: dict[str, Any]) -> dict[str, Any]:
    """The report as XCom keeps it: whole, or where it is long only its plain values and the names of the rest."""
    if len(json.dumps(report)) <= REPORT_BYTES:
        return report
    plain = {key: value for key, value in report.items() if key == "interval" or not isinstance(value, dict | list)}
    return plain | {"left_out": sorted(report.keys() - plain.keys())}


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}" + (f" ({FINAL[code]})" if code in FINAL else "")


def _read(path: Path) -> dict[str, Any]:
    """The report; empty where the job died before it wrote one. NaN and infinity become text: databases refuse them."""
    try:
        return dict(json.loads(path.read_text(), parse_constant=str))
    except (FileNotFoundError, ValueError):
        return {}
