"""Encoded examples, streamed from Parquet into batches: each rank reads the row groups of its own shards, never row by row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.train.order import Order


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Examples for one step, maybe none."""

    numbers: npt.NDArray[np.float32]
    """rows x numbers"""
    ids: npt.NDArray[np.int64]
    """rows x categories"""
    labels: npt.NDArray[np.float32]
    """rows; 0 or 1"""
    weights: npt.NDArray[np.float32]
    """rows; 1 in the mean of a part"""

    def take(self, rows: npt.NDArray[np.int64]) -> "Batch":
        """The rows named, in that order."""
        return Batch(numbers=self.numbers[rows], ids=self.ids[rows], labels=self.labels[rows], weights=self.weights[rows])


class Part:
    """One part of the examples: an encoded Parquet file."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path, memory_map=True)
        footer = self._file.metadata
        self.rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
        """The rows of each row group."""

    def group(self, group: int) -> Batch:
        """One row group."""
        return _batch(self._file.read_row_group(group, use_threads=False))

    def groups(self, which: Sequence[int]) -> Batch:
        """Several row groups, one after the other."""
        return _batch(self._file.read_row_groups(list(which), use_threads=False))


def batches(part: Part, order: Order, *, epoch: int, rank: int, ranks: int, first: int = 0) -> Iterator[Batch]:
    """What a rank sees in each step of an epoch, from step `first` on. A step may be empty for a rank, never missing."""
    picks = [order.picks(epoch=epoch, shard=shard, first=first) for shard in order.owned(rank, ranks)]
    held: list[tuple[int, Batch]] = [(-1, part.groups([]))] * len(picks)
    for _ in range(first, order.steps):
        taken = [part.groups([])]
        for place, shard in enumerate(picks):
            for group, rows in next(shard):
                if held[place][0] != group:
                    held[place] = group, part.group(group)
                taken.append(held[place][1].take(rows))
        yield _joined(taken)


def _joined(batches: list[Batch]) -> Batch:
    return Batch(
        numbers=np.concatenate([batch.numbers for batch in batches]),
        ids=np.concatenate([batch.ids for batch in batches]),
        labels=np.concatenate([batch.labels for batch in batches]),
        weights=np.concatenate([batch.weights for batch in batches]),
    )


def _batch(rows: pa.Table) -> Batch:
    labels, weights = (np.array(rows[name].to_numpy()) for name in ("label", "weight"))
    return Batch(numbers=_matrix(rows["numbers"]), ids=_matrix(rows["ids"]), labels=labels, weights=weights)


def _matrix(column: pa.ChunkedArray) -> Any:
    """A column of lists of one length, as a matrix."""
    # A copy, since torch takes no memory that can't be written.
    return np.array(column.combine_chunks().flatten().to_numpy()).reshape(len(column), column.type.list_size)
