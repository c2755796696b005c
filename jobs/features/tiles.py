"""Tiles: a day's arrivals of an entity, added up by the day they happened and the day they were known.

A tile is what all of its events have in common as far as windows of days can tell. Windows that are no whole days also look at
the time of day, so `part` says how many of their edges it has passed. In memory a tile saves work; kept in a table it saves
reading.
"""

from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs.features.group import Group
from jobs.features.windows import Span, leaves, leaving, remainders
from jobs.interval import DAY


def tiles(group: Group, seen: DataFrame) -> DataFrame:
    """The sums `m` and the states `s` of each entity, event day, part and known day. `seen` are the events that count."""
    counting = group.counting(seen)
    return counting.groupBy(*group.keys, "event_day", _part(group).alias("part"), "known_day").agg(
        *(fn.coalesce(fn.sum(fn.expr(number.sql)), fn.lit(0)).alias(stem) for number, stem in group.sums.items()),
        *(state.start().alias(stem) for state, stem in group.states.items()),
    )


def single(group: Group, seen: DataFrame) -> tuple[DataFrame, dict[str, DataFrame]]:
    """Each event as a tile of its own, and the values but the first, which is the tiles' own `value`.

    Where everything is added up only once, this saves a shuffle and a reading of the events. Such tiles have no states.
    """
    sums = (fn.coalesce(fn.expr(number.sql), fn.lit(0)).alias(stem) for number, stem in group.sums.items())
    own = [fn.expr(sql).alias("value") for sql in [*group.distincts][:1]]
    found = group.counting(seen).select(*group.keys, "event_day", _part(group).alias("part"), "known_day", *sums, *own)
    return found, dict([*values(group, seen).items()][1:])


def events(group: Group, seen: DataFrame) -> DataFrame:
    """Each event that counts in a group of one set, with what places it."""
    return group.counting(seen).withColumn("part", _part(group))


def values(group: Group, seen: DataFrame) -> dict[str, DataFrame]:
    """For each expression whose values are counted, by its stem: each `value` of an entity, by event day, part and known day."""
    counting = group.counting(seen)
    return {
        stem: counting.select(
            *group.keys, fn.expr(sql).alias("value"), "event_day", _part(group).alias("part"), "known_day"
        ).where(fn.col("value").isNotNull())
        for sql, stem in group.distincts.items()
    }


def placed(group: Group, frame: DataFrame, span: Span) -> DataFrame:
    """Tiles or values with the days at which they enter and leave, of those that some window of the span sees."""
    ends = {window: leaving(group, window) for window in group.windows}
    enters = fn.greatest("event_day", "known_day", fn.lit(span.first))
    longest = ends[group.windows[-1]]
    return frame.where((enters <= span.last) & (enters < longest)).withColumns(
        {"enters": enters, **{leaves(window): end for window, end in ends.items()}}
    )


def _part(group: Group) -> Column:
    """How many of the windows' edges an event's time of day has passed: that of the longest rest is the earliest."""
    of_day = "(unix_micros(event_time) - event_day * 86400000000L)"
    passed = (f"if({of_day} >= {(DAY - rest) // timedelta(microseconds=1)}L, 1, 0)" for rest in remainders(group.windows))
    return fn.expr(" + ".join(passed) or "0")
