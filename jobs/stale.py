"""Which days of a pipeline are stale: their features were computed before rows entered the table that the run would have read.

A row counts for a day when it had reached Kafka before the day closed, at A, the day's end plus the lateness, and lies where the
day's windows, dimensions, labels or examples look. A mended dead letter is such a row, and a straggler by the producer's clock,
and what was erased. Fresh news never makes a day stale, nor does an acknowledgement.

Judged from the account, which knows the rows of each commit by event day and known day; the events are looked at only where
that leaves open whether a row came before A or later on A's own day. A day may be called stale for a row that turns out to be
the repeat of another, or to concern no example. It is never the other way round. The account must be settled.

Days count by the newest output that this declaration made of each of their tables. What changed in snapshot tables, see
`jobs.stale_tables`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from jobs import batches, lake, ledger, reach, stale_tables, versions
from jobs.interval import DAY, Interval, midnight
from jobs.ledger import Recorded
from pipelines.declare import Pipeline, Source, Spine

_TERMS = 200
"""Conditions in one query."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StaleDay:
    """A commit that changed what a day's features rest on, after they were computed."""

    day: date
    source: str
    batch: str
    kind: str
    """`ingest`, `replay`, `erase` or `rebuild`; `table` for a snapshot table."""
    rows: int
    """Rows of the commit that the day's run would have read; for a rebuild also those that it took the place of; 0 where a
    snapshot table changed and nobody can tell where."""


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
class Change:
    """A commit's rows by event day and known day."""

    version: int
    batch: str
    kind: str
    rows: Counter[tuple[date, date]]
    earliest: date
    """The earliest known day: most commits are fresh news for most days, and need no closer look."""


_Early = dict[tuple[str, date], Counter[date]]
"""Rows by event day that became known on a day before its A, by batch and that day."""


def stale(
    pipeline: Pipeline, interval: Interval | None = None, entries: list[tuple[str, date, Recorded]] | None = None
) -> list[StaleDay]:
    """What makes days of the interval stale, of those whose features were computed; None looks at all days. In order.

    `entries` are the ledger's about the features of these days, where the caller has read them.
    """
    computed = _computed(pipeline, ledger.entries(pipeline, "features/", interval) if entries is None else entries)
    found = [one for source in pipeline.sources for one in _stale(pipeline, source, computed)]
    if computed and pipeline.tables:
        found += _by_tables(pipeline, computed)
    return sorted(found, key=lambda one: (one.day, one.source))


def _computed(pipeline: Pipeline, entries: list[tuple[str, date, Recorded]]) -> dict[date, list[Mapping[str, Any]]]:
    """From what the tables of each day were computed, as declared now."""
    wanted = {f"features/{name}": versions.digest(pipeline, name) for name in versions.tables(pipeline)}
    newest = {(stage, day): entry.inputs for stage, day, entry in entries if wanted.get(stage) == entry.declaration}
    found: dict[date, list[Mapping[str, Any]]] = defaultdict(list)
    for (_, day), inputs in newest.items():
        if inputs not in found[day]:
            found[day].append(inputs)
    return found


def intervals(days: Iterable[date]) -> list[Interval]:
    """Days as runs of days, in order, as a person gives them to a command."""
    found: list[Interval] = []
    for day in sorted(set(days)):
        if found and found[-1].end == day:
            found[-1] = Interval(found[-1].start, day + DAY)
        else:
            found.append(Interval(day, day + DAY))
    return found


def _by_tables(pipeline: Pipeline, computed: dict[date, list[Mapping[str, Any]]]) -> list[StaleDay]:
    now = batches.snapshot(pipeline)
    return [
        StaleDay(day=day, source=table.name, batch=f"version {now.get(table.name)} after {version}", kind="table", rows=rows)
        for table in pipeline.tables
        for day, version, rows in stale_tables.stale(pipeline, table, computed, now.get(table.name))
    ]


def _stale(pipeline: Pipeline, source: Source, computed: dict[date, list[Mapping[str, Any]]]) -> list[StaleDay]:
    read = {day: min(int(inputs.get(source.name, -1)) for inputs in each) for day, each in computed.items()}
    commits = changes(source, min(read.values())) if read else []
    pairs = [
        (day, looks, change)
        for day, version in read.items()
        if (looks := _looks(pipeline, source, day))
        for change in commits
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
        # Windows, lookups, dimensions and daily spines end with the day at the latest, whichever examples they serve, and so does
        # what a label that matures on it may know.
        looks.append(_Look(events=history.read, known=day))
    if isinstance(pipeline.spine, Spine) and pipeline.spine.source == source:
        labels, examples = reach.labels_as_of(pipeline, one), reach.examples_as_of(pipeline, one)
        # An example is there when it was known by its as_of. Those of the day's labels have theirs long before the day ends;
        # those that use the day's features have theirs after A, and what comes after A is fresh. Those with features as of
        # their own moment have theirs on the day.
        looks.append(_Look(events=_events(pipeline.spine, *labels), known=reach.covering(*labels).last))
        closing = pipeline.lateness > timedelta(0) and not pipeline.exact
        looks.append(_Look(events=_events(pipeline.spine, *examples), known=day, closing=closing))
    return looks


def _events(spine: Spine, start: datetime, end: datetime) -> Interval:
    """When the events of the examples with `as_of` in [start, end) happened, and around them their repeats."""
    days = reach.covering(start + spine.before, end + spine.before)
    return Interval(days.start - spine.source.repeats_within, days.end + spine.source.repeats_within)


def _open(change: Change, look: _Look) -> bool:
    """Whether the account leaves open if rows of the commit came before A."""
    return look.closing and any(known == look.known + DAY and _holds(look.events, event) for event, known in change.rows)


def _rows(change: Change, looks: list[_Look], early: _Early) -> int:
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


def _early(pipeline: Pipeline, source: Source, wanted: list[tuple[Change, date]]) -> _Early:
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


def changes(source: Source, since: int) -> list[Change]:
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
    found: list[Change] = []
    held: Counter[tuple[date, date]] = Counter()
    for (version, batch, kind), counts in commits.items():
        if kind == "rebuild":
            # Its rows may be those of before, and may not: it changed all that was there.
            held, counts = counts, counts | held
        else:
            held = held - counts if kind == "erase" else held + counts
        if version > since and counts:
            earliest = min(known for _, known in counts)
            found.append(Change(version=version, batch=batch, kind=kind, rows=counts, earliest=earliest))
    return found
