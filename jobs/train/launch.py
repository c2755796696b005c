"""Supervising the children of a training: torchrun with its ranks, and the baselines beside them.

Every child ends with this process. When one fails, the others are ended at once, and its own word becomes the failure.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from jobs.errors import DataError, Exit, JobError, RetryError, UsageError
from jobs.settings import PROJECT
from jobs.train.plan import Outcome

PATIENCE = 25.0
"""Seconds that a child has to save and end after SIGTERM. Kubernetes gives a pod 30."""


def supervise(folder: Path, ranks: int) -> None:
    """Run the ranks and the baselines over the shared folder until all are done.

    Raises the failure that a child left, or RetryError where one was killed, or where this process was asked to end: the ranks
    have saved where they stood then.
    """
    cores = len(os.sched_getaffinity(0))
    torchrun = ["jobs.train.torchrun", "--standalone", "--nproc-per-node", str(ranks), "--log-dir", str(folder / "torchrun")]
    torchrun += ["-m", "jobs.train.rank", str(folder)]
    with _ended_by_signal(), contextlib.ExitStack() as stack:
        children = {
            "ranks": stack.enter_context(_child(torchrun, threads=max(1, cores // ranks))),
            "baselines": stack.enter_context(_child(["jobs.train.baselines", str(folder)], threads=1)),
        }
        while any(child.poll() is None for child in children.values()):
            if any(child.poll() for child in children.values()):
                break
            time.sleep(0.05)
        codes = {name: child.poll() for name, child in children.items()}
    if codes["ranks"]:
        raise _failure(folder, [f"rank-{rank}" for rank in range(ranks)], codes["ranks"])
    if codes["baselines"]:
        raise _failure(folder, ["baselines"], codes["baselines"])


@contextlib.contextmanager
def _child(module: list[str], threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """A Python module run as a child; where it still runs at the end, it is ended."""
    child = subprocess.Popen(
        [sys.executable, "-m", *module],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=2,  # The standard output is the run report's.
    )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Within, SIGTERM unwinds the stack, so that the children save and end and the scratch folder goes."""

    def unwind(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Once is enough: the children have their time.
        raise RetryError("the training was asked to end. The next attempt of this run goes on from its last checkpoint.")

    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _failure(folder: Path, names: list[str], code: int | None) -> JobError:
    """What went wrong, by the children's own words: a broken rule or a bug before a death, which may be tried again."""
    outcomes = {name: Outcome.read(folder, name) for name in names}
    kinds: dict[int, type[JobError]] = {Exit.USAGE: UsageError, Exit.DATA: DataError, Exit.BUG: JobError}
    for kind, failure in kinds.items():
        for name, outcome in outcomes.items():
            if outcome is not None and outcome.code == kind:
                return failure(outcome.message if kind != Exit.BUG else f"{name} failed: {outcome.message}")
    silent = [name for name, outcome in outcomes.items() if outcome is None]
    said = [f"{name}: {outcome.message}" for name, outcome in outcomes.items() if outcome is not None and outcome.code]
    killed = f"{', '.join(silent)} ended without a word, killed or out of memory" if silent else "; ".join(said)
    return RetryError(f"the training was cut short ({killed}; exit code {code}). Nothing is registered. Run it again.")
