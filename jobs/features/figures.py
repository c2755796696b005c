"""The sums, counts and states of a group's sets at the end of each day, from events or from tiles."""

from pyspark.sql import DataFrame

from jobs.features import tiles, windows
from jobs.features.group import Group
from jobs.interval import Interval


def of_events(group: Group, seen: DataFrame, days: Interval) -> DataFrame:
    """Rows as `windows.at_days` makes them, of the events that count."""
    span = windows.Span.of(days)
    if span.first == span.last and not group.states:
        return of_tiles(group, *tiles.single(group, seen), days)
    return of_tiles(group, tiles.tiles(group, seen), tiles.values(group, seen), days)


def of_tiles(group: Group, added: DataFrame, values: dict[str, DataFrame], days: Interval) -> DataFrame:
    """The same, of tiles and values that are not placed yet."""
    span = windows.Span.of(days)
    placed = {stem: tiles.placed(group, frame, span) for stem, frame in values.items()}
    return windows.at_days(group, tiles.placed(group, added, span), placed, days)
