"""`penstock export PIPELINE --from D --to D`: two tables of the warehouse, replaced for these days in one transaction.

A day is that of the run, as in the ledger: the metrics of day D are about its feature rows, the labels that matured on it, and
the examples and predictions that its runs made. Labels come with their `mature_date`, which is that day too.
"""

from jobs import ledger, versions
from jobs.command import Job
from jobs.errors import RetryError
from jobs.export import figures, warehouse


def run(job: Job) -> None:
    """Export the days. The report has the rows by table.

    Raises RetryError for a day whose features were never computed, before anything is written, and where the warehouse is away or
    busy; UsageError where its address or its tables are wrong.
    """
    pipeline, interval = job.pipeline, job.interval
    assert pipeline is not None and interval is not None
    computed = ledger.computed(pipeline, "features/examples", interval, versions.digest(pipeline, "examples"))
    lacking = [day for day in interval.days() if day not in computed]
    if lacking:
        raise RetryError(
            f"the features of {', '.join(map(str, lacking[:5]))}{' and more' if len(lacking) > 5 else ''} were never computed: "
            f"nothing was exported. Run `penstock features {pipeline.name} --from {lacking[0]} --to {lacking[-1]}` first."
        )
    pinned = figures.Pinned.newest(pipeline)
    metrics = figures.metrics(pinned, interval)
    with warehouse.opened() as engine:
        job.report["warehouse"] = warehouse.shown(engine)
        job.report["rows"] = warehouse.export(
            engine, pipeline.name, interval, metrics=metrics, labels=figures.labels(pinned, interval)
        )
    if not job.options.json:
        rows = ", ".join(f"{table} {count:,}" for table, count in job.report["rows"].items())
        print(f"{pipeline.name}, {interval}: {rows} rows in {job.report['warehouse']}")
