"""Aggregates over windows of days, for all days of a range and all sets of a source in one pass.

An event is visible at the end of day D when it happened and was known by then, and it lies in a window of w days until D
reaches `event_day + w`. So it enters every window on its first visible day, max(event day, known day), and leaves each on
a day that is known from the start. Three steps, none of which looks at a day of the range by itself:

1. *tiles*: one row for each entity, event day and first visible day, with sums and counts;
2. *changes*: what a tile adds on the day it enters and takes away on the day it leaves, for each window;
3. *running sums* of the changes by entity, over days; between two changes nothing moves, so those days are filled in.

Everything is a sum of integers: exact, in whatever order it is added up. Means and rates are divided at the very end.
The sets of one source go through the steps together, told apart by `set`: on a laptop a short job's time goes into
planning and compiling, which this does once.
"""

import functools
import operator
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from jobs.features.events import shift
from jobs.interval import Interval
from jobs.reach import epoch
from pipelines.declare import Aggregate, FeatureSet

EVENTS = "1"
"""The measure that counts all events: an entity without any in its longest window has no row."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The two sums that an aggregate is made of, as SQL over one event; for count and sum there is no divisor."""

    value: str
    divisor: str | None = None


@dataclass(frozen=True, slots=True)
class Sums:
    """The running sums of the sets of one source, and what their columns mean."""

    sets: tuple[FeatureSet, ...]

    @property
    def measures(self) -> dict[str, str]:
        """Each different sum, as SQL over one event, with the stem of its columns."""
        needed = [EVENTS]
        for found in (parts(aggregate) for feature_set in self.sets for aggregate in feature_set.aggregates):
            needed += [found.value] if found.divisor is None else [found.value, found.divisor]
        return {sql: f"m{number}" for number, sql in enumerate(dict.fromkeys(needed))}

    @property
    def windows(self) -> list[int]:
        """Each different window, in days."""
        return sorted({window.days for feature_set in self.sets for window in feature_set.windows})

    @property
    def columns(self) -> list[str]:
        """The sums' columns: each measure in each window."""
        return [f"{name}_{window}" for window in self.windows for name in self.measures.values()]

    @property
    def entity(self) -> list[str]:
        """What tells the rows of two entities apart: the set, and the fields of all sets, null where a set has not got them."""
        return ["set", *dict.fromkeys(name for feature_set in self.sets for name in feature_set.entity)]

    def column(self, measure: str, window: timedelta) -> Column:
        """One sum."""
        return fn.col(f"{self.measures[measure]}_{window.days}")

    def of(self, events: DataFrame, interval: Interval) -> DataFrame:
        """One row for each entity and `day` of the interval with an event in the longest window.

        `events` are those that count, with their fields, `event_day` and `known_day`.
        """
        return self._running(self._changes(self._tiles(events, interval), interval), interval)

    def rows(self, sums: DataFrame, feature_set: FeatureSet, lateness: timedelta) -> DataFrame:
        """A set's rows: the entity's fields, `available_at`, the set's columns and `event_date`."""
        return sums.where(fn.col("set") == self.sets.index(feature_set)).select(
            *feature_set.entity,
            shift("timestamp(date_from_unix_date(day + 1))", lateness).alias("available_at"),
            *(
                self._figure(aggregate, window).alias(feature_set.column(aggregate, window))
                for window in feature_set.windows
                for aggregate in feature_set.aggregates
            ),
            fn.date_from_unix_date("day").alias("event_date"),
        )

    def _tiles(self, events: DataFrame, interval: Interval) -> DataFrame:
        """Sums by entity, event day and first visible day `enters`, of the events that some window of the interval sees."""
        enters = fn.greatest("event_day", "known_day", fn.lit(epoch(interval.start)))
        seen = (fn.col("enters") <= epoch(interval.last)) & (fn.col("enters") < fn.col("event_day") + self.windows[-1])
        each = events.select(
            "*", enters.alias("enters"), fn.explode(fn.array(*(fn.lit(number) for number in range(len(self.sets))))).alias("set")
        )
        present = functools.reduce(
            operator.or_,
            (
                functools.reduce(
                    operator.and_, (fn.col(name).isNotNull() for name in feature_set.entity), fn.col("set") == number
                )
                for number, feature_set in enumerate(self.sets)
            ),
        )
        owners = {
            name: [number for number, feature_set in enumerate(self.sets) if name in feature_set.entity]
            for name in self.entity[1:]
        }
        return (
            each.where(seen & present)
            .groupBy(
                "set",
                *(fn.when(fn.col("set").isin(numbers), fn.col(name)).alias(name) for name, numbers in owners.items()),
                "event_day",
                "enters",
            )
            .agg(*(fn.coalesce(fn.sum(fn.expr(sql).cast("long")), fn.lit(0)).alias(name) for sql, name in self.measures.items()))
        )

    def _changes(self, tiles: DataFrame, interval: Interval) -> DataFrame:
        """What moves on which day, by entity, for each measure and window."""
        ends = {window: fn.col("event_day") + window for window in self.windows}
        moved = tiles.select("*", fn.posexplode(fn.array("enters", *ends.values())).alias("move", "day"))
        # What left a window before the interval never entered it.
        moved = moved.where(
            (fn.col("day") <= epoch(interval.last)) & ((fn.col("move") == 0) | (fn.col("day") > fn.col("enters")))
        )
        columns = []
        for number, (window, end) in enumerate(ends.items(), start=1):
            enters, leaves = (fn.col("move") == 0) & (fn.col("enters") < end), fn.col("move") == number
            sign = fn.when(enters, 1).when(leaves, -1).otherwise(0)
            columns += [fn.sum(sign * fn.col(name)).alias(f"{name}_{window}") for name in self.measures.values()]
        # Spread by entity alone, so that the sums and the running sums after them need no further shuffle.
        return moved.repartition(*self.entity).groupBy(*self.entity, "day").agg(*columns)

    def _running(self, moved: DataFrame, interval: Interval) -> DataFrame:
        """The sums at the end of each day, where the longest window of the set holds an event."""
        by_entity = Window.partitionBy(*self.entity).orderBy("day")
        so_far = by_entity.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        until = fn.coalesce(fn.lead("day").over(by_entity) - 1, fn.lit(epoch(interval.last)))
        summed = moved.select(
            *self.entity, "day", until.alias("until"), *(fn.sum(name).over(so_far).alias(name) for name in self.columns)
        )
        holds = functools.reduce(
            operator.or_,
            (
                (fn.col("set") == number) & (self.column(EVENTS, max(feature_set.windows)) > 0)
                for number, feature_set in enumerate(self.sets)
            ),
        )
        return summed.where(holds).select(*self.entity, fn.explode(fn.sequence("day", "until")).alias("day"), *self.columns)

    def _figure(self, aggregate: Aggregate, window: timedelta) -> Column:
        found = parts(aggregate)
        value = self.column(found.value, window)
        if found.divisor is None:
            return value
        divisor = self.column(found.divisor, window)
        return fn.when(divisor > 0, value.cast("double") / divisor.cast("double"))


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
