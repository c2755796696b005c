"""Which days of each source a run has to read: the interval, and what its windows and horizons reach back to.

Pure arithmetic over the declaration, so that a run never reads history that can't matter.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from jobs.interval import DAY, Interval, midnight
from pipelines.declare import DailySpine, Dimension, FeatureSet, Pipeline, Source, Spine

MICROSECOND = timedelta(microseconds=1)


def epoch(day: date) -> int:
    """A day as the number of days since 1970: windows are whole days, so their arithmetic is that of integers."""
    return (day - date(1970, 1, 1)).days


def examples_as_of(pipeline: Pipeline, interval: Interval) -> tuple[datetime, datetime]:
    """[start, end) of `as_of` of the examples that the run over the interval makes.

    Those that use the features of the interval's days: their `as_of` comes after the days closed. Where features go by each
    example's own `as_of`, those of the interval itself: what they may know has been read when the days close.
    """
    shift = timedelta(0) if pipeline.exact else DAY + pipeline.lateness
    return midnight(interval.start) + shift, midnight(interval.end) + shift


def as_of_days(pipeline: Pipeline, interval: Interval) -> Interval:
    """The `as_of_date`s of the examples that the run over the interval makes. One counts from the closing hour, where
    examples use the features of a day: the features of day D serve the examples of the day after."""
    return interval if pipeline.exact else Interval(interval.start + DAY, interval.end + DAY)


def labels_as_of(pipeline: Pipeline, interval: Interval) -> tuple[datetime, datetime]:
    """[start, end) of `as_of` of the examples whose labels mature in the interval."""
    shift = pipeline.label.horizon + pipeline.label.lateness
    return midnight(interval.start) - shift, midnight(interval.end) - shift


def covering(start: datetime, end: datetime) -> Interval:
    """The whole days that hold the instants [start, end)."""
    return Interval(start.date(), (end - MICROSECOND).date() + DAY)


def feature_days(pipeline: Pipeline, interval: Interval) -> Interval:
    """The days whose feature rows a run computes: the interval's, and those that its examples use."""
    used = daily(pipeline, *examples_as_of(pipeline, interval))
    return Interval(min(interval.start, used.start), max(interval.end, used.end))


def daily(pipeline: Pipeline, start: datetime, end: datetime) -> Interval:
    """The days of whose end the examples with `as_of` in [start, end) know: the last that had closed by then."""
    days = covering(start - pipeline.lateness, end - pipeline.lateness)
    return Interval(days.start - DAY, days.end - DAY)


@dataclass(frozen=True, slots=True)
class Reach:
    """The days (of event time) of one source that a run needs."""

    days: Interval
    """Events of these days may matter to a result."""
    read: Interval
    """These days are read: as far around as a repeat can lie of an event that matters."""


def history(pipeline: Pipeline, source: Source, interval: Interval, *, tiled: bool = True) -> Reach | None:
    """What features, dimensions, labels and a daily spine need of a source; None where they don't use it.

    Without `tiled`, what sets that keep tiles would need is left out.
    """
    needs: list[Interval] = []
    for feature_set in pipeline.features:
        if feature_set.tiles and not tiled:
            continue
        own = of_set(pipeline, feature_set, interval)
        if feature_set.source == source:
            needs.append(own)
        needs += [looked_up(lookup, own) for lookup in feature_set.lookups if lookup.source == source]
    for dimension in pipeline.dimensions:
        if dimension.source == source:
            assert dimension.within is not None, "only a table's versions have any age"
            needs.append(back(feature_days(pipeline, interval), dimension.within))
    if isinstance(pipeline.spine, DailySpine) and pipeline.spine.source == source:
        needs += [back(days, pipeline.spine.within) for days in spine_days(pipeline, interval)]
    if pipeline.label.source == source:
        start, end = labels_as_of(pipeline, interval)
        needs.append(covering(start, end + pipeline.label.horizon))
    return _reach(source, needs) if needs else None


def of_set(pipeline: Pipeline, feature_set: FeatureSet, interval: Interval) -> Interval:
    """The days whose events a set's windows hold."""
    longest = max(feature_set.windows)
    if feature_set.accuracy == "event":
        start, end = examples_as_of(pipeline, interval)
        return covering(start - longest, end)
    return back(feature_days(pipeline, interval), longest)


def back(days: Interval, window: timedelta) -> Interval:
    """The days that a window holds which ends with each of the days."""
    return Interval((midnight(days.start + DAY) - window).date(), days.end)


def looked_up(lookup: Dimension, days: Interval) -> Interval:
    """The days on which the version can have happened that an event of the days gets."""
    assert lookup.within is not None, "only a table's versions have any age"
    return Interval(days.start - lookup.within, days.end)


def spine_days(pipeline: Pipeline, interval: Interval) -> tuple[Interval, Interval]:
    """Of a daily spine, the days at whose close the examples of the interval are, and those whose labels mature in it."""
    return tuple(  # type: ignore[return-value]
        daily(pipeline, *span) for span in (examples_as_of(pipeline, interval), labels_as_of(pipeline, interval))
    )


def spine(pipeline: Pipeline, interval: Interval) -> Reach:
    """What examples and labels need of the spine's source, where an event is an example."""
    declared = pipeline.spine
    assert isinstance(declared, Spine)
    spans = (examples_as_of(pipeline, interval), labels_as_of(pipeline, interval))
    return _reach(declared.source, [covering(start + declared.before, end + declared.before) for start, end in spans])


def _reach(source: Source, needs: Iterable[Interval]) -> Reach:
    needs = list(needs)
    days = Interval(min(need.start for need in needs), max(need.end for need in needs))
    return Reach(days, Interval(days.start - source.repeats_within, days.end + source.repeats_within))
