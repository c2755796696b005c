"""Which days of a pipeline's features have to be computed, and why: they never were, or what they rest on has changed.

A day stands where each of its tables has an entry in the ledger by this declaration and this code, and no row has come in since
that it would have read. Nothing is computed to find that out.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Literal

from jobs import ledger, stale, versions
from jobs.interval import DAY, Interval
from jobs.ledger import Recorded
from jobs.stale import StaleDay
from pipelines.declare import Pipeline

State = Literal["done", "missing", "stale"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    """How a day's features stand."""

    day: date
    state: State
    why: tuple[str, ...] = ()
    """Each reason to compute it; empty where it is done."""
    changed: int = 0
    """Rows that came in, or went, since it was computed, of those that it would have read."""
    rows: int = 0
    """Rows of all its tables, as the ledger has them."""


def features(pipeline: Pipeline, interval: Interval) -> list[Day]:
    """How each day of the interval stands, in order. The account must be settled."""
    entries = ledger.entries(pipeline, "features/", interval)
    held = newest(pipeline, entries)
    code = ledger.fingerprint("features")
    changed: dict[date, list[StaleDay]] = defaultdict(list)
    for one in stale.stale(pipeline, interval, entries):
        changed[one.day].append(one)
    known = {day for _, day, _ in entries}
    names = versions.tables(pipeline)
    found = []
    for day in interval.days():
        mine = {name: held[name, day] for name in names if (name, day) in held}
        lacking = [name for name in names if name not in mine]
        why: list[str] = []
        if lacking and day in known:
            why.append(f"declaration: no {_listed(lacking)} as declared now")
        if other := sorted({one.fingerprint for one in mine.values()} - {code}):
            why.append(f"code: {', '.join(other)}, now {code}")
        why += [f"rows of {one.source}: {one.kind} {one.batch}" for one in changed[day]]
        state: State = "stale" if why else "done"
        if day not in known:
            state, why = "missing", ["never computed"]
        rows, news = sum(one.rows for one in mine.values()), sum(one.rows for one in changed[day])
        found.append(Day(day=day, state=state, why=tuple(why), changed=news, rows=rows))
    return found


def newest(pipeline: Pipeline, entries: Iterable[tuple[str, date, Recorded]]) -> dict[tuple[str, date], Recorded]:
    """By table and day, the newest entry about the table as it is declared now. Nothing of a table that is not there, or was made
    again since."""
    wanted = {f"features/{name}": versions.digest(pipeline, name) for name in versions.tables(pipeline)}
    made: dict[str, datetime | None] = {}
    held: dict[tuple[str, date], Recorded] = {}
    for stage, day, entry in entries:
        if wanted.get(stage) != entry.declaration:
            continue
        name = stage.partition("/")[2]
        if name not in made:
            made[name] = _made(pipeline, name)
        since = made[name]
        if since is None or entry.recorded_at < since:
            continue
        # Of two runs at once the one that wrote last may have recorded first.
        if (name, day) not in held or held[name, day].output_version <= entry.output_version:
            held[name, day] = entry
    return held


def chunks(days: Collection[date], most: int) -> list[Interval]:
    """Days as runs of consecutive days, none longer than `most` days, in order."""
    found = []
    for run in stale.intervals(days):
        start = run.start
        while start < run.end:
            end = min(start + most * DAY, run.end)
            found.append(Interval(start, end))
            start = end
    return found


def _made(pipeline: Pipeline, name: str) -> datetime | None:
    """When the table of this declaration was made; None where there is none."""
    table = versions.load(pipeline, name)
    return None if table is None else datetime.fromtimestamp((table.metadata().created_time or 0) / 1000, UTC)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
