"""The whole path in short: real flights through a real broker, Spark, torchrun, MLflow and Airflow.

One manual run over a range trains and promotes, through `dag.test`. Then the same two days are run as Airflow's scheduled
runs, as one manual run over both, as Airflow's own backfill, and by `penstock run` without Airflow: after each, every table says
the same (design, invariants 1, 5 and 7).
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jobs import lake
from jobs.local import airflow_server, services
from jobs.local.airflow_api import FINISHED, Airflow
from jobs.local.ports import Ports

PROJECT = Path(__file__).resolve().parent.parent
NAME = "short_flights"
FIRST, LAST = "2013-01-12", "2013-01-13"
WAYS = ("scheduled", "manual", "backfill", "without Airflow")
TABLES = {
    "features_origin": "event_date",
    "features_carrier": "event_date",
    "examples": "as_of_date",
    "labels": "mature_date",
    "predictions": "as_of_date",
}
DECLARATION = '''
"""The flights with parts so short that eleven days train a model, and a rule that takes any finite one."""

import dataclasses
from datetime import date

from pipelines import flight_delays
from pipelines.declare import Promotion, days

FULL = flight_delays.PIPELINE
PIPELINE = dataclasses.replace(
    FULL,
    name="short_flights",
    first_day=date(2013, 1, 12),
    last_day=date(2013, 1, 13),
    features=FULL.features[:2],
    label=dataclasses.replace(FULL.label, horizon=days(1)),
    training=dataclasses.replace(FULL.training, days=days(3), validation=days(1), holdout=days(2), epochs=2),
    promotion=Promotion(min_gain=-1.0, min_rows=100),
)
'''
RANGE_RUN = """
import sys
from datetime import datetime, timezone
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
assert not bag.import_errors, bag.import_errors
dag = bag.get_dag("short_flights")
run = dag.test(logical_date=datetime(2026, 1, 1, tzinfo=timezone.utc), run_conf={"from": "2013-01-01", "to": "2013-01-11"})
states = {task.task_id: str(task.state) for task in run.get_task_instances()}
print("STATES", states)
assert str(run.state) == "success", states
"""

pytestmark = [
    # One fixture runs it all, and the default of ten minutes for a test counts it in.
    pytest.mark.timeout(1500),
    *(getattr(pytest.mark, name) for name in ("demo", "kafka", "spark", "torch", "mlflow", "airflow")),
]


@dataclass(kw_only=True)
class Course:
    """What was run, and what each way left in the tables."""

    environment: dict[str, str]
    folder: Path
    """Where commands run: not in the project, whose own `pipelines` would come first there."""
    reports: Path
    contents: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    versions: dict[str, dict[str, int]] = field(default_factory=dict)
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    first: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The run report of each stage of the range run."""

    def penstock(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "jobs.cli", *arguments]
        ended = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=300, check=False
        )
        assert ended.returncode == 0, ended.stderr[-4000:]

    def remember(self, way: str) -> None:
        """Keep what the tables say of the two days, without what names the run."""
        self.contents[way], self.versions[way] = {}, {}
        for name, partition in TABLES.items():
            table = lake.load(lake.uri(NAME, name))
            assert table is not None, f"{way}: {name} was not written"
            shift = 1 if partition == "as_of_date" else 0
            first, last = (f"2013-01-{day + shift}" for day in (12, 13))
            rows = lake.query(table, f"select * from t where {partition} between '{first}' and '{last}'")
            rows = rows.drop_columns([name for name in ("run_id",) if name in rows.column_names])
            self.contents[way][name] = sorted(rows.to_pylist(), key=repr)
            self.versions[way][name] = table.version()
        # The next way finds no day computed. The ledger is advice: what it lacks is computed again.
        ledger = lake.load(lake.uri(NAME, "ledger"))
        assert ledger is not None
        ledger.delete("starts_with(stage, 'features/')")

    def report(self, stage: str) -> dict[str, Any]:
        """The newest run report of a stage."""
        newest = max((self.reports / stage).glob("*.json"), key=lambda path: path.stat().st_mtime)
        return dict(json.loads(newest.read_text()))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    """The broker, MLflow and Airflow, eleven days run as a range, and then the same two days in each way."""
    state = tmp_path_factory.mktemp("state")
    declared = tmp_path_factory.mktemp("project")
    shutil.copytree(PROJECT / "pipelines", declared / "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
    (declared / "pipelines" / f"{NAME}.py").write_text(DECLARATION)
    ports = Ports.free()
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("PYTHONPATH", str(declared))
    monkeypatch.setenv("PENSTOCK_STATE", str(state))
    try:
        endpoints = services.start(state, ["kafka", "mlflow"], ports)
        for name in ("PENSTOCK_LAKE", "KAFKA_BOOTSTRAP_SERVERS", "MLFLOW_TRACKING_URI"):
            monkeypatch.setenv(name, endpoints[name])
        done = Course(environment=dict(os.environ), folder=state, reports=Path(endpoints["PENSTOCK_LAKE"]) / "reports" / NAME)
        done.penstock("replay", "flights", "--from", "2012-12-29", "--to", "2013-01-13", "--broken-every", "1000")
        _range(state, ports, done)
        airflow = _airflow(state, ports)
        _scheduled(airflow, done)
        _manual(airflow, done)
        _backfill(airflow, done)
        done.penstock("run", NAME, "--from", FIRST, "--to", LAST)
        done.remember("without Airflow")
        yield done
    finally:
        services.stop(state)
        monkeypatch.undo()


def _range(state: Path, ports: Ports, done: Course) -> None:
    """The first eleven days as one manual run in one process: `dag.test`."""
    variables = done.environment | airflow_server.environment(state, ports.airflow)
    airflow_server.prepare(state, variables)
    ended = subprocess.run(
        [sys.executable, "-c", RANGE_RUN, str(PROJECT / "dags")],
        env=variables,
        cwd=done.folder,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-6000:]
    done.first = {stage: done.report(stage) for stage in ("ingest", "features", "train", "promote", "score")}


def _airflow(state: Path, ports: Ports) -> Airflow:
    endpoints = services.start(state, ["airflow"], ports)
    airflow = Airflow(
        endpoints["AIRFLOW_URL"], airflow_server.USER, airflow_server.password_in(endpoints["AIRFLOW_PASSWORD_FILE"])
    )
    airflow.wait_for_dag(NAME)
    return airflow


def _wait(airflow: Airflow, done: Course, way: str, wanted: Callable[[dict[str, Any]], bool], number: int) -> None:
    """Until the `number` runs that are wanted have ended well."""
    deadline = time.monotonic() + 420
    runs: list[dict[str, Any]] = []
    while not (len(runs) == number and all(run["state"] in FINISHED for run in runs)):
        assert time.monotonic() < deadline, f"{way}: {[(run['dag_run_id'], run['state']) for run in airflow.runs(NAME)]}"
        time.sleep(2)
        runs = [run for run in airflow.runs(NAME) if wanted(run)]
    for run in runs:
        tasks = airflow.tasks(NAME, run["dag_run_id"])
        failed = [name for name, task in tasks.items() if task["state"] == "failed"]
        assert run["state"] == "success", airflow.log(NAME, run["dag_run_id"], (failed or ["resolve"])[0], 1)[-4000:]
        assert {task["state"] for task in tasks.values()} == {"success"}
    done.runs[way] = runs
    done.remember(way)


def _scheduled(airflow: Airflow, done: Course) -> None:
    airflow.unpause(NAME)
    _wait(airflow, done, "scheduled", lambda run: run["run_type"] == "scheduled", 2)


def _manual(airflow: Airflow, done: Course) -> None:
    run_id = airflow.trigger(NAME, {"from": FIRST, "to": LAST})
    _wait(airflow, done, "manual", lambda run: run["dag_run_id"] == run_id, 1)


def _backfill(airflow: Airflow, done: Course) -> None:
    # Airflow runs the days' own runs again, and calls them backfill from then on.
    airflow.backfill(NAME, FIRST, LAST)
    _wait(airflow, done, "backfill", lambda run: run["run_type"] == "backfill", 2)


def test_the_range_run_trained_promoted_and_kept_dead_letters(path: Course) -> None:
    reports = path.first
    assert {stage: report["exit_code"] for stage, report in reports.items()} == dict.fromkeys(reports, 0)
    events = lake.load(lake.uri("events", "flights_landed"))
    assert events is not None
    counts = lake.query(events, "select rejected_reason is null as good, count(*) as rows from t group by 1").to_pylist()
    rows = {row["good"]: row["rows"] for row in counts}
    assert rows[True] > 8000 and rows[False] == rows[True] // 1000
    promotions = lake.load(lake.uri(NAME, "promotions"))
    assert promotions is not None
    decisions = lake.query(promotions, "select candidate, decision from t").to_pylist()
    assert decisions == [{"candidate": 1, "decision": "promoted"}], "one training, one decision, for all of the runs"


@pytest.mark.parametrize("way", WAYS[1:])
def test_each_way_of_running_gives_the_same_tables(path: Course, way: str) -> None:
    expected = path.contents["scheduled"]
    for table, rows in path.contents[way].items():
        assert len(rows) > 0, f"{table} has no row of the two days"
        assert rows == expected[table], f"{way} and scheduled runs differ in {table}"


@pytest.mark.parametrize(("before", "after"), list(pairwise(WAYS)))
def test_each_way_really_computed(path: Course, before: str, after: str) -> None:
    """Equal tables would prove nothing if the later run had written none."""
    assert all(path.versions[after][table] > path.versions[before][table] for table in TABLES)


def test_airflow_scheduled_just_the_declared_days(path: Course) -> None:
    assert sorted(run["logical_date"][:10] for run in path.runs["scheduled"]) == [FIRST, LAST]
    assert sorted(run["logical_date"][:10] for run in path.runs["backfill"]) == [FIRST, LAST]


def test_predictions_carry_the_champion_and_a_score(path: Course) -> None:
    rows = path.contents["scheduled"]["predictions"]
    assert {row["model_version"] for row in rows} == {1}
    assert all(0 <= row["score"] <= 1 for row in rows)
    keys = [row["key"] for row in path.contents["scheduled"]["examples"]]
    assert sorted(row["key"] for row in rows) == sorted(keys), "every example of the days has one prediction"


def test_a_run_with_nothing_new_in_kafka_added_no_event(path: Course) -> None:
    report = path.report("ingest")
    assert report["exit_code"] == 0
    assert sum(source["good"] + source["dead"] for source in report["sources"].values()) == 0
