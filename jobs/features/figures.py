"""The sums, counts and states of a group's sets at the end of each day, from events or from tiles."""

import functools

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs.features import tiles
from jobs.features.group import Group, at
from jobs.features.measures import EVENTS, Number
from jobs.features.once import at_once
from jobs.features.windows import Span, running, states
from jobs.interval import Interval


def of_events(group: Group, seen: DataFrame, days: Interval) -> DataFrame:
    """One row for each entity and `day` with an event in its set's longest window: `m`, `d` and `s` columns by window.

    `seen` are the events that count.
    """
    if len(days) == 1 and not group.states:
        return of_tiles(group, *tiles.single(group, seen), days)
    return of_tiles(group, tiles.tiles(group, seen), tiles.values(group, seen), days)


def of_tiles(group: Group, added: DataFrame, values: dict[str, DataFrame], days: Interval) -> DataFrame:
    """The same, of tiles and values."""
    span = Span.of(days)
    added = tiles.placed(group, added, span)
    values = {stem: tiles.placed(group, frame, span) for stem, frame in values.items()}
    summed = at_once(group, added, values, span) if len(days) == 1 else running(group, added, values, span)
    longest = {number: max(feature_set.windows) for number, feature_set in enumerate(group.sets)}
    present = functools.reduce(
        Column.__or__,
        ((fn.col("set") == number) & (fn.col(at(group.sums[Number(EVENTS)], window)) > 0) for number, window in longest.items()),
    )
    found = summed.where(present)
    if len(days) > 1:
        found = found.withColumn("day", fn.explode(fn.sequence("day", "until"))).drop("until")
    return found if not group.states else _joined(found, states(group, added, span), group.entity)


def _joined(found: DataFrame, merged: DataFrame, entity: list[str]) -> DataFrame:
    """Each row with the states of its entity and day; a set's missing fields are null on both sides."""
    names = [*entity, "day"]
    other = merged.withColumnsRenamed({name: f"_{name}" for name in names})
    same = functools.reduce(Column.__and__, (fn.col(name).eqNullSafe(fn.col(f"_{name}")) for name in names))
    return found.join(other, same, "left").drop(*(f"_{name}" for name in names))
