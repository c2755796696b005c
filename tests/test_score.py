"""Scoring by the champion, day by day, with models from a real MLflow server."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from small_models import LAST, ROWS, Logged, examples_of, job, log_model, logistic, pipeline, register, rows, write_tables

from jobs import champion, inputs, lake, ledger, registry, versions
from jobs.errors import DataError, RetryError
from jobs.interval import DAY
from jobs.promote import stage as promotion
from jobs.score import stage
from pipelines.declare import Column, Pipeline, Spine

D = LAST - 2 * DAY
"""A day whose next has examples, and the one after that too."""


@pytest.fixture(scope="module")
def models(mlflow_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Logged]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
        folder = tmp_path_factory.mktemp("models")
        yield {name: log_model(folder, slope) for name, slope in {"good": 2.0, "worse": 0.8}.items()}


@pytest.fixture
def empty(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A pipeline of the test's own, without a champion."""
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    return pipeline(request.node.name[:60])


@pytest.fixture
def small(empty: Pipeline, models: dict[str, Logged]) -> Pipeline:
    """With tables and a champion, version 1."""
    write_tables(empty)
    register(empty, models["worse"], through=date(2013, 3, 2))
    promotion.run(job("promote", empty, "first", when="due"))
    return empty


def score(small: Pipeline, run_id: str, first: date = D, last: date | None = None) -> dict[str, Any]:
    """Score, and return the report."""
    call = job("score", small, run_id, first, last)
    stage.run(call)
    return call.report


def predictions(small: Pipeline, *columns: str) -> list[tuple[Any, ...]]:
    """These columns of all predictions, in the order of days and keys."""
    return [tuple(row[name] for name in columns) for row in rows(small, "predictions", "as_of_date, key")]


SCORED = ("as_of_date", "key", "as_of", "score", "model_version")


@pytest.mark.mlflow
def test_scores_are_the_models_and_a_second_run_changes_nothing(small: Pipeline) -> None:
    report = score(small, "run-1", D, D + DAY)
    expected = [
        (row["as_of_date"], row["key"], row["as_of"], pytest.approx(logistic(0.8 * row["x"] - 1)), 1)
        for day in (D + DAY, D + 2 * DAY)
        for row in examples_of(day).to_pylist()
    ]
    first = predictions(small, *SCORED)
    assert first == expected
    assert report["days"] == {str(day): {"rows": ROWS, "missing_inputs": 0.05} for day in (D + DAY, D + 2 * DAY)}
    score(small, "run-2", D, D + DAY)
    assert predictions(small, *SCORED) == first
    # One day of the range again, alone: the same scores, and its neighbour keeps its run.
    score(small, "run-3", D)
    assert predictions(small, *SCORED) == first
    assert {(day, run) for day, run in predictions(small, "as_of_date", "run_id")} == {(D + DAY, "run-3"), (D + 2 * DAY, "run-2")}
    recorded = [
        (row["day"], row["rows"], row["run_id"]) for row in rows(small, "ledger", "run_id, day") if row["stage"] == "score"
    ]
    assert recorded == [
        (D, ROWS, "run-1"),
        (D + DAY, ROWS, "run-1"),
        (D, ROWS, "run-2"),
        (D + DAY, ROWS, "run-2"),
        (D, ROWS, "run-3"),
    ]


@pytest.mark.mlflow
def test_the_size_of_the_batches_changes_nothing_that_is_written(small: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    score(small, "run-1")
    whole = predictions(small, *SCORED)
    monkeypatch.setattr(inputs, "ROWS", 64)
    sizes = [batch.num_rows for batch in inputs.of_day(small, inputs.examples(small), D + DAY)]
    assert sizes == [64, 64, ROWS - 128]
    score(small, "run-2")
    assert predictions(small, *SCORED) == whole


@pytest.mark.mlflow
def test_a_day_that_became_empty_has_no_predictions(small: Pipeline) -> None:
    score(small, "run-1", D, D + DAY)
    emptied = f"as_of_date = '{D + DAY}'"
    lake.replace(lake.uri(small.name, "examples"), examples_of(D).slice(0, 0), where=emptied, partition_by=["as_of_date"])
    with pytest.raises(RetryError, match=rf"never computed.*`penstock features {small.name} --from {D} --to {D}`"):
        score(small, "run-2", D, D + DAY)
    assert {run for (run,) in predictions(small, "run_id")} == {"run-1"}
    # As features records a day that it computed, and found empty.
    declared = versions.digest(small, "examples")
    entry = ledger.Entry(
        stage="features/examples", day=D, inputs={}, output_version=1, rows=0, run_id="features", declaration=declared
    )
    ledger.record(small, [entry])
    report = score(small, "run-2")
    assert report["days"] == {str(D + DAY): {"rows": 0, "missing_inputs": 0.0}}
    assert [day for (day,) in predictions(small, "as_of_date")] == [D + 2 * DAY] * ROWS


@pytest.mark.mlflow
def test_a_promotion_in_the_middle_is_for_the_next_run(
    small: Pipeline, models: dict[str, Logged], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = registry.load

    def promote_then_load(which: Pipeline, number: int) -> registry.Scorer:
        monkeypatch.setattr(registry, "load", load)
        register(small, models["good"], through=date(2013, 3, 5))
        promotion.run(job("promote", small, "second", when="due"))
        return load(which, number)

    monkeypatch.setattr(registry, "load", promote_then_load)
    assert score(small, "run-1")["model_version"] == 1
    newest = champion.history(small).champion
    assert newest is not None
    assert newest.candidate == 2
    assert {version for (version,) in predictions(small, "model_version")} == {1}
    assert registry.champion_alias(small) == 2
    # Moved by hand: the table's champion scores all the same, and the alias is set right.
    registry.set_champion_alias(small, 1)
    report = score(small, "run-2")
    assert report["model_version"] == 2
    assert report["champion_alias"]["alias"] == 2
    assert registry.champion_alias(small) == 2
    assert {version for (version,) in predictions(small, "model_version")} == {2}


CHILD = """
import pathlib, sys, time
from datetime import date
from small_models import job, pipeline
from jobs import lake
from jobs.score import stage

name, run_id, day, folder = sys.argv[1:]
replace = lake.replace
def meet(*arguments, **options):
    pathlib.Path(folder, run_id).touch()
    while len(list(pathlib.Path(folder).iterdir())) < 2:
        time.sleep(0.002)
    return replace(*arguments, **options)
lake.replace = meet
stage.run(job("score", pipeline(name), run_id, date.fromisoformat(day)))
"""


@pytest.mark.mlflow
def test_two_processes_score_different_days_at_once(small: Pipeline, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    start = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(stage.__file__).parents[2])]!r}\n"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", start + CHILD, small.name, f"run-{day}", str(day), str(meeting)], stdin=subprocess.DEVNULL
        )
        for day in (D, D + DAY)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    assert [day for (day,) in predictions(small, "as_of_date")] == [D + DAY] * ROWS + [D + 2 * DAY] * ROWS


@pytest.mark.mlflow
def test_examples_that_are_missing_or_too_narrow_are_refused(small: Pipeline) -> None:
    wide = pipeline(
        small.name,
        spine=Spine(source=small.spine.source, key="id", at="at", before=small.spine.before, columns=(Column("id"), Column("x"))),
    )
    # A changed declaration has examples of its own; a model that names others can't be judged on what they lack.
    with pytest.raises(RetryError, match="has no examples yet"):
        score(wide, "run-1")
    with pytest.raises(DataError, match=r"lack id, which it declares\. Compute them again"):
        inputs.examples(wide, name="examples")
    (Path(lake.uri(small.name, "examples")) / "_delta_log").rename(Path(lake.uri(small.name, "gone")))
    with pytest.raises(RetryError, match="has no examples yet"):
        score(small, "run-2")
    assert lake.load(lake.uri(small.name, "predictions")) is None


@pytest.mark.mlflow
def test_a_deleted_champion_is_named(small: Pipeline) -> None:
    from mlflow import MlflowClient

    MlflowClient().delete_model_version(small.name, "1")
    with pytest.raises(DataError, match=r"no version 1 of test_a_deleted_champion_is_named: it was deleted"):
        score(small, "run-1")


def test_without_a_champion_there_is_nothing_to_do(empty: Pipeline) -> None:
    assert score(empty, "run-1") == {"model_version": None, "rows": 0, "note": "no champion yet"}
    assert lake.load(lake.uri(empty.name, "predictions")) is None


def test_without_a_champion_nothing_heavy_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from jobs.cli import main; from datetime import date; "
        "code = main(['score', 'flight_delays', '--from', '2013-04-01', '--to', '2013-04-01']); "
        "heavy = {'mlflow', 'torch', 'pandas', 'sklearn', 'pyspark'} & sys.modules.keys(); "
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)"
    )
    environment = {"PENSTOCK_LAKE": str(tmp_path / "lake"), "PYTHONPATH": str(Path(stage.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "has no champion yet" in done.stdout
