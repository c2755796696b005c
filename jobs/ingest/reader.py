"""One offset range: read from Kafka, decoded, written as Parquet files. It commits nothing.

The same function serves every engine, so all that it takes and returns can travel between processes: a Range in, the description
of files out, never rows.
"""

import gc
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
from confluent_kafka import Consumer, Message  # noqa: TID253

from jobs.ingest import holes
from jobs.ingest.ranges import Done, Range
from jobs.ingest.writer import Writer
from jobs.stream import consumer, messages

log = logging.getLogger(__name__)

BLOCK_RECORDS = 20_000
BLOCK_BYTES = 16 << 20
"""Records are decoded in blocks of at most so many, or so many bytes of values."""

NEAR = 20_000
"""Gaps less than so many offsets apart are read again together: asking Kafka for another place takes as long (47 ms)."""

TELL = 15.0
"""Seconds between two lines about the progress of one range."""


class Reader:
    """Reads ranges, one after the other. It commits to no group: the table keeps the progress."""

    def read(self, work: Range) -> Done:
        """Read, decode and write one range. Raises RetryError where the broker is away, or no longer has what was planned."""
        started = told = time.monotonic()
        done = Done(range=work)
        out = Writer(work, done)
        missing: list[holes.Gap] = [(work.start, work.first)] if work.start < work.first else []
        position = work.first
        with _without_collecting():
            for block in _blocks(self._committed, work):
                offsets = np.fromiter(map(Message.offset, block), np.int64, len(block))
                if work.erased:
                    block, offsets = _without(block, offsets, work.erased)
                if len(offsets):
                    assert (np.diff(offsets, prepend=position - 1) > 0).all(), f"{work}: the offsets went back at {position}"
                    missing += holes.gaps(position, offsets)
                    position = int(offsets[-1]) + 1
                    out.add(block, offsets)
                if time.monotonic() - told > TELL:
                    told = time.monotonic()
                    rate = (position - work.first) / (told - started)
                    log.info("%s: at %d, %.0f records a second, %.0f s left", work, position, rate, (work.end - position) / rate)
        out.flush()
        if position < work.end:
            missing.append((position, work.end))
        done.spans = self._spans(work, missing)
        done.seconds = time.monotonic() - started
        assert done.good + done.dead + sum(end - start for start, end, _ in done.spans) == work.end - work.start
        log.info("%s: %d good, %d dead, in %.1f s", work, done.good, done.dead, done.seconds)
        return done

    def close(self) -> None:
        """Leave the brokers."""
        for name in ("_committed", "_uncommitted"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()

    def _spans(self, work: Range, missing: list[holes.Gap]) -> list[tuple[int, int, str]]:
        unknown = [(start, end) for start, end in missing if end > work.first]
        # The gaps alone are read again: between them may lie all the rest of the range.
        seen = (
            np.fromiter(map(Message.offset, block), np.int64, len(block))
            for start, end in holes.stretches(unknown, NEAR)
            for block in _blocks(self._uncommitted, work.part(max(work.first, start), end))
        )
        return holes.classify(missing, seen, first=work.first, compacted=work.compacted, erased=work.erased)

    @cached_property
    def _committed(self) -> Consumer:
        return consumer("read_committed")

    @cached_property
    def _uncommitted(self) -> Consumer:
        return consumer("read_uncommitted")


def _blocks(reader: Consumer, work: Range) -> Iterator[list[Message]]:
    """The range's records, in blocks. Offsets without one are passed over; the range ends all the same."""
    block: list[Message] = []
    size = 0
    for some in messages(reader, work.source.topic, work.partition, work.first, work.end):
        block += some
        size += sum(map(len, some))
        if len(block) >= BLOCK_RECORDS or size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _without(
    block: list[Message], offsets: holes.Offsets, erased: tuple[tuple[int, int], ...]
) -> tuple[list[Message], holes.Offsets]:
    """The block without the records whose positions were erased."""
    keep = np.ones(len(offsets), dtype=bool)
    for start, end in erased:
        keep[np.searchsorted(offsets, start) : np.searchsorted(offsets, end)] = False
    return [block[index] for index in np.flatnonzero(keep)], offsets[keep]


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Without Python's cycle collector, which would look again and again at tens of thousands of messages that hold no cycle."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
