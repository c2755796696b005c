"""A small pipeline with its tables, for the tests of training and of the logged model."""

from argparse import Namespace
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from jobs import lake, versions
from jobs.command import Job
from jobs.interval import DAY, Interval, midnight
from jobs.parts import split
from jobs.train.snapshot import Pinned
from pipelines.declare import Column, Field, Label, Pipeline, Source, Spine, Training, days, hours

RIDES = Source(
    name="rides",
    topic="rides",
    event_time="at",
    event_id="id",
    fields=(
        Field("id", required=True),
        Field("at", "timestamp", required=True),
        Field("city"),
        Field("driver"),
        Field("length", "float64"),
        Field("price", "float64"),
    ),
)
LAST = date(2024, 3, 31)
"""Of the interval. A label takes two days to mature, so the parts are holdout 28 and 29, validation 25, training up to 22."""
NIGHTS = Pipeline(
    name="nights",
    description="A number that tells, one that misses, two categories",
    first_day=date(2024, 3, 1),
    lateness=hours(3),
    spine=Spine(
        source=RIDES,
        key="id",
        at="at",
        before=hours(1),
        columns=(Column("city"), Column("driver"), Column("length"), Column("price")),
    ),
    features=(),
    label=Label(source=RIDES, key="id", of="length > 0", horizon=days(1)),
    training=Training(
        every=days(7),
        days=days(14),
        validation=days(1),
        holdout=days(2),
        hidden=(8,),
        embedding=2,
        min_count=3,
        dropout=0.0,
        batch_size=32,
        epochs=3,
        shards=8,
    ),
)
PARTS = (
    Interval(date(2024, 3, 9), date(2024, 3, 23)),
    Interval(date(2024, 3, 25), date(2024, 3, 26)),
    Interval(date(2024, 3, 28), date(2024, 3, 30)),
)


def rides(name: str, rows: dict[date, int], **training: Any) -> Pipeline:
    """The pipeline under a name of its own, its tables written with so many labelled examples for each day."""
    pipeline = replace(NIGHTS, name=name, training=replace(NIGHTS.training, **training))
    numbered = [(day, number) for day, count in rows.items() for number in range(count)]
    random = np.random.default_rng(11)
    length = random.normal(3000, 500, len(numbered))
    likely = 1 / (1 + np.exp(-(length - 3000) / 250))
    as_of = [midnight(day) + pipeline.lateness + timedelta(minutes=number) for day, number in numbered]
    examples = {
        "key": [f"{day}/{number}" for day, number in numbered],
        "as_of": pa.array(as_of, lake.INSTANT),
        "city": [["Ghent", "Bruges", None][number % 3] for _, number in numbered],
        "driver": [f"driver {number}" for _, number in numbered],
        "length": length,
        "price": [None if number % 4 == 0 else float(number) for _, number in numbered],
        "as_of_date": pa.array([day for day, _ in numbered], pa.date32()),
    }
    labels = {
        "key": examples["key"],
        "as_of": examples["as_of"],
        "label": (random.random(len(numbered)) < likely).astype(np.int32),
        "weight": np.ones(len(numbered)),
        "mature_date": pa.array([(moment + pipeline.label.horizon).date() for moment in as_of], pa.date32()),
    }
    for table, held, day in (("examples", examples, "as_of_date"), ("labels", labels, "mature_date")):
        uri = versions.uri(pipeline, table)
        lake.append(uri, pa.table(held), partition_by=[day])
        DeltaTable(uri).alter.set_table_properties(versions.properties(pipeline, table), raise_if_not_exists=False)
    return pipeline


def full(training: int = 8, validation: int = 7, holdout: int = 20) -> dict[date, int]:
    """Rows for each day of the three parts."""
    return {day: rows for part, rows in zip(PARTS, (training, validation, holdout), strict=True) for day in part.days()}


def job(pipeline: Pipeline, run_id: str, when: str = "always", **options: Any) -> Job:
    asked = Namespace(when=when, **{"ranks": None, "epochs": None, "json": False, **options})
    return Job(command="train", options=asked, run_id=run_id, pipeline=pipeline, interval=Interval(LAST, LAST + DAY))


def prepare(pipeline: Pipeline, folder: Path) -> Any:
    """The parts of a pipeline, prepared in a folder."""
    from jobs.train import prepare as stage_prepare

    pinned = Pinned.newest(pipeline)
    return stage_prepare.prepare(pipeline, pinned, split(pipeline, LAST, pinned.oldest()), pipeline.training, folder)
