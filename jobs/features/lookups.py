"""What is known of an entity from elsewhere: versions of facts, joined at the moment that counts.

A version is visible from the moment at which it had both happened and become known. Of the visible ones the last to happen is the
newest, of one instant the last by position, and in a snapshot table, which has no positions, the one with the greatest values: so
a join gives as many rows as it was given, the same after any shuffle.
"""

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from jobs import batches
from jobs.errors import UsageError
from jobs.features.events import POSITION, reason, shift
from jobs.interval import Interval
from jobs.reach import epoch
from pipelines.declare import Dimension, Table

SMALL = 200_000
"""Up to so many versions, every task holds them all."""
TYPES = {"int64": "bigint", "float64": "double", "bool": "boolean"}


def table(spark: SparkSession, declared: Table, version: int) -> DataFrame:
    """A snapshot table's rows as versions: its fields, both clocks (when it is valid from) and no position."""
    reader = spark.read.format(declared.format)
    if declared.format == "delta":
        reader = reader.option("versionAsOf", version)
    fields = [fn.col(field.name).cast(TYPES.get(field.type, field.type)).alias(field.name) for field in declared.fields]
    day = fn.unix_date(fn.to_date(declared.valid_from))
    try:
        rows = reader.load(batches.table_uri(declared)).select(*fields)
    except AnalysisException as failure:
        raise UsageError(
            f"table {declared.name!r} at {batches.table_uri(declared)} is not as declared: {reason(failure)}"
        ) from failure
    return (
        rows.where(fn.col(declared.valid_from).isNotNull())
        .withColumns({"event_time": fn.col(declared.valid_from), "known_time": fn.col(declared.valid_from)})
        .withColumns({"event_day": day, "known_day": day, **{name: fn.lit(0) for name in POSITION[1:]}})
    )


def at_day_ends(versions: DataFrame, dimension: Dimension, days: Interval) -> DataFrame:
    """For each entity and `day` the dimension's columns, of the newest version that was visible at its end.

    No row where nothing recent was visible. Each day's versions are reduced to their newest first, and only that is carried over
    the days on which it is visible.
    """
    last = fn.lit(epoch(days.last))
    enters = fn.greatest("event_day", "known_day", fn.lit(epoch(days.start)))
    leaves = last + 1 if dimension.within is None else fn.col("event_day") + dimension.within.days
    return (
        versions.withColumn("_enters", enters)
        .withColumn("_leaves", leaves)
        .where((fn.col("_enters") <= last) & (fn.col("_enters") < fn.col("_leaves")))
        .groupBy(*dimension.entity, "_enters", "_leaves")
        .agg(_newest(dimension).alias("_newest"))
        .withColumn("day", fn.explode(fn.sequence("_enters", fn.least(fn.col("_leaves") - 1, last))))
        .groupBy(*dimension.entity, "day")
        .agg(fn.max("_newest").alias("_newest"))
        .select(*dimension.entity, "day", *_columns(dimension, fn.col("_newest")))
    )


def looked_up(events: DataFrame, versions: DataFrame, dimension: Dimension, *, small: bool) -> DataFrame:
    """Each event with the dimension's columns, of the newest version visible when it had happened and was known itself.

    Each version is the newest for a span of moments, so that an event finds one at most.
    """
    by_entity = Window.partitionBy(*dimension.entity).orderBy("_visible", "event_time", *POSITION, *dimension.fields)
    named = {name: f"_known_{name}" for name in dimension.entity}
    spans = (
        versions.withColumn("_visible", fn.greatest("event_time", "known_time"))
        .select(
            *(fn.col(name).alias(other) for name, other in named.items()),
            fn.col("_visible").alias("_from"),
            fn.lead("_visible").over(by_entity).alias("_until"),
            _newest(dimension).over(by_entity.rowsBetween(Window.unboundedPreceding, Window.currentRow)).alias("_newest"),
        )
        .where("_until is null or _until > _from")
    )
    moment = fn.greatest(events["event_time"], events["known_time"])
    same = [events[name] == fn.col(other) for name, other in named.items()]
    joined = events.join(
        fn.broadcast(spans) if small else spans,
        [*same, moment > fn.col("_from"), fn.col("_until").isNull() | (moment <= fn.col("_until"))],
        "left",
    )
    newest = fn.col("_newest")
    if dimension.within is not None:
        recent = fn.col("_newest.event_time") >= shift("greatest(event_time, known_time)", -dimension.within)
        newest = fn.when(recent, newest)
    return joined.select(*events.columns, *_columns(dimension, newest))


def _newest(dimension: Dimension) -> Column:
    return fn.max(fn.struct("event_time", *POSITION, *dimension.fields))


def _columns(dimension: Dimension, newest: Column) -> list[Column]:
    return [newest[field].alias(column) for field, column in zip(dimension.fields, dimension.columns, strict=True)]
