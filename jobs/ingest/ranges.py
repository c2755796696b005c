"""The unit of work, an offset range, and what comes back of it. Both travel between processes; rows never do."""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import date

from jobs.account import Span
from jobs.files import Written
from pipelines.declare import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The offsets [start, end) of one partition, for one batch."""

    source: Source
    batch: str
    epoch: int
    partition: int
    start: int
    first: int
    """Where Kafka begins to have them: what lies below has expired."""
    end: int
    compacted: bool = False
    """Whether the topic keeps only the newest record of each key, so that offsets go missing."""
    erased: tuple[tuple[int, int], ...] = ()
    """Spans [start, end) that were erased from the table and must not come back."""

    def __len__(self) -> int:
        """The offsets that Kafka may still hold."""
        return max(0, self.end - self.first)

    def __str__(self) -> str:
        return f"{self.source.topic}/{self.partition} [{self.start}, {self.end})"

    def part(self, first: int, end: int) -> "Range":
        """The part whose offsets in Kafka are [first, end); the first part keeps what has expired before."""
        return replace(self, start=self.start if first == self.first else first, first=first, end=end)


@dataclass(kw_only=True, slots=True)
class Done:
    """What a range held, and the files it lies in."""

    range: Range
    good: int = 0
    dead: int = 0
    bytes: int = 0
    seconds: float = 0.0
    counts: Counter[tuple[date, date]] = field(default_factory=Counter)
    """Good rows by event day and known day."""
    dead_counts: Counter[tuple[date, str]] = field(default_factory=Counter)
    """Dead letters by known day and reason."""
    spans: list[Span] = field(default_factory=list)
    """The offsets without a record, and why."""
    files: list[Written] = field(default_factory=list)


def divide(ranges: "tuple[Range, ...] | list[Range]", shares: int) -> list[list[Range]]:
    """The ranges in so many shares of about equal length, cut where one is too long for a share."""
    target = max(1, -(-sum(map(len, ranges)) // shares))
    divided: list[list[Range]] = [[]]
    room = target
    for work in ranges:
        first = work.first
        while True:
            if not room:
                divided.append([])
                room = target
            end = min(work.end, first + room)
            divided[-1].append(work.part(first, end))
            room -= end - first
            first = end
            if first >= work.end:
                break
    return divided
