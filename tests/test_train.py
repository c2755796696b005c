"""Training: the order of examples, the parts, real ranks under torchrun, and what is registered, or is not."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from small_training import NIGHTS, PARTS, full, job, prepare, rides

from jobs import lake, ledger, registry, versions
from jobs.errors import DataError, RetryError, UsageError
from jobs.interval import Interval
from jobs.train import sources, stage
from jobs.train.order import Order
from pipelines.declare import Pipeline


@pytest.fixture(autouse=True)
def own_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    return tmp_path / "lake"


# The order of examples.


def seen(order: Order, epoch: int, ranks: int, first: int = 0) -> list[set[tuple[int, int]]]:
    """What each step sees, over all ranks: (row group, row)."""
    streams = [order.picks(epoch=epoch, shard=shard, first=first) for rank in range(ranks) for shard in order.owned(rank, ranks)]
    steps = []
    for _ in range(first, order.steps):
        picked = [(group, int(row)) for stream in streams for group, rows in next(stream) for row in rows]
        assert len(picked) == len(set(picked))
        steps.append(set(picked))
    assert all(next(stream, None) is None for stream in streams)
    return steps


@pytest.mark.parametrize("rows", [(5,), (1,) * 3, (7, 9, 4, 11, 3, 8, 2, 13, 6, 6), (40,) * 8, (100, 1, 1, 1, 1, 1, 1, 1)])
def test_every_number_of_ranks_sees_the_same_examples_at_each_step(rows: tuple[int, ...]) -> None:
    order = Order(rows=rows, shards=8, batch=32, seed=3)
    once = seen(order, epoch=0, ranks=1)
    assert set().union(*once) == {(group, row) for group, count in enumerate(rows) for row in range(count)}
    assert [len(step) for step in once] == [order.size(step) for step in range(order.steps)]
    for ranks in (2, 4, 8):
        assert seen(order, epoch=0, ranks=ranks) == once
    for first in range(order.steps):
        assert seen(order, epoch=0, ranks=2, first=first) == once[first:]


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    order = Order(rows=(40,) * 16, shards=8, batch=32, seed=3)
    first, second = seen(order, epoch=0, ranks=2), seen(order, epoch=1, ranks=2)
    other = seen(Order(rows=(40,) * 16, shards=8, batch=32, seed=4), epoch=0, ranks=2)
    assert first != second and first != other
    assert set().union(*first) == set().union(*second)


# Whether it is due, and what can't be trained on.


def test_never_says_so_and_asks_nobody(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    asked = job(NIGHTS, "n", when="never")
    stage.run(asked)
    assert asked.report == {"trained": False, "reason": "not asked for: --when never"}
    assert capsys.readouterr().out == "nights: nothing was trained: not asked for: --when never\n"
    stage.run(job(NIGHTS, "n", when="never", json=True))
    assert capsys.readouterr().out == ""


def test_a_registry_that_is_away_is_told_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    began = time.monotonic()
    with pytest.raises(RetryError, match=r"127\.0\.0\.1:1 did not answer"):
        stage.run(job(NIGHTS, "away"))
    assert time.monotonic() - began < 30


@pytest.mark.mlflow
@pytest.mark.parametrize(
    ("name", "rows", "says"),
    [
        ("empty_training", full(training=0), "has no day to train on"),
        ("empty_validation", full(validation=0), "no labelled example in its validation days 2024-03-25"),
        ("empty_holdout", full(holdout=0), "no labelled example in its holdout days 2024-03-28"),
        ("one_row", full(training=0) | {PARTS[0].last: 1}, "all 1 labelled examples"),
    ],
)
def test_parts_without_examples_are_one_clear_error(
    name: str, rows: dict[date, int], says: str, mlflow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    with pytest.raises(DataError, match=says):
        stage.run(job(rides(name, rows), "empty"))


@pytest.mark.mlflow
def test_wrong_ranks_and_missing_tables_are_told(mlflow_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    with pytest.raises(UsageError, match=r"--ranks 3: .*the ranks must divide the shards"):
        stage.run(job(NIGHTS, "ranks", ranks=3))
    with pytest.raises(DataError, match=r"nights has no examples yet\. Run `penstock features nights`"):
        stage.run(job(NIGHTS, "tables"))


def test_a_diverged_training_names_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobs.train import fit, process_group

    plan = prepare(rides("diverging", full(), learning_rate=1e30), tmp_path).plan
    with (
        single_rank(monkeypatch),
        process_group.joined() as group,
        pytest.raises(DataError, match="no finite number at step 1 of epoch 0"),
    ):
        fit.train(plan, tmp_path, group)


@pytest.mark.mlflow
def test_a_server_that_goes_away_at_the_end_leaves_nothing_half_registered(
    tmp_path: Path, mlflow_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs.train import baselines, fit, process_group
    from jobs.train.figures import judge
    from jobs.train.track import RUN_TAG, Account, publish

    pipeline = rides("away_at_the_end", full())
    prepared = prepare(pipeline, tmp_path)
    with single_rank(monkeypatch), process_group.joined() as group:
        fit.train(prepared.plan, tmp_path, group)
    baselines.run(tmp_path)
    tags = {"run_id": "late", "trained_through": "2024-03-25", "holdout_from": "2024-03-28", "holdout_to": "2024-03-29"}
    account = Account(prepared=prepared, snapshot={}, figures=judge(tmp_path), seconds={}, tags=tags)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(RetryError, match="did not answer"):
        publish(pipeline, account, tmp_path)

    # An attempt that got as far as its run, then the one that gets through, then its twin.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    assert registry.versions(pipeline) == []
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.create_experiment(pipeline.name)
    client.create_run(experiment, tags={RUN_TAG: "late"})
    assert publish(pipeline, account, tmp_path) == 1
    (run,) = client.search_runs([experiment])
    assert run.info.run_id == registry.versions(pipeline)[0].run_id and run.info.status == "FINISHED"


def test_what_is_alike_for_a_whole_day_weighs_less() -> None:
    """Forty days of 25 examples: a design effect of 25 for what is one value a day, of 1 for what varies within the day."""
    from jobs.train.weights import weights_of_categories, weights_of_numbers

    days = np.repeat(np.arange(40), 25)
    random = np.random.default_rng(5)
    numbers = np.stack([random.normal(size=40)[days], random.normal(size=1000), np.ones(1000)], axis=1).astype(np.float32)
    assert weights_of_numbers(numbers, days, 0.5) == pytest.approx((25**-0.25, 1, 1), rel=0.1)
    assert weights_of_categories(np.stack([days % 7, random.integers(7, size=1000)], axis=1), days, 0.5) == pytest.approx(
        (25**-0.25, 1), rel=0.1
    )
    assert weights_of_numbers(numbers, days, 0.0) == (1, 1, 1)
    assert weights_of_numbers(numbers, np.zeros(1000, dtype=np.int64), 0.5) == (1, 1, 1)


def test_sampled_negatives_weigh_as_much_as_they_stand_for(tmp_path: Path) -> None:
    """Half of the negatives are left out of the training days, the others count twice; what is judged is everything."""
    from deltalake import DeltaTable
    from torch import device

    from jobs.train.fit import _loss
    from jobs.train.network import Network
    from jobs.train.process_group import Group
    from jobs.train.stream import Part

    pipeline = rides("sampled", full())
    uri = versions.uri(pipeline, "labels")
    kept = "case when label = 1 then 1.0 when right(key, 1) in ('0', '2', '4', '6') then 2.0 else 0.0 end"
    DeltaTable(uri).update({"weight": kept})
    prepared = prepare(pipeline, tmp_path)
    table = lake.load(uri)
    assert table is not None
    days_of = "mature_date >= date '2024-03-10' and mature_date < date '2024-03-24'"
    (total,) = lake.query(
        table,
        "select count(*) as rows, sum(weight) as weight, sum(case when label = 1 then weight else 0 end) as positive "
        f"from t where weight > 0 and {days_of}",
    ).to_pylist()
    assert prepared.rows == {"training": total["rows"], "validation": 7, "holdout": 40} and total["rows"] < 14 * 8
    assert prepared.plan.base_rate == pytest.approx(total["positive"] / total["weight"])
    part = Part(tmp_path / "training.parquet")
    batch = part.groups(range(len(part.rows)))
    assert batch.weights.mean() == pytest.approx(1) and len(np.unique(batch.weights)) == 2
    judged = Part(tmp_path / "holdout.parquet")
    assert set(judged.groups(range(len(judged.rows))).weights) == {1.0}
    # To count twice is to be there twice.
    alone, twice = batch.take(np.array([0])), batch.take(np.array([0, 0]))
    group, network = Group(rank=0, ranks=1, device=device("cpu")), Network(prepared.plan).eval()
    weighed = replace(alone, weights=alone.weights * 2)
    assert float(_loss(network, weighed, group)) == pytest.approx(float(_loss(network, twice, group)))


# What was trained on.


def test_the_snapshot_names_the_events_that_each_day_was_computed_from() -> None:
    """Commits and ledger each know days that the other doesn't; of later versions and of an older table nothing counts."""
    tell("examples", version=0, events=3, day=date(2024, 3, 5))  # Of a table that was moved away.
    compute("examples", events=5, first=date(2024, 3, 1), last=date(2024, 3, 4))
    tell("examples", version=1, events=5, day=date(2024, 3, 2))
    compute("examples", events=7, first=date(2024, 3, 3), last=date(2024, 3, 3))  # Killed before it told the ledger.
    tell("examples", version=2, events=6, day=date(2024, 3, 4))
    pinned = lake.load(lake.uri("nights", "examples"))
    assert pinned is not None
    compute("examples", events=9, first=date(2024, 3, 1), last=date(2024, 3, 1))
    tell("examples", version=3, events=9, day=date(2024, 3, 1))
    lake.append(lake.uri("nights", "examples"), partition(date(2024, 3, 2)), partition_by=["as_of_date"])  # Without a note.
    for table in (pinned, lake.load(pinned.table_uri, pinned.version())):
        assert table is not None
        assert sources.describe(NIGHTS, "examples", table, Interval(date(2024, 3, 1), date(2024, 3, 7))) == {
            "rides": [
                {"version": 5, "from": "2024-03-01", "to": "2024-03-02"},
                {"version": 7, "from": "2024-03-03", "to": "2024-03-03"},
                {"version": 5, "from": "2024-03-04", "to": "2024-03-04"},
                {"version": 6, "from": "2024-03-05", "to": "2024-03-05"},
                {"version": None, "from": "2024-03-06", "to": "2024-03-06"},
            ]
        }


def partition(*days: date) -> pa.Table:
    return pa.table({"key": [str(day) for day in days], "as_of_date": pa.array(days, pa.date32())})


def compute(table: str, *, events: int, first: date, last: date) -> None:
    """Write days as the features stage does, with its note."""
    days = Interval.inclusive(first, last)
    lake.replace(
        lake.uri("nights", table),
        partition(*days.days()),
        where=f"as_of_date >= '{first}' and as_of_date <= '{last}'",
        partition_by=["as_of_date"],
        metadata={"userMetadata": json.dumps({"run_id": "r", "inputs": {"rides": events}, "days": str(days)})},
    )


def tell(table: str, *, version: int, events: int, day: date) -> None:
    """Write the ledger's row of a day."""
    entry = ledger.Entry(stage=f"features/{table}", day=day, inputs={"rides": events}, output_version=version, rows=1, run_id="r")
    ledger.record(NIGHTS, [entry])


# Real ranks.


@pytest.mark.torch
@pytest.mark.mlflow
def test_two_ranks_train_and_register_what_one_rank_does(
    mlflow_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """101 examples are uneven for two ranks, and the validation part has a single row, so one rank has none."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    rows = full(training=7, validation=1) | {PARTS[0].last: 10}
    pipeline = rides("two_ranks", rows)
    two = job(pipeline, "two")
    stage.run(two)
    assert two.report["rows"] == {"training": 101, "validation": 1, "holdout": 40}
    said = capsys.readouterr().out
    assert "two_ranks version 1: training 101, validation 1, holdout 40 rows; holdout log loss 0." in said

    # The version says what it is, its run holds the snapshot, and what it scores is what the ranks' network scored.
    (version,) = registry.versions(pipeline)
    assert version.number == two.report["version"] == 1
    assert version.trained_through == date(2024, 3, 25) and version.holdout == PARTS[2]
    assert version.tags["trained_from"] == "2024-03-09" and version.tags["run_id"] == "two"
    assert float(version.tags["base_rate"]) == two.report["base_rate"]
    assert_run_holds_the_snapshot(version)
    assert_scores_as_reported(pipeline, version, two.report["figures"]["holdout"]["network"])

    # A retry of the same run finds its earlier self; the next run is not due before a week has passed.
    retry = job(pipeline, "two")
    stage.run(retry)
    assert retry.report["version"] == 1 and not retry.report["trained"]
    early = job(pipeline, "early", when="due")
    stage.run(early)
    assert early.report["reason"].startswith("not due until the run over 2024-04-07")
    assert f"two_ranks: nothing was trained: {early.report['reason']}\n" in capsys.readouterr().out
    assert len(registry.versions(pipeline)) == 1

    # One rank takes the same steps: the figures differ by rounding alone.
    one = job(pipeline, "one", ranks=1)
    stage.run(one)
    assert one.report["version"] == 2
    for part, models in two.report["figures"].items():
        for figure in ("log_loss",) if part == "validation" else ("log_loss", "average_precision"):
            assert one.report["figures"][part]["network"][figure] == pytest.approx(models["network"][figure], abs=1e-5)


def assert_run_holds_the_snapshot(version: registry.Version) -> None:
    import mlflow

    snapshot = json.loads(mlflow.artifacts.load_text(f"runs:/{version.run_id}/snapshot.json"))
    # Nobody wrote down what these tables were computed from.
    assert snapshot["sources"] == {
        "examples": {"rides": [{"version": None, "from": "2024-03-09", "to": "2024-03-29"}]},
        "labels": {"rides": [{"version": None, "from": "2024-03-09", "to": "2024-03-31"}]},
    }
    assert snapshot["tables"]["examples"]["version"] == int(version.tags["examples_version"])
    assert len(snapshot["tables"]["examples"]["files"]) == 17  # 14 days of training, 1 of validation, 2 of holdout.
    run = mlflow.get_run(version.run_id)
    assert run.info.status == "FINISHED"
    assert {"training_loss", "validation_loss", "holdout_network_log_loss", "holdout_gradient_boosting_log_loss"} <= set(
        run.data.metrics
    )


def assert_scores_as_reported(pipeline: Pipeline, version: registry.Version, figures: dict[str, float]) -> None:
    from sklearn.metrics import average_precision_score, log_loss

    examples = lake.load(lake.uri(pipeline.name, "examples"))
    labels = lake.load(lake.uri(pipeline.name, "labels"))
    assert examples is not None and labels is not None
    rows = lake.query(examples, "select * from t where as_of_date >= '2024-03-28' order by key")
    label = dict(zip(*lake.query(labels, "select key, label from t").to_pydict().values(), strict=True))
    truth = [label[key] for key in rows["key"].to_pylist()]
    scores = registry.load(pipeline, version.number).score(rows)
    assert log_loss(truth, scores) == pytest.approx(figures["log_loss"], abs=1e-6)
    assert average_precision_score(truth, scores) == pytest.approx(figures["average_precision"], abs=1e-6)


@pytest.mark.torch
@pytest.mark.mlflow
def test_a_killed_rank_ends_the_job_and_registers_nothing(mlflow_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    pipeline = rides("killed", full(), epochs=1_000_000, patience=1_000_000)
    killed: list[float] = []

    def kill() -> None:
        victim = rank(psutil.Process(), 1)
        time.sleep(2)
        victim.kill()
        killed.append(time.monotonic())

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RetryError, match="rank-1 ended without a word"):
        stage.run(job(pipeline, "killed"))
    killer.join()
    assert time.monotonic() - killed[0] < 60
    assert not [child for child in psutil.Process().children(recursive=True) if "jobs.train" in words(child)]
    assert registry.versions(pipeline) == []


def words(process: psutil.Process) -> str:
    """A process's command; nothing where it has ended, also where nobody has taken note of that yet."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


@pytest.mark.torch
@pytest.mark.mlflow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGKILL, -9)])
def test_the_ranks_end_with_their_stage(number: int, code: int, own_lake: Path, mlflow_server: str, tmp_path: Path) -> None:
    """SIGTERM also takes the scratch folder away; after SIGKILL the kernel tells the children."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = (
        "import sys; import small_training as t; from jobs.errors import JobError; from jobs.train import stage\n"
        "try: stage.run(t.job(t.rides('ended', t.full(), epochs=1_000_000, patience=1_000_000), 'ended'))\n"
        "except JobError as failure: sys.exit(int(failure.exit_code))"
    )
    environment = {**os.environ, "MLFLOW_TRACKING_URI": mlflow_server, "TMPDIR": str(scratch), "PENSTOCK_LAKE": str(own_lake)}
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    child = subprocess.Popen([sys.executable, "-c", script], env=environment, stdin=subprocess.DEVNULL)
    victims = [rank(psutil.Process(child.pid), number) for number in (0, 1)]
    child.send_signal(number)
    assert child.wait(30) == code
    _, alive = psutil.wait_procs(victims, timeout=30)
    assert not alive
    assert list(scratch.glob("penstock-train-*")) == [] or number == signal.SIGKILL


def rank(process: psutil.Process, number: int) -> psutil.Process:
    """A rank below a process, once it has come so far that it prints."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for child in process.children(recursive=True):
            try:
                if "jobs.train.rank" in child.cmdline() and child.environ().get("RANK") == str(number):
                    return child
            except psutil.Error:
                continue
        time.sleep(0.1)
    raise AssertionError(f"rank {number} did not start")


@contextlib.contextmanager
def single_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment that torchrun gives to the only rank."""
    for name, value in {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    yield
