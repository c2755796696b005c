"""The examples on which a candidate is judged: those of its holdout days that have a label, scored by each model.

They are read from the versions of the tables on which the candidate was trained, so that the decision can be made again.
Of an example only its label, its day and its scores stay in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from jobs import inputs, lake, reach
from jobs.errors import DataError
from jobs.interval import DAY, Interval
from jobs.metrics import Floats, Ints
from pipelines.declare import Pipeline

Score = Callable[[pa.Table], Floats]


@dataclass(frozen=True, kw_only=True, slots=True)
class Holdout:
    """Labelled examples and the scores that each model gave them, in the same order."""

    labels: Ints
    """(n,), 0 or 1."""
    days: Ints
    """(n,), the position of the example's day among the days that have any."""
    day_count: int
    """Days that have labelled examples."""
    scores: dict[str, Floats]
    """(n,) by the model's role."""


def matured(pipeline: Pipeline, day: date) -> tuple[date, date]:
    """The first and the last `mature_date` on which labels of the examples of `as_of_date` = `day` can lie."""
    # An `as_of_date` is one day of `as_of` long, so its labels mature on one UTC day, or on parts of two.
    ahead = reach.as_of_days(pipeline, Interval(day, day + DAY)).start - day
    start, end = reach.examples_as_of(pipeline, Interval(day - ahead, day - ahead + DAY))
    wait = pipeline.label.horizon + pipeline.label.lateness
    days = reach.covering(start + wait, end + wait)
    return days.start, days.last


def lacking(pipeline: Pipeline, tags: dict[str, str]) -> list[str]:
    """The declared inputs that the examples of a candidate don't have; none where they can't be read, which `score` says."""
    try:
        table = lake.load(lake.uri(pipeline.name, tags.get("examples_table", "examples")), int(tags["examples_version"]))
    except DeltaError:
        return []
    there = set() if table is None else {field.name for field in table.schema().fields}
    return [name for name in (*pipeline.categories, *pipeline.numbers) if there and name not in there]


def score(pipeline: Pipeline, days: Interval, tags: dict[str, str], models: dict[str, Score]) -> Holdout:
    """Give each labelled example of the days to each of the models.

    `tags` are the candidate's: which tables it was trained on, at which versions. Raises DataError where these versions are gone.
    """
    try:
        # A candidate of an earlier release names no table.
        examples = inputs.examples(pipeline, int(tags["examples_version"]), name=tags.get("examples_table", "examples"))
        labels = lake.load(lake.uri(pipeline.name, tags.get("labels_table", "labels")), int(tags["labels_version"]))
    except DeltaError as failure:
        raise DataError(
            f"version {tags['examples_version']} of the examples or {tags['labels_version']} of the labels of {pipeline.name} "
            f"can't be read any more ({failure}): the candidate can't be judged on what it was trained with. Train again."
        ) from failure
    if labels is None:
        raise DataError(f"{pipeline.name} has no labels, though a version was trained on them: was the lake emptied?")
    seen: list[Ints] = []
    positions: list[Ints] = []
    scores: dict[str, list[Floats]] = {role: [] for role in models}
    count = 0
    for day in days.days():
        before = len(seen)
        for batch in inputs.of_day_labelled(pipeline, examples, labels, day, matured(pipeline, day)):
            seen.append(batch.column("label").to_numpy().astype(np.int64))
            positions.append(np.full(batch.num_rows, count, dtype=np.int64))
            for role, model in models.items():
                scores[role].append(model(batch))
        count += len(seen) > before
    return Holdout(
        labels=np.concatenate([*seen, np.empty(0, np.int64)]),
        days=np.concatenate([*positions, np.empty(0, np.int64)]),
        day_count=count,
        scores={role: np.concatenate([*parts, np.empty(0)]) for role, parts in scores.items()},
    )
