"""One function turns scheduled, manual and backfill runs into an interval (design, invariant 1)."""

from datetime import UTC, date, datetime

import pytest

from jobs.errors import UsageError
from jobs.interval import Interval, resolve

NOW = datetime(2013, 4, 10, 12, tzinfo=UTC)
SCHEDULED = {"run_start": "2013-04-01T00:00:00+00:00", "run_end": "2013-04-02T00:00:00+00:00"}


def test_inclusive_dates_become_a_half_open_interval() -> None:
    interval = resolve(first="2013-04-01", last="2013-04-03", now=NOW)
    assert interval == Interval(date(2013, 4, 1), date(2013, 4, 4))
    assert list(interval.days()) == [date(2013, 4, 1), date(2013, 4, 2), date(2013, 4, 3)]
    assert interval.last == date(2013, 4, 3)
    assert len(interval) == 3


def test_scheduled_manual_and_backfill_runs_of_a_day_are_the_same() -> None:
    by_person = resolve(first="2013-04-01", last="2013-04-01", now=NOW)
    by_airflow = resolve(first="", last="", **SCHEDULED, now=NOW)
    both = resolve(
        first="2013-04-01", last="2013-04-01", run_start="2013-04-09T00:00:00Z", run_end="2013-04-10T00:00:00Z", now=NOW
    )
    assert by_person == by_airflow == both


def test_another_offset_is_the_same_instant() -> None:
    interval = resolve(first=None, last=None, run_start="2013-04-01T02:00:00+02:00", run_end="2013-04-02T02:00:00+02:00", now=NOW)
    assert interval == Interval(date(2013, 4, 1), date(2013, 4, 2))


def test_the_day_that_has_just_ended_is_over() -> None:
    midnight = datetime(2013, 4, 10, tzinfo=UTC)
    assert resolve(first="2013-04-09", last="2013-04-09", now=midnight).last == date(2013, 4, 9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"first": "2013-04-01", "last": None}, "only one end"),
        ({"first": "", "last": "2013-04-01"}, "only one end"),
        ({"first": "2013-04-02", "last": "2013-04-01"}, "is after"),
        ({"first": "2013-04-10", "last": "2013-04-10"}, "is not over"),
        ({"first": "2013-04-31", "last": "2013-05-01"}, "'2013-04-31' is not a day"),
        ({"first": "9999-12-31", "last": "9999-12-31"}, "is not a day"),
        ({"first": "01.04.2013", "last": "02.04.2013"}, "YYYY-MM-DD"),
        ({"first": None, "last": None}, "no days were given"),
        ({"first": None, "last": None, "run_start": "None", "run_end": "None"}, "'None' is not an instant"),
        ({"first": None, "last": None, "run_start": "2013-04-01T00:00:00", "run_end": "2013-04-02T00:00:00"}, "no offset"),
        ({"first": None, "last": None, "run_start": "2013-04-01T06:00:00Z", "run_end": "2013-04-02T06:00:00Z"}, "whole UTC days"),
        ({"first": None, "last": None, "run_start": "2013-04-01T00:00:00Z", "run_end": "2013-04-01T00:00:00Z"}, "whole UTC days"),
    ],
)
def test_wrong_input_is_refused_in_words(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(**given, now=NOW)


def test_an_interval_without_a_day_is_refused() -> None:
    with pytest.raises(UsageError, match="holds no day"):
        Interval(date(2013, 4, 1), date(2013, 4, 1))
