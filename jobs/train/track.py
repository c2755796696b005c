"""The training's account in MLflow, and the candidate's registration.

All is logged at the end, by the stage alone, from what the ranks left: a training that fails leaves nothing there.
"""

import importlib.metadata
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jobs.model
from jobs import registry
from jobs.train.prepare import Prepared
from pipelines.declare import Pipeline

RUN_TAG = "penstock.run_id"
REQUIREMENTS = ("mlflow", "torch", "pandas", "pyarrow", "numpy")
"""What the logged model needs. Named, since MLflow's own inference would import the model in another process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """What is logged."""

    prepared: Prepared
    snapshot: dict[str, Any]
    figures: dict[str, dict[str, dict[str, float]]]
    seconds: dict[str, float]
    tags: dict[str, str]
    """The version's."""


def publish(pipeline: Pipeline, account: Account, folder: Path) -> int:
    """Log the run and its model, and register the version. Returns its number.

    Raises RetryError where the server is away; then no version is registered, and a retry takes the unfinished run away.
    """
    run_id = account.tags["run_id"]
    with registry.answering() as client:
        experiment = _experiment(client, pipeline)
        for unfinished in client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run_id}'"):
            client.delete_run(unfinished.info.run_id)
        model_uri, mlflow_run_id = _log(client, experiment, pipeline, account, folder)
    number = registry.register(pipeline, model_uri=model_uri, mlflow_run_id=mlflow_run_id, tags=account.tags)
    with registry.answering() as client:
        client.set_terminated(mlflow_run_id)
    return number


def _log(client: Any, experiment: str, pipeline: Pipeline, account: Account, folder: Path) -> tuple[str, str]:
    """Returns the model's URI and the id of its run, which is still open."""
    import mlflow
    from mlflow.entities import Metric, Param, RunTag

    run = client.create_run(experiment, run_name=f"{pipeline.name} {account.tags['trained_through']}")
    run_id = run.info.run_id
    now = int(time.time() * 1000)
    curve = json.loads((folder / "curve.json").read_text())
    metrics = [Metric(name, value, now, step) for step, epoch in enumerate(curve) for name, value in epoch.items()]
    for part, models in account.figures.items():
        metrics += [
            Metric(f"{part}_{model}_{name}", value, now, 0) for model, each in models.items() for name, value in each.items()
        ]
    metrics += [Metric(f"seconds_{name}", value, now, 0) for name, value in account.seconds.items()]
    metrics += [Metric(f"rows_{name}", float(rows), now, 0) for name, rows in account.prepared.rows.items()]
    params = [Param(name, str(value)) for name, value in asdict(account.prepared.plan).items()]
    tags = [
        RunTag(RUN_TAG, account.tags["run_id"]),
        *(RunTag(f"penstock.{name}", value) for name, value in account.tags.items() if name != "run_id"),
    ]
    client.log_batch(run_id, metrics=metrics, params=params, tags=tags)
    client.log_dict(run_id, account.snapshot, "snapshot.json")
    # Another experiment may be the process's own, by its environment for example, and MLflow would refuse the run then.
    mlflow.set_experiment(experiment_id=experiment)
    with mlflow.start_run(run_id=run_id):
        logged = mlflow.pyfunc.log_model(name="model", **packed(pipeline, account.prepared, folder))
    return logged.model_uri, run_id


def packed(pipeline: Pipeline, prepared: Prepared, folder: Path) -> dict[str, Any]:
    """What MLflow needs to keep the model of the shared folder: `jobs/model.py` as its code, and the files in `model/`."""
    return {
        "python_model": jobs.model.__file__,
        "artifacts": {"model": str(folder / "model")},
        "signature": _signature(pipeline),
        "input_example": prepared.example.to_pandas(),
        "pip_requirements": [f"{name}=={importlib.metadata.version(name)}" for name in REQUIREMENTS],
    }


def _signature(pipeline: Pipeline) -> Any:
    """Categories are strings, numbers are doubles, all may be missing; one score comes out."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    inputs = [ColSpec(DataType.string, name, required=True) for name in pipeline.categories]
    inputs += [ColSpec(DataType.double, name, required=True) for name in pipeline.numbers]
    return ModelSignature(inputs=Schema(inputs), outputs=Schema([ColSpec(DataType.double, "score")]))


def _experiment(client: Any, pipeline: Pipeline) -> str:
    """The id of the experiment with the pipeline's name."""
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(pipeline.name)
    if found is not None:
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(pipeline.name))
    except MlflowException as failure:
        if failure.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return str(client.get_experiment_by_name(pipeline.name).experiment_id)
