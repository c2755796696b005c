"""The spine: what is an example, with the moment `as_of` at which its knowledge ends."""

from datetime import datetime

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from jobs.errors import UsageError
from jobs.features import figures
from jobs.features.events import POSITION, fields_in, on_days, read, reason, rows, shift, without_repeats
from jobs.features.group import Group
from jobs.interval import Interval
from jobs.reach import Reach
from pipelines.declare import Aggregate, DailySpine, FeatureSet, Pipeline, Spine
from pipelines.declare import Column as Declared


def of_events(spark: SparkSession, pipeline: Pipeline, version: int, reach: Reach, kept: list[DataFrame]) -> DataFrame:
    """Each spine event once: `key`, `as_of`, `late` (not known by its `as_of`), `feature_day`, its position and its columns.

    The fields that name entities follow as `_field`. Of repeats the first that was known by its `as_of` counts; where none
    was, the first is there as late, to be counted. What is kept in memory is appended to `kept`.
    """
    spine = pipeline.spine
    assert isinstance(spine, Spine)
    columns = [column.sql or column.name for column in spine.columns]
    events = read(spark, spine.source, version, reach, [spine.key, *_entities(pipeline), *fields_in(spine.source, columns)])
    late = "known_time > as_of" if _closed(pipeline) else "known_time >= as_of"
    timed = events.withColumn("as_of", shift("event_time", -spine.before)).withColumn("late", fn.expr(late))
    counted = without_repeats(timed, spine.source, kept, first=(fn.col("late"),), rows=rows(spine.source, version, reach.read))
    feature_day = fn.unix_date(fn.to_date(shift("as_of", -pipeline.lateness))) - 1
    return _selected(pipeline, on_days(counted, reach), key=fn.col(spine.key).cast("string"), feature_day=feature_day)


def of_days(pipeline: Pipeline, events: DataFrame, days: tuple[Interval, ...]) -> DataFrame:
    """Each entity that was active at the end of each of the days, in the same form; it has no position, and is never late."""
    spine = pipeline.spine
    assert isinstance(spine, DailySpine)
    group = Group((active(spine),), {})
    found = []
    for piece in _merged(days):
        found.append(figures.of_events(group, events, piece).select(*spine.entity, "day"))
    each = found[0] if len(found) == 1 else found[0].unionByName(found[1])
    texts = [fn.col(name).cast("string") for name in spine.entity]
    timed = each.withColumns(
        {
            "as_of": shift("timestamp(date_from_unix_date(day + 1))", pipeline.lateness),
            "late": fn.lit(False),
            **{name: fn.lit(None).cast("bigint" if name == "kafka_offset" else "int") for name in POSITION[1:]},
        }
    )
    key = texts[0] if len(texts) == 1 else fn.to_json(fn.array(*texts))
    return _selected(pipeline, timed, key=key, feature_day=fn.col("day"))


def active(spine: DailySpine) -> FeatureSet:
    """The set whose rows are a daily spine's examples."""
    return FeatureSet(
        name="spine",
        source=spine.source,
        entity=spine.entity,
        windows=(spine.within,),
        aggregates=(Aggregate("events", "count"),),
        where=spine.where,
    )


def on_time(spine: DataFrame, span: tuple[datetime, datetime]) -> DataFrame:
    """The rows with `as_of` in [start, end) that were known by then: these are the examples."""
    return within(spine, span).where(~fn.col("late"))


def within(spine: DataFrame, span: tuple[datetime, datetime]) -> DataFrame:
    """The rows with `as_of` in [start, end)."""
    start, end = span
    return spine.where((fn.col("as_of") >= fn.lit(start)) & (fn.col("as_of") < fn.lit(end)))


def _selected(pipeline: Pipeline, found: DataFrame, *, key: Column, feature_day: Column) -> DataFrame:
    try:
        return found.select(
            key.alias("key"),
            "as_of",
            "late",
            feature_day.alias("feature_day"),
            *POSITION[1:],
            *(fn.col(name).alias(f"_{name}") for name in _entities(pipeline)),
            *(_column(pipeline, column) for column in pipeline.spine.columns),
        )
    except AnalysisException as failure:
        raise UsageError(f"a spine column of {pipeline.name!r} is no expression over the fields: {reason(failure)}") from failure


def _entities(pipeline: Pipeline) -> list[str]:
    """The spine's fields by which examples are joined."""
    parts = [*(s.on_spine for s in pipeline.features), *(d.entity for d in pipeline.dimensions), pipeline.label.entity]
    return list(dict.fromkeys(name for entity in parts for name in entity))


def _closed(pipeline: Pipeline) -> bool:
    """Whether an example may know what became known at its `as_of` itself."""
    return any(feature_set.closed for feature_set in pipeline.features)


def _merged(days: tuple[Interval, ...]) -> list[Interval]:
    """The days as ranges that have none in common."""
    found: list[Interval] = []
    for one in sorted(days, key=lambda interval: interval.start):
        if found and one.start <= found[-1].end:
            found[-1] = Interval(found[-1].start, max(found[-1].end, one.end))
        else:
            found.append(one)
    return found


def _column(pipeline: Pipeline, column: Declared) -> Column:
    value = fn.expr(column.sql) if column.sql is not None else fn.col(column.name)
    return value.cast("string" if pipeline.spine.type_of(column) == "string" else "double").alias(column.name)
