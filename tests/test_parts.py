"""The parts of training don't touch: an embargo as long as a label takes lies between them."""

from datetime import date, timedelta

import pytest

import pipelines
from jobs.errors import DataError
from jobs.interval import DAY, midnight
from jobs.parts import embargo, newest_mature, split

PIPELINE = pipelines.load("flight_delays")
LAST = date(2013, 3, 31)


def matures(day: date) -> object:
    """The latest instant at which a label of the examples of `day` may mature."""
    return midnight(day + DAY) + PIPELINE.lateness + PIPELINE.label.horizon + PIPELINE.label.lateness


def test_the_newest_mature_day_is_mature_and_the_next_is_not() -> None:
    newest = newest_mature(PIPELINE, LAST)
    assert matures(newest) <= midnight(LAST + DAY) < matures(newest + DAY)


def test_no_label_of_a_part_is_decided_during_the_next() -> None:
    parts = split(PIPELINE, LAST, oldest=date(2013, 1, 2))
    assert matures(parts.training.last) <= midnight(parts.validation.start)
    assert matures(parts.validation.last) <= midnight(parts.holdout.start)
    assert parts.holdout.last == newest_mature(PIPELINE, LAST)
    assert parts.trained_through == parts.validation.last
    assert (len(parts.validation), len(parts.holdout)) == (PIPELINE.training.validation.days, PIPELINE.training.holdout.days)


def test_training_takes_at_most_its_days_and_none_before_the_oldest() -> None:
    assert len(split(PIPELINE, LAST, oldest=date(2012, 1, 1)).training) == PIPELINE.training.days.days
    assert split(PIPELINE, LAST, oldest=date(2013, 2, 1)).training.start == date(2013, 2, 1)


def test_too_short_a_history_is_refused_with_its_numbers() -> None:
    with pytest.raises(DataError, match=r"begin on 2013-03-02, and 14 days of holdout, 7 of validation and 9 of embargo"):
        split(PIPELINE, LAST, oldest=date(2013, 3, 2))
    assert embargo(PIPELINE) == timedelta(days=3)
