"""What the declared expectations said of each day: the table `<p>/quality`, and what later stages ask of it.

A row is one expectation's verdict on one day, always the day of the run, as in the ledger: the examples of a day come into being
with the features that they use. A run replaces the rows of its days; an acceptance is one more row, about the very run it names.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime

import pyarrow as pa

from jobs import lake
from jobs.errors import DataError
from jobs.interval import DAY, Interval
from pipelines.declare import Expectation, Pipeline

SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("table", pa.string()),
        ("column", pa.string()),
        ("rule", pa.string()),
        ("limit", pa.string()),
        ("value", pa.float64()),
        ("verdict", pa.string()),
        ("message", pa.string()),
        ("inputs", pa.string()),
        ("run_id", pa.string()),
        ("recorded_at", lake.INSTANT),
    ]
)
"""`inputs` are the versions of the events that were read, as JSON; `value` is null where nothing could be measured."""

HOLDS, WARNS, FAILS, NOT_MEASURED, ACCEPTED = "holds", "warns", "fails", "not measured", "accepted"

TOLD = 5
"""Breaches that a message names; the table has them all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of the table."""

    day: date
    table: str
    column: str | None
    rule: str
    limit: str
    value: float | None
    verdict: str
    message: str
    inputs: str
    run_id: str
    recorded_at: datetime

    @property
    def about(self) -> tuple[date, str, str | None, str, str, str]:
        """What a verdict is about, and an acceptance of it: an expectation on a day, in one run."""
        return self.day, self.table, self.column, self.rule, self.limit, self.run_id

    def __str__(self) -> str:
        place = f"{self.table}.{self.column}" if self.column else self.table
        return f"{self.day}, {place}: {self.message}"


def uri(pipeline: Pipeline) -> str:
    """Where a pipeline's verdicts lie."""
    return lake.uri(pipeline.name, "quality")


def declared(pipeline: Pipeline) -> Iterator[tuple[str, Expectation]]:
    """Each expectation with its table's name."""
    for feature_set in pipeline.features:
        for one in feature_set.expectations:
            yield f"features_{feature_set.name}", one
    for one in pipeline.expectations:
        yield "examples", one


def limit(expectation: Expectation) -> str:
    """An expectation's limit in words, with all that it is judged by."""
    if expectation.between is not None:
        return f"{_digits(expectation.between[0])} to {_digits(expectation.between[1])}"
    if expectation.volume is not None:
        low, high = expectation.volume
        return f"{_digits(low)} to {_digits(high)} times the mean of {expectation.days} days"
    most = next((one for one in (expectation.nulls, expectation.psi, expectation.ks) if one is not None), None)
    return "no value twice" if most is None else f"at most {_digits(most)}"


def _digits(number: float) -> str:
    """A number with all of its digits: limits that differ read differently."""
    return repr(int(number)) if number == int(number) else repr(number)


def rows(pipeline: Pipeline, interval: Interval) -> list[Row]:
    """The rows of the days, in order; an acceptance follows what it accepts."""
    table = lake.load(uri(pipeline))
    if table is None:
        return []
    found = lake.query(
        table,
        f"select * from t where day >= date '{interval.start}' and day < date '{interval.end}' "
        'order by day, "table", "column" nulls first, rule, "limit", recorded_at',
    )
    return [Row(**row) for row in found.to_pylist()]


def replace(pipeline: Pipeline, interval: Interval, found: Iterable[Row]) -> int:
    """Make these the only rows of the days, in one commit. Raises RetryError where a neighbour wrote them at the same time."""
    return lake.replace(
        uri(pipeline),
        pa.Table.from_pylist([_plain(row) for row in found], schema=SCHEMA),
        where=f"day >= '{interval.start}' and day < '{interval.end}'",
        partition_by=["day"],
    )


def accept(pipeline: Pipeline, interval: Interval, *, by: str, reason: str) -> list[Row]:
    """Take responsibility for the breaches of the days as they stand. Returns them; a later run of a day is judged anew."""
    found = breaches(pipeline, interval)
    now = datetime.now(UTC)
    accepted = [
        {**_plain(row), "verdict": ACCEPTED, "message": f"accepted by {by}: {reason}", "recorded_at": now} for row in found
    ]
    if accepted:
        lake.append(uri(pipeline), pa.Table.from_pylist(accepted, schema=SCHEMA), partition_by=["day"])
    return found


def breaches(pipeline: Pipeline, interval: Interval) -> list[Row]:
    """The rows of the days that fail by an expectation as it is declared today, and that nobody has accepted."""
    asked = {(table, one.column, one.rule, limit(one)) for table, one in declared(pipeline) if one.breach == "fail"}
    if not asked:
        return []
    found = rows(pipeline, interval)
    accepted = {row.about for row in found if row.verdict == ACCEPTED}
    return [
        row
        for row in found
        if row.verdict == FAILS and row.about not in accepted and (row.table, row.column, row.rule, row.limit) in asked
    ]


def require_passed(pipeline: Pipeline, *intervals: Interval) -> None:
    """Raise DataError, naming breaches and remedy, where an expectation fails on one of the days (of runs, as in the ledger).

    A day of which the table says nothing passes: its verdict comes with its features, and without these there is nothing to read.
    """
    found = [row for interval in intervals for row in breaches(pipeline, interval)]
    if not found:
        return
    days = sorted({row.day for row in found})
    span = f"--from {days[0]} --to {days[-1]}"
    more = f"; and {len(found) - TOLD} more" if len(found) > TOLD else ""
    raise DataError(
        f"{pipeline.name} breaks what it declares to expect: {'; '.join(map(str, found[:TOLD]))}{more}. Mend the data (dead "
        f"letters, the source) and run `penstock features {pipeline.name} {span} --force`, or, where the data is right, "
        f"`penstock quality accept {pipeline.name} {span} --by NAME --reason TEXT`. `penstock quality show` has all figures."
    )


def behind(pipeline: Pipeline, as_of: Interval) -> Interval:
    """The days of the runs that made the examples of these `as_of_date`s; the inverse of `jobs.reach.as_of_days`."""
    return as_of if pipeline.exact else Interval(as_of.start - DAY, as_of.end - DAY)


def as_json(inputs: object) -> str:
    """What was read, as the column `inputs` has it."""
    return json.dumps(inputs, sort_keys=True, default=str)


def _plain(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in Row.__dataclass_fields__}
