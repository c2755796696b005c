"""`penstock score PIPELINE --from D --to D`: the champion scores the examples that the runs of these days made.

The champion is read once, at the start: a promotion in the meantime is the next run's. All days of the range are
replaced in one commit, so that a rerun leaves the same rows, and a day that became empty is empty. A day without examples
counts as empty only where the ledger says that they were computed.
"""

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, timedelta

import pyarrow as pa
from deltalake import DeltaTable

from jobs import champion, inputs, lake, ledger, reach, registry, verdict, versions
from jobs.command import Job
from jobs.errors import RetryError
from pipelines.declare import Pipeline

PREDICTIONS = pa.schema(
    [
        ("key", pa.string()),
        ("as_of", lake.INSTANT),
        ("score", pa.float64()),
        ("model_version", pa.int64()),
        ("run_id", pa.string()),
        ("as_of_date", pa.date32()),
    ]
)

log = logging.getLogger(__name__)


def run(job: Job) -> None:
    """Score the days. The report has the version, and the rows and the share of missing inputs of each `as_of_date`.

    Raises, before any prediction is written, RetryError for a day whose examples were never computed, and DataError for one whose
    features break an expectation.
    """
    pipeline, interval = job.pipeline, job.interval
    assert pipeline is not None and interval is not None
    pinned = champion.history(pipeline).champion
    if pinned is None:
        job.report.update(model_version=None, rows=0, note="no champion yet")
        _say(job, f"{pipeline.name} has no champion yet: nothing was scored")
        return
    clock = time.monotonic()
    verdict.require_passed(pipeline, interval)
    # Asked before the examples are read: a day that is in this answer is in them too.
    computed = ledger.computed(pipeline, "features/examples", interval, versions.digest(pipeline, "examples"))
    examples = inputs.examples(pipeline)
    job.report.update(model_version=pinned.candidate, examples_version=examples.version(), champion_alias=champion.mend(pipeline))
    scorer = registry.load(pipeline, pinned.candidate)
    of_days = reach.as_of_days(pipeline, interval)
    ahead = of_days.start - interval.start
    scored = [_score(scorer, examples, day, job.run_id) for day in of_days.days()]
    _refuse_not_computed(pipeline, scored, ahead, computed)
    version = _write(pipeline, scored, job.run_id)
    job.report.update(
        rows=sum(each.predictions.num_rows for each in scored),
        days={
            str(each.day): {"rows": each.predictions.num_rows, "missing_inputs": round(each.missing_inputs, 4)} for each in scored
        },
        predictions_version=version,
    )
    read = {"examples": examples.version(), "model": pinned.candidate}
    ledger.record(
        pipeline,
        [
            ledger.Entry(
                stage="score",
                day=each.day - ahead,
                inputs=read,
                output_version=version,
                rows=each.predictions.num_rows,
                run_id=job.run_id,
                seconds=round((time.monotonic() - clock) / len(scored), 3),
            )
            for each in scored
        ],
    )
    _say(job, f"{pipeline.name}: version {pinned.candidate} scored {job.report['rows']} examples of {len(scored)} days")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """One day's predictions."""

    day: date
    """The `as_of_date`."""
    predictions: pa.Table
    missing_inputs: float
    """The share of the model's inputs that were null."""


def _score(scorer: registry.Scorer, examples: DeltaTable, day: date, run_id: str) -> Scored:
    """Score one day, batch by batch: of each only the key, the time and the score stay in memory."""
    pipeline = scorer.pipeline
    names = [*pipeline.categories, *pipeline.numbers]
    parts = []
    missing = 0
    for batch in inputs.of_day(pipeline, examples, day):
        parts.append(batch.select(["key", "as_of"]).append_column("score", pa.array(scorer.score(batch))))
        missing += sum(batch.column(name).null_count for name in names)
    if not parts:
        log.warning("%s has no examples of %s: its predictions will be empty", pipeline.name, day)
        return Scored(day=day, predictions=PREDICTIONS.empty_table(), missing_inputs=0.0)
    rows = pa.concat_tables(parts)
    count = rows.num_rows
    predictions = (
        rows.append_column("model_version", pa.repeat(pa.scalar(scorer.number, pa.int64()), count))
        .append_column("run_id", pa.repeat(pa.scalar(run_id), count))
        .append_column("as_of_date", pa.repeat(pa.scalar(day, pa.date32()), count))
    )
    return Scored(day=day, predictions=predictions.cast(PREDICTIONS), missing_inputs=missing / (count * len(names)))


def _refuse_not_computed(pipeline: Pipeline, scored: list[Scored], ahead: timedelta, computed: Collection[date]) -> None:
    """Tell a day without examples from one that was never computed. Where examples lie, a lost ledger row does not matter."""
    lacking = [day for each in scored if not each.predictions.num_rows and (day := each.day - ahead) not in computed]
    if lacking:
        raise RetryError(
            f"the examples of {', '.join(map(str, lacking))} were never computed: no prediction was written. "
            f"Run `penstock features {pipeline.name} --from {lacking[0]} --to {lacking[-1]}` first."
        )


def _write(pipeline: Pipeline, scored: list[Scored], run_id: str) -> int:
    """Replace the predictions of these days, and of no other. Returns the version that holds them."""
    return lake.replace(
        lake.uri(pipeline.name, "predictions"),
        pa.concat_tables(each.predictions for each in scored),
        where=f"as_of_date >= '{scored[0].day}' and as_of_date <= '{scored[-1].day}'",
        partition_by=["as_of_date"],
        metadata={"run_id": run_id},
    )


def _say(job: Job, line: str) -> None:
    if not job.options.json:
        print(line)
