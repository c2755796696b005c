"""The local engine: who reads the ranges of a batch, this process or several.

Starting a process costs about a second of CPU, as much as reading 100,000 records, so small batches are read here. Once started,
processes serve all batches of a run.
"""

import logging
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

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
        if self._pool is None:
            # Not forked: librdkafka's and Arrow's threads don't survive a fork.
            self._pool = ProcessPoolExecutor(
                cores(), mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
            )
        try:
            return [done for answer in self._pool.map(read_here, shares) for done in answer]
        except BrokenProcessPool as failure:
            raise RetryError(
                "a reading process died (it may have been killed, or out of memory). Nothing of this batch was "
                "committed; try again."
            ) from failure

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


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
    lifeline.hold()
    if os.getppid() != parent:
        # It was killed before the kernel was asked to tell.
        os._exit(1)
    log_to_stderr()
