"""Aggregates over windows that end with one day: whoever has entered and not left, without anything having to leave.

Different values come one in a row, or, out of a table of tiles, as arrays: what an entity's arrivals of a day have. Arrays of an
entity are put together and counted in memory, without a row for each value; an entity that has too many for that is counted by
rows after all. Where it is known that none has, sums and arrays are one reading.
"""

from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs.features.group import Group, at
from jobs.features.windows import Span, columns, held, leaving, remainders, union

MANY = 1_000_000
"""Up to so many values in the arrays of an entity, they are put together in one row."""


def at_once(group: Group, tiles: DataFrame, values: dict[str, DataFrame], span: Span) -> DataFrame:
    """The sums and counts at one point.

    What is missing in `values` comes with the tiles, so that they are read once for both: one expression as their `value`, or all
    as arrays in columns called by the stems, in rows of their own.
    """
    sums = {at(stem, w): fn.sum(fn.when(held(w), fn.col(stem))) for w in group.windows for stem in group.sums.values()}
    arrays = [stem for stem in group.distincts.values() if stem in tiles.columns]
    if arrays:
        counts = [count.alias(at(stem, w)) for stem in arrays for w, count in _counts(group, fn.col(stem), span).items()]
        found = tiles.groupBy(*group.entity).agg(*(total.alias(name) for name, total in sums.items()), *counts)
        return _complete(group, found, span)
    carried = next((stem for stem in group.distincts.values() if stem not in values), None)
    if carried is None:
        frames = [tiles.groupBy(*group.entity).agg(*(total.alias(name) for name, total in sums.items()))]
    else:
        frames = [_by_rows(group, carried, tiles, span, sums)]
    for stem, frame in values.items():
        if "_array" in frame.columns:
            frames += _by_arrays(group, stem, frame, span)
        else:
            frames.append(_by_rows(group, stem, frame, span, {}))
    together = union(frames)
    if len(frames) > 1:
        names = columns(group, group.distincts.values())
        together = together.groupBy(*group.entity).agg(*(fn.sum(name).alias(name) for name in names))
    return _complete(group, together, span)


def _complete(group: Group, found: DataFrame, span: Span) -> DataFrame:
    zeros = (fn.coalesce(fn.col(name), fn.lit(0)).alias(name) for name in columns(group, group.distincts.values()))
    return found.select(*group.entity, fn.lit(span.first).alias("day"), *zeros)


def _by_rows(group: Group, stem: str, frame: DataFrame, span: Span, sums: dict[str, Column]) -> DataFrame:
    """How many different values each window holds, and the sums of the same rows; a null is no value."""
    # Whatever leaves one window last leaves all of them last, so that one number stands for it.
    parts = len(remainders(group.windows)) + 1
    place = fn.when(fn.col("value").isNotNull(), fn.col("event_day") * parts + fn.col("part"))
    latest = frame.groupBy(*group.entity, "value").agg(
        fn.max(place).alias("_last"), *(total.alias(name) for name, total in sums.items())
    )
    last = latest.withColumns({"event_day": fn.floor(fn.col("_last") / parts), "part": fn.col("_last") % parts})
    return last.groupBy(*group.entity).agg(
        *(fn.count_if(leaving(group, window) > span.first).alias(at(stem, window)) for window in group.windows),
        *(fn.sum(name).alias(name) for name in sums),
    )


def _by_arrays(group: Group, stem: str, frame: DataFrame, span: Span) -> list[DataFrame]:
    """How many different values each window holds: of entities with few, and of those with many."""
    heavy = frame.groupBy(*group.entity).agg(fn.sum("_size").alias("_size")).where(fn.col("_size") > MANY).drop("_size")
    few = frame.join(fn.broadcast(heavy), group.entity, "left_anti")
    many = frame.join(fn.broadcast(heavy), group.entity, "left_semi")
    counts = [count.alias(at(stem, window)) for window, count in _counts(group, fn.col("_array"), span).items()]
    each = many.withColumn("value", fn.explode("_array")).drop("_array", "_size")
    return [few.groupBy(*group.entity).agg(*counts), _by_rows(group, stem, each, span, {})]


def _counts(group: Group, array: Column, span: Span) -> dict[timedelta, Column]:
    """How many different values the arrays hold that each window holds."""
    inside = {w: fn.collect_list(fn.when(leaving(group, w) > span.first, array)) for w in group.windows}
    return {w: fn.size(fn.array_distinct(fn.flatten(arrays))).cast("long") for w, arrays in inside.items()}
