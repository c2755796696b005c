"""Examples: spine rows with what was visible at the end of the day that they may know."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs.features.events import POSITION
from jobs.features.spine import on_time
from jobs.interval import Interval
from jobs.reach import examples_as_of
from pipelines.declare import FeatureSet, Pipeline


def examples(
    pipeline: Pipeline, spine: DataFrame, sets: Sequence[DataFrame], dimensions: Sequence[DataFrame], interval: Interval
) -> DataFrame:
    """One row for each spine row of the interval that was known by its `as_of`: an entity has one row a day, so none is doubled.

    `sets` and `dimensions` are in the pipeline's order. An entity without a row counts as one without events.
    """
    rows = on_time(spine, examples_as_of(pipeline, interval))
    figures: dict[str, Column] = {}
    for feature_set, frame in zip(pipeline.features, sets, strict=True):
        dated = frame.drop("available_at").withColumn("_day", fn.unix_date("event_date")).drop("event_date")
        rows = _with(rows, dated, feature_set.entity)
        figures |= _filled(feature_set)
    for dimension, frame in zip(pipeline.dimensions, dimensions, strict=True):
        rows = _with(rows, frame.withColumnRenamed("day", "_day"), dimension.entity)
    return rows.select(
        "key",
        "as_of",
        fn.date_from_unix_date("feature_day").alias("feature_date"),
        *POSITION[1:],
        *pipeline.categories,
        *(figures.get(name, fn.col(name)).cast("double").alias(name) for name in pipeline.numbers),
        fn.date_from_unix_date(fn.col("feature_day") + 1).alias("as_of_date"),
    )


def _with(rows: DataFrame, known: DataFrame, entity: tuple[str, ...]) -> DataFrame:
    """The rows with the columns of their entity's row of `feature_day`; a null in an entity's field finds none."""
    known = known.withColumnsRenamed({name: f"_known_{name}" for name in entity})
    same = [fn.col(f"_{name}") == fn.col(f"_known_{name}") for name in entity]
    joined = rows.join(known, on=[*same, fn.col("feature_day") == fn.col("_day")], how="left")
    return joined.drop("_day", *(f"_known_{name}" for name in entity))


def _filled(feature_set: FeatureSet) -> dict[str, Column]:
    """Counts and sums over no events are 0; means and rates stay unknown."""
    names = [(feature_set.column(a, w), a.function) for w in feature_set.windows for a in feature_set.aggregates]
    return {name: fn.coalesce(fn.col(name), fn.lit(0)) for name, function in names if function in ("count", "sum")}
