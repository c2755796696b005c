"""A training that is cut short goes on at the next example, and ends with the weights of one that was not, bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from small_topic import DYING
from small_training import NIGHTS, full, job, prepare, rides
from test_train import rank, single_rank

from jobs import lake, registry
from jobs.errors import RetryError, UsageError
from jobs.train import resume, stage
from jobs.train.plan import CHECKPOINTS
from pipelines.declare import Pipeline

pytestmark = pytest.mark.torch
SETTINGS: dict[str, Any] = {"epochs": 4, "dropout": 0.5, "checkpoint_every": 3, "patience": 100}


@pytest.fixture(autouse=True)
def own_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    return tmp_path / "lake"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two shared folders with the same parts: for an unbroken training, which is done, and for one that keeps checkpoints."""
    pipeline = rides("resumed", full(), **SETTINGS)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    for folder in (unbroken, broken):
        folder.mkdir()
        prepare(pipeline, folder)
    (broken / CHECKPOINTS).mkdir()
    return unbroken, broken


def train(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the only rank, in this process."""
    from jobs.train import fit, process_group
    from jobs.train.plan import Plan

    with single_rank(monkeypatch), process_group.joined() as group:
        fit.train(Plan.read(folder), folder, group)


def learned(folder: Path) -> tuple[list[tuple[float, float]], bytes]:
    """The curve and the weights."""
    import torch

    curve = [(one["training_loss"], one["validation_loss"]) for one in json.loads((folder / "curve.json").read_text())]
    weights = torch.export.load(folder / "model" / "network.pt2").state_dict
    return curve, b"".join(value.detach().numpy().tobytes() for _, value in sorted(weights.items()))


def complete(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / CHECKPOINTS).glob("*-*") if path.suffix != ".part")


def test_ended_again_and_again_it_learns_the_same(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 21 of the cases: in the middle of an epoch, at its first step and at its last, with what is dropped out at random."""
    from jobs.train import ending

    unbroken, broken = folders
    train(unbroken, monkeypatch)
    curve, weights = learned(unbroken)
    assert len(curve) == 4 and len({loss for loss, _ in curve}) == 4
    with monkeypatch.context() as asked:
        for number in (2, 4, 0, 3, 1):
            steps = iter([False] * number + [True])
            asked.setattr(ending, "agreed", lambda *_, steps=steps: next(steps))
            with pytest.raises(RetryError, match="asked to end after step"):
                train(broken, monkeypatch)
    assert len(complete(broken)) == 2
    train(broken, monkeypatch)
    assert learned(broken) == (curve, weights)
    # All is there: another attempt only writes its end again.
    (broken / "curve.json").unlink()
    train(broken, monkeypatch)
    assert learned(broken) == (curve, weights)


_APART = (
    DYING
    + """
import sys
from pathlib import Path
from torch.distributed.checkpoint import FileSystemWriter
from jobs.train import fit, process_group
from jobs.train.plan import Plan

whole, calls = FileSystemWriter.write_data, iter(range(3))
def write(self, *arguments):
    if next(calls, None) is None:
        die()
    return whole(self, *arguments)
FileSystemWriter.write_data = write
folder = Path(sys.argv[1])
with process_group.joined() as group:
    fit.train(Plan.read(folder), folder, group)
"""
)


def test_killed_while_saving_the_last_complete_checkpoint_counts(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Row 20 of the cases; and of a complete one that the disk has spoiled, the one before counts."""
    unbroken, broken = folders
    train(unbroken, monkeypatch)
    with single_rank(monkeypatch):
        ended = subprocess.run([sys.executable, "-c", _APART, str(broken)], stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = complete(broken)
    assert len(left) == 2 and list((broken / CHECKPOINTS).glob("*.part"))
    for file in (broken / CHECKPOINTS / left[-1]).glob("*.distcp"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    train(broken, monkeypatch)
    assert f"{left[-1]} can't be read" in caplog.text
    assert learned(broken) == learned(unbroken)
    assert not list((broken / CHECKPOINTS).glob("*.part"))


def test_none_that_can_be_read_is_told(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _, broken = folders
    (broken / CHECKPOINTS / "000000-000000003").mkdir()
    with pytest.raises(RetryError, match="none of the checkpoints"):
        train(broken, monkeypatch)


def declared(name: str, **settings: Any) -> Pipeline:
    """A pipeline whose tables another process has written."""
    return replace(NIGHTS, name=name, training=replace(NIGHTS.training, **settings))


LONG: dict[str, Any] = {"epochs": 60, "dropout": 0.0, "checkpoint_every": 5, "patience": 1_000}
_STAGE = """
import sys
import test_resume as t
from jobs.errors import JobError
from jobs.train import stage
try:
    stage.run(t.job(t.declared("preempted", **t.LONG), sys.argv[1], ranks=int(sys.argv[2])))
except JobError as failure:
    print(failure, file=sys.stderr)
    sys.exit(int(failure.exit_code))
"""


def attempt(run_id: str, ranks: int) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen([sys.executable, "-c", _STAGE, run_id, str(ranks)], env=environment, stdin=subprocess.DEVNULL)


def after_a_checkpoint(child: "subprocess.Popen[bytes]", run_id: str) -> None:
    """Wait until the run has kept something."""
    place = resume.folder(declared("preempted"), run_id)
    assert place is not None
    deadline = time.monotonic() + 120
    while not [path for path in place.glob("*-*") if path.suffix != ".part"]:
        assert child.poll() is None, "it was done before a checkpoint"
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.mlflow
@pytest.mark.timeout(900)
def test_preempted_with_two_ranks_it_goes_on(mlflow_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM saves and ends with 75; a killed rank ends the attempt with 75 too. The next goes on, on two ranks or on one."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    pipeline = rides("preempted", full(training=16), **LONG)
    assert attempt("unbroken", 2).wait(200) == 0

    first = attempt("both", 2)
    after_a_checkpoint(first, "both")
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 75
    kept, fewer_kept = resume.folder(pipeline, "both"), resume.folder(pipeline, "fewer")
    assert kept is not None and fewer_kept is not None
    shutil.copytree(kept, fewer_kept)
    second = attempt("both", 2)
    rank(psutil.Process(second.pid), 1).kill()
    assert second.wait(60) == 75
    # Rows that came meanwhile are not this run's.
    grown = lake.load(lake.uri(pipeline.name, "examples"))
    assert grown is not None
    some = lake.query(grown, "select * from t limit 3")
    lake.append(lake.uri(pipeline.name, "examples"), some, partition_by=["as_of_date"])
    assert attempt("both", 2).wait(200) == 0
    assert not kept.exists()

    # What differs is told, and the earlier attempt's work is not touched.
    with pytest.raises(UsageError, match="epochs of its settings: 60, now 61"):
        stage.run(job(pipeline, "fewer", epochs=61))
    assert attempt("fewer", 1).wait(200) == 0

    unbroken, both, fewer = sorted(registry.versions(pipeline), key=lambda version: version.number)[-3:]
    rows = lake.query(grown, "select * from t where as_of_date >= '2024-03-28' order by key")
    scores = [registry.load(pipeline, version.number).score(rows) for version in (unbroken, both)]
    assert (scores[0] == scores[1]).all()
    assert unbroken.tags["examples_version"] == both.tags["examples_version"]
    assert registry.load(pipeline, fewer.number).score(rows) == pytest.approx(scores[0], abs=1e-4)


@pytest.mark.mlflow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_begun_by_one_rank_it_is_ended_by_two(mlflow_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    pipeline = rides("preempted", full(training=16), **LONG)
    before = len(registry.versions(pipeline))
    assert attempt("one", 1).wait(200) == 0
    first = attempt("more", 1)
    after_a_checkpoint(first, "more")
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 75
    assert attempt("more", 2).wait(200) == 0
    one, more = sorted(registry.versions(pipeline), key=lambda version: version.number)[before:]
    examples = lake.load(lake.uri(pipeline.name, "examples"))
    assert examples is not None
    rows = lake.query(examples, "select * from t where as_of_date >= '2024-03-28' order by key")
    scores = [registry.load(pipeline, version.number).score(rows) for version in (one, more)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_abandoned_checkpoints_go(own_lake: Path) -> None:
    old, new = (own_lake / "nights" / "checkpoints" / name for name in ("old", "new"))
    for place in (old, new):
        place.mkdir(parents=True)
        (place / resume.BEGUN).write_text("{}")
    for path in (old / resume.BEGUN, old):
        os.utime(path, (time.time() - resume.ABANDONED - 60,) * 2)
    resume.end(resume.folder(NIGHTS, "mine"))
    assert new.exists() and not old.exists()


def test_without_a_disk_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE", "s3://bucket/lake")
    assert resume.folder(NIGHTS, "run") is None and "begins anew" in caplog.text
