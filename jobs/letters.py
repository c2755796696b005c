"""How many of a day's records are dead letters, and whether its features may be trusted.

Judged for each known day, the day on which the records reached Kafka, from the account of all commits: what was read, what a
replay made good, what was erased, what somebody acknowledged. Tombstones say that a key is gone; they are kept, but never judged.

An acknowledgement is about the letters that lay there when somebody looked. One of them that is replayed later takes its
acknowledgement along: the replay's note says so. So letters that come after it count again.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from jobs import account, batches
from jobs.errors import DataError
from jobs.interval import Interval
from jobs.record import TOMBSTONE
from pipelines.declare import Pipeline, Source

IMPLAUSIBLE = "implausible known time"
"""The reason of a record whose value may fit, but whose known time can't be."""


@dataclass(kw_only=True, slots=True)
class KnownDay:
    """The records of a source that reached Kafka on one day."""

    source: Source
    day: date
    good: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Letters that are still dead by reason, without tombstones."""
    accepted: Counter[str] = field(default_factory=Counter)
    """Those of them that somebody acknowledged."""

    @property
    def dead(self) -> int:
        """Letters that are still dead, without tombstones."""
        return self.reasons.total()

    @property
    def acknowledged(self) -> int:
        """Those of them that somebody acknowledged."""
        return self.accepted.total()

    @property
    def open(self) -> Counter[str]:
        """Those that nobody acknowledged, by reason."""
        return self.reasons - self.accepted

    @property
    def share(self) -> float:
        """The share of dead letters that nobody acknowledged."""
        return self.open.total() / max(1, self.good + self.dead)

    @property
    def over(self) -> bool:
        """Whether that is more than the source declares."""
        return self.share > self.source.dead_letter_limit

    def __str__(self) -> str:
        return (
            f"{self.source.name}, {self.day}: {self.open.total():,} of {self.good + self.dead:,} records are dead letters "
            f"({self.share:.1%}; at most {self.source.dead_letter_limit:.1%} is declared)"
        )


_SIGNS = {"ingest": (1, 1), "rebuild": (1, 1), "replay": (1, -1), "erase": (-1, -1), "acknowledge": (0, 0)}
"""What a commit of each kind does to the good rows and to the dead letters of a day."""


_FEW = 100
"""So many days are looked for by name; for more, the whole account is read."""


def by_known_day(source: Source, *, version: int | None = None, days: Collection[date] | None = None) -> dict[date, KnownDay]:
    """What is known of each day, from the account as it is settled: as it stands, or stood at a version of the events.

    With `days` at least these are complete. A service asks after each round, so it must not read years of batches for today.
    """
    found: dict[date, KnownDay] = {}

    def of(text: str) -> KnownDay:
        day = date.fromisoformat(text)
        return found.setdefault(day, KnownDay(source=source, day=day))

    columns = "kind, batch, version, kafka_partition, start_offset, counts, dead_counts, note"
    where = "(counts <> '[]' or dead_counts <> '[]')" + ("" if version is None else f" and version <= {version}")
    if days is not None and len(days) <= _FEW:
        named = (f"{column} like '%\"{day}\"%'" for column in ("counts", "dead_counts", "note") for day in days)
        where += f" and ({' or '.join(named) or 'false'})"
    noted: set[str] = set()
    for row in batches.ranges(source, columns, where).to_pylist():
        good, dead = _SIGNS[row["kind"]]
        for _, known, rows in json.loads(row["counts"]):
            of(known).good += good * rows
        for known, reason, rows in json.loads(row["dead_counts"]):
            if reason == TOMBSTONE:
                continue
            held = of(known)
            held.reasons[reason] += dead * rows
            if row["kind"] == "acknowledge":
                held.accepted[reason] += rows
        # The note is the commit's: each of its rows repeats it.
        if row["kind"] in ("replay", "erase") and row["batch"] not in noted:
            noted.add(row["batch"])
            for known, reason, rows in json.loads(row["note"] or "{}").get(ACKNOWLEDGED, ()):
                of(known).accepted[reason] -= rows
    return found


ACKNOWLEDGED = "acknowledged"
"""In the note of a replay or an erase: which of its letters were acknowledged, [[known day, reason, rows], ...]."""


def acknowledgements(source: Source) -> dict[date, int]:
    """The events table's version at which each acknowledged day was last looked at: letters of later commits are not meant."""
    found: dict[date, int] = {}
    columns = "note, version, kafka_partition, start_offset"
    for row in batches.ranges(source, columns, "kind = 'acknowledge'").to_pylist():
        note: dict[str, Any] = json.loads(row["note"])
        for day in note["days"]:
            found[date.fromisoformat(day)] = note["version"]
    return found


def over_limit(source: Source, days: Iterable[date]) -> list[KnownDay]:
    """Those of the days whose share of dead letters is above what the source declares, in order."""
    wanted = set(days)
    return [known for day, known in sorted(by_known_day(source, days=wanted).items()) if day in wanted and known.over]


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
    account.settle_all(pipeline.sources)
    require(pipeline.sources, interval.days(), f"the features of {interval} are refused")
