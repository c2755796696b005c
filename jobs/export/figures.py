"""What is exported, out of the lake's tables: figures of each day, and labels as a stream."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from jobs import lake, reach, store, verdict, versions
from jobs.interval import DAY, Interval
from pipelines.declare import Pipeline

log = logging.getLogger(__name__)

Row = dict[str, Any]

_DAYS = {"labels": "mature_date", "examples": "as_of_date", "predictions": "as_of_date"}
"""The partition column of each table; of feature sets it is `event_date`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """The tables of a pipeline at the versions that one export reads, whatever is written meanwhile."""

    pipeline: Pipeline
    tables: Mapping[str, DeltaTable]
    """By name, those that are there."""

    @classmethod
    def newest(cls, pipeline: Pipeline) -> "Pinned":
        """As they stand, in the versions of today's declaration."""
        names = [name for name in versions.tables(pipeline) if not name.startswith("tiles_")]
        found = {name: versions.load(pipeline, name) for name in names}
        found["predictions"] = lake.load(lake.uri(pipeline.name, "predictions"))
        return cls(pipeline=pipeline, tables={name: table for name, table in found.items() if table is not None})


def metrics(pinned: Pinned, interval: Interval) -> list[Row]:
    """The figures of the days, by table and metric. They are few: some dozens a day."""
    found: list[Row] = []
    ahead = reach.as_of_days(pinned.pipeline, interval).start - interval.start
    for name, table in pinned.tables.items():
        column = _DAYS.get(name, "event_date")
        shift = ahead if column == "as_of_date" else timedelta(0)
        days = Interval(interval.start + shift, interval.end + shift)
        rows = _rows(table, column, days)
        found += [_metric(day, name, "rows", rows.get(day + shift, 0)) for day in interval.days()]
        if name == "labels":
            found += _labels(table, days)
        if name == "predictions":
            found += _predictions(table, days, shift)
    return found + _quality(pinned.pipeline, interval)


def labels(pinned: Pinned, interval: Interval) -> Iterator[list[Row]]:
    """The labels that matured in the interval, in blocks, day by day. Each block is of one day."""
    table = pinned.tables.get("labels")
    if table is None:
        return
    weight = "weight" if "weight" in _columns(table) else "1.0"
    for day in interval.days():
        log.info("export: the labels of %s", day)
        with store.asked(f"the labels of {pinned.pipeline.name} could not be read"):
            sql = f'select "key", as_of, label, {weight} as weight, mature_at, mature_date from t'
            stream = QueryBuilder().register("t", table).execute(f"{sql} where mature_date = date '{day}'")
            for batch in pa.RecordBatchReader.from_stream(stream):
                yield batch.to_pylist()


def _rows(table: DeltaTable, column: str, days: Interval) -> dict[date, int]:
    """The rows of each day, from the log alone."""
    files = pa.table(table.get_add_actions(flatten=True))
    counted: dict[date, int] = {}
    for day, rows in zip(
        files[f"partition.{column}"].cast(pa.date32()).to_pylist(), files["num_records"].to_pylist(), strict=True
    ):
        if days.start <= day < days.end:
            counted[day] = counted.get(day, 0) + rows
    return counted


def _labels(table: DeltaTable, days: Interval) -> Iterator[Row]:
    weight = "sum(weight)" if "weight" in _columns(table) else "cast(count(*) as double)"
    found = lake.query(
        table,
        f"select mature_date, count(*) as matured, sum(label) as positive, {weight} as weight from t "
        f"where {_within('mature_date', days)} group by mature_date",
    )
    by_day = {row["mature_date"]: row for row in found.to_pylist()}
    for day in days.days():
        row = by_day.get(day, {"matured": 0, "positive": 0, "weight": 0.0})
        for name in ("matured", "positive", "weight"):
            yield _metric(day, "labels", name, row[name])
        if row["matured"]:
            yield _metric(day, "labels", "positive_rate", row["positive"] / row["matured"])


def _predictions(table: DeltaTable, days: Interval, shift: timedelta) -> Iterator[Row]:
    found = lake.query(
        table,
        "select as_of_date, model_version, count(*) as scored, avg(score) as mean from t "
        f"where {_within('as_of_date', days)} group by as_of_date, model_version order by as_of_date, model_version",
    )
    for row in found.to_pylist():
        day, model = row["as_of_date"] - shift, row["model_version"]
        yield _metric(day, "predictions", f"rows of model {model}", row["scored"])
        yield _metric(day, "predictions", f"mean score of model {model}", row["mean"])


def _quality(pipeline: Pipeline, interval: Interval) -> list[Row]:
    """What the expectations measured. Where one column has a rule twice, the name says the limit too."""
    found: dict[tuple[date, str, str], Row] = {}
    for row in verdict.rows(pipeline, interval):
        if row.value is None or row.verdict == verdict.ACCEPTED:
            continue
        name = f"{row.rule} of {row.column}" if row.column else row.rule
        if (row.day, row.table, name) in found:
            name = f"{name}, {row.limit}"
        found[row.day, row.table, name] = _metric(row.day, row.table, name, row.value)
    return list(found.values())


def _metric(day: date, table: str, name: str, value: float) -> Row:
    return {"day": day, "table_name": table, "metric": name, "value": float(value)}


def _columns(table: DeltaTable) -> set[str]:
    return {field.name for field in table.schema().fields}


def _within(column: str, days: Interval) -> str:
    return f"{column} >= date '{days.start}' and {column} <= date '{days.end - DAY}'"
