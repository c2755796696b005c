"""Sets of one source that are computed together, and what their aggregates share.

Told apart by the column `set`, they go through each step at once: on a laptop a short job's time goes into planning and
compiling. Sets whose events get other columns first (lookups, expressions) can't share, nor those that keep tiles.
"""

import functools
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import DataType

from jobs.errors import UsageError
from jobs.features.events import by_row, reason, shift
from jobs.features.measures import EVENTS, Number, Parts, State, figure, hours, parts
from pipelines.declare import Aggregate, FeatureSet

Types = Mapping[tuple[str, str], DataType]
"""The type of each aggregate's expression, by the names of set and aggregate."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sets whose events have the same columns."""

    sets: tuple[FeatureSet, ...]
    types: Types

    def parts(self, feature_set: FeatureSet, aggregate: Aggregate) -> Parts:
        """What an aggregate is made of."""
        return parts(aggregate, self.types.get((feature_set.name, aggregate.name)))

    @property
    def sums(self) -> dict[Number, str]:
        """Each different sum, with the stem of its columns."""
        found = [Number(EVENTS), *(number for each in self._parts for number in each.sums)]
        return {number: f"m{place}" for place, number in enumerate(dict.fromkeys(found))}

    @property
    def distincts(self) -> dict[str, str]:
        """Each different expression whose values are counted, with the stem of its columns."""
        found = dict.fromkeys(each.distinct for each in self._parts if each.distinct is not None)
        return {sql: f"d{place}" for place, sql in enumerate(found)}

    @property
    def states(self) -> dict[State, str]:
        """Each different state, with the stem of its columns."""
        found = dict.fromkeys(each.state for each in self._parts if each.state is not None)
        return {state: f"s{place}" for place, state in enumerate(found)}

    @property
    def windows(self) -> list[timedelta]:
        """Each different window, the shortest first."""
        return sorted({window for feature_set in self.sets for window in feature_set.windows})

    @property
    def entity(self) -> list[str]:
        """What tells the rows of two entities apart: the set, and the fields of all sets, null where a set has not got them."""
        return ["set", *dict.fromkeys(name for feature_set in self.sets for name in feature_set.entity)]

    def counting(self, events: DataFrame) -> DataFrame:
        """Each event once for each set in which it counts, with `set`; its entity's fields are null where the set has none."""
        present = [self._present(feature_set) for feature_set in self.sets]
        if len(self.sets) == 1:
            return events.where(present[0]).withColumn("set", fn.lit(0))
        numbers = fn.explode(fn.array(*(fn.lit(number) for number in range(len(self.sets)))))
        each = events.select("*", numbers.alias("set")).where(
            functools.reduce(operator.or_, ((fn.col("set") == number) & held for number, held in enumerate(present)))
        )
        owners = {
            name: [number for number, feature_set in enumerate(self.sets) if name in feature_set.entity]
            for name in self.entity[1:]
        }
        # Expressions may use an entity's field where it doesn't tell the rows apart, so those that do have their own names.
        return each.withColumns(
            {key(name): fn.when(fn.col("set").isin(numbers), fn.col(name)) for name, numbers in owners.items()}
        )

    @property
    def keys(self) -> list[Column]:
        """What `counting` rows are grouped by."""
        if len(self.sets) == 1:
            return [fn.col(name) for name in self.entity]
        return [fn.col("set"), *(fn.col(key(name)).alias(name) for name in self.entity[1:])]

    def rows(self, figures: DataFrame, feature_set: FeatureSet, lateness: timedelta) -> DataFrame:
        """A set's rows out of those of `figures`: entity, `available_at`, the set's columns, `event_date`."""
        own = figures.where(fn.col("set") == self.sets.index(feature_set)).select(
            *feature_set.entity,
            shift("timestamp(date_from_unix_date(day + 1))", lateness).alias("available_at"),
            *self.columns(feature_set),
            fn.date_from_unix_date("day").alias("event_date"),
        )
        own = derived(own, feature_set)
        return own.select(*feature_set.entity, "available_at", *feature_set.columns, "event_date")

    def columns(self, feature_set: FeatureSet) -> Iterable[Column]:
        """The aggregates of a set out of sums, counts and states by window."""
        for window in feature_set.windows:
            sums = {number: fn.col(at(stem, window)) for number, stem in self.sums.items()}
            for aggregate in feature_set.aggregates:
                found = self.parts(feature_set, aggregate)
                distinct = None if found.distinct is None else fn.col(at(self.distincts[found.distinct], window))
                state = None if found.state is None else fn.col(at(self.states[found.state], window))
                yield figure(found, sums, distinct, state).alias(feature_set.column(aggregate, window))

    @property
    def _parts(self) -> list[Parts]:
        return [self.parts(feature_set, aggregate) for feature_set in self.sets for aggregate in feature_set.aggregates]

    def _present(self, feature_set: FeatureSet) -> Column:
        named = functools.reduce(operator.and_, (fn.col(name).isNotNull() for name in feature_set.entity))
        return named & fn.expr(feature_set.where) if feature_set.where else named


def grouped(sets: Iterable[FeatureSet]) -> list[tuple[FeatureSet, ...]]:
    """Sets that can share one pass, in the order of their first."""
    found: dict[object, list[FeatureSet]] = {}
    for feature_set in sets:
        shared = (feature_set.source, feature_set.lookups, feature_set.per_event, feature_set.name if feature_set.tiles else "")
        found.setdefault(shared, []).append(feature_set)
    return [tuple(together) for together in found.values()]


def derived(rows: DataFrame, feature_set: FeatureSet) -> DataFrame:
    """The rows with the columns that are made of others; each may use the ones before it.

    Raises UsageError where one is no expression over them.
    """
    for one in feature_set.derived:
        try:
            made = rows.withColumn(f"{feature_set.name}_{one.name}", fn.expr(one.sql))
        except AnalysisException as failure:
            raise UsageError(
                f"derived column {one.name!r} of feature set {feature_set.name!r}: {one.sql!r} is no expression over the set's "
                f"columns {', '.join(feature_set.columns)}: {reason(failure)}"
            ) from failure
        by_row(rows, made, {f"derived column {one.name!r} of feature set {feature_set.name!r}": one.sql})
        rows = made
    return rows


def at(stem: str, window: timedelta) -> str:
    """The column of a sum, a count or a state in one window."""
    return f"{stem}_{hours(window)}"


def key(name: str) -> str:
    """An entity's field where it tells the rows of several sets apart."""
    return f"_key_{name}"
