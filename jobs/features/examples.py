"""Examples: spine rows with what was visible at the end of the day that they may know, or at their own moment."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs.features.events import POSITION
from jobs.features.spine import on_time
from jobs.interval import Interval
from jobs.reach import examples_as_of
from pipelines.declare import FeatureSet, Pipeline

ZERO = ("count", "sum", "distinct", "approx_distinct")
"""The aggregates that are 0 over no events; the others are unknown."""

Known: TypeAlias = DataFrame | Callable[[DataFrame], DataFrame]
"""A set's rows by day, or what joins a set to spine rows by itself."""


def examples(
    pipeline: Pipeline, spine: DataFrame, sets: Mapping[str, Known], dimensions: Sequence[DataFrame], interval: Interval
) -> DataFrame:
    """One row for each spine row of the interval that was known by its `as_of`: an entity has one row a day, so none is doubled.

    `sets` are by name, `dimensions` in the pipeline's order. An entity without a row counts as one without events.
    """
    rows = on_time(spine, examples_as_of(pipeline, interval))
    figures: dict[str, Column] = {}
    for feature_set in pipeline.features:
        known = sets[feature_set.name]
        if isinstance(known, DataFrame):
            dated = known.drop("available_at").withColumn("_day", fn.unix_date("event_date")).drop("event_date")
            rows = _with(rows, dated, dict(zip(feature_set.on_spine, feature_set.entity, strict=True)))
        else:
            rows = known(rows)
        figures |= _filled(feature_set)
    for dimension, frame in zip(pipeline.dimensions, dimensions, strict=True):
        rows = _with(rows, frame.withColumnRenamed("day", "_day"), {name: name for name in dimension.entity})
    return rows.select(
        "key",
        "as_of",
        fn.date_from_unix_date("feature_day").alias("feature_date"),
        *POSITION[1:],
        *(fn.col(name).cast("string").alias(name) for name in pipeline.categories),
        *(figures.get(name, fn.col(name)).cast("double").alias(name) for name in pipeline.numbers),
        *pipeline.sequences,
        fn.to_date("as_of").alias("as_of_date")
        if pipeline.exact
        else fn.date_from_unix_date(fn.col("feature_day") + 1).alias("as_of_date"),
    )


def _with(rows: DataFrame, known: DataFrame, entity: Mapping[str, str]) -> DataFrame:
    """The rows with the columns of their entity's row of `feature_day`; a null in an entity's field finds none.

    `entity` gives for each of the spine's fields the one that it equals.
    """
    known = known.withColumnsRenamed({name: f"_known_{name}" for name in entity.values()})
    same = [fn.col(f"_{spine}") == fn.col(f"_known_{name}") for spine, name in entity.items()]
    joined = rows.join(known, on=[*same, fn.col("feature_day") == fn.col("_day")], how="left")
    return joined.drop("_day", *(f"_known_{name}" for name in entity.values()))


def _filled(feature_set: FeatureSet) -> dict[str, Column]:
    """What is 0 over no events; the rest stays unknown."""
    names = [(feature_set.column(a, w), a.function) for w in feature_set.windows for a in feature_set.aggregates]
    return {name: fn.coalesce(fn.col(name), fn.lit(0)) for name, function in names if function in ZERO}
