"""Whether a training is due: so many days of training data after the newest version's."""

from collections.abc import Collection
from datetime import date

from jobs.parts import Parts
from pipelines.declare import Pipeline


def not_due_until(pipeline: Pipeline, trained_through: Collection[date], parts: Parts, last: date) -> date | None:
    """The day whose run will train, or None where the run at the end of the day `last` does. `trained_through` are the days that
    the versions there are were trained through.

    A run trains when there is no version, or when what it would be trained through (the last validation day) lies at
    least `training.every` after what the newest version was trained through. Both move with the days of the runs, so a
    run that comes late, or is done again, decides as it would have in time.
    """
    if not trained_through:
        return None
    wait = max(trained_through) + pipeline.training.every - parts.trained_through
    return last + wait if wait.days > 0 else None
