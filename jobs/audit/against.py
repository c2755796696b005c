"""What Kafka says of the positions that a table holds."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Message  # noqa: TID253

from jobs.audit.findings import Finding
from jobs.audit.positions import DEAD, GOOD, Offsets, Partition
from jobs.kafka import Bounds
from jobs.stream import consumer, messages

_ROWS = 3 * GOOD | 3 * DEAD


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
    kept = partition.states[: held.earliest] & _ROWS
    told = Told(
        earliest=held.earliest, end=held.end, lag=max(0, held.end - partition.next), only_here=int(np.count_nonzero(kept))
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
    here = (partition.states[start:end] & _ROWS) > 0
    there = np.zeros(max(0, end - start), dtype=bool)
    reader = consumer("read_committed")
    try:
        for some in messages(reader, topic, partition.number, start, end):
            there[np.fromiter(map(Message.offset, some), np.int64, len(some)) - start] = True
    finally:
        reader.close()
    told.compared = int(np.count_nonzero(here & there))
    missing, gone = np.flatnonzero(there & ~here) + start, np.flatnonzero(here & ~there) + start
    # What was erased here may still be in Kafka: it is explained, and no finding.
    yield from _runs(partition, missing[partition.states[missing] & 16 == 0], "a record of Kafka that has no row")
    if compacted:
        told.only_here += len(gone)
    else:
        yield from _runs(partition, gone, "a row whose record Kafka doesn't have")


def _runs(partition: Partition, offsets: Offsets, what: str) -> Iterator[Finding]:
    for run in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
        if len(run):
            yield Finding(what=what, epoch=partition.epoch, partition=partition.number, start=int(run[0]), end=int(run[-1]) + 1)
