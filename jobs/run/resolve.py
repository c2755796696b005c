"""`penstock resolve`: what an Airflow run is about, decided once, before any work.

Airflow's first task runs it; all later tasks take their days and switches from its report, so that scheduled, manual
and backfill runs can't differ in how they are read.
"""

from datetime import UTC, datetime

from jobs.batches import closes_at
from jobs.command import Job
from jobs.interval import resolve


def run(job: Job) -> None:
    """Put the days, the moment at which the last of them closes, and the switches into the report."""
    assert job.pipeline is not None
    options = job.options
    interval = resolve(
        first=options.first, last=options.last, run_start=options.run_start, run_end=options.run_end, now=datetime.now(UTC)
    )
    job.interval = interval
    backfill = options.run_type == "backfill"
    train = "never" if backfill else options.train
    job.report.update(
        first=interval.start,
        last=interval.last,
        closes_at=closes_at(job.pipeline, interval.last),
        train=train,
        promote="never" if train == "never" else "due",
    )
    if not options.json:
        print(f"{options.run_type} run of {job.pipeline.name}: {interval} ({len(interval)} days), training: {train}")
