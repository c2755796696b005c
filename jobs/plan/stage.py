"""`penstock plan PIPELINE --from D --to D`: what the stages would do over these days, and why."""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from jobs import account, ledger, needs, versions
from jobs.command import Job
from jobs.interval import DAY, Interval
from jobs.plan.cells import Cell, cells, seconds
from pipelines.declare import Pipeline

WIDTH = 130
REASONS = 4
"""Reasons that a line of the table shows; the report has them all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Consecutive days on which a stage stands alike."""

    stage: str
    days: Interval
    state: str
    why: tuple[str, ...]
    rows: int | None
    to_do: bool
    """Whether a run over the days would do it, now or when it need not wait any more."""
    changed: int
    """The most rows that made one of the days stale."""
    seconds: float | None
    """The estimate; None where nothing is to do, or nothing like it was ever done."""


def run(job: Job) -> None:
    """Tell. The report has a line for each run of days on which a stage stands alike, the tables, and the seconds in all."""
    pipeline, interval = job.pipeline, job.interval
    assert pipeline is not None and interval is not None
    account.settle_all(pipeline.sources)
    entries = ledger.entries(pipeline)
    found = lines(cells(pipeline, interval), seconds(entries))
    tables = _tables(pipeline, interval)
    known = [line.seconds for line in found if line.seconds is not None]
    job.report.update(
        stages=[
            {
                "stage": line.stage,
                "from": line.days.start,
                "to": line.days.last,
                "state": line.state,
                "why": list(line.why),
                "rows": line.rows,
                "changed_rows": line.changed,
                "seconds": line.seconds,
            }
            for line in found
        ],
        tables=tables,
        seconds_estimated=round(sum(known), 1),
    )
    if not job.options.json:
        print(table(found))
        for name, facts in tables.items():
            print(f"{name:<44}{facts['rows']:>13,} rows of {facts['days']} days in {facts['version']}")
        print(f"\n{_in_all(found)}")


def lines(found: Iterable[Cell], took: dict[str, float]) -> list[Line]:
    """The cells, consecutive days of a stage that stand alike as one line. `took` is what a day of each stage takes."""
    made = []
    for (stage, state, why, to_do), alike in groupby(found, lambda cell: (cell.stage, cell.state, cell.why, cell.to_do)):
        group = list(alike)
        rows = [cell.rows for cell in group if cell.rows is not None]
        made.append(
            Line(
                stage=stage,
                days=Interval(group[0].day, group[-1].day + DAY),
                state=state,
                why=why,
                rows=sum(rows) if rows else None,
                to_do=to_do,
                changed=max(cell.changed for cell in group),
                seconds=round(took[stage] * len(group), 1) if to_do and stage in took else None,
            )
        )
    return made


def table(found: list[Line]) -> str:
    """The lines for a person, at most WIDTH wide."""
    head = f"{'days':<26}{'stage':<10}{'state':<9}{'rows':>13}{'seconds':>10}  "
    out = [f"{head}why", "-" * WIDTH]
    for line in found:
        rows = "" if line.rows is None else f"{line.rows:,}"
        cost = "" if line.seconds is None else f"{line.seconds:,.0f}"
        begin = f"{line.days!s:<26}{line.stage:<10}{line.state:<9}{rows:>13}{cost:>10}  "
        out += textwrap.wrap(_why(line), WIDTH, initial_indent=begin, subsequent_indent=" " * len(begin)) or [begin.rstrip()]
    return "\n".join(out) + "\n"


def _why(line: Line) -> str:
    shown = [*line.why[:REASONS], *([f"{len(line.why) - REASONS} more"] if len(line.why) > REASONS else [])]
    return "; ".join(shown) + (f" (at most {line.changed:,} rows a day)" if line.changed else "")


def _tables(pipeline: Pipeline, interval: Interval) -> dict[str, dict[str, Any]]:
    """By table: where it is, and its days and rows within the interval, as declared now."""
    held = needs.newest(pipeline, ledger.entries(pipeline, "features/", interval))
    found = {}
    for name in versions.tables(pipeline):
        mine = [entry for (one, _), entry in held.items() if one == name]
        place = versions.uri(pipeline, name).rpartition("/")[2]
        found[name] = {"version": place, "days": len(mine), "rows": sum(entry.rows for entry in mine)}
    return found


def _in_all(found: list[Line]) -> str:
    to_do = [line for line in found if line.to_do]
    if not to_do:
        return "nothing to do"
    unknown = ", ".join(dict.fromkeys(line.stage for line in to_do if line.seconds is None))
    seconds_of = sum(line.seconds or 0.0 for line in to_do)
    return f"to do: about {seconds_of:,.0f} s" + (f", and {unknown}, of which the ledger has no time yet" if unknown else "")
