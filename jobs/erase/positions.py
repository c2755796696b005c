"""Sets of positions of records, as spans of offsets by topic, epoch and partition."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.erase.person import Mask

Place = tuple[str, int, int]
"""Topic, epoch and partition."""

COLUMNS = ("topic", "topic_epoch", "kafka_partition", "kafka_offset")


class Positions:
    """Positions, to ask whether one is among them."""

    def __init__(self, spans: Mapping[Place, Iterable[tuple[int, int]]]) -> None:
        self._spans = {place: merged for place, some in spans.items() if (merged := _merged(some))}

    def __bool__(self) -> bool:
        return bool(self._spans)

    def has(self, place: Place, offset: int) -> bool:
        """Whether the position is one of them."""
        spans = self._spans.get(place, [])
        at = bisect_right(spans, (offset, np.inf)) - 1
        return at >= 0 and offset < spans[at][1]

    def mask(self, rows: pa.Table) -> Mask:
        """Which rows of events lie at one of them."""
        found = np.zeros(len(rows), dtype=bool)
        offsets = rows.column("kafka_offset").to_numpy()
        for (topic, epoch, partition), spans in self._spans.items():
            here = pc.and_(pc.equal(rows.column("topic_epoch"), epoch), pc.equal(rows.column("kafka_partition"), partition))
            own = np.flatnonzero(pc.and_(here, pc.equal(rows.column("topic"), topic)).to_numpy())
            ends = np.array(spans)
            at = np.searchsorted(ends[:, 0], offsets[own], side="right") - 1
            found[own] |= (at >= 0) & (offsets[own] < ends[np.maximum(at, 0), 1])
        return found


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def spans_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Offsets as spans, neighbours joined."""
    return _merged((offset, offset + 1) for offset in offsets)
