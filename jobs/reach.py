"""Which days of each source a run has to read: the interval, and what its windows and horizons reach back to.

Pure arithmetic over the declaration, so that a run never reads history that can't matter.
"""

from dataclasses import dataclass
from datetime import date, datetime, timedelta

from jobs.interval import DAY, Interval, midnight
from pipelines.declare import Pipeline, Source

MICROSECOND = timedelta(microseconds=1)


def epoch(day: date) -> int:
    """A day as the number of days since 1970: windows are whole days, so their arithmetic is that of integers."""
    return (day - date(1970, 1, 1)).days


def examples_as_of(pipeline: Pipeline, interval: Interval) -> tuple[datetime, datetime]:
    """[start, end) of `as_of` of the examples that use the features of the interval's days."""
    shift = DAY + pipeline.lateness
    return midnight(interval.start) + shift, midnight(interval.end) + shift


def labels_as_of(pipeline: Pipeline, interval: Interval) -> tuple[datetime, datetime]:
    """[start, end) of `as_of` of the examples whose labels mature in the interval."""
    shift = pipeline.label.horizon + pipeline.label.lateness
    return midnight(interval.start) - shift, midnight(interval.end) - shift


def covering(start: datetime, end: datetime) -> Interval:
    """The whole days that hold the instants [start, end)."""
    return Interval(start.date(), (end - MICROSECOND).date() + DAY)


@dataclass(frozen=True, slots=True)
class Reach:
    """The days (of event time) of one source that a run needs."""

    days: Interval
    """Events of these days may matter to a result."""
    read: Interval
    """These days are read: as far around as a repeat can lie of an event that matters."""


def history(pipeline: Pipeline, source: Source, interval: Interval) -> Reach | None:
    """What features, dimensions and labels need of a source; None where they don't use it."""
    needs: list[Interval] = []
    for feature_set in pipeline.features:
        if feature_set.source == source:
            needs.append(Interval(interval.start - max(feature_set.windows) + DAY, interval.end))
    for dimension in pipeline.dimensions:
        if dimension.source == source:
            needs.append(Interval(interval.start - dimension.within + DAY, interval.end))
    if pipeline.label.source == source:
        start, end = labels_as_of(pipeline, interval)
        needs.append(covering(start, end + pipeline.label.horizon))
    return _reach(source, needs) if needs else None


def spine(pipeline: Pipeline, interval: Interval) -> Reach:
    """What examples and labels need of the spine's source."""
    spans = (examples_as_of(pipeline, interval), labels_as_of(pipeline, interval))
    before = pipeline.spine.before
    return _reach(pipeline.spine.source, [covering(start + before, end + before) for start, end in spans])


def _reach(source: Source, needs: list[Interval]) -> Reach:
    days = Interval(min(need.start for need in needs), max(need.end for need in needs))
    return Reach(days, Interval(days.start - source.repeats_within, days.end + source.repeats_within))
