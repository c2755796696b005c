"""Aggregates over windows of days, for all days of a range in one pass.

An event is visible at the end of day D when it happened and was known by then, and it lies in a window of w days until D
reaches `event_day + w`. So it enters every window on its first visible day, max(event day, known day), and leaves each on
a day that is known from the start. Three steps, none of which looks at a day of the range by itself:

1. *tiles*: one row for each entity, event day and first visible day, with sums and counts;
2. *changes*: what a tile adds on the day it enters and takes away on the day it leaves, for each window;
3. *running sums* of the changes by entity, over days; between two changes nothing moves, so those days are filled in.

Everything is a sum of integers: exact, in whatever order it is added up. Means and rates are divided at the very end.
"""

import functools
import operator
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from jobs.errors import UsageError
from jobs.features.events import shift, type_of
from jobs.features.reach import epoch
from jobs.interval import Interval
from pipelines.declare import Aggregate, FeatureSet

INTEGERS = ("tinyint", "smallint", "int", "bigint")
EVENTS = "1"
"""The measure that counts all events: an entity without any in its longest window has no row."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The two sums that an aggregate is made of, as SQL over one event; for count and sum there is no divisor."""

    value: str
    divisor: str | None = None


def parts(aggregate: Aggregate) -> Parts:
    """What one event adds to an aggregate."""
    where = f"({aggregate.where})" if aggregate.where else "true"
    of = f"({aggregate.of})"
    known = f"if({where} and {of} is not null, 1, 0)"
    match aggregate.function:
        case "count":
            return Parts(f"if({where}, 1, 0)" if aggregate.where else EVENTS)
        case "sum":
            return Parts(f"if({where}, {of}, null)")
        case "mean":
            return Parts(f"if({where}, {of}, null)", known)
        case "rate":
            return Parts(f"if({where} and {of}, 1, 0)", known)


def measures(feature_set: FeatureSet) -> dict[str, str]:
    """Each different sum that the set needs, as SQL over one event, with the name of its column."""
    needed = [EVENTS]
    for aggregate in feature_set.aggregates:
        found = parts(aggregate)
        needed += [found.value] if found.divisor is None else [found.value, found.divisor]
    return {sql: f"m{number}" for number, sql in enumerate(dict.fromkeys(needed))}


def expressions(feature_set: FeatureSet) -> list[str | None]:
    """The declared SQL of a set."""
    return [text for aggregate in feature_set.aggregates for text in (aggregate.of, aggregate.where)]


def check(events: DataFrame, feature_set: FeatureSet) -> None:
    """Raise UsageError where an expression has not the type that its aggregate needs."""
    for aggregate in feature_set.aggregates:
        place = f"aggregate {aggregate.name!r} of feature set {feature_set.name!r}"
        if aggregate.where is not None and type_of(events, aggregate.where, place) != "boolean":
            raise UsageError(f"{place}: where= is {aggregate.where!r}, which is no condition: write one that is true or false.")
        if aggregate.function == "count":
            continue
        found = type_of(events, aggregate.of, place)
        if aggregate.function == "rate" and found != "boolean":
            raise UsageError(f"{place}: {aggregate.of!r} is {found}, but a rate needs a condition that is true or false.")
        if aggregate.function in ("sum", "mean") and found not in INTEGERS:
            raise UsageError(
                f"{place}: {aggregate.of!r} is {found}, but only integers are added up: sums of floats depend on the order. "
                "Fix a scale, for example cast(round(price * 100) as bigint)."
            )


def features(events: DataFrame, feature_set: FeatureSet, interval: Interval, lateness: timedelta) -> DataFrame:
    """The rows of a feature set, one for each entity and day of the interval with an event in the longest window.

    `events` are those that count, with their fields, `event_day` and `known_day`. The result has the entity's fields,
    `available_at`, the set's columns and `event_date`.
    """
    check(events, feature_set)
    sums = running(changes(tiles(events, feature_set, interval), feature_set, interval), feature_set, interval)
    return sums.select(
        *feature_set.entity,
        shift("timestamp(date_from_unix_date(day + 1))", lateness).alias("available_at"),
        *(
            _figure(feature_set, aggregate, window).alias(feature_set.column(aggregate, window))
            for window in feature_set.windows
            for aggregate in feature_set.aggregates
        ),
        fn.date_from_unix_date("day").alias("event_date"),
    )


def tiles(events: DataFrame, feature_set: FeatureSet, interval: Interval) -> DataFrame:
    """Sums by entity, event day and first visible day `enters`, of the events that some window of the interval sees."""
    longest = max(feature_set.windows).days
    first, last = epoch(interval.start), epoch(interval.last)
    enters = fn.greatest("event_day", "known_day", fn.lit(first))
    seen = (enters <= last) & (enters < fn.col("event_day") + longest)
    present = functools.reduce(operator.and_, (fn.col(name).isNotNull() for name in feature_set.entity))
    return (
        events.withColumn("enters", enters)
        .where(seen & present)
        .groupBy(*feature_set.entity, "event_day", "enters")
        .agg(
            *(
                fn.coalesce(fn.sum(fn.expr(sql).cast("long")), fn.lit(0)).alias(name)
                for sql, name in measures(feature_set).items()
            )
        )
    )


def changes(tiled: DataFrame, feature_set: FeatureSet, interval: Interval) -> DataFrame:
    """What moves on which day, by entity, for each measure and window."""
    last = epoch(interval.last)
    ends = [fn.col("event_day") + window.days for window in feature_set.windows]
    moved = tiled.select("*", fn.posexplode(fn.array("enters", *ends)).alias("move", "day"))
    # What left a window before the interval never entered it.
    moved = moved.where((fn.col("day") <= last) & ((fn.col("move") == 0) | (fn.col("day") > fn.col("enters"))))
    columns = []
    for number, end in enumerate(ends, start=1):
        sign = fn.when((fn.col("move") == 0) & (fn.col("enters") < end), 1).when(fn.col("move") == number, -1).otherwise(0)
        columns += [fn.sum(sign * fn.col(name)).alias(f"{name}_{number}") for name in measures(feature_set).values()]
    # Spread by entity alone, so that the sums and the running sums after them need no further shuffle.
    return moved.repartition(*feature_set.entity).groupBy(*feature_set.entity, "day").agg(*columns)


def running(moved: DataFrame, feature_set: FeatureSet, interval: Interval) -> DataFrame:
    """The sums at the end of each day: one row for each entity and `day` with an event in the longest window."""
    last = epoch(interval.last)
    longest = feature_set.windows.index(max(feature_set.windows)) + 1
    by_entity = Window.partitionBy(*feature_set.entity).orderBy("day")
    so_far = by_entity.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    names = [f"{name}_{number}" for number in range(1, len(feature_set.windows) + 1) for name in measures(feature_set).values()]
    until = fn.coalesce(fn.lead("day").over(by_entity) - 1, fn.lit(last))
    return (
        moved.select(*feature_set.entity, "day", until.alias("until"), *(fn.sum(name).over(so_far).alias(name) for name in names))
        .where(fn.col(f"{measures(feature_set)[EVENTS]}_{longest}") > 0)
        .select(*feature_set.entity, fn.explode(fn.sequence("day", "until")).alias("day"), *names)
    )


def _figure(feature_set: FeatureSet, aggregate: Aggregate, window: timedelta) -> Column:
    number = feature_set.windows.index(window) + 1
    names = measures(feature_set)
    found = parts(aggregate)
    value = fn.col(f"{names[found.value]}_{number}")
    if found.divisor is None:
        return value
    divisor = fn.col(f"{names[found.divisor]}_{number}")
    return fn.when(divisor > 0, value.cast("double") / divisor.cast("double"))
