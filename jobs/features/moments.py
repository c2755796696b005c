"""Accuracy `event`: what was visible at each example's own `as_of`, in windows that end there.

The method of `windows.py` with instants in the place of days: an event enters at the later of its two clocks and leaves each
window at an instant that is known from the start. Examples are sorted among these changes, and the running sums up to each are
its figures: no example looks at each of its events. What lies before the first example is added up beforehand. States can't be
taken out of a window, so those are made of the pairs of example and event.
"""

import functools
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from jobs.features.events import POSITION
from jobs.features.group import Group, at, derived
from jobs.features.measures import EVENTS, Number
from jobs.features.windows import Span, changes, columns, leaves
from pipelines.declare import FeatureSet

OWN = ("as_of", *POSITION[1:])
"""What tells examples apart: a spine's event has one position."""
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Moments:
    """A set over examples whose `as_of` lies in [start, end)."""

    group: Group
    """Of this set alone."""
    start: datetime
    end: datetime

    @property
    def declared(self) -> FeatureSet:
        """The set."""
        return self.group.sets[0]

    @property
    def span(self) -> Span:
        """The instants of the examples."""
        first, last = (_micros(moment) for moment in (self.start, self.end))
        return Span(first, last - 1)

    def joined(self, rows: DataFrame, events: DataFrame) -> DataFrame:
        """The rows of the spine, each once, with the set's columns. `events` are those that count."""
        asked = rows.columns
        entities = rows.select(*(fn.col(f"_{name}").alias(name) for name, _ in self._named())).distinct()
        seen = self._placed(self.group.counting(events), entities)
        rows = rows.withColumn("_at", fn.unix_micros("as_of"))
        if not self.declared.own_event:
            rows = self._own(rows, seen)
        figures = self._running(rows, seen)
        if self._paired:
            figures = self._with_pairs(figures, seen)
        # As in a set by day, what is derived is unknown where the longest window holds no event: there would be no row.
        some = fn.col(at(self.group.sums[Number(EVENTS)], max(self.declared.windows))) > 0
        made = derived(figures.select(*asked, *self.group.columns(self.declared), some.alias("_some")), self.declared)
        own = {f"{self.declared.name}_{one.name}" for one in self.declared.derived}
        return made.select(
            *asked,
            *(fn.when(fn.col("_some"), fn.col(name)).alias(name) if name in own else name for name in self.declared.columns),
        )

    @property
    def _distincts(self) -> dict[str, str]:
        """The values counted by merged spans; without the own event, by pairs."""
        return self.group.distincts if self.declared.own_event else {}

    @property
    def _paired(self) -> bool:
        return bool(self.group.states) or len(self._distincts) < len(self.group.distincts)

    def _named(self) -> list[tuple[str, str]]:
        """The fields of the entity: in the spine, and in the events."""
        return list(zip(self.declared.on_spine, self.declared.entity, strict=True))

    def _placed(self, counting: DataFrame, entities: DataFrame) -> DataFrame:
        """The events of the examples' entities, with what they add, when they enter and when they leave."""
        named = self._named()
        found = counting.join(
            entities.withColumnsRenamed({spine: f"_asked_{own}" for spine, own in named}),
            [counting[own] == fn.col(f"_asked_{own}") for _, own in named],
            "left_semi",
        )
        # A change counts from its point on. Half-open windows hold what came before `as_of`, closed ones what came at it too.
        after = 0 if self.declared.closed else 1
        enters = fn.greatest(fn.unix_micros("event_time") + after, fn.unix_micros("known_time") + after, fn.lit(self.span.first))
        ends = {leaves(window): fn.unix_micros("event_time") + (window // _MICROSECOND + 1) for window in self.group.windows}
        sums = {stem: fn.coalesce(fn.expr(number.sql), fn.lit(0)) for number, stem in self.group.sums.items()}
        return found.withColumns({"enters": enters, **ends, **sums}).where(
            (fn.col("enters") <= self.span.last) & (fn.col("enters") < fn.col(leaves(self.group.windows[-1])))
        )

    def _running(self, rows: DataFrame, seen: DataFrame) -> DataFrame:
        """Each row with the sums and counts up to its `as_of`."""
        values = {
            stem: seen.withColumn("value", fn.expr(sql)).where(fn.col("value").isNotNull())
            for sql, stem in self._distincts.items()
        }
        moved = changes(self.group, seen, values, self.span, spread=False)
        names = columns(self.group, values)
        asked = rows.select(
            fn.lit(0).alias("set"),
            *(fn.col(f"_{spine}").alias(own) for spine, own in self._named()),
            fn.col("_at").alias("point"),
            fn.struct(*rows.columns).alias("_row"),
        )
        together = moved.withColumn("_order", fn.lit(0)).unionByName(
            asked.withColumn("_order", fn.lit(1)), allowMissingColumns=True
        )
        so_far = (
            Window.partitionBy(*self.group.entity)
            .orderBy("point", "_order")
            .rowsBetween(Window.unboundedPreceding, Window.currentRow)
        )
        summed = together.select("_row", *(fn.coalesce(fn.sum(name).over(so_far), fn.lit(0)).alias(name) for name in names))
        found = summed.where(fn.col("_row").isNotNull()).select("_row.*", *names)
        if self.declared.own_event:
            return found
        own = columns(self.group, ())
        return found.withColumns({name: fn.col(name) - fn.coalesce(fn.col(f"_own_{name}"), fn.lit(0)) for name in own})

    def _own(self, rows: DataFrame, seen: DataFrame) -> DataFrame:
        """The rows with what their own events add to their windows, where they count."""
        source = self.declared.source
        own = seen.select(
            fn.col(source.event_id).cast("string").alias("_id"),
            *(fn.col(name).alias(f"_its_{name}") for name in ("enters", *map(leaves, self.group.windows))),
            *(fn.col(stem).alias(f"_its_{stem}") for stem in self.group.sums.values()),
            *(fn.col(own).alias(f"_its_{own}") for _, own in self._named()),
        )
        same = [rows["key"] == fn.col("_id"), *(rows[f"_{spine}"] == fn.col(f"_its_{own}") for spine, own in self._named())]
        held = {
            window: (fn.col("_its_enters") <= fn.col("_at")) & (fn.col("_at") < fn.col(f"_its_{leaves(window)}"))
            for window in self.group.windows
        }
        # Beyond the horizon of repeats an id may stand for several events that count.
        joined = rows.join(own, same, "left").groupBy(*rows.columns)
        return joined.agg(
            *(
                fn.sum(fn.when(held[window], fn.col(f"_its_{stem}"))).alias(f"_own_{at(stem, window)}")
                for window in self.group.windows
                for stem in self.group.sums.values()
            )
        )

    def _with_pairs(self, rows: DataFrame, seen: DataFrame) -> DataFrame:
        """The rows with states, and where need be with counts of values, of the pairs of row and event."""
        named = self._named()
        asked = rows.select(
            *(fn.col(name).alias(f"_asked_{name}") for name in OWN),
            *(fn.col(f"_{spine}").alias(f"_asked_{own}") for spine, own in named),
            "_at",
            fn.col("key").alias("_key"),
        )
        same = [seen[own] == fn.col(f"_asked_{own}") for _, own in named]
        same += [seen["enters"] <= fn.col("_at"), seen[leaves(self.group.windows[-1])] > fn.col("_at")]
        if not self.declared.own_event:
            same.append(seen[self.declared.source.event_id].cast("string") != fn.col("_key"))
        figures: list[Column] = []
        for window in self.group.windows:
            held = fn.col("_at") < fn.col(leaves(window))
            figures += [state.over(held).alias(at(stem, window)) for state, stem in self.group.states.items()]
            if not self.declared.own_event:
                figures += [
                    fn.count_distinct(fn.when(held, fn.expr(sql))).alias(at(stem, window))
                    for sql, stem in self.group.distincts.items()
                ]
        found = asked.join(seen, same, "inner").groupBy(*(f"_asked_{name}" for name in OWN)).agg(*figures)
        own = functools.reduce(Column.__and__, (rows[name] == fn.col(f"_asked_{name}") for name in OWN))
        joined = rows.join(found, own, "left").drop(*(f"_asked_{name}" for name in OWN))
        counted = (
            [] if self.declared.own_event else [at(stem, w) for w in self.group.windows for stem in self.group.distincts.values()]
        )
        return joined.withColumns({name: fn.coalesce(fn.col(name), fn.lit(0)) for name in counted}) if counted else joined


def _micros(moment: datetime) -> int:
    return (moment.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
