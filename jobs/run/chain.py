"""`penstock run`: the stages of a pipeline in order, each as a process of its own through the job contract.

What Airflow does, without Airflow: the same commands, the same exit codes. The first stage that fails ends the run
with its exit code.
"""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TextIO

from jobs import lifeline
from jobs.command import Job
from jobs.errors import DataError, Exit, JobError, RetryError, UsageError


@dataclass(frozen=True, slots=True)
class Stage:
    """One command of the chain, without its subject and days."""

    name: str
    dated: bool = True
    arguments: tuple[str, ...] = ()


def stages(train: str) -> tuple[Stage, ...]:
    """The chain, in the order in which data flows. `train` is due, always or never."""
    return (
        Stage("ingest", dated=False),
        Stage("features"),
        Stage("train", arguments=("--when", train)),
        Stage("promote", arguments=("--when", "never" if train == "never" else "due")),
        Stage("score"),
    )


def run(job: Job) -> None:
    """Run the chain. The report says which stages were done."""
    assert job.pipeline is not None and job.interval is not None
    dates = ("--from", str(job.interval.start), "--to", str(job.interval.last))
    job.report["stages"] = []
    for stage in stages(job.options.train):
        command = [
            sys.executable,
            "-m",
            "jobs.cli",
            stage.name,
            job.pipeline.name,
            *(dates if stage.dated else ()),
            *stage.arguments,
        ]
        code = _call([*command, "--run-id", job.run_id], out=sys.stderr if job.options.json else None)
        job.report["stages"].append({"stage": stage.name, "exit_code": code})
        if code:
            raise _failure(stage.name, code)


def _call(command: list[str], out: TextIO | None) -> int:
    """One stage to its end: its exit code. A stage doesn't outlive the run that started it, however that ends.

    With `out` its words go there: the standard output is the report's then.
    """
    parent = os.getpid()

    def bind() -> None:
        lifeline.hold()
        # The run may have been killed before its stage asked to be told.
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, preexec_fn=bind, check=False).returncode


def _failure(stage: str, code: int) -> JobError:
    """The stage's own failure, carried on: a death outside our hands (a signal, memory) may be tried again."""
    kinds: dict[int, type[JobError]] = {Exit.USAGE: UsageError, Exit.DATA: DataError, Exit.BUG: JobError}
    return kinds.get(code, RetryError)(f"{stage} ended with {code}; see its message above.")
