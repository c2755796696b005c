"""Expectations of a run: measured in the same pass over the data, judged day by day, kept as a table.

A table with expectations has its frame kept from before the write until it is measured. The verdicts are written after the
data and before the ledger; a breach ends the run only when all of this is done.
"""

import dataclasses
import logging
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame

from jobs import ledger, verdict, versions
from jobs.errors import UsageError
from jobs.features import measured, profiles
from jobs.features.judged import Figures, judge
from jobs.features.profiles import Reference
from jobs.features.tables import Output
from jobs.interval import Interval
from jobs.verdict import FAILS, WARNS, Row
from pipelines.declare import Expectation, FeatureSet, Pipeline

log = logging.getLogger(__name__)

NUMBERS = ("int64", "float64")


class Checks:
    """The declared expectations, over one chunk of days after another."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Raises UsageError for an expectation that its column can't meet, RetryError where the lake is away."""
        self._pipeline = pipeline
        self._of: dict[str, list[Expectation]] = {}
        for table, one in verdict.declared(pipeline):
            _check(pipeline, table, one)
            self._of.setdefault(table, []).append(one)
        drift = [str(one.column) for each in self._of.values() for one in each if one.rule in ("psi", "ks")]
        self._reference: Reference = profiles.reference(pipeline, drift)
        self._kept: list[DataFrame] = []
        self._figures: dict[str, dict[date, Figures]] = {}
        self._told: dict[str, Any] = {"holds": 0, "warns": [], "fails": [], "not_measured": []}

    def keep(self, output: Output) -> Output:
        """The output to write: where it has expectations its frame is kept, so that measuring it computes nothing again."""
        if output.table not in self._of:
            return output
        kept = output.frame.persist()
        self._kept.append(kept)
        return dataclasses.replace(output, frame=kept)

    def measure(self, output: Output, interval: Interval) -> None:
        """Count over an output of the run over the interval, after it was written."""
        if output.table not in self._of:
            return
        found = measured.measure(output.frame, output.partition, self._key(output.table), self._of[output.table], self._reference)
        # The verdict is on the run's day, whatever the table's own column calls it.
        self._figures[output.table] = {
            day: found.get(own, Figures()) for day, own in zip(interval.days(), output.days.days(), strict=True)
        }

    def record(self, interval: Interval, *, inputs: dict[str, Any], run_id: str) -> dict[str, Any]:
        """Judge what was measured of the interval and write it, in one commit. Returns what the report says of all chunks."""
        if not self._of:
            return {}
        now, read = datetime.now(UTC), verdict.as_json(inputs)
        rows = []
        for table, figures in self._figures.items():
            history = self._history(table, interval)
            for day, each in figures.items():
                for one in self._of[table]:
                    before = {then: n for then, n in history.items() if day - timedelta(days=one.days) <= then < day}
                    judged = judge(one, each, before, self._reference)
                    row = Row(
                        day=day,
                        table=table,
                        column=one.column,
                        rule=one.rule,
                        limit=verdict.limit(one),
                        value=judged.value,
                        verdict=judged.verdict,
                        message=judged.message,
                        inputs=read,
                        run_id=run_id,
                        recorded_at=now,
                    )
                    rows.append(row)
                    self._tell(row)
        verdict.replace(self._pipeline, interval, rows)
        self._figures.clear()
        return {"quality": self._told | {"champion": self._reference.model}}

    def release(self) -> None:
        """Give the memory back."""
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()

    def _key(self, table: str) -> tuple[str, ...]:
        return next((each.entity for each in self._pipeline.features if f"features_{each.name}" == table), ("key",))

    def _history(self, table: str, interval: Interval) -> dict[date, int]:
        """The rows of each day that a volume may look at: those measured now, and before them what the ledger says."""
        reach = max((one.days for one in self._of[table] if one.rule == "volume"), default=0)
        rows: dict[date, int] = {}
        if reach:
            wanted = versions.digest(self._pipeline, table)
            past = Interval(interval.start - timedelta(days=reach), interval.end)
            for stage, day, entry in ledger.entries(self._pipeline, f"features/{table}", past):
                if stage == f"features/{table}" and entry.declaration in ("", wanted):
                    rows[day] = entry.rows
        return rows | {day: each.rows for day, each in self._figures[table].items()}

    def _tell(self, row: Row) -> None:
        name = {FAILS: "fails", WARNS: "warns", verdict.NOT_MEASURED: "not_measured"}.get(row.verdict)
        if name is None:
            self._told["holds"] += 1
            return
        self._told[name].append(str(row))
        log.warning("%s: %s", "breach" if name == "fails" else name.replace("_", " "), row)


def _check(pipeline: Pipeline, table: str, one: Expectation) -> None:
    """Raise UsageError where the rule has no meaning for the column's type."""
    if one.column is None or one.rule in ("nulls", "unique"):
        return
    what = f"the expectation {one.rule} of {table}.{one.column}"
    declared = next((each for each in pipeline.features if f"features_{each.name}" == table), None)
    number = _is_number(pipeline, declared, one.column)
    if one.rule in ("between", "ks") and not number:
        raise UsageError(f"{what}: the column is no number, and {one.rule} compares numbers. Use nulls, unique or psi.")
    if one.rule in ("psi", "ks") and one.column not in (*pipeline.categories, *pipeline.numbers):
        raise UsageError(
            f"{what}: drift is told against the champion's examples, which have no such column. Take one of theirs: "
            f"{', '.join((*pipeline.categories, *pipeline.numbers))}."
        )


def _is_number(pipeline: Pipeline, declared: FeatureSet | None, column: str) -> bool:
    if declared is None:
        return column in pipeline.numbers
    if column in declared.entity:
        field = declared.source.field(column)
        return field.type in NUMBERS or field.digits is not None
    return column not in (*declared.categories, *declared.sequences)
