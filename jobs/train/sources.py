"""From which versions of the events the examples and labels of each day were computed, as far as that is written down.

Not the versions as they stand: an ingest may have come between. Each commit of a table says its inputs, but Spark clears the
log's old commits away (after 30 days by default); the ledger stays, but lacks what a killed run committed. Of both, what
the highest version says of a day holds.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from itertools import groupby
from typing import Any, NamedTuple

from deltalake import DeltaTable

from jobs import lake, ledger, reach, versions
from jobs.interval import DAY, Interval
from pipelines.declare import Pipeline


class Said(NamedTuple):
    """What a commit or a row of the ledger says of a day."""

    version: int
    at: float
    """Of two that say the same version, the later holds: a run that changed nothing made no commit."""
    inputs: Mapping[str, Any]


def describe(pipeline: Pipeline, name: str, table: DeltaTable, days: Interval) -> dict[str, list[dict[str, Any]]]:
    """For each source the version that served each range of the days of a pinned table; None where nothing is written down."""
    newest: dict[date, Said] = {}
    for day, said in (*_commits(table), *_ledger(pipeline, name, table)):
        if said.version <= table.version() and (day not in newest or newest[day][:2] < said[:2]):
            newest[day] = said
    inputs = {day: newest[day].inputs if day in newest else {} for day in days.days()}
    return {source.name: _ranges({day: found.get(source.name) for day, found in inputs.items()}) for source in pipeline.sources}


def _commits(table: DeltaTable) -> Iterator[tuple[date, Said]]:
    """What the commits say that the table's log still holds."""
    for entry in lake.log(table.table_uri)[1]:
        try:
            note = json.loads(entry.get("userMetadata") or "{}")
        except ValueError:
            continue  # Another program's note.
        if isinstance(note, dict) and {"inputs", "days"} <= note.keys():
            ends = [date.fromisoformat(end) for end in note["days"].split(" to ")]
            for day in Interval.inclusive(ends[0], ends[-1]).days():
                yield day, Said(entry["version"], 0, note["inputs"])


def _ledger(pipeline: Pipeline, name: str, table: DeltaTable) -> Iterator[tuple[date, Said]]:
    """What the ledger says of the table. Rows of another declaration are about another version of it, those from before the table
    was made about one that was moved away."""
    made = datetime.fromtimestamp((table.metadata().created_time or 0) / 1000, UTC)
    declared = versions.declaration_of(table)
    for stage, day, entry in ledger.entries(pipeline, f"features/{name}"):
        if stage == f"features/{name}" and entry.declaration == declared and entry.recorded_at >= made:
            shown = reach.as_of_days(pipeline, Interval(day, day + DAY)).start if name == "examples" else day
            yield shown, Said(entry.output_version, entry.recorded_at.timestamp(), entry.inputs)


def _ranges(versions: dict[date, Any]) -> list[dict[str, Any]]:
    """Consecutive days with the same version, as one range."""
    ranges = []
    for version, group in groupby(versions, key=lambda day: versions[day]):
        days = list(group)
        ranges.append({"version": version, "from": str(days[0]), "to": str(days[-1])})
    return ranges
