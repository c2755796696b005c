"""The gate, the decisions table and the alias, against a real MLflow server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError
from small_models import BASE_RATE, Logged, examples_of, job, log_model, pipeline, register, rows, write_tables

from jobs import champion, registry
from jobs.errors import DataError, RetryError
from jobs.interval import DAY
from jobs.metrics import METRICS
from jobs.promote import stage
from pipelines.declare import Column, Pipeline, Promotion, Spine

EARLY, LATER, LATEST = date(2013, 3, 2), date(2013, 3, 3), date(2013, 3, 5)


@pytest.fixture(scope="module")
def models(mlflow_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Logged]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
        folder = tmp_path_factory.mktemp("models")
        slopes = {"good": 2.0, "worse": 0.8, "harmful": -1.0, "broken": float("nan")}
        yield {name: log_model(folder, slope) for name, slope in slopes.items()}


@pytest.fixture
def small(request: pytest.FixtureRequest, models: dict[str, Logged], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A pipeline of the test's own, with its tables and without any version."""
    assert models
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    found = pipeline(request.node.name[:60])
    write_tables(found)
    return found


def promote(small: Pipeline, run_id: str, when: str = "due") -> dict[str, Any]:
    """Promote, and return the report."""
    call = job("promote", small, run_id, when=when)
    stage.run(call)
    json.dumps(call.report, allow_nan=False)
    return call.report


def decided(small: Pipeline) -> list[tuple[int, str, int | None]]:
    """(candidate, decision, champion before) of each decision, in order."""
    return [(row["candidate"], row["decision"], row["champion"]) for row in rows(small, "promotions", "decided_at")]


def test_a_decision_planned_on_an_older_history_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    small = pipeline("planned")

    def made(candidate: int) -> list[champion.Decision]:
        texts = {"reasons": ["so"], "run_id": f"run-{candidate}", "by": "a test"}
        plain: dict[str, Any] = {"rule": {}, "figures": {}, "snapshot": {"trained_through": "2013-03-02"}}
        return [champion.Decision(decision="promoted", candidate=candidate, champion=None, **texts, **plain)]

    nothing = champion.history(small)
    assert champion.commit(small, nothing, made(1), run_id="run-1")
    assert not champion.commit(small, nothing, made(2), run_id="run-2")
    one = champion.history(small)
    assert champion.commit(small, one, made(3), run_id="run-3")
    assert not champion.commit(small, one, made(4), run_id="run-4")
    assert decided(small) == [(1, "promoted", None), (3, "promoted", None)]
    newest = champion.history(small).champion
    assert newest is not None
    assert newest.candidate == 3
    # A clock that runs behind does not put a later decision before an earlier one.
    first, second = champion.history(small).decisions
    assert first.decided_at is not None and second.decided_at is not None
    ahead = replace(champion.history(small), decisions=(replace(first, decided_at=second.decided_at + DAY),))
    assert champion.commit(small, ahead, made(5), run_id="run-5")
    last = rows(small, "promotions", "decided_at")[-1]
    assert last["candidate"] == 5
    assert last["decided_at"] > second.decided_at + DAY


@pytest.mark.mlflow
def test_first_model_must_beat_the_base_rate(small: Pipeline, models: dict[str, Logged]) -> None:
    harmful = register(small, models["harmful"], through=EARLY)
    report = promote(small, "run-1")
    assert decided(small) == [(harmful, "refused", None)]
    assert "over the base rate" in report["decisions"][0]["reasons"][0]
    assert registry.champion_alias(small) is None

    good = register(small, models["good"], through=LATER)
    report = promote(small, "run-2")
    assert decided(small)[1:] == [(good, "promoted", None)]
    assert report["champion_alias"] == {"alias": good, "was": None, "unexpected": False}
    row = rows(small, "promotions", "decided_at")[-1]
    figures = json.loads(row["figures"])
    assert (figures["rows"], figures["days"]) == (6 * 135, 6)
    assert figures["base_rate"]["rate"] == BASE_RATE
    assert figures["candidate"]["log_loss"]["value"] < figures["base_rate"]["log_loss"]
    assert figures["candidate"]["average_precision"]["low"] > 0
    assert json.loads(row["rule"])["min_rows"] == 500
    assert json.loads(row["snapshot"])["trained_through"] == str(LATER)
    assert row["by"]

    # A second run changes nothing; a retry of the same run reports what its earlier self decided.
    assert promote(small, "run-3")["decisions"] == []
    assert promote(small, "run-2")["decisions"] == report["decisions"]
    assert len(decided(small)) == 2


@pytest.mark.mlflow
def test_champion_falls_only_to_a_better_one(small: Pipeline, models: dict[str, Logged]) -> None:
    worse = register(small, models["worse"], through=EARLY)
    promote(small, "run-1")
    # Slightly newer: its holdout begins after the champion's embargo. The same scores are no gain.
    equal = register(small, models["worse"], through=LATER, run_id="equal")
    promote(small, "run-2")
    good = register(small, models["good"], through=LATEST)
    promote(small, "run-3")
    again = register(small, models["worse"], through=LATEST, run_id="again")
    report = promote(small, "run-4")
    assert decided(small) == [
        (worse, "promoted", None),
        (equal, "refused", worse),
        (good, "promoted", worse),
        (again, "refused", good),
    ]
    assert registry.champion_alias(small) == good
    (reason,) = report["decisions"][0]["reasons"]
    assert f"over the champion (version {good})" in reason
    assert "it must lie above 0" in reason
    figures = report["decisions"][0]["figures"]
    assert figures["gains"]["log_loss"]["high"] < 0
    # Both stand beside the base rate, in both metrics.
    assert all(figures[role][name]["low"] > 0 for role in ("candidate", "champion") for name in METRICS)


@pytest.mark.mlflow
def test_useless_candidates_are_refused_with_the_reason(small: Pipeline, models: dict[str, Logged]) -> None:
    broken = register(small, models["broken"], through=LATER)
    report = promote(small, "run-1")
    assert decided(small) == [(broken, "refused", None)]
    assert "it failed on its holdout" in report["decisions"][0]["reasons"][0]
    assert report["decisions"][0]["figures"]["candidate"]["log_loss"]["value"] is None
    strict = pipeline(small.name, promotion=Promotion(min_rows=900, metric="average_precision", min_gain=0.9))
    register(strict, models["good"], through=LATER)
    reasons = promote(strict, "run-2")["decisions"][0]["reasons"]
    assert reasons[0] == "its holdout has 810 labelled examples, and the rule wants at least 900"
    assert "average precision" in reasons[1]
    assert "above 0.9" in reasons[1]
    one_day = {"holdout_from": "2013-03-06", "holdout_to": "2013-03-06"}
    register(small, models["good"], through=LATER, run_id="one day", **one_day)
    assert "an interval by day needs two" in promote(small, "run-3")["decisions"][0]["reasons"][1]
    assert champion.history(small).champion is None


@pytest.mark.mlflow
def test_days_decide_what_may_be_compared(small: Pipeline, models: dict[str, Logged]) -> None:
    older = register(small, models["good"], through=EARLY)
    newer = register(small, models["worse"], through=LATEST)
    report = promote(small, "run-1")
    assert decided(small) == [(older, "refused", None), (newer, "promoted", None)]
    assert report["decisions"][0]["reasons"] == [f"superseded by version {newer}"]
    late = register(small, models["good"], through=LATER)
    reasons = promote(small, "run-2")["decisions"][0]["reasons"]
    assert decided(small)[-1] == (late, "refused", newer)
    assert reasons[0].startswith("older data: it was trained through 2013-03-03")
    assert "may have seen the holdout from 2013-03-06" in reasons[1]
    # Not older, but judged on days that the champion may have seen; and one that has seen its own.
    register(small, models["good"], through=LATEST, run_id="wide", holdout_from="2013-03-07")
    reasons = promote(small, "run-3")["decisions"][0]["reasons"]
    assert reasons[0].startswith("its own training reaches 2013-03-05")
    assert "with the embargo of 2 days it may have seen the holdout from 2013-03-07" in reasons[1]
    assert registry.champion_alias(small) == newer


@pytest.mark.mlflow
def test_never_decides_nothing(small: Pipeline, models: dict[str, Logged]) -> None:
    register(small, models["good"], through=LATER)
    assert promote(small, "run-1", when="never")["decisions"] == []
    assert champion.history(small).decisions == ()


@pytest.mark.mlflow
def test_a_moved_alias_is_reported_and_set_back(
    small: Pipeline, models: dict[str, Logged], caplog: pytest.LogCaptureFixture
) -> None:
    first = register(small, models["worse"], through=EARLY)
    promote(small, "run-1")
    second = register(small, models["good"], through=LATEST)
    third = register(small, models["harmful"], through=LATEST)
    registry.set_champion_alias(small, third)
    report = promote(small, "run-2")
    assert report["champion"] == first
    assert report["champion_alias"] == {"alias": first, "was": third, "unexpected": True}
    assert "another hand" in caplog.text
    assert registry.champion_alias(small) == first
    assert decided(small)[1:] == [(second, "refused", first), (third, "refused", first)]


@pytest.mark.mlflow
def test_a_commit_whose_answer_was_lost_is_found(
    small: Pipeline, models: dict[str, Logged], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = register(small, models["good"], through=LATER)
    write = champion.write_deltalake

    def write_and_lose_the_answer(*arguments: Any, **options: Any) -> None:
        write(*arguments, **options)
        raise CommitFailedError("no answer")

    monkeypatch.setattr(champion, "write_deltalake", write_and_lose_the_answer)
    report = promote(small, "run-1")
    assert [each["version"] for each in report["decisions"]] == [version]
    assert decided(small) == [(version, "promoted", None)]


@pytest.mark.mlflow
def test_a_race_that_is_always_lost_is_for_the_retry(
    small: Pipeline, models: dict[str, Logged], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(small, models["good"], through=LATER)
    monkeypatch.setattr(champion, "TRIES", 2)
    monkeypatch.setattr(champion, "commit", lambda *_, **__: False)
    with pytest.raises(RetryError, match="lost to other promotions"):
        promote(small, "run-1")


CHILD = """
import os, pathlib, signal, sys, time
from small_models import job, pipeline
from jobs import champion, registry
from jobs.promote import stage

name, run_id, how, folder = sys.argv[1:]
if how == "die":
    registry.set_champion_alias = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
else:
    # The other version was registered after this process had asked.
    every = registry.versions
    def once(small):
        registry.versions = every
        return [version for version in every(small) if version.number == int(how)]
    registry.versions = once
    commit = champion.commit
    def meet(*arguments, **options):
        pathlib.Path(folder, run_id).touch()
        while len(list(pathlib.Path(folder).iterdir())) < 2:
            time.sleep(0.001)
        done = commit(*arguments, **options)
        print("committed" if done else "lost", flush=True)
        return done
    champion.commit = meet
stage.run(job("promote", pipeline(name), run_id, when="due"))
"""


def child(small: Pipeline, run_id: str, how: str, folder: Path) -> subprocess.Popen[str]:
    """A promotion in a process of its own."""
    start = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(stage.__file__).parents[2])]!r}\n"
    command = [sys.executable, "-c", start + CHILD, small.name, run_id, how, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


@pytest.mark.mlflow
def test_killed_between_the_decision_and_the_alias(small: Pipeline, models: dict[str, Logged], tmp_path: Path) -> None:
    version = register(small, models["good"], through=LATER)
    process = child(small, "run-1", "die", tmp_path)
    process.communicate()
    assert process.returncode == -9
    assert decided(small) == [(version, "promoted", None)]
    assert registry.champion_alias(small) is None
    report = promote(small, "run-1")
    assert report["champion_alias"] == {"alias": version, "was": None, "unexpected": False}
    assert [each["version"] for each in report["decisions"]] == [version]
    assert registry.champion_alias(small) == version


@pytest.mark.mlflow
def test_two_promotions_of_different_versions_at_once(small: Pipeline, models: dict[str, Logged], tmp_path: Path) -> None:
    older = register(small, models["worse"], through=EARLY)
    newer = register(small, models["good"], through=LATEST)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    processes = [child(small, f"run-{version}", str(version), meeting) for version in (older, newer)]
    said = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    made = decided(small)
    assert sorted(candidate for candidate, _, _ in made) == [older, newer]
    # Each decision rests on the one before it: one champion at each moment, whoever came first.
    standing = None
    for candidate, decision, before in made:
        assert before == standing
        standing = candidate if decision == "promoted" else standing
    assert standing == newer
    assert registry.champion_alias(small) == newer
    assert [outcome for words in said for outcome in words].count("lost") == 1


@pytest.mark.mlflow
def test_models_of_another_declaration(small: Pipeline, models: dict[str, Logged], tmp_path: Path) -> None:
    """A champion that takes what is gone stands in nobody's way; a candidate that lacks what is new is refused."""
    register(small, log_model(tmp_path, 2.0, inputs=("x", "gone")), through=EARLY)
    first = champion.Decision(
        decision="promoted",
        candidate=1,
        champion=None,
        rule={},
        figures={},
        reasons=[],
        snapshot={"trained_through": "2013-02-20"},
        run_id="earlier",
        by="a test",
    )
    assert champion.commit(small, champion.history(small), [first], run_id="earlier")
    with pytest.raises(DataError, match=r"version 1 of .* takes gone, which the pipeline no longer declares"):
        registry.load(small, 1).score(examples_of(EARLY))
    register(small, models["good"], through=LATER)
    (made,) = promote(small, "run-2")["decisions"]
    assert (made["version"], made["decision"], made["figures"]["against"]) == (2, "promoted", "base_rate")
    assert "takes gone, which the pipeline no longer declares" in made["reasons"][0]
    register(small, models["good"], through=LATEST)
    assert isinstance(small.spine, Spine)
    wider = replace(small, spine=replace(small.spine, columns=(*small.spine.columns, Column("id"))))
    (made,) = promote(wider, "run-3")["decisions"]
    assert (made["decision"], made["reasons"]) == ("refused", ["it was trained by another declaration: its examples lack id"])
