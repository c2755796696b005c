"""How each stage stands on each day, from the account, the ledger and the decisions: no stage is asked, no table's rows are read.

Which versions of the model there are is read from the ledger too, where a training writes them down, so the registry may be away.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from statistics import median
from typing import Literal

import pyarrow as pa

from jobs import batches, champion, ledger, letters, needs, parts, plain, reach, verdict, versions
from jobs.cadence import not_due_until
from jobs.errors import DataError
from jobs.interval import DAY, Interval
from jobs.ledger import Recorded
from pipelines.declare import Pipeline

State = Literal["done", "missing", "stale", "waiting"]
BROKEN = "an expectation is broken: see `penstock quality show`"
Entries = list[tuple[str, date, Recorded]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A stage on a day."""

    stage: str
    day: date
    state: State
    why: tuple[str, ...] = ()
    rows: int | None = None
    changed: int = 0
    """Rows that made it stale."""
    to_do: bool = False
    """Whether a run over the days would do it, now or when it need not wait any more."""


def cells(pipeline: Pipeline, interval: Interval) -> list[Cell]:
    """Each stage on each of its days, in the order in which data flows; training and decision once, at the interval's end."""
    entries = ledger.entries(pipeline)
    ingested = _ingest(pipeline, interval)
    opened = {cell.day for cell in ingested if cell.state != "done"}
    computed = list(_features(pipeline, interval, opened))
    trained = _train(pipeline, interval, entries, computed)
    return [*ingested, *computed, trained, _promote(pipeline, entries, trained), *_score(pipeline, entries, computed)]


def seconds(entries: Entries) -> dict[str, float]:
    """What a day of a stage took, the median of those in the ledger; stages without any are left out."""
    took: dict[tuple[str, date, str], float] = defaultdict(float)
    for stage, day, entry in entries:
        # A day's tables share its seconds.
        took[stage.partition("/")[0], day, str(entry.recorded_at)] += entry.seconds
    by_stage: dict[str, list[float]] = defaultdict(list)
    for (stage, _, _), each in took.items():
        if each > 0:
            by_stage[stage].append(each)
    return {stage: median(each) for stage, each in by_stage.items()}


def _ingest(pipeline: Pipeline, interval: Interval) -> list[Cell]:
    """Whether each day is closed; rows are the good events that became known on it."""
    moments = {source.name: batches.read_up_to(source) for source in pipeline.sources}
    known: Counter[date] = Counter()
    for source in pipeline.sources:
        for row in batches.ranges(source, "kind, counts", "counts <> '[]'").to_pylist():
            sign = {"erase": -1, "acknowledge": 0}.get(row["kind"], 1)
            for _, day, count in json.loads(row["counts"]):
                known[date.fromisoformat(day)] += sign * count
    found = []
    for day in interval.days():
        closing = batches.closes_at(pipeline, day)
        behind: dict[str, list[str]] = defaultdict(list)
        for name, moment in moments.items():
            if moment is None or moment < closing:
                behind[f"{moment:%Y-%m-%d %H:%M}" if moment else "nothing"].append(name)
        why = tuple(f"open: {', '.join(names)} read up to {moment}" for moment, names in behind.items())
        found.append(Cell(stage="ingest", day=day, state="waiting" if why else "done", why=why, rows=known[day], to_do=bool(why)))
    return found


def _features(pipeline: Pipeline, interval: Interval, opened: set[date]) -> Iterator[Cell]:
    letters_of: dict[date, list[str]] = defaultdict(list)
    for source in pipeline.sources:
        for known in letters.over_limit(source, interval.days()):
            letters_of[known.day].append(source.name)
    broken = {row.day for row in verdict.breaches(pipeline, interval)}
    lacking: dict[date, list[str]] = defaultdict(list)
    for declared, _, without in plain.missing(pipeline, interval):
        for day in without:
            lacking[day].append(declared.name)
    for one in needs.features(pipeline, interval):
        state: State = one.state
        why = list(one.why)
        if state != "done" and one.day in opened:
            state = "waiting"
            why.append("the day is open")
        elif state != "done" and one.day in letters_of:
            state = "waiting"
            why.append(f"too many dead letters of {', '.join(letters_of[one.day])}")
        elif state == "done" and one.day in broken:
            why.append(BROKEN)
        to_do = state != "done"
        if state == "done" and one.day in lacking:
            why.append(f"the plain files of {', '.join(lacking[one.day])} will be made")
            to_do = True
        yield Cell(
            stage="features",
            day=one.day,
            state=state,
            why=tuple(why),
            rows=one.rows,
            changed=one.changed,
            to_do=to_do,
        )


def _train(pipeline: Pipeline, interval: Interval, entries: Entries, computed: list[Cell]) -> Cell:
    last = interval.last
    trained = [(day, entry) for stage, day, entry in entries if stage == "train"]
    mine = next((entry for day, entry in reversed(trained) if day == last), None)
    if mine is not None:
        return Cell(stage="train", day=last, state="done", why=(f"version {mine.output_version}",), rows=mine.rows)
    through = [parts.split(pipeline, day, date.min).trained_through for day, _ in trained]
    oldest = _oldest(pipeline, [cell.day for cell in computed if cell.state in ("missing", "stale")])
    if oldest is None:
        return Cell(stage="train", day=last, state="waiting", why=("there are no examples yet",))
    try:
        due = not_due_until(pipeline, through, parts.split(pipeline, last, oldest), last)
    except DataError:
        return Cell(stage="train", day=last, state="waiting", why=(f"not due: examples since {oldest} are too few days",))
    if due is not None:
        return Cell(stage="train", day=last, state="waiting", why=(f"not due until the run over {due}",))
    behind = any(cell.state != "done" for cell in computed)
    why = ("due, after the features",) if behind else ("due",)
    return Cell(stage="train", day=last, state="missing", why=why, to_do=True)


def _promote(pipeline: Pipeline, entries: Entries, trained: Cell) -> Cell:
    history = champion.history(pipeline)
    waiting = sorted({entry.output_version for stage, _, entry in entries if stage == "train"} - history.decided)
    if waiting:
        why = (f"version {', '.join(map(str, waiting))} waits for a decision",)
        return Cell(stage="promote", day=trained.day, state="missing", why=why, to_do=True)
    if trained.to_do:
        return Cell(stage="promote", day=trained.day, state="waiting", why=("for the training",), to_do=True)
    current = history.champion
    said = f"the champion is version {current.candidate}" if current else "no version was ever trained"
    return Cell(stage="promote", day=trained.day, state="done" if current else "waiting", why=(said,))


def _score(pipeline: Pipeline, entries: Entries, computed: list[Cell]) -> Iterator[Cell]:
    """Predictions of the examples that the run over each day makes."""
    champions = champion.history(pipeline).champion is not None
    code = ledger.fingerprint("score")
    scored = {day: entry for stage, day, entry in entries if stage == "score"}
    made = {day: entry for stage, day, entry in entries if stage == "features/examples"}
    for cell in computed:
        entry, examples = scored.get(cell.day), made.get(cell.day)
        state: State
        why: list[str] = []
        if not champions:
            state, why = "waiting", ["there is no champion yet"]
        elif BROKEN in cell.why:
            state, why = "waiting", [BROKEN]
        elif entry is None:
            state, why = ("missing", ["never scored"]) if cell.state == "done" else ("waiting", ["for the features"])
        else:
            if cell.state != "done":
                why.append("the features will be computed again")
            elif examples is not None and examples.recorded_at > entry.recorded_at:
                why.append("the features were computed again since")
            if entry.fingerprint != code:
                why.append(f"code: {entry.fingerprint}, now {code}")
            state = "stale" if why else "done"
        rows = None if entry is None else entry.rows
        yield Cell(stage="score", day=cell.day, state=state, why=tuple(why), rows=rows, to_do=champions and state != "done")


def _oldest(pipeline: Pipeline, to_come: Iterable[date]) -> date | None:
    """The first day that has examples, or will have when the days to come are computed."""
    found = [reach.as_of_days(pipeline, Interval(day, day + DAY)).start for day in to_come]
    table = versions.load(pipeline, "examples")
    if table is not None:
        days = pa.table(table.get_add_actions(flatten=True)).column("partition.as_of_date").cast(pa.date32()).to_pylist()
        found += [day for day in days if day is not None]
    return min(found, default=None)
