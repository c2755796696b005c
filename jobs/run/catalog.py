"""`penstock pipelines`: what is declared, and what each pipeline reads."""

import pipelines
from jobs.command import Job


def run(job: Job) -> None:
    """Print each pipeline with its sources; the report holds the same."""
    found = {name: pipelines.load(name) for name in pipelines.names()}
    job.report["pipelines"] = {
        name: {
            "description": pipeline.description,
            "sources": [source.name for source in pipeline.sources],
            "inputs": len(pipeline.numbers) + len(pipeline.categories),
        }
        for name, pipeline in found.items()
    }
    if job.options.json:
        return
    for name, pipeline in found.items():
        print(f"{name}: {pipeline.description}")
        print(f"  sources: {', '.join(source.name for source in pipeline.sources)}")
        print(f"  inputs of the model: {len(pipeline.numbers)} numbers, {len(pipeline.categories)} categories")
