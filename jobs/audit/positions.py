"""What the table and its account say of each offset of a partition, as one byte for each.

The table is asked itself: every file's offsets are read. A byte holds how often the offset is a good row and how often a dead
letter (both saturate), whether the account explains that it has no row, and whether it tells of a replay.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from jobs.files import Folder

States = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Key = tuple[int, int]
"""Epoch and partition."""

GOOD, DEAD = 1, 4
"""What one row of a kind adds; three are the most that are told apart."""
EXPLAINED, REPLAYED = 16, 32

_READERS = 4


@dataclass(kw_only=True, slots=True)
class Partition:
    """One partition in one epoch."""

    epoch: int
    number: int
    next: int
    """The offset up to which it is read, as the table's log has it."""
    states: States
    """For each offset below `next`."""
    beyond: list[Offsets] = field(default_factory=list)
    """Offsets of rows that lie outside [0, next)."""

    @classmethod
    def blank(cls, epoch: int, number: int, next_offset: int) -> "Partition":
        """Nothing known yet."""
        return cls(epoch=epoch, number=number, next=next_offset, states=np.zeros(next_offset, dtype=np.uint8))

    def add(self, offsets: Offsets, what: int) -> None:
        """Count rows at these offsets, which come in any order."""
        outside = (offsets < 0) | (offsets >= self.next)
        if outside.any():
            self.beyond.append(offsets[outside])
            offsets = offsets[~outside]
        if not len(offsets):
            return
        first, last = int(offsets[0]), int(offsets[-1])
        ascending = bool((np.diff(offsets) > 0).all())
        if ascending and last - first + 1 == len(offsets):
            self._count(slice(first, last + 1), what)
        elif ascending:
            self._count(offsets, what)
        else:
            found, often = np.unique(offsets, return_counts=True)
            for times in range(min(3, int(often.max()))):
                self._count(found[often > times], what)

    def _count(self, at: "slice | Offsets", what: int) -> None:
        states = self.states[at]
        full = (states & (3 * what)) == 3 * what
        self.states[at] = np.where(full, states, states + np.uint8(what))

    def mark(self, start: int, end: int, what: int) -> None:
        """Set a flag of the account on [start, end)."""
        self.states[max(0, start) : max(0, min(end, self.next))] |= np.uint8(what)


def read(table: DeltaTable, partitions: dict[Key, Partition]) -> int:
    """Add the rows of all files of the table. Returns how many there are; rows of no known partition make one of their own."""
    rows = 0
    with ThreadPoolExecutor(_READERS) as pool:
        for found in pool.map(lambda file: list(_offsets(*file)), _files(table)):
            for key, offsets, what in found:
                rows += len(offsets)
                if key not in partitions:
                    partitions[key] = Partition.blank(*key, 0)
                partitions[key].add(offsets, what)
    return rows


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
    with folder.open(path) as file:
        rows = pq.ParquetFile(file).read(names, use_threads=False)
    offsets = rows.column("kafka_offset").to_numpy()
    if key:
        yield key, offsets, what
        return
    epochs, numbers = (rows.column(name).to_numpy() for name in ("topic_epoch", "kafka_partition"))
    for epoch, number in sorted(set(zip(epochs.tolist(), numbers.tolist(), strict=True))):
        yield (epoch, number), offsets[(epochs == epoch) & (numbers == number)], what
