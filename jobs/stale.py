"""Which days of a pipeline are stale: their features were computed before rows entered the table that the run would have read.

A row counts for a day when it had reached Kafka before the day closed, at A, the day's end plus the lateness, and lies where the
day's windows, dimensions, labels or examples look. A mended dead letter is such a row, and a straggler by the producer's clock,
and what was erased. Fresh news never makes a day stale, nor does an acknowledgement.

Judged from the account, which knows the rows of each commit by event day and known day; the events are looked at only where
that leaves open whether a row came before A or later on A's own day. A day may be called stale for a row that turns out to be
the repeat of another, or to concern no example. It is never the other way round. The account must be settled.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from jobs import batches, lake, ledger, reach
from jobs.interval import DAY, Interval, midnight
from pipelines.declare import Pipeline, Source

_TERMS = 200
"""Conditions in one query."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleDay:
    """A commit that changed what a day's features rest on, after they were computed."""

    day: date
    source: str
    batch: str
    kind: str
    """`ingest`, `replay`, `erase` or `rebuild`."""
    rows: int
    """Rows of the commit that the day's run would have read; for a rebuild also those that it took the place of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """The rows of a source that one part of a day's run reads."""

    events: Interval
    """When they happened."""
    known: date
    """The last day on which they may have become known."""
    closing: bool = False
    """Whether those count too that became known on the day after that, before A."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Change:
    """A commit's rows by event day and known day."""

    version: int
    batch: str
    kind: str
    rows: Counter[tuple[date, date]]
    earliest: date
    """The earliest known day: most commits are fresh news for most days, and need no closer look."""


_Early = dict[tuple[str, date], Counter[date]]
"""Rows by event day that became known on a day before its A, by batch and that day."""


def stale(pipeline: Pipeline, interval: Interval | None = None) -> list[StaleDay]:
    """What makes days of the interval stale, of those whose features were computed; None looks at all days. In order."""
    computed = ledger.inputs(pipeline, "features/", interval)
    found = [one for source in pipeline.sources for one in _stale(pipeline, source, computed)]
    return sorted(found, key=lambda one: (one.day, one.source))


def intervals(days: Iterable[date]) -> list[Interval]:
    """Days as runs of days, in order, as a person gives them to a command."""
    found: list[Interval] = []
    for day in sorted(set(days)):
        if found and found[-1].end == day:
            found[-1] = Interval(found[-1].start, day + DAY)
        else:
            found.append(Interval(day, day + DAY))
    return found


def _stale(pipeline: Pipeline, source: Source, computed: dict[date, dict[str, Any]]) -> list[StaleDay]:
    versions = {day: int(inputs.get(source.name, -1)) for day, inputs in computed.items()}
    changes = _changes(source, min(versions.values())) if versions else []
    pairs = [
        (day, looks, change)
        for day, version in versions.items()
        if (looks := _looks(pipeline, source, day))
        for change in changes
        # Of A's own day, which is the last that can count, everything else is fresh news.
        if change.version > version and change.earliest <= day + DAY
    ]
    early = _early(
        pipeline, source, [(change, day) for day, looks, change in pairs if any(_open(change, look) for look in looks)]
    )
    found = [(day, change, _rows(change, looks, early)) for day, looks, change in pairs]
    return [
        StaleDay(day=day, source=source.name, batch=change.batch, kind=change.kind, rows=rows)
        for day, change, rows in found
        if rows
    ]


def _looks(pipeline: Pipeline, source: Source, day: date) -> list[_Look]:
    """Where the run of a day looks at a source."""
    one = Interval(day, day + DAY)
    looks: list[_Look] = []
    history = reach.history(pipeline, source, one)
    if history is not None:
        # Windows and dimensions end with the day, and so does what a label that matures on it may know.
        looks.append(_Look(events=history.read, known=day))
    if pipeline.spine.source == source:
        labels, examples = reach.labels_as_of(pipeline, one), reach.examples_as_of(pipeline, one)
        # An example is there when it was known by its as_of. Those of the day's labels have theirs long before the day ends;
        # those that use the day's features have theirs after A, and what comes after A is fresh.
        looks.append(_Look(events=_events(pipeline, *labels), known=reach.covering(*labels).last))
        looks.append(_Look(events=_events(pipeline, *examples), known=day, closing=pipeline.lateness > timedelta(0)))
    return looks


def _events(pipeline: Pipeline, start: datetime, end: datetime) -> Interval:
    """When the events of the examples with `as_of` in [start, end) happened, and around them their repeats."""
    before, around = pipeline.spine.before, pipeline.spine.source.repeats_within
    days = reach.covering(start + before, end + before)
    return Interval(days.start - around, days.end + around)


def _open(change: _Change, look: _Look) -> bool:
    """Whether the account leaves open if rows of the commit came before A."""
    return look.closing and any(known == look.known + DAY and _holds(look.events, event) for event, known in change.rows)


def _rows(change: _Change, looks: list[_Look], early: _Early) -> int:
    """Rows of the commit that the looks see."""
    seen = 0
    for (event, known), rows in change.rows.items():
        if any(known <= look.known and _holds(look.events, event) for look in looks):
            seen += rows
        elif any(look.closing and known == look.known + DAY and _holds(look.events, event) for look in looks):
            # What was erased can't be looked at any more.
            seen += rows if change.kind == "erase" else early.get((change.batch, known), Counter())[event]
    return seen


def _holds(days: Interval, day: date) -> bool:
    return days.start <= day < days.end


def _early(pipeline: Pipeline, source: Source, wanted: list[tuple[_Change, date]]) -> _Early:
    """Which rows of the commits became known on the day after the given one, but before its A."""
    found: _Early = defaultdict(Counter)
    table = lake.load(batches.events_uri(source)) if wanted else None
    for start in range(0, len(wanted), _TERMS):
        terms = " or ".join(
            f"(batch = '{change.batch}' and known_time >= timestamp '{midnight(day + DAY).isoformat()}' "
            f"and known_time < timestamp '{batches.closes_at(pipeline, day).isoformat()}')"
            for change, day in wanted[start : start + _TERMS]
        )
        assert table is not None
        rows = lake.query(
            table,
            "select batch, event_date, cast(known_time as date) as known, count(*) as rows from t "
            f"where rejected_reason is null and ({terms}) group by 1, 2, 3",
        )
        for row in rows.to_pylist():
            found[row["batch"], row["known"]][row["event_date"]] += row["rows"]
    return found


def _changes(source: Source, since: int) -> list[_Change]:
    """The commits after the version `since` that changed good rows, the oldest first."""
    table = lake.load(batches.ranges_uri(source))
    if table is None:
        return []
    # All of them: what a rebuild voids in the account was read by the days all the same.
    rows = lake.query(
        table,
        "select version, batch, kind, counts from t where (counts <> '[]' and kind <> 'acknowledge') or kind = 'rebuild' "
        "order by version",
    )
    commits: dict[tuple[int, str, str], Counter[tuple[date, date]]] = defaultdict(Counter)
    for row in rows.to_pylist():
        commit = commits[row["version"], row["batch"], row["kind"]]
        for event, known, count in json.loads(row["counts"]):
            commit[date.fromisoformat(event), date.fromisoformat(known)] += count
    found: list[_Change] = []
    held: Counter[tuple[date, date]] = Counter()
    for (version, batch, kind), counts in commits.items():
        if kind == "rebuild":
            # Its rows may be those of before, and may not: it changed all that was there.
            held, counts = counts, counts | held
        else:
            held = held - counts if kind == "erase" else held + counts
        if version > since and counts:
            earliest = min(known for _, known in counts)
            found.append(_Change(version=version, batch=batch, kind=kind, rows=counts, earliest=earliest))
    return found
