"""Which days of which pipelines are stale now, for the commands about dead letters."""

import pipelines
from jobs import stale
from jobs.command import Job


def tell(job: Job) -> None:
    """Put the stale days of all pipelines that read the job's sources into the report, and print them. Accounts are settled."""
    names = {source.name for source in job.source}
    told: dict[str, list[dict[str, object]]] = {}
    for name, pipeline in pipelines.load_all()[0].items():
        if names.isdisjoint(source.name for source in pipeline.sources):
            continue
        found = [one for one in stale.stale(pipeline) if one.source in names]
        told[name] = [
            {"day": one.day, "source": one.source, "batch": one.batch, "kind": one.kind, "rows": one.rows} for one in found
        ]
        if not job.options.json:
            for days in stale.intervals(one.day for one in found):
                print(
                    f"{name}: {days} stale, rows came in after the features were computed; "
                    f"`penstock features {name} --from {days.start} --to {days.last}` computes again"
                )
    job.report["stale"] = {name: days for name, days in told.items() if days}
