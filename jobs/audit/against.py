"""What Kafka says of the positions that a table holds."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Message  # noqa: TID253

from jobs.audit.findings import Finding
from jobs.audit.positions import EXPLAINED, ROWS, Offsets, Partition
from jobs.kafka import Bounds
from jobs.stream import consumer, messages

SLICE = 1 << 24
"""Offsets that are compared at once."""


@dataclass(kw_only=True, slots=True)
class Told:
    """One partition as Kafka has it."""

    earliest: int
    end: int
    lag: int
    """Offsets not read yet."""
    only_here: int = 0
    """Rows whose records Kafka no longer holds, by retention (and, with `--read-kafka`, by compaction)."""
    compared: int | None = None
    """Records read from Kafka and found here; None where they were not asked for."""


def ends(partition: Partition, held: Bounds) -> tuple[Told, list[Finding]]:
    """Compare where the partition begins and ends."""
    told = Told(
        earliest=held.earliest,
        end=held.end,
        lag=max(0, held.end - partition.next),
        only_here=partition.rows_below(held.earliest),
    )
    where = {"epoch": partition.epoch, "partition": partition.number}
    if partition.next < held.earliest:
        lost = Finding(
            what="lost: Kafka no longer has it, and it was never read", start=partition.next, end=held.earliest, **where
        )
        return told, [lost]
    if partition.next > held.end:
        return told, [Finding(what="read, though Kafka ends before it", start=held.end, end=partition.next, **where)]
    return told, []


def records(topic: str, partition: Partition, told: Told, *, compacted: bool) -> Iterator[Finding]:
    """Read what Kafka holds of [earliest, next), and compare: what is there must be a row here, and the other way round."""
    start, end = told.earliest, min(partition.next, told.end)
    told.compared = 0
    missing, gone = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    reader = consumer("read_committed")
    try:
        for first in range(start, end, SLICE):
            last = min(first + SLICE, end)
            states = partition.states(first, last)
            here, there = (states & ROWS) > 0, np.zeros(last - first, dtype=bool)
            for some in messages(reader, topic, partition.number, first, last):
                there[np.fromiter(map(Message.offset, some), np.int64, len(some)) - first] = True
            told.compared += int(np.count_nonzero(here & there))
            # What was erased here may still be in Kafka: it is explained, and no finding.
            missing.append(np.flatnonzero(there & ~here & ((states & EXPLAINED) == 0)) + first)
            if compacted:
                told.only_here += int(np.count_nonzero(here & ~there))
            else:
                gone.append(np.flatnonzero(here & ~there) + first)
    finally:
        reader.close()
    yield from _runs(partition, np.concatenate(missing), "a record of Kafka that has no row")
    yield from _runs(partition, np.concatenate(gone), "a row whose record Kafka doesn't have")


def _runs(partition: Partition, offsets: Offsets, what: str) -> Iterator[Finding]:
    for run in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
        if len(run):
            yield Finding(what=what, epoch=partition.epoch, partition=partition.number, start=int(run[0]), end=int(run[-1]) + 1)
