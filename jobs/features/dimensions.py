"""Dimensions at each day's end: the newest event of an entity that was visible then, and not older than declared."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from jobs.features.events import POSITION
from jobs.interval import Interval
from jobs.reach import epoch
from pipelines.declare import Dimension


def newest(events: DataFrame, dimension: Dimension, interval: Interval) -> DataFrame:
    """For each entity and `day` of the interval the dimension's columns; no row where nothing recent was visible.

    Newest is the latest to happen; of several at one instant, the one that came last, by its position: the same after any
    shuffle. Each event day is reduced to its newest first, and only that is carried over the days on which it is visible.
    """
    enters = fn.greatest("event_day", "known_day", fn.lit(epoch(interval.start)))
    leaves = fn.col("event_day") + dimension.within.days
    return (
        events.withColumn("enters", enters)
        .withColumn("leaves", leaves)
        .where((fn.col("enters") <= epoch(interval.last)) & (fn.col("enters") < fn.col("leaves")))
        .groupBy(*dimension.entity, "enters", "leaves")
        .agg(fn.max(fn.struct("event_time", *POSITION, *dimension.fields)).alias("newest"))
        .withColumn("day", fn.explode(fn.sequence("enters", fn.least(fn.col("leaves") - 1, fn.lit(epoch(interval.last))))))
        .groupBy(*dimension.entity, "day")
        .agg(fn.max("newest").alias("newest"))
        .select(
            *dimension.entity,
            "day",
            *(fn.col(f"newest.{field}").alias(column) for field, column in zip(dimension.fields, dimension.columns, strict=True)),
        )
    )
