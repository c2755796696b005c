"""What the table and its account say of each offset of a partition, as one byte for each.

The table is asked itself: every file's offsets are read. A byte holds how often the offset is a good row and how often a dead
letter (both saturate), whether the account explains that it has no row, and whether it tells of a replay.

Bytes are held by the chunk, and only where something is known of single offsets: a partition whose first billions of offsets
expired costs no more than what was read of it. So the audit's memory grows with the offsets that were read, a byte for each.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from jobs.errors import RetryError
from jobs.files import Folder

States = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Key = tuple[int, int]
"""Epoch and partition."""

GOOD, DEAD = 1, 4
"""What one row of a kind adds; three are the most that are told apart."""
EXPLAINED, REPLAYED = 16, 32
ROWS = 3 * GOOD | 3 * DEAD
"""The bits that count rows."""

CHUNK = 1 << 20
"""Offsets whose bytes are held together."""

READERS = 4
AHEAD = 2 * READERS
"""Files that are read, or wait with their offsets, beside the one that is being counted."""

_Item = TypeVar("_Item")
_Of = TypeVar("_Of")


@dataclass(kw_only=True, slots=True)
class Partition:
    """One partition in one epoch."""

    epoch: int
    number: int
    next: int
    """The offset up to which it is read, as the table's log has it."""
    chunks: dict[int, States] = field(default_factory=dict)
    """By number, each the states of CHUNK offsets. An offset below `next` without a chunk has no row."""
    explained: list[tuple[int, int]] = field(default_factory=list)
    """The numbers [first, last) of chunks that are explained as a whole."""
    beyond: list[Offsets] = field(default_factory=list)
    """Offsets of rows that lie outside [0, next)."""

    def add(self, offsets: Offsets, what: int) -> None:
        """Count rows at these offsets, which come in any order."""
        outside = (offsets < 0) | (offsets >= self.next)
        if outside.any():
            self.beyond.append(offsets[outside])
            offsets = offsets[~outside]
        if not len(offsets):
            return
        if (np.diff(offsets) > 0).all():
            self._count(offsets, what)
        else:
            found, often = np.unique(offsets, return_counts=True)
            for times in range(min(3, int(often.max()))):
                self._count(found[often > times], what)

    def _count(self, offsets: Offsets, what: int) -> None:
        """Count ascending offsets."""
        done = 0
        while done < len(offsets):
            number = int(offsets[done]) // CHUNK
            to = int(np.searchsorted(offsets, (number + 1) * CHUNK))
            own, chunk = offsets[done:to] - number * CHUNK, self._chunk(number)
            first, last = int(own[0]), int(own[-1])
            at: slice | Offsets = slice(first, last + 1) if last - first + 1 == len(own) else own
            states = chunk[at]
            full = (states & (3 * what)) == 3 * what
            chunk[at] = np.where(full, states, states + np.uint8(what))
            done = to

    def mark(self, start: int, end: int, what: int) -> None:
        """Set a flag of the account on [start, end)."""
        start, end = max(0, start), min(end, self.next)
        # The last chunk is a whole one where it ends with the partition.
        first, last = -(-start // CHUNK), -(-end // CHUNK) if end == self.next else end // CHUNK
        if what != EXPLAINED or first >= last:
            self._mark(start, end, what)
            return
        self._mark(start, first * CHUNK, what)
        self._mark(last * CHUNK, end, what)
        self.explained.append((first, last))
        for number, chunk in self.chunks.items():
            if first <= number < last:
                chunk |= np.uint8(what)

    def _mark(self, start: int, end: int, what: int) -> None:
        while start < end:
            number = start // CHUNK
            to = min(end, (number + 1) * CHUNK)
            self._chunk(number)[start - number * CHUNK : to - number * CHUNK] |= np.uint8(what)
            start = to

    def _chunk(self, number: int) -> States:
        if number not in self.chunks:
            length = min(CHUNK, self.next - number * CHUNK)
            self.chunks[number] = np.full(length, self._same(number), dtype=np.uint8)
        return self.chunks[number]

    def _same(self, number: int) -> int:
        """The state of all offsets of a chunk that is not held."""
        return EXPLAINED if any(first <= number < last for first, last in self.explained) else 0

    def pieces(self) -> "Iterator[tuple[int, int, States | int]]":
        """All offsets below `next` in order, as [start, end) with the state of each, or with the one that all of them have."""
        edges = {0, -(-self.next // CHUNK)}
        edges.update(*self.explained, self.chunks, (number + 1 for number in self.chunks))
        for number, after in pairwise(sorted(edges)):
            chunk = self.chunks.get(number)
            yield number * CHUNK, min(after * CHUNK, self.next), self._same(number) if chunk is None else chunk

    def states(self, start: int, end: int) -> States:
        """The states of the offsets [start, end)."""
        found = np.zeros(max(0, end - start), dtype=np.uint8)
        for first, last, state in self.pieces():
            at, to = max(first, start), min(last, end)
            if at < to:
                found[at - start : to - start] = state if isinstance(state, int) else state[at - first : to - first]
        return found

    def rows_below(self, offset: int) -> int:
        """How many offsets below this one have a row."""
        held = (chunk[: max(0, offset - number * CHUNK)] for number, chunk in self.chunks.items())
        return sum(int(np.count_nonzero(states & ROWS)) for states in held)


def read(table: DeltaTable, partitions: dict[Key, Partition]) -> int:
    """Add the rows of all files of the table. Returns how many there are; rows of no known partition make one of their own.

    Raises RetryError where a file can't be read: whoever erases or maintains takes files of older versions away.
    """
    rows = 0
    for found in ahead(lambda file: list(_offsets(*file)), _files(table)):
        for key, offsets, what in found:
            rows += len(offsets)
            if key not in partitions:
                partitions[key] = Partition(epoch=key[0], number=key[1], next=0)
            partitions[key].add(offsets, what)
    return rows


def ahead(work: Callable[[_Item], _Of], items: Iterable[_Item]) -> Iterator[_Of]:
    """`work` on each item, in their order, by READERS threads that are at most AHEAD items ahead of whoever takes the results."""
    waiting: deque[Future[_Of]] = deque()
    with ThreadPoolExecutor(READERS) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) == AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _files(table: DeltaTable) -> Iterator[tuple[Folder, str, int, Key | None]]:
    """Each file: its path, whether it holds good rows or dead letters, and its partition where its statistics say that it has
    one."""
    folder = Folder(table.table_uri)
    for action in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        what = DEAD if action["partition.event_date"] is None else GOOD
        ends = [(action.get(f"min.{name}"), action.get(f"max.{name}")) for name in ("topic_epoch", "kafka_partition")]
        one = all(least is not None and least == greatest for least, greatest in ends)
        yield folder, unquote(action["path"]), what, (int(ends[0][0]), int(ends[1][0])) if one else None


def _offsets(folder: Folder, path: str, what: int, key: Key | None) -> Iterable[tuple[Key, Offsets, int]]:
    names = ["kafka_offset"] if key else ["kafka_offset", "kafka_partition", "topic_epoch"]
    try:
        with folder.open(path) as file:
            rows = pq.ParquetFile(file).read(names, use_threads=False)
    except (OSError, pa.ArrowInvalid) as failure:
        raise RetryError(
            f"the table's file {path} could not be read ({failure}). An erasure or a maintenance may have taken it since the "
            "audit began: run the audit again. If it says the same of this file, the store has lost or damaged it."
        ) from failure
    offsets = rows.column("kafka_offset").to_numpy()
    if key:
        yield key, offsets, what
        return
    epochs, numbers = (rows.column(name).to_numpy() for name in ("topic_epoch", "kafka_partition"))
    for epoch, number in sorted(set(zip(epochs.tolist(), numbers.tolist(), strict=True))):
        yield (epoch, number), offsets[(epochs == epoch) & (numbers == number)], what
