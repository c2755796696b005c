"""The offsets of a range that hold no record for readers of committed records, and why.

Kafka doesn't say. What a reader of uncommitted records still sees there was aborted. What nobody sees is a transaction's marker,
or, where the topic is compacted, most likely a record whose key came again (its markers can't be told from those, and count so).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from jobs.account import Span

Offsets = npt.NDArray[np.int64]
Gap = tuple[int, int]

_UNSEEN, _ABORTED, _ERASED, _EXPIRED = range(4)


def gaps(position: int, offsets: Offsets) -> list[Gap]:
    """The gaps [start, end) before each of ascending offsets, the first counted from `position`."""
    expected = np.concatenate(([position], offsets[:-1] + 1))
    at = np.flatnonzero(offsets != expected)
    return list(zip(expected[at].tolist(), offsets[at].tolist(), strict=True))


def classify(
    missing: Sequence[Gap],
    seen: Iterable[Offsets],
    *,
    first: int,
    compacted: bool,
    erased: Sequence[Gap] = (),
) -> list[Span]:
    """The spans of the gaps by reason; `seen` are the offsets that a reader of uncommitted records finds among them."""
    if not missing:
        return []
    offsets = np.concatenate([np.arange(start, end) for start, end in missing])
    reasons = np.full(len(offsets), _UNSEEN, dtype=np.int8)
    reasons[offsets < first] = _EXPIRED
    for some in seen:
        reasons[np.isin(offsets, some)] = _ABORTED
    for start, end in erased:
        reasons[np.searchsorted(offsets, start) : np.searchsorted(offsets, end)] = _ERASED
    names = ("compacted" if compacted else "marker", "aborted", "erased", "expired")
    breaks = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(reasons) != 0)) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [len(offsets)])) - 1
    return [(int(offsets[start]), int(offsets[end]) + 1, names[reasons[start]]) for start, end in zip(starts, ends, strict=True)]
