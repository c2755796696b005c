"""`penstock quality show` and `penstock quality accept`: the verdicts of a range of days, and responsibility for breaches."""

from dataclasses import asdict
from itertools import groupby

from jobs import verdict
from jobs.command import Job
from jobs.errors import UsageError


def show(job: Job) -> None:
    """Print the verdicts by day. The report has the same rows."""
    assert job.pipeline is not None and job.interval is not None
    found = verdict.rows(job.pipeline, job.interval)
    job.report["verdicts"] = [{**asdict(row), "inputs": row.inputs} for row in found]
    job.report["breaches"] = [str(row) for row in verdict.breaches(job.pipeline, job.interval)]
    if job.options.json:
        return
    if not found:
        print(f"{job.pipeline.name}, {job.interval}: no verdict: no expectation is declared, or no features were computed since")
    for day, rows in groupby(found, key=lambda row: row.day):
        print(day)
        for row in rows:
            place = f"{row.table}.{row.column}" if row.column else row.table
            value = "" if row.value is None else f"{row.value:.6g}"
            print(f"  {row.verdict:<12}  {row.rule:<8}{place:<44}{value:>12}  ({row.limit})  {row.message}")


def accept(job: Job) -> None:
    """Accept the breaches of the days. The report says which; none is no failure.

    Raises UsageError for an empty name or reason.
    """
    assert job.pipeline is not None and job.interval is not None
    by, reason = job.options.by.strip(), job.options.reason.strip()
    for name, text in (("--by", by), ("--reason", reason)):
        if not text:
            raise UsageError(f"{name} is empty: it is kept with the verdict, for whoever asks later. Give who, and why.")
    accepted = verdict.accept(job.pipeline, job.interval, by=by, reason=reason)
    job.report.update(accepted=[str(row) for row in accepted], by=by, reason=reason)
    if not job.options.json:
        for row in accepted:
            print(f"accepted by {by}: {row}")
        if not accepted:
            print(f"{job.pipeline.name}, {job.interval}: nothing to accept")
