"""The offsets of a range that hold no record for readers of committed records, and why.

Kafka doesn't say. What a reader of uncommitted records still sees there was aborted. What nobody sees is a transaction's marker,
or, where the topic is compacted, most likely a record whose key came again (its markers can't be told from those, and count so).
"""

from collections.abc import Iterable, Iterator, Sequence

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


def stretches(missing: Sequence[Gap], near: int) -> Iterator[Gap]:
    """Spans [start, end) that cover the ascending gaps; those less than `near` apart are taken together."""
    current: Gap | None = None
    for start, end in missing:
        if current is not None and start - current[1] < near:
            current = (current[0], end)
            continue
        if current is not None:
            yield current
        current = (start, end)
    if current is not None:
        yield current


def classify(
    missing: Sequence[Gap],
    seen: Iterable[Offsets],
    *,
    first: int,
    compacted: bool,
    erased: Sequence[Gap] = (),
) -> list[Span]:
    """The spans of the gaps by reason; `seen` are the ascending offsets that a reader of uncommitted records finds among them.

    A gap may be as long as a topic's whole past, so its offsets are never listed: memory follows the gaps and the runs of what
    is seen in them.
    """
    if not missing:
        return []
    gone, cut = _Spans(missing), _Spans(erased)
    found: list[Gap] = []
    for some in seen:
        found += _runs(some[gone.hold(some)])
    aborted = _Spans(found)
    # Between two neighbouring edges all offsets have one reason.
    edges = np.unique(np.concatenate((*gone.edges, *cut.edges, *aborted.edges, [first])))
    starts, ends = edges[:-1], edges[1:]
    reasons = np.select([cut.hold(starts), aborted.hold(starts), starts < first], [_ERASED, _ABORTED, _EXPIRED], default=_UNSEEN)
    inside = gone.hold(starts)
    starts, ends, reasons = starts[inside], ends[inside], reasons[inside]
    begins = np.ones(len(starts), dtype=bool)
    begins[1:] = (starts[1:] != ends[:-1]) | (reasons[1:] != reasons[:-1])
    lasts = np.roll(begins, -1)
    names = ("compacted" if compacted else "marker", "aborted", "erased", "expired")
    told = zip(starts[begins].tolist(), ends[lasts].tolist(), reasons[begins].tolist(), strict=True)
    return [(start, end, names[reason]) for start, end, reason in told]


class _Spans:
    """Spans [start, end) in any order; they may overlap."""

    def __init__(self, spans: Sequence[Gap]) -> None:
        bounds = np.array(spans, dtype=np.int64).reshape(-1, 2)
        self.edges = np.sort(bounds[:, 0]), np.sort(bounds[:, 1])

    def hold(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Whether each of the offsets lies in one: more have begun than have ended."""
        starts, ends = self.edges
        return np.searchsorted(starts, offsets, "right") > np.searchsorted(ends, offsets, "right")


def _runs(offsets: Offsets) -> list[Gap]:
    """The runs [start, end) of ascending offsets."""
    if not len(offsets):
        return []
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    starts = offsets[np.concatenate(([0], breaks + 1))]
    ends = offsets[np.concatenate((breaks, [len(offsets) - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
