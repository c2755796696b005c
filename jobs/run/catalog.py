"""`penstock pipelines`: what is declared, and what each pipeline reads."""

import pipelines
from jobs.command import Job
from jobs.errors import UsageError


def run(job: Job) -> None:
    """Print each pipeline with its sources; the report holds the same.

    Raises UsageError that names the broken files, after the good ones were printed.
    """
    found, broken = pipelines.load_all()
    job.report["pipelines"] = {
        name: {
            "description": pipeline.description,
            "sources": [source.name for source in pipeline.sources],
            "inputs": len(pipeline.numbers) + len(pipeline.categories),
        }
        for name, pipeline in found.items()
    }
    if not job.options.json:
        for name, pipeline in found.items():
            print(f"{name}: {pipeline.description}")
            print(f"  sources: {', '.join(source.name for source in pipeline.sources)}")
            print(f"  inputs of the model: {len(pipeline.numbers)} numbers, {len(pipeline.categories)} categories")
    if broken:
        job.report["broken"] = broken
        raise UsageError("not every pipeline can be loaded:" + "".join(f"\n  {wrong}" for wrong in broken.values()))
