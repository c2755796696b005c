"""The model registry (MLflow), as far as the stages need it: versions, the champion's alias, a model that scores.

A pipeline's models are the versions of the registered model with the pipeline's name. MLflow is imported inside the
functions (it costs 5 CPU seconds), and its retries are kept short: a server that is away is a RetryError within half a
minute, and whoever started the job tries again later.
"""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jobs.errors import DataError, RetryError
from jobs.interval import Interval
from jobs.settings import endpoint
from pipelines.declare import Pipeline

ALIAS = "champion"
TAGS = ("trained_through", "holdout_from", "holdout_to", "run_id")
"""What a version must carry to be one of ours."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A registered model version, with the tags that training gave it."""

    number: int
    run_id: str
    """The MLflow run that logged the model: its metrics and `snapshot.json`. (`tags["run_id"]` is the job's own.)"""
    tags: dict[str, str]

    @property
    def trained_through(self) -> date:
        """The last day that had a say in the model."""
        return date.fromisoformat(self.tags["trained_through"])

    @property
    def holdout(self) -> Interval:
        """The days kept for the promotion."""
        return Interval.inclusive(date.fromisoformat(self.tags["holdout_from"]), date.fromisoformat(self.tags["holdout_to"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """A loaded model version."""

    pipeline: Pipeline
    number: int
    model: Any
    """The mlflow.pyfunc model."""

    @property
    def undeclared(self) -> list[str]:
        """Its inputs that the pipeline does not declare any more: it was trained by another declaration, and can't score."""
        schema = self.model.metadata.get_input_schema()
        names = {*self.pipeline.categories, *self.pipeline.numbers}
        return [] if schema is None else [name for name in schema.input_names() if name not in names]

    def score(self, rows: pa.Table) -> npt.NDArray[np.float64]:
        """One probability for each row, in order. `rows` has at least the pipeline's inputs; it may be empty.

        Raises DataError where the model takes what is not declared any more, or gives something that is no probability.
        """
        if gone := self.undeclared:
            raise DataError(
                f"version {self.number} of {self.pipeline.name} takes {', '.join(gone)}, which the pipeline no longer declares: "
                "it can't score. Train and promote a version by the declaration as it is now."
            )
        names = [*self.pipeline.categories, *self.pipeline.numbers]
        scores = np.asarray(self.model.predict(rows.select(names).to_pandas()), dtype=np.float64).reshape(-1)
        if len(scores) != rows.num_rows or not np.all((scores >= 0) & (scores <= 1)):
            raise DataError(
                f"version {self.number} of {self.pipeline.name} gave {len(scores)} scores for {rows.num_rows} rows, "
                "or one outside [0, 1]: it can't be used. Go back to an earlier version."
            )
        return scores


def versions(pipeline: Pipeline) -> list[Version]:
    """The registered versions, the oldest first; empty where there is none. Versions that others registered are left out."""
    with answering() as client:
        found = []
        token = None
        while True:
            page = client.search_model_versions(f"name='{pipeline.name}'", max_results=1000, page_token=token)
            found += page
            token = page.token
            if not token:
                break
    ours = [each for each in found if all(tag in each.tags for tag in TAGS)]
    if len(ours) < len(found):
        log.warning(
            "%s has %d versions that `penstock train` did not register; they are left out", pipeline.name, len(found) - len(ours)
        )
    return sorted(
        (Version(number=int(each.version), run_id=each.run_id or "", tags=dict(each.tags)) for each in ours),
        key=lambda version: version.number,
    )


def of_run(pipeline: Pipeline, run_id: str) -> Version | None:
    """The version that a job's run registered, or None: what a retry asks to find its earlier self."""
    return next((version for version in versions(pipeline) if version.tags["run_id"] == run_id), None)


def champion_alias(pipeline: Pipeline) -> int | None:
    """The version that the alias `champion` names, or None. The truth is the promotions table; this follows it."""
    with answering() as client:
        model = _model(client, pipeline)
    number = model.aliases.get(ALIAS) if model is not None else None
    return int(number) if number is not None else None


def set_champion_alias(pipeline: Pipeline, number: int) -> None:
    """Let the alias `champion` name a version. Raises DataError where the registry has no such version."""
    with answering() as client, _existing(pipeline, number):
        client.set_registered_model_alias(pipeline.name, ALIAS, str(number))


def load(pipeline: Pipeline, number: int) -> Scorer:
    """A version, ready to score. Raises DataError where the registry has no such version."""
    with answering(), _existing(pipeline, number), tempfile.TemporaryDirectory(prefix="penstock-model-") as folder:
        import mlflow.pyfunc

        model = mlflow.pyfunc.load_model(f"models:/{pipeline.name}/{number}", dst_path=folder)
    return Scorer(pipeline=pipeline, number=number, model=model)


def register(pipeline: Pipeline, *, model_uri: str, mlflow_run_id: str, tags: dict[str, str]) -> int:
    """Register a logged model as a version with the tags, in one request, and return its number.

    A job's run has one version, however often it is tried: where one carries `tags["run_id"]`, its number is returned.
    The registry can't compare and set, so of twins that register at once, the later takes its own version away.
    """
    earlier = of_run(pipeline, tags["run_id"])
    if earlier is not None:
        return earlier.number
    with answering() as client:
        if _model(client, pipeline) is None:
            _create(client, pipeline)
        made = client.create_model_version(
            pipeline.name, source=model_uri, run_id=mlflow_run_id, tags=tags, model_id=_model_id(model_uri)
        )
    first = of_run(pipeline, tags["run_id"])
    assert first is not None
    if first.number != int(made.version):
        with answering() as client:
            client.delete_model_version(pipeline.name, made.version)
    return first.number


def _model(client: Any, pipeline: Pipeline) -> Any | None:
    """The registered model, or None where there is none yet."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_registered_model(pipeline.name)
    except MlflowException as failure:
        if failure.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _create(client: Any, pipeline: Pipeline) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(pipeline.name, description=pipeline.description)
    except MlflowException as failure:
        # A neighbour made it between the look and the call.
        if failure.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _model_id(model_uri: str) -> str | None:
    """The id within `models:/m-…`, by which MLflow links a version to its logged model."""
    tail = model_uri.removeprefix("models:/")
    return tail if tail != model_uri and tail.startswith("m-") else None


@contextlib.contextmanager
def _existing(pipeline: Pipeline, number: int) -> Iterator[None]:
    """Within, a version that the registry does not have becomes a DataError."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as failure:
        if failure.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise DataError(
            f"the registry has no version {number} of {pipeline.name}: it was deleted. Train again, or go back."
        ) from failure


@contextlib.contextmanager
def answering() -> Iterator[Any]:
    """An MLflow client; within, a server that is away or overloaded becomes a RetryError."""
    connect()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        yield MlflowClient()
    except MlflowException as failure:
        if not away(failure):
            raise
        raise RetryError(
            f"the model registry at {endpoint('MLFLOW_TRACKING_URI')} did not answer ({_brief(failure)}). Try again."
        ) from failure


def connect() -> None:
    """Point MLflow at the server, with retries kept short, and nothing of its own on the standard output."""
    for name, value in {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }.items():
        os.environ.setdefault(name, value)
    address = endpoint("MLFLOW_TRACKING_URI")
    import mlflow

    mlflow.set_tracking_uri(address)
    mlflow.set_registry_uri(address)


def away(failure: BaseException) -> bool:
    """Whether the server was not reached, or said that it can't serve now, rather than that the request is wrong."""
    import requests

    status = getattr(failure, "get_http_status_code", lambda: 0)()
    chain: BaseException | None = failure
    while chain is not None:
        if isinstance(chain, requests.exceptions.RequestException | ConnectionError | TimeoutError):
            return True
        chain = chain.__cause__ or chain.__context__
    return "json" in vars(failure) and status in (429, 500, 502, 503, 504)


def _brief(failure: BaseException) -> str:
    text = str(failure)
    return text if len(text) < 300 else text[:300] + "…"
