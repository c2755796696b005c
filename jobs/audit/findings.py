"""What is wrong with a partition's positions, as runs of offsets."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jobs.audit.positions import DEAD, EXPLAINED, GOOD, REPLAYED, Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A run of offsets [start, end) with which something is wrong."""

    what: str
    epoch: int
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        where = f"partition {self.partition}" + (f" of epoch {self.epoch}" if self.epoch else "")
        return f"{where}, [{self.start}, {self.end}): {self.what}"

    def told(self) -> dict[str, Any]:
        """For the run report."""
        return asdict(self)


_GAP = "a gap: no row, and nothing explains it"
_TWICE = "a duplicate: more than one row"
_RISEN = "a duplicate: a good row beside a dead letter that nobody replayed"
_EXTRA = "a row where the account says that there is none"
_BEYOND = "a row beyond the offset up to which the table is read"


def _verdict(state: int) -> str | None:
    good, dead = state // GOOD & 3, state // DEAD & 3
    if good > 1 or dead > 1:
        return _TWICE
    if good + dead and state & EXPLAINED:
        return _EXTRA
    if good and dead and not state & REPLAYED:
        return _RISEN
    if not good + dead and not state & EXPLAINED:
        return _GAP
    return None


_VERDICTS = [_verdict(state) for state in range(64)]
_WRONG = np.array([verdict is not None for verdict in _VERDICTS])


def of_partition(partition: Partition) -> Iterator[Finding]:
    """The findings of one partition, in the order of the offsets."""

    def found(what: str, start: int, end: int) -> Finding:
        return Finding(what=what, epoch=partition.epoch, partition=partition.number, start=start, end=end)

    for state, start, end in _joined(_runs(partition)):
        verdict = _VERDICTS[state]
        assert verdict is not None
        yield found(verdict, start, end)
    for offsets in partition.beyond:
        for offset, _ in sorted(Counter(offsets.tolist()).items()):
            yield found(_BEYOND, offset, offset + 1)


def _runs(partition: Partition) -> Iterator[tuple[int, int, int]]:
    """Wrong states, and the offsets [start, end) that have them, piece by piece."""
    for begin, end, states in partition.pieces():
        if isinstance(states, int):
            if _WRONG[states]:
                yield states, begin, end
            continue
        # Few states occur, and nearly always none is wrong: looked up before anything is looked at one by one.
        if not _WRONG[np.flatnonzero(np.bincount(states, minlength=64))].any():
            continue
        at = np.flatnonzero(_WRONG[states])
        wrong = states[at]
        breaks = np.flatnonzero((np.diff(at) != 1) | (np.diff(wrong) != 0)) + 1
        for run in np.split(np.arange(len(at)), breaks):
            yield int(wrong[run[0]]), begin + int(at[run[0]]), begin + int(at[run[-1]]) + 1


def _joined(runs: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """The runs, those joined that go on in the next piece."""
    before: tuple[int, int, int] | None = None
    for state, start, end in runs:
        if before is not None and (before[0], before[2]) == (state, start):
            start = before[1]
        elif before is not None:
            yield before
        before = state, start, end
    if before is not None:
        yield before


def of_account(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """Where the batches of a partition leave a gap between each other, or overlap."""
    reached: dict[tuple[int, int], int] = {}
    for row in rows:
        # What read nothing may tell of where a partition stood long ago: it was planned then, and settled after others.
        if row["kind"] not in ("ingest", "rebuild") or row["start_offset"] == row["end_offset"]:
            continue
        key = (row["topic_epoch"], row["kafka_partition"])
        start, before = row["start_offset"], reached.get(key, 0)
        if start != before:
            what = "the account skips it" if start > before else "the account has it in two batches"
            first, last = sorted((start, before))
            yield Finding(what=f"{what} (batch {row['batch']})", epoch=key[0], partition=key[1], start=first, end=last)
        reached[key] = max(before, row["end_offset"])
