"""Which days a model trains on, stops early on, and is judged on.

Three parts by day, an embargo between them as long as a label takes to mature: no label of one part is decided by what
happens during the next. The holdout is the promotion's alone.
"""

from dataclasses import dataclass
from datetime import date, timedelta

from jobs.errors import DataError
from jobs.interval import DAY, Interval
from pipelines.declare import Pipeline


@dataclass(frozen=True, slots=True)
class Parts:
    """Days (`as_of_date`) of examples whose labels have matured."""

    training: Interval
    validation: Interval
    holdout: Interval

    @property
    def trained_through(self) -> date:
        """The last day that had a say in the model: early stopping chose by the validation part."""
        return self.validation.last


def embargo(pipeline: Pipeline) -> timedelta:
    """Whole days between two parts: what the labels of a day's examples take to mature, rounded up."""
    span = pipeline.label.horizon + pipeline.label.lateness + pipeline.lateness
    return timedelta(days=-(-span // DAY))


def newest_mature(pipeline: Pipeline, last: date) -> date:
    """The newest `as_of_date` whose labels have all matured by the end of the day `last`."""
    return last - embargo(pipeline)


def split(pipeline: Pipeline, last: date, oldest: date) -> Parts:
    """The parts for a training at the end of the day `last`, with examples since the day `oldest`.

    Raises DataError where no day is left for the training part.
    """
    rule = pipeline.training
    gap = embargo(pipeline)
    end = newest_mature(pipeline, last) + DAY
    holdout = Interval(end - rule.holdout, end)
    validation_end = holdout.start - gap
    validation = Interval(validation_end - rule.validation, validation_end)
    training_end = validation.start - gap
    training_start = max(training_end - rule.days, oldest)
    if training_start >= training_end:
        raise DataError(
            f"{pipeline.name} has no day to train on at the end of {last}: its examples begin on {oldest}, and "
            f"{rule.holdout.days} days of holdout, {rule.validation.days} of validation and {3 * gap.days} of embargo leave none."
            " Compute features of earlier days first."
        )
    return Parts(Interval(training_start, training_end), validation, holdout)
