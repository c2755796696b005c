"""Whole UTC days, half-open: the one form in which a stage is told what to compute.

People give two inclusive dates, as Airflow's backfill does; Airflow gives the ends of a run's data interval. `resolve`
turns either into an `Interval`, once, at the edge, for scheduled, manual and backfill runs alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Self

from jobs.errors import UsageError

DAY = timedelta(days=1)


def midnight(day: date) -> datetime:
    """The instant at which `day` begins, in UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Interval:
    """The days from `start` up to, and without, `end`."""

    start: date
    end: date

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise UsageError(f"the interval [{self.start}, {self.end}) holds no day: it must begin before it ends.")

    @classmethod
    def inclusive(cls, first: date, last: date) -> Self:
        """From two dates as people give them: both belong to the interval."""
        if last < first:
            raise UsageError(f"--from {first} is after --to {last}: give the earlier day first; both are included.")
        return cls(first, last + DAY)

    def days(self) -> Iterator[date]:
        """Each day, in order."""
        day = self.start
        while day < self.end:
            yield day
            day += DAY

    @property
    def last(self) -> date:
        """The last day that belongs to the interval."""
        return self.end - DAY

    def __len__(self) -> int:
        return (self.end - self.start).days

    def __str__(self) -> str:
        return str(self.start) if len(self) == 1 else f"{self.start} to {self.last}"


def parse_day(text: str) -> date:
    """A date as people write it, `2013-04-01`. Raises UsageError otherwise."""
    try:
        day = date.fromisoformat(text)
        _ = day + DAY  # The last day that Python knows has no end.
        return day
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is not a day: write it as YYYY-MM-DD, for example 2013-04-01.") from None


def parse_instant(text: str) -> datetime:
    """An instant with its offset, as Airflow prints the ends of a data interval. Raises UsageError otherwise."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not an instant: write it as 2013-04-01T00:00:00+00:00.") from None
    if instant.tzinfo is None:
        raise UsageError(f"{text!r} has no offset from UTC: an instant without one is ambiguous. Add +00:00.")
    return instant.astimezone(UTC)


def resolve(
    *,
    first: str | None,
    last: str | None,
    run_start: str | None = None,
    run_end: str | None = None,
    now: datetime,
) -> Interval:
    """The interval of a run, whichever way it was started.

    `first` and `last` are the inclusive dates of a person (None or empty where not given); `run_start` and `run_end` the
    ends of the data interval of an Airflow run. The dates win where both are there. `now` is when the run was asked
    for: a day that is not over by then is refused, since its events are still coming.

    Raises UsageError, before any work, for one date without the other, a wrong order, a data interval that is not
    whole UTC days, a day not over, or nothing to go by.
    """
    if bool(first) != bool(last):
        raise UsageError(
            f"only one end of the range was given (from {first or 'nothing'}, to {last or 'nothing'}): give both, or neither."
        )
    if first and last:
        interval = Interval.inclusive(parse_day(first), parse_day(last))
    elif run_start and run_end:
        start, end = parse_instant(run_start), parse_instant(run_end)
        if start != midnight(start.date()) or end != midnight(end.date()) or start >= end:
            raise UsageError(
                f"the run's data interval [{start.isoformat()}, {end.isoformat()}) is not whole UTC days. "
                "Trigger the run with the two dates of the form, or with a logical date at midnight UTC."
            )
        interval = Interval(start.date(), end.date())
    else:
        raise UsageError(
            "no days were given: use --from and --to, two inclusive dates, for example --from 2013-04-01 --to 2013-04-02."
        )
    if midnight(interval.end) > now:
        raise UsageError(f"{interval.last} is not over (it is {now:%Y-%m-%d %H:%M} UTC): give days up to {now.date() - DAY}.")
    return interval
