"""Whether a training is due: so many days of training data after the newest version's."""

from datetime import date

from jobs.parts import Parts
from jobs.registry import Version
from pipelines.declare import Pipeline


def not_due_until(pipeline: Pipeline, versions: list[Version], parts: Parts, last: date) -> date | None:
    """The day whose run will train, or None where the run at the end of the day `last` does.

    A run trains when there is no version, or when what it would be trained through (the last validation day) lies at
    least `training.every` after what the newest version was trained through. Both move with the days of the runs, so a
    run that comes late, or is done again, decides as it would have in time.
    """
    if not versions:
        return None
    wait = max(version.trained_through for version in versions) + pipeline.training.every - parts.trained_through
    return last + wait if wait.days > 0 else None
