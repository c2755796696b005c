"""A small pipeline whose truth is known, with its tables and real registered models, for the tests of promotion and scoring.

An example is late with probability `logistic(2 x - 1)`, x being its only number. A model is `logistic(slope x - 1)`: the slope 2
is the truth, 1 is worse, -1 is worse than the base rate. It is an MLflow model from code, as training logs them.
"""

import math
from argparse import Namespace
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from jobs import lake, registry, versions
from jobs.command import Job
from jobs.interval import DAY, Interval, midnight
from pipelines.declare import Column, Field, Label, Pipeline, Promotion, Source, Spine, Training, days, hours

FIRST, LAST = date(2013, 3, 1), date(2013, 3, 14)
ROWS = 150
"""Examples of each `as_of_date`."""
BASE_RATE = 0.32

BOOKED = Source(
    name="booked",
    topic="booked",
    event_time="at",
    event_id="id",
    fields=(Field("id", required=True), Field("at", "timestamp", required=True), Field("carrier"), Field("x", "float64")),
)
PIPELINE = Pipeline(
    name="small",
    description="A number and a carrier",
    first_day=FIRST,
    lateness=hours(3),
    spine=Spine(source=BOOKED, key="id", at="at", before=hours(1), columns=(Column("carrier"), Column("x"))),
    features=(),
    label=Label(source=BOOKED, key="id", of="x > 0", horizon=days(1)),
    training=Training(every=days(1), days=days(9), validation=days(1), holdout=days(6)),
    promotion=Promotion(metric="log_loss", min_rows=500),
)
EXAMPLES = pa.schema(
    [
        ("key", pa.string()),
        ("as_of", lake.INSTANT),
        ("carrier", pa.string()),
        ("x", pa.float64()),
        ("as_of_date", pa.date32()),
    ]
)

MODEL = """
import numpy as np
import mlflow

class Logistic(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        slope = float(context.model_config["slope"])
        return 1 / (1 + np.exp(1 - slope * model_input["x"].to_numpy()))

mlflow.models.set_model(Logistic())
"""


def pipeline(name: str, **changes: Any) -> Pipeline:
    """The small pipeline under another name, so that tests that share a registry stay apart."""
    return replace(PIPELINE, name=name, **changes)


def examples_of(day: date, rows: int = ROWS) -> pa.Table:
    """The examples of one `as_of_date`; the same in each call."""
    random = np.random.default_rng(day.toordinal())
    start = midnight(day) + PIPELINE.lateness
    return pa.table(
        [
            [f"{day}-{place:04d}" for place in range(rows)],
            [start + timedelta(minutes=9 * place) for place in range(rows)],
            [None if place % 10 == 0 else "AA" for place in range(rows)],
            random.normal(size=rows),
            [day] * rows,
        ],
        schema=EXAMPLES,
    )


def labels_of(examples: pa.Table) -> pa.Table:
    """Their labels, for all but each tenth."""
    labelled = [row for place, row in enumerate(examples.to_pylist()) if place % 10 != 3]
    random = np.random.default_rng(len(labelled) + labelled[0]["as_of_date"].toordinal())
    matured = [row["as_of"] + PIPELINE.label.horizon for row in labelled]
    return pa.table(
        {
            "key": [row["key"] for row in labelled],
            "as_of": pa.array([row["as_of"] for row in labelled], lake.INSTANT),
            "label": pa.array([int(random.random() < logistic(2 * row["x"] - 1)) for row in labelled], pa.int32()),
            "mature_at": pa.array(matured, lake.INSTANT),
            "mature_date": pa.array([moment.date() for moment in matured], pa.date32()),
        }
    )


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def write_tables(small: Pipeline) -> None:
    """`examples` and `labels` of all days."""
    by_day = [examples_of(day) for day in Interval.inclusive(FIRST, LAST).days()]
    labels = pa.concat_tables(labels_of(each) for each in by_day)
    for table, rows_of, day in (("examples", pa.concat_tables(by_day), "as_of_date"), ("labels", labels, "mature_date")):
        uri = versions.uri(small, table)
        lake.append(uri, rows_of, partition_by=[day])
        # In a commit of its own, so that version 0 holds the rows.
        DeltaTable(uri).alter.set_table_properties(versions.properties(small, table), raise_if_not_exists=False)


@dataclass(frozen=True, slots=True)
class Logged:
    """A model that was logged and can be registered as often as wished."""

    uri: str
    run_id: str


def log_model(folder: Path, slope: float, inputs: tuple[str, ...] = ()) -> Logged:
    """Log the logistic model with this slope; with `inputs` it says that it takes these numbers."""
    registry.connect()
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    code = folder / "logistic.py"
    code.write_text(MODEL)
    mlflow.set_experiment("small")
    signature = ModelSignature(inputs=Schema([ColSpec("double", name) for name in inputs])) if inputs else None
    with mlflow.start_run() as run:
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(code),
            model_config={"slope": slope},
            pip_requirements=[],
            input_example=None,
            signature=signature,
        )
    return Logged(info.model_uri, run.info.run_id)


def register(small: Pipeline, model: Logged, *, through: date, **tags: str) -> int:
    """Register a version trained through a day, judged on the six days after the embargo. Returns its number."""
    first = through + 3 * DAY
    return registry.register(
        small,
        model_uri=model.uri,
        mlflow_run_id=model.run_id,
        tags={
            "trained_from": str(FIRST),
            "trained_through": str(through),
            "holdout_from": str(first),
            "holdout_to": str(first + 5 * DAY),
            "examples_version": "0",
            "labels_version": "0",
            "base_rate": repr(BASE_RATE),
            "run_id": f"{through}-{model.run_id}",
            **tags,
        },
    )


def job(command: str, small: Pipeline, run_id: str, first: date = LAST, last: date | None = None, **options: Any) -> Job:
    """A call of a stage, as the command line makes it."""
    return Job(
        command=command,
        options=Namespace(json=True, **options),
        run_id=run_id,
        pipeline=small,
        interval=Interval.inclusive(first, last or first),
    )


def rows(small: Pipeline, table: str, order: str) -> list[dict[str, Any]]:
    """A table's rows."""
    found = lake.load(lake.uri(small.name, table))
    assert found is not None
    return lake.query(found, f"select * from t order by {order}").to_pylist()  # type: ignore[no-any-return]
