"""How many of a day's records are dead letters, and whether its features may be trusted.

Judged for each known day, the day on which the records reached Kafka, from the account of all commits: what was read, what a
replay made good, what was erased, what somebody acknowledged. Tombstones say that a key is gone; they are kept, but never judged.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from jobs import batches
from jobs.errors import DataError
from jobs.interval import Interval
from jobs.record import TOMBSTONE
from pipelines.declare import Pipeline, Source


@dataclass(kw_only=True, slots=True)
class KnownDay:
    """The records of a source that reached Kafka on one day."""

    source: Source
    day: date
    good: int = 0
    dead: int = 0
    """Dead letters that are still dead, without tombstones."""
    acknowledged: int = 0

    @property
    def share(self) -> float:
        """The share of dead letters that nobody acknowledged."""
        open_ = max(0, self.dead - self.acknowledged)
        return open_ / max(1, self.good + self.dead)

    def __str__(self) -> str:
        return (
            f"{self.source.name}, {self.day}: {self.dead - self.acknowledged:,} of {self.good + self.dead:,} records "
            "are dead letters "
            f"({self.share:.1%}; at most {self.source.dead_letter_limit:.1%} is declared)"
        )


def by_known_day(source: Source) -> dict[date, KnownDay]:
    """What is known of each day, from the account as it is settled."""
    days: dict[date, KnownDay] = {}

    def of(text: str) -> KnownDay:
        day = date.fromisoformat(text)
        return days.setdefault(day, KnownDay(source=source, day=day))

    for row in batches.ranges(source, where="counts <> '[]' or dead_counts <> '[]'").to_pylist():
        good, dead = _SIGNS[row["kind"]]
        for _, known, rows in json.loads(row["counts"]):
            of(known).good += good * rows
        for known, reason, rows in json.loads(row["dead_counts"]):
            if reason == TOMBSTONE:
                continue
            if row["kind"] == "acknowledge":
                of(known).acknowledged += rows
            else:
                of(known).dead += dead * rows
    return days


_SIGNS: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
_SIGNS |= {"ingest": (1, 1), "rebuild": (1, 1), "replay": (1, -1), "erase": (-1, -1)}
"""What a commit of each kind does to the good rows and to the dead letters of a day."""


def over_limit(source: Source, days: Iterable[date]) -> list[KnownDay]:
    """Those of the days whose share of dead letters is above what the source declares, in order."""
    wanted = set(days)
    return [
        known for day, known in sorted(by_known_day(source).items()) if day in wanted and known.share > source.dead_letter_limit
    ]


def require(sources: Iterable[Source], days: Iterable[date], what: str) -> None:
    """Raise DataError where a day of one of the sources has too many dead letters; `what` says what is refused for it."""
    days = list(days)
    wrong = [known for source in sources for known in over_limit(source, days)]
    if wrong:
        name = wrong[0].source.name
        lines = "".join(f"\n  {known}" for known in wrong)
        raise DataError(
            f"{what}, because too many records could not be used:{lines}\nNothing is lost. See `penstock dead-letters "
            f"list {name}`; "
            f"mend the contract and run `penstock dead-letters replay {name}`, or take responsibility with "
            f"`penstock dead-letters acknowledge {name} --day {wrong[0].day} --by NAME --reason TEXT`."
        )


def require_usable(pipeline: Pipeline, interval: Interval) -> None:
    """Raise DataError where features of the interval would rest on a day with too many dead letters."""
    require(pipeline.sources, interval.days(), f"the features of {interval} are refused")
