"""The local engine: who reads the ranges of a batch, this process or several.

Starting a process costs about a second of CPU, so small batches are read here. Once started,
processes serve all batches of a run.
"""

import logging
import math
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from jobs import lifeline
from jobs.errors import RetryError
from jobs.ingest.ranges import Done, Range, divide
from jobs.ingest.reader import Reader
from jobs.secrets import log_to_stderr

log = logging.getLogger(__name__)

ALONE = 300_000
"""Up to so many records are read in this process."""


class LocalEngine:
    """Reads ranges on this machine, with as many processes as it has cores."""

    scale = 1

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def read_all(self, ranges: Sequence[Range]) -> list[Done]:
        """Read every range. Raises RetryError where the broker is away, or a reading process died."""
        records = sum(map(len, ranges))
        workers = min(cores(), -(-records // (ALONE // 2)))
        if records <= ALONE or workers < 2:
            return read_here(ranges)
        shares = divide(list(ranges), workers)
        log.info("%d records, by %d processes", records, len(shares))
        try:
            return [done for answer in self._started().map(read_here, shares) for done in answer]
        except BrokenProcessPool as failure:
            # A broken pool takes no work any more: the next batch of a service starts another.
            self.close()
            raise RetryError(
                "a reading process died (it may have been killed, or out of memory). Nothing of this batch was "
                "committed; try again."
            ) from failure

    def prepare(self, behind: int) -> None:
        """Start the processes now, if so many records will need them: they import while this process reads."""
        if behind > ALONE and cores() > 1 and self._pool is None:
            for _ in range(cores()):
                self._started().submit(read_here, ())

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Not forked: librdkafka's and Arrow's threads don't survive a fork.
            self._pool = ProcessPoolExecutor(
                cores(), mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
            )
        return self._pool

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def cores() -> int:
    """The cores that this process may use, at least 1: a container's share of the machine counts, rounded up."""
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, _quotas(Path("/")))]))


def _quotas(root: Path) -> Iterator[float]:
    """How many cores' time the control groups that this process is in, and those above, allow; nothing where none says."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        hierarchy = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        # In a container the path may be the host's, and its groups are not to be seen: then the container's own is the top.
        group = hierarchy / path.lstrip("/")
        for folder in (group, *(above for above in group.parents if above.is_relative_to(hierarchy))):
            try:
                if controllers:
                    quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
                else:
                    quota, period = (folder / "cpu.max").read_text().split()
            except OSError:
                continue
            if quota.strip() not in ("max", "-1"):
                yield int(quota) / int(period)


def read_here(ranges: Sequence[Range]) -> list[Done]:
    """Read ranges in this process, one after the other."""
    if not ranges:
        return []
    reader = Reader()
    try:
        return [reader.read(work) for work in ranges]
    finally:
        reader.close()


def _begin(parent: int) -> None:
    # Who stops a whole group means the parent, which still commits the batch at hand: its readers end with it, and not before.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    lifeline.hold(signal.SIGKILL)
    if os.getppid() != parent:
        # It was killed before the kernel was asked to tell.
        os._exit(1)
    log_to_stderr()
