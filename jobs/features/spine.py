"""The spine: the events that are examples, each with the moment `as_of` at which its knowledge ends."""

from datetime import datetime

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from jobs.errors import UsageError
from jobs.features.events import POSITION, fields_in, on_days, read, reason, shift, without_repeats
from jobs.reach import Reach
from pipelines.declare import Column as Declared
from pipelines.declare import Pipeline


def rows(spark: SparkSession, pipeline: Pipeline, version: int, reach: Reach) -> DataFrame:
    """Each spine event once: `key`, `as_of`, `late` (not known by its `as_of`), `feature_day`, its position and its columns.

    The fields that name entities follow as `_field`. Of repeats the first that was known by its `as_of` counts; where none
    was, the first is there as late, to be counted.
    """
    spine = pipeline.spine
    entities = _entities(pipeline)
    fields = [spine.key, *entities, *fields_in(spine.source, [column.sql or column.name for column in spine.columns])]
    events = read(spark, spine.source, version, reach, fields)
    timed = events.withColumn("as_of", shift("event_time", -spine.before)).withColumn("late", fn.expr("known_time >= as_of"))
    own = on_days(without_repeats(timed, spine.source, first=(fn.col("late"),)), reach)
    try:
        return own.select(
            fn.col(spine.key).cast("string").alias("key"),
            "as_of",
            "late",
            (fn.unix_date(fn.to_date(shift("as_of", -pipeline.lateness))) - 1).alias("feature_day"),
            *POSITION[1:],
            *(fn.col(name).alias(f"_{name}") for name in entities),
            *(_column(pipeline, column) for column in spine.columns),
        )
    except AnalysisException as failure:
        raise UsageError(f"a spine column of {pipeline.name!r} is no expression over the fields: {reason(failure)}") from failure


def on_time(spine: DataFrame, span: tuple[datetime, datetime]) -> DataFrame:
    """The rows with `as_of` in [start, end) that were known by then: these are the examples."""
    return within(spine, span).where(~fn.col("late"))


def within(spine: DataFrame, span: tuple[datetime, datetime]) -> DataFrame:
    """The rows with `as_of` in [start, end)."""
    start, end = span
    return spine.where((fn.col("as_of") >= fn.lit(start)) & (fn.col("as_of") < fn.lit(end)))


def _entities(pipeline: Pipeline) -> list[str]:
    parts = [*(s.entity for s in pipeline.features), *(d.entity for d in pipeline.dimensions)]
    return list(dict.fromkeys(name for entity in parts for name in entity))


def _column(pipeline: Pipeline, column: Declared) -> Column:
    value = fn.expr(column.sql) if column.sql is not None else fn.col(column.name)
    return value.cast("string" if pipeline.spine.type_of(column) == "string" else "double").alias(column.name)
