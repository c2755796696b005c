"""Aggregates over windows that end with days, for all days of a range and all sets of a group in one pass.

An event is visible at the end of day D when it happened and was known by then, and it lies in a window until a day that is
known from the start. So it enters every window on its first visible day, max(event day, known day), and leaves each on a
day of its own. `tiles.py` adds the events up by those days first. Then, without looking at a day of the range by itself:

- *sums* move when a tile enters and when it leaves; running sums of these changes by entity are the figures;
- *different values*: a value is there while one of its events is. The spans of a value's events are merged, and each merged
  span is a change of one up and one down, which goes the same way as the sums;
- *states* can't be taken out again, so each tile is carried over the days on which a window holds it.

Between two changes nothing moves, so those days are filled in. For a single day nothing has to leave: one aggregation.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from jobs.features.group import Group, at
from jobs.interval import DAY, Interval
from jobs.reach import epoch


@dataclass(frozen=True, slots=True)
class Span:
    """The points, first to last, at which figures are wanted: days since 1970, or microseconds."""

    first: int
    last: int

    @classmethod
    def of(cls, days: Interval) -> "Span":
        """The ends of some days."""
        return cls(epoch(days.start), epoch(days.last))


def leaves(window: timedelta) -> str:
    """The column with the point at which a row leaves a window."""
    return at("leaves", window)


def leaving(group: Group, window: timedelta) -> Column:
    """The first day at whose end a window holds no more what happened on `event_day`, in `part` of it."""
    whole, rest = divmod(window, DAY)
    end = fn.col("event_day") + whole
    return end if not rest else end + fn.when(fn.col("part") > remainders(group.windows).index(rest), 1).otherwise(0)


def remainders(windows: Iterable[timedelta]) -> list[timedelta]:
    """What windows are longer than whole days by, the longest first."""
    return sorted({window % DAY for window in windows if window % DAY}, reverse=True)


def columns(group: Group, values: Iterable[str]) -> list[str]:
    """The columns of the sums and of the counted `values`, by their stems, in each window."""
    return [at(stem, window) for window in group.windows for stem in (*group.sums.values(), *values)]


def held(window: timedelta) -> Column:
    """Whether a row is in a window at all when it enters: one that was known late may have left it."""
    return fn.col("enters") < fn.col(leaves(window))


def running(group: Group, tiles: DataFrame, values: dict[str, DataFrame], span: Span) -> DataFrame:
    """The sums and counts from each change on: `day`, and the day `until` which nothing moves."""
    moved = changes(group, tiles, values, span).withColumnRenamed("point", "day")
    by_entity = Window.partitionBy(*group.entity).orderBy("day")
    so_far = by_entity.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    until = fn.coalesce(fn.lead("day").over(by_entity) - 1, fn.lit(span.last))
    sums = (fn.sum(name).over(so_far).alias(name) for name in columns(group, values))
    return moved.select(*group.entity, "day", until.alias("until"), *sums)


def changes(group: Group, tiles: DataFrame, values: dict[str, DataFrame], span: Span, *, spread: bool = True) -> DataFrame:
    """What moves at which `point`, by entity.

    `spread` by entity, so that what follows needs no further shuffle; it is better left out where most changes share few points.
    """
    frames = [_moves(group, tiles, span), *(_turns(group, stem, frame, span) for stem, frame in values.items())]
    moved = union(frames).repartition(*group.entity) if spread else union(frames)
    sums = (fn.coalesce(fn.sum(name), fn.lit(0)).alias(name) for name in columns(group, values))
    return moved.groupBy(*group.entity, "point").agg(*sums)


def _moves(group: Group, tiles: DataFrame, span: Span) -> DataFrame:
    """Each tile when it enters all windows, and when it leaves each."""
    points = [
        fn.struct(fn.col("enters").alias("point"), fn.lit(0).alias("move")),
        *(
            fn.when(
                held(window) & (fn.col(leaves(window)) <= span.last),
                fn.struct(fn.col(leaves(window)).alias("point"), fn.lit(place).alias("move")),
            )
            for place, window in enumerate(group.windows, start=1)
        ),
    ]
    moved = tiles.withColumn("moved", fn.explode(fn.array_compact(fn.array(*points)))).select("*", "moved.*")
    figures = []
    for place, window in enumerate(group.windows, start=1):
        enters, gone = (fn.col("move") == 0) & held(window), fn.col("move") == place
        figures += [
            fn.when(enters, fn.col(stem)).when(gone, -fn.col(stem)).alias(at(stem, window)) for stem in group.sums.values()
        ]
    return moved.select(*group.entity, "point", *figures)


def _turns(group: Group, stem: str, values: DataFrame, span: Span) -> DataFrame:
    """When a value appears in a window and when it is gone, one up and one down, by the merged spans of its events."""
    before = Window.partitionBy(*group.entity, "value").orderBy("enters").rowsBetween(Window.unboundedPreceding, -1)
    starts = {
        window: fn.greatest("enters", fn.coalesce(fn.max(leaves(window)).over(before), fn.col("enters")))
        for window in group.windows
    }
    merged = values.select(
        *group.entity,
        *(leaves(window) for window in group.windows),
        *(start.alias(at("starts", window)) for window, start in starts.items()),
    )
    points = []
    for window in group.windows:
        start, end = fn.col(at("starts", window)), fn.col(leaves(window))
        for point, sign in ((start, 1), (end, -1)):
            points.append(
                fn.when(
                    (start < end) & (point <= span.last),
                    fn.struct(
                        point.alias("point"),
                        *(fn.lit(sign if w == window else 0).cast("long").alias(at(stem, w)) for w in group.windows),
                    ),
                )
            )
    turned = merged.select(*group.entity, fn.explode(fn.array_compact(fn.array(*points))).alias("turn"))
    return turned.select(*group.entity, "turn.*")


def states(group: Group, tiles: DataFrame, span: Span) -> DataFrame:
    """The states at each `day`, of the tiles that each window holds on it."""
    longest = group.windows[-1]
    if span.first == span.last:
        carried = tiles.withColumn("day", fn.lit(span.first))
    else:
        until = fn.least(fn.col(leaves(longest)) - 1, fn.lit(span.last))
        carried = tiles.where(held(longest)).withColumn("day", fn.explode(fn.sequence("enters", until)))
    return carried.groupBy(*group.entity, "day").agg(
        *(
            state.merge(stem, fn.col("day") < fn.col(leaves(window))).alias(at(stem, window))
            for window in group.windows
            for state, stem in group.states.items()
        )
    )


def union(frames: list[DataFrame]) -> DataFrame:
    return functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
