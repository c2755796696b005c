"""Which examples make up which step: a pure function of (seed, epoch, step), the same for every number of ranks.

The row groups of the training part fall into V virtual shards. A step's global batch takes a fixed share of every
shard; a rank reads its own shards alone. So V ranks or one see the same examples at the same step, the number of steps
is known from the Parquet footers, and reading can begin at any step without reading what lies before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """The order of a training part's examples."""

    rows: tuple[int, ...]
    """The rows of each row group, as the Parquet footers have them. Group i belongs to shard i modulo `shards`."""
    shards: int
    batch: int
    """Examples in a step of all ranks together, a multiple of `shards`. An epoch's last steps may hold fewer."""
    seed: int

    def __post_init__(self) -> None:
        assert self.batch % self.shards == 0, (self.batch, self.shards)

    @property
    def share(self) -> int:
        """What a step takes of each shard."""
        return self.batch // self.shards

    @property
    def steps(self) -> int:
        """Steps in an epoch: until the fullest shard is empty. Every example comes once."""
        return max(-(-self._shard_rows(shard) // self.share) for shard in range(self.shards))

    def size(self, step: int) -> int:
        """Examples in a step of all ranks together, by which its gradient is divided."""
        return sum(min(self.share, max(0, self._shard_rows(shard) - step * self.share)) for shard in range(self.shards))

    def owned(self, rank: int, ranks: int) -> range:
        """The shards that a rank reads. `ranks` divides `shards`."""
        assert self.shards % ranks == 0, (self.shards, ranks)
        each = self.shards // ranks
        return range(rank * each, (rank + 1) * each)

    def picks(self, *, epoch: int, shard: int, first: int = 0) -> Iterator[list[tuple[int, Rows]]]:
        """For each step from `first` on, what a shard gives: row groups, each with the rows to take of it, in order.

        The shard's row groups come in a random order, and the rows of each in a random order of their own, so no more
        than one of them has to be in memory. A step whose share is used up gets an empty list.
        """
        skip = first * self.share
        left = self.steps - first
        step: list[tuple[int, Rows]] = []
        room = self.share
        for group in self._random(epoch, shard).permutation(np.arange(shard, len(self.rows), self.shards)):
            if skip >= self.rows[group]:
                skip -= self.rows[group]
                continue
            rows = self._random(epoch, self.shards + group).permutation(self.rows[group])[skip:]
            skip = 0
            while len(rows):
                step.append((int(group), rows[:room]))
                rows, room = rows[room:], room - len(rows[:room])
                if room == 0:
                    yield step
                    step, room, left = [], self.share, left - 1
        if step:
            yield step
            left -= 1
        for _ in range(left):
            yield []

    def _shard_rows(self, shard: int) -> int:
        return sum(self.rows[shard :: self.shards])

    def _random(self, epoch: int, stream: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, epoch, int(stream)))
