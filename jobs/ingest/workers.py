"""The local engine: who reads the ranges of a batch, this process or several.

Starting a process costs about a second of CPU, as much as reading 100,000 records, so small batches are read here.
"""

import contextlib
import logging
import multiprocessing
import os
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from jobs.errors import JobError, RetryError
from jobs.ingest.plan import Range
from jobs.ingest.reader import Done, consumer, read_range

log = logging.getLogger(__name__)

ALONE = 300_000
"""Up to so many records are read in this process."""


def read_all(ranges: Sequence[Range]) -> list[Done]:
    """Read every range. Raises RetryError where the broker is away, or a reading process died."""
    records = sum(map(len, ranges))
    workers = min(cores(), -(-records // (ALONE // 2)))
    if records <= ALONE or workers < 2:
        return _read(ranges)
    shares = divide(ranges, workers)
    log.info("%d records, by %d processes", records, len(shares))
    return _read_apart(shares)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def divide(ranges: Sequence[Range], workers: int) -> list[list[Range]]:
    """The ranges in shares of about equal length, cut where one is too long for a share."""
    target = -(-sum(map(len, ranges)) // workers)
    shares: list[list[Range]] = [[]]
    room = target
    for work in ranges:
        start = work.start
        while start < work.end:
            if not room:
                shares.append([])
                room = target
            end = min(work.end, start + room)
            shares[-1].append(_part(work, start, end))
            room -= end - start
            start = end
    return shares


def _part(work: Range, start: int, end: int) -> Range:
    return Range(source=work.source, batch=work.batch, epoch=work.epoch, partition=work.partition, start=start, end=end)


def _read(ranges: Sequence[Range]) -> list[Done]:
    if not ranges:
        return []
    reader = consumer()
    try:
        return [read_range(reader, work) for work in ranges]
    finally:
        reader.close()


def _read_apart(shares: Sequence[Sequence[Range]]) -> list[Done]:
    """Each share in a process of its own."""
    # Not forked: librdkafka's and Arrow's threads don't survive a fork.
    context = multiprocessing.get_context("spawn")
    started: list[tuple[Any, Connection]] = []
    try:
        for share in shares:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_worker, args=(theirs, share), daemon=True)
            process.start()
            # Or the end of a dead worker would never be seen.
            theirs.close()
            started.append((process, ours))
        answers = [_answer(process, ours) for process, ours in started]
        for process, _ in started:
            process.join()
            if process.exitcode:
                raise RetryError(
                    f"a reading process ended with {process.exitcode} after its work. Nothing was committed; try again."
                )
    finally:
        for process, ours in started:
            ours.close()
            if process.is_alive():
                process.terminate()
                process.join()
    return [done for answer in answers for done in answer]


def _answer(process: Any, ours: Connection) -> list[Done]:
    try:
        answer = ours.recv()
    except EOFError:
        process.join()
        raise RetryError(
            f"a reading process died (exit code {process.exitcode}; -9 may be memory). Nothing was committed; try again."
        ) from None
    if isinstance(answer, BaseException):
        raise answer
    return answer  # type: ignore[no-any-return]


def _worker(theirs: Connection, share: Sequence[Range]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    answer: Any
    try:
        answer = _read(share)
    except JobError as failure:
        answer = failure
    except Exception as bug:
        traceback.print_exc()
        answer = RuntimeError(f"a reading process failed: {type(bug).__name__}: {bug}")
    # Whoever started it may have been killed; then nobody wants its files.
    with contextlib.suppress(BrokenPipeError):
        theirs.send(answer)
    theirs.close()
