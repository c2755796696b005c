"""`penstock features`: features, examples and labels of the days that need it, in one Spark application.

What stands is left alone: a day is computed when it never was, or when its rows, the code or the declaration have changed, see
`jobs.needs`. Chunk by chunk is written and told to the ledger, so a run that follows a killed one goes on where that stopped.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from jobs import account, batches, ledger, letters, needs, stale, verdict, versions
from jobs.command import Job
from jobs.errors import UsageError
from jobs.features import parquet, preview
from jobs.features.plan import Plan, plan
from jobs.features.quality import Checks
from jobs.features.spine import within
from jobs.features.tables import Output, Written, physical, write
from jobs.interval import Interval
from jobs.reach import examples_as_of
from jobs.spark import session
from pipelines.declare import Pipeline

log = logging.getLogger(__name__)

WRITERS = 3
"""Tables written at once: a write waits for its log and its files more than it computes."""


def run(job: Job) -> None:
    """Compute and write the days that need it; with `--force` all. The report says which days were computed and why, the versions
    read, the rows by table and the seconds by step.

    Raises RetryError for an open day or a day that a neighbour wrote, DataError for one with too many dead letters and, when all
    is written, for one that breaks an expectation, UsageError for a declaration that can't be computed.
    """
    assert job.pipeline is not None and job.interval is not None
    if job.options.preview is not None:
        preview.run(job)
        return
    if job.options.entity is not None:
        raise UsageError("--entity is of --preview, which shows one entity's values: give --preview DAY, or leave it out.")
    if job.options.chunk_days < 1:
        raise UsageError(f"--chunk-days is {job.options.chunk_days}: it must be at least 1.")
    batches.require_closed(job.pipeline, job.interval)
    # Before the account is settled: what is committed meanwhile is not read, and makes the days stale afterwards.
    inputs = batches.snapshot(job.pipeline)
    account.settle_all(job.pipeline.sources)
    chunks = _chunks(job, job.pipeline, job.interval)
    for days in stale.intervals(day for chunk in chunks for day in chunk.days()):
        letters.require_usable(job.pipeline, days)
    checks = Checks(job.pipeline)
    job.report.update(inputs=inputs, tables={}, seconds_of={}, plans={})
    if not chunks:
        _say(job, f"{job.pipeline.name}, {job.interval}: nothing to do, all days stand as they are (--force computes them again)")
        _finish(job, job.pipeline, job.interval)
        return
    clock = time.monotonic()
    with session() as spark:
        job.report["seconds_of"]["session"] = round(time.monotonic() - clock, 1)
        began = time.monotonic()
        done = 0
        for number, chunk in enumerate(chunks, start=1):
            _compute(spark, job, job.pipeline, chunk, inputs, checks)
            done += len(chunk)
            left = (time.monotonic() - began) / done * (sum(map(len, chunks)) - done)
            log.info("features: chunk %d of %d (%s) is done, about %.0f s left", number, len(chunks), chunk, left)
        clock = time.monotonic()
    job.report["seconds_of"]["stop"] = round(time.monotonic() - clock, 1)
    rows = ", ".join(f"{table} {facts['rows']}" for table, facts in job.report["tables"].items())
    skipped = f"; {len(job.report['days']['skipped'])} days stand as they are" if job.report["days"]["skipped"] else ""
    _say(job, f"{job.pipeline.name}, {job.interval}: {rows}{skipped}")
    _finish(job, job.pipeline, job.interval)


def _finish(job: Job, pipeline: Pipeline, interval: Interval) -> None:
    """What concerns all days, those too that stand as they are: plain files that a set asks for since, and breaches."""
    job.report["plain_files_filled"] = parquet.fill(pipeline, interval)
    verdict.require_passed(pipeline, interval)


def _chunks(job: Job, pipeline: Pipeline, interval: Interval) -> list[Interval]:
    """The days to compute, as runs of consecutive days. The report says which these are and why."""
    why: dict[date, tuple[str, ...]] = dict.fromkeys(interval.days(), ("asked for: --force",))
    if not job.options.force:
        why = {one.day: one.why for one in needs.features(pipeline, interval) if one.state != "done"}
    reasons: dict[tuple[str, ...], list[date]] = defaultdict(list)
    for day, each in why.items():
        reasons[each].append(day)
    for each, days in reasons.items():
        log.info("features: %s: %s", ", ".join(map(str, stale.intervals(days))), "; ".join(each))
    job.report["days"] = {
        "computed": {str(day): list(each) for day, each in why.items()},
        "skipped": [day for day in interval.days() if day not in why],
    }
    return needs.chunks(why, job.options.chunk_days)


def _compute(
    spark: SparkSession, job: Job, pipeline: Pipeline, interval: Interval, inputs: dict[str, Any], checks: Checks
) -> None:
    """One chunk: its tables, then its days in the ledger."""
    clock = time.monotonic()
    with _timed(job, "plan"):
        planned = plan(spark, pipeline, interval, inputs)

    plain = {f"features_{one.name}" for one in pipeline.features if one.parquet}

    def save(output: Output) -> Written:
        with _timed(job, output.table):
            if output.table not in job.report["plans"]:
                job.report["plans"][output.table] = physical(output.frame)
            kept = checks.keep(output)
            written = write(kept, pipeline, run_id=job.run_id, inputs=inputs)
        if output.table in plain:
            with _timed(job, f"{output.table} as plain files"):
                place = versions.uri(pipeline, output.table)
                parquet.write(place, written.version, output.days.days(), partition=output.partition, order=output.order)
        checks.measure(kept, interval)
        before = job.report["tables"].get(output.table, {"rows": 0})
        job.report["tables"][output.table] = {"rows": before["rows"] + sum(written.rows.values()), "version": written.version}
        return written

    try:
        first = tuple(output for output in planned.outputs if output is not planned.examples)
        with ThreadPoolExecutor(WRITERS) as pool:
            written = dict(zip((output.table for output in first), pool.map(save, first), strict=True))
        written[planned.examples.table] = save(planned.examples)
        with _timed(job, "counts"):
            for part, counts in _counts(planned, pipeline, interval).items():
                before = job.report.get(part, {})
                job.report[part] = {name: before.get(name, 0) + count for name, count in counts.items()}
    finally:
        checks.release()
        planned.release()
    with _timed(job, "quality"):
        job.report.update(checks.record(interval, inputs=inputs, run_id=job.run_id))
    with _timed(job, "ledger"):
        seconds = (time.monotonic() - clock) / len(interval) / len(planned.outputs)
        ledger.record(pipeline, _entries(job, pipeline, planned, written, interval, inputs, seconds))


def _counts(planned: Plan, pipeline: Pipeline, interval: Interval) -> dict[str, dict[str, int]]:
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
    job: Job,
    pipeline: Pipeline,
    planned: Plan,
    written: Mapping[str, Written],
    interval: Interval,
    inputs: dict[str, Any],
    seconds: float,
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
            declaration=versions.digest(pipeline, output.table),
            seconds=round(seconds, 3),
        )
        for output in planned.outputs
        for day, own in zip(interval.days(), output.days.days(), strict=True)
    ]


@contextmanager
def _timed(job: Job, step: str) -> Iterator[None]:
    """Add the seconds of a step to the report, and tell of it."""
    clock = time.monotonic()
    yield
    took = time.monotonic() - clock
    job.report["seconds_of"][step] = round(job.report["seconds_of"].get(step, 0.0) + took, 1)
    log.info("features: %s, %.1f s", step, took)


def _say(job: Job, line: str) -> None:
    if not job.options.json:
        print(line)
