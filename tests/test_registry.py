"""The registry: versions once for each run, the alias, and a server that is away."""

import time
from dataclasses import replace
from datetime import date

import pytest
from small_training import NIGHTS

from jobs import registry
from jobs.errors import DataError, RetryError
from jobs.interval import Interval
from pipelines.declare import Pipeline

TAGS = {"trained_through": "2024-03-25", "holdout_from": "2024-03-28", "holdout_to": "2024-03-29"}


def named(name: str) -> Pipeline:
    return replace(NIGHTS, name=name)


@pytest.fixture
def artifact(mlflow_server: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A logged artifact: (its URI, the id of its run). The registry doesn't look into it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    registry.connect()
    import mlflow

    with mlflow.start_run() as run:
        mlflow.log_text("a model", "model/words.txt")
    return f"runs:/{run.info.run_id}/model", run.info.run_id


@pytest.mark.mlflow
def test_a_run_registers_once_and_the_alias_moves(artifact: tuple[str, str]) -> None:
    uri, mlflow_run = artifact
    pipeline = named("registered")
    assert registry.versions(pipeline) == [] and registry.champion_alias(pipeline) is None
    for run_id, number in (("first", 1), ("second", 2), ("first", 1)):
        assert registry.register(pipeline, model_uri=uri, mlflow_run_id=mlflow_run, tags={**TAGS, "run_id": run_id}) == number
    first, second = registry.versions(pipeline)
    assert (first.number, second.number) == (1, 2) and first.run_id == mlflow_run
    assert first.trained_through == date(2024, 3, 25) and first.holdout == Interval(date(2024, 3, 28), date(2024, 3, 30))
    assert registry.champion_alias(pipeline) is None
    for number in (2, 1):
        registry.set_champion_alias(pipeline, number)
        assert registry.champion_alias(pipeline) == number


@pytest.mark.mlflow
def test_of_twins_that_register_at_once_one_version_stays(artifact: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin registers after this one has looked and before it registers."""
    uri, mlflow_run = artifact
    pipeline = named("twins")
    tags = {**TAGS, "run_id": "both"}
    create = registry._create

    def twin_first(client: object, twin: Pipeline) -> None:
        monkeypatch.setattr(registry, "_create", create)
        assert registry.register(twin, model_uri=uri, mlflow_run_id=mlflow_run, tags=tags) == 1
        create(client, twin)

    monkeypatch.setattr(registry, "_create", twin_first)
    assert registry.register(pipeline, model_uri=uri, mlflow_run_id=mlflow_run, tags=tags) == 1
    assert [version.number for version in registry.versions(pipeline)] == [1]


@pytest.mark.mlflow
def test_versions_of_others_are_left_out_and_missing_ones_told(artifact: tuple[str, str]) -> None:
    uri, mlflow_run = artifact
    pipeline = named("foreign")
    registry.register(pipeline, model_uri=uri, mlflow_run_id=mlflow_run, tags={**TAGS, "run_id": "ours"})
    from mlflow import MlflowClient

    MlflowClient().create_model_version("foreign", source=uri, run_id=mlflow_run)
    assert [version.number for version in registry.versions(pipeline)] == [1]
    with pytest.raises(DataError, match="no version 7 of foreign"):
        registry.load(pipeline, 7)


def test_a_server_that_is_away_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    pipeline = named("away")
    began = time.monotonic()
    for call in (
        lambda: registry.versions(pipeline),
        lambda: registry.champion_alias(pipeline),
        lambda: registry.set_champion_alias(pipeline, 1),
        lambda: registry.load(pipeline, 1),
        lambda: registry.register(pipeline, model_uri="runs:/a/b", mlflow_run_id="a", tags={**TAGS, "run_id": "r"}),
    ):
        with pytest.raises(RetryError, match=r"127\.0\.0\.1:1 did not answer"):
            call()
    assert time.monotonic() - began < 60
