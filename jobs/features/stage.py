"""`penstock features`: features, examples and labels of a range of days, in one Spark application."""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from jobs import batches, ledger, letters
from jobs.command import Job
from jobs.features.plan import Plan, plan
from jobs.features.spine import within
from jobs.features.tables import Output, Written, write
from jobs.interval import Interval
from jobs.reach import examples_as_of
from jobs.spark import session
from pipelines.declare import Pipeline

log = logging.getLogger(__name__)

WRITERS = 3
"""Tables written at once: a write waits for its log and its files more than it computes."""


def run(job: Job) -> None:
    """Compute and write the interval. The report says the versions read, the rows by table and the seconds by step.

    Raises RetryError for an open day or a day that a neighbour wrote, DataError for one with too many dead letters, UsageError
    for a declaration that can't be computed.
    """
    assert job.pipeline is not None and job.interval is not None
    batches.require_closed(job.pipeline, job.interval)
    letters.require_usable(job.pipeline, job.interval)
    inputs = batches.snapshot(job.pipeline)
    job.report.update(inputs=inputs, tables={}, seconds_of={})
    clock = time.monotonic()
    with session() as spark:
        job.report["seconds_of"]["session"] = round(time.monotonic() - clock, 1)
        _compute(spark, job, job.pipeline, job.interval, inputs)
        clock = time.monotonic()
    job.report["seconds_of"]["stop"] = round(time.monotonic() - clock, 1)
    if not job.options.json:
        rows = ", ".join(f"{table} {facts['rows']}" for table, facts in job.report["tables"].items())
        print(f"{job.pipeline.name}, {job.interval}: {rows}")


def _compute(spark: SparkSession, job: Job, pipeline: Pipeline, interval: Interval, inputs: dict[str, Any]) -> None:
    with _timed(job, "plan"):
        planned = plan(spark, pipeline, interval, inputs)

    def save(output: Output) -> Written:
        with _timed(job, output.table):
            written = write(output, pipeline.name, run_id=job.run_id, inputs=inputs)
        job.report["tables"][output.table] = {"rows": sum(written.rows.values()), "version": written.version}
        return written

    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            first = (*planned.sets, planned.labels)
            written = dict(zip((output.table for output in first), pool.map(save, first), strict=True))
        written[planned.examples.table] = save(planned.examples)
        with _timed(job, "counts"):
            job.report.update(_counts(planned, pipeline, interval))
    finally:
        planned.release()
    with _timed(job, "ledger"):
        ledger.record(pipeline, _entries(job, planned, written, interval, inputs))


def _counts(planned: Plan, pipeline: Pipeline, interval: Interval) -> dict[str, Any]:
    """What left no row: spine rows that came too late, and matured examples without a label."""
    late = within(planned.spine, examples_as_of(pipeline, interval)).where("late").count()
    matured = planned.outcomes.agg(
        fn.count("*").alias("matured"),
        fn.count("label").alias("labelled"),
        fn.expr("count_if(found and label is null)").alias("undecided"),
        fn.expr("count_if(not found)").alias("without_outcome"),
    ).first()
    assert matured is not None
    return {"spine": {"late": late}, "labels": matured.asDict()}


def _entries(
    job: Job, planned: Plan, written: dict[str, Written], interval: Interval, inputs: dict[str, Any]
) -> list[ledger.Entry]:
    """One entry for each table and day of the interval, also where the day is empty."""
    return [
        ledger.Entry(
            stage=f"features/{output.table}",
            day=day,
            inputs=inputs,
            output_version=written[output.table].version,
            rows=written[output.table].rows.get(own, 0),
            run_id=job.run_id,
        )
        for output in planned.outputs
        for day, own in zip(interval.days(), output.days.days(), strict=True)
    ]


@contextmanager
def _timed(job: Job, step: str) -> Iterator[None]:
    """Put the seconds of a step into the report, and tell of it."""
    clock = time.monotonic()
    yield
    job.report["seconds_of"][step] = round(time.monotonic() - clock, 1)
    log.info("features: %s, %.1f s", step, job.report["seconds_of"][step])
