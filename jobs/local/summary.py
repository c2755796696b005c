"""The demo's result: gathered from the run reports, the tables and Airflow, and printed as a table.

Nothing in it is computed here: each figure is what a stage reported or what a table holds.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from jobs import champion, lake, versions
from jobs.local.airflow_api import Airflow
from pipelines.declare import Pipeline

STAGES = ("ingest", "features", "train", "promote", "score")
MODELS = {
    "network": "the candidate, on two ranks",
    "logistic_regression": "logistic regression",
    "gradient_boosting": "gradient boosting",
    "base_rate": "base rate of the training days",
}


def collect(pipeline: Pipeline, airflow: Airflow, runs: dict[str, str]) -> dict[str, Any]:
    """What the runs left, by the name that each has in `runs` (name -> Airflow's run id)."""
    told = {name: {stage: _report(pipeline, stage, run_id) for stage in STAGES} for name, run_id in runs.items()}
    trained = next(stages["train"] for stages in told.values() if stages["train"].get("trained"))
    decision = champion.history(pipeline).decisions[-1]
    return {
        "sources": {source.name: _events(source.name) for source in pipeline.sources},
        "tables": {
            **{name: _rows(versions.load(pipeline, name)) for name in (*_sets(pipeline), "examples", "labels")},
            "predictions": _rows(lake.load(lake.uri(pipeline.name, "predictions"))),
        },
        "model": {
            "version": decision.candidate,
            "decision": decision.decision,
            "reasons": decision.reasons,
            "figures": decision.figures,
            "rows": trained["rows"],
            "holdout": trained["figures"]["holdout"],
        },
        "scored": {name: stages["score"].get("rows", 0) for name, stages in told.items()},
        "task_seconds": {name: _durations(airflow, pipeline, run_id) for name, run_id in runs.items()},
    }


def table(found: dict[str, Any], places: dict[str, str], steps: dict[str, float]) -> str:
    """The result for a person. `places` are names and addresses, `steps` the seconds of what was not a task."""
    model = found["model"]
    judged = model["figures"]
    lines = [
        _head("events in the lake", "good", "dead letters"),
        *(_row(name, told["good"], told["dead"]) for name, told in found["sources"].items()),
        "",
        _head("rows", "rows"),
        *(_row(name, rows) for name, rows in found["tables"].items()),
        "",
        f"model version {model['version']}: {model['decision']}",
        *(f"  {reason}" for reason in model["reasons"]),
        "",
        _head(
            f"on the holdout ({model['figures']['rows']:,} flights, {model['figures']['days']} days)",
            "log loss",
            "avg. precision",
        ),
        *(_row(words, *_metrics(model["holdout"][name])) for name, words in MODELS.items()),
        *(_gain(name, judged["against"], gain) for name, gain in judged["gains"].items()),
        "",
        _head("seconds of each task", *found["task_seconds"]),
        *(_row(stage, *(round(seconds.get(stage, 0)) for seconds in found["task_seconds"].values())) for stage in STAGES),
        _row("flights scored", *found["scored"].values()),
        "",
        _head("seconds beside", "s"),
        *(_row(step, round(seconds)) for step, seconds in steps.items()),
        "",
        *(f"{name:<10}{place}" for name, place in places.items()),
    ]
    return "\n".join(lines) + "\n"


def _report(pipeline: Pipeline, stage: str, run_id: str) -> dict[str, Any]:
    """The run report of a stage in one Airflow run."""
    subject = Path(lake.uri("reports", pipeline.name, stage))
    reports = [json.loads(path.read_text()) for path in sorted(subject.glob("*.json"))]
    return next((report for report in reversed(reports) if report["run_id"] == f"{pipeline.name}/{run_id}"), {})


def _events(source: str) -> dict[str, int]:
    table = lake.load(lake.uri("events", source))
    assert table is not None
    counts = lake.query(
        table, "select count(*) - count(rejected_reason) as good, count(rejected_reason) as dead from t"
    ).to_pylist()
    return dict(counts[0])


def _sets(pipeline: Pipeline) -> list[str]:
    return [f"features_{feature_set.name}" for feature_set in pipeline.features if feature_set.accuracy == "day"]


def _rows(table: DeltaTable | None) -> int:
    return 0 if table is None else sum(pq.read_metadata(uri).num_rows for uri in table.file_uris())


def _durations(airflow: Airflow, pipeline: Pipeline, run_id: str) -> dict[str, float]:
    return {name: task["duration"] or 0.0 for name, task in airflow.tasks(pipeline.name, run_id).items()}


def _metrics(figures: dict[str, float]) -> tuple[float, float]:
    return figures["log_loss"], figures["average_precision"]


def _gain(name: str, other: str, gain: dict[str, float]) -> str:
    words = f"gain in {name.replace('_', ' ')} over the {other.replace('_', ' ')}"
    return f"  {words}: {gain['gain']:+.4f}, 95 % by day [{gain['low']:+.4f}, {gain['high']:+.4f}]"


def _head(title: str, *columns: str) -> str:
    line = f"{title:<48}" + "".join(f"{column:>26}" for column in columns)
    return f"{line}\n{'-' * len(line)}"


def _row(title: str, *values: float) -> str:
    shown = (f"{value:,}" if isinstance(value, int) else f"{value:.4f}" for value in values)
    return f"{title:<48}" + "".join(f"{value:>26}" for value in shown)


def places(endpoints: dict[str, str], state: Path) -> dict[str, str]:
    """Where each thing lies: addresses hold while the services run."""
    return {
        "lake": endpoints["PENSTOCK_LAKE"],
        "reports": lake.uri("reports"),
        "Airflow": endpoints["AIRFLOW_URL"],
        "MLflow": endpoints["MLFLOW_TRACKING_URI"],
        "Kafka": endpoints["KAFKA_BOOTSTRAP_SERVERS"],
        "logs": str(state / "logs"),
    }
