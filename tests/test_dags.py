"""The DAGs as Airflow sees them: graph, schedule, form, commands, retries; real runs by `dag.test`, in this process."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil
import pytest

import pipelines

ROOT = Path(__file__).resolve().parent.parent
NAME = "flight_delays"

GRAPH = {
    "resolve": {"wait"},
    "wait": {"ingest"},
    "ingest": {"features"},
    "features": {"train", "score"},
    "train": {"promote"},
    "promote": set(),
    "score": set(),
}

# One DAG whose tasks end in each way that the job contract knows. The file that a task is given counts its tries.
ENDINGS = '''
import sys
from datetime import UTC, datetime, timedelta
from airflow.sdk import DAG
from dags.job_operator import ExitCodePolicy, JobOperator

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
name, tries, report = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[4])
tried = len(tries.read_text()) if tries.exists() else 0
tries.write_text("x" * (tried + 1))
print(f"{name} speaks", file=sys.stderr, flush=True)
if name == "killed" and tried == 0:
    os.kill(os.getpid(), signal.SIGKILL)
codes = {"usage": 64, "data": 65, "bug": 70, "away": 75, "other": 1, "died": 137, "hopeless": 75}
code = codes.get(name, 0) if tried == 0 or name == "hopeless" else 0
report.write_text(json.dumps({"message": f"{name} says why" if code else None, "exit_code": code, "rows": tried}))
sys.exit(code)
"""

with DAG(
    dag_id="endings",
    schedule=None,
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    default_args={"retries": 1, "retry_delay": timedelta(0), "retry_policy": ExitCodePolicy()},
) as dag:
    for name in ("fine", "usage", "data", "bug", "away", "other", "died", "killed", "hopeless"):
        JobOperator(task_id=name, arguments=(name, "TRIES/" + name), program=(sys.executable, "-c", PROGRAM))
'''

# Stands in for `python -m jobs.cli` where only the command is looked at: it keeps its arguments and reports nothing.
RECORDER = "import json, sys; open(sys.argv[1], 'a').write(json.dumps(sys.argv[2:]) + '\\n')"


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Airflow's own database in a folder of its own, with the project's DAGs and a folder `scratch` for more."""
    if "airflow" in sys.modules:
        pytest.fail("Airflow was imported before its home was set: import it inside the tests that ask for this fixture.")
    if not entry_points(group="airflow.plugins", name="penstock"):
        pytest.fail("Airflow can't know the timetable: the project is not installed in this environment. Run `make setup`.")
    home = tmp_path_factory.mktemp("airflow-home")
    scratch = home / "scratch"
    scratch.mkdir()
    (scratch / "endings.py").write_text(ENDINGS.replace("TRIES", str(home)))
    bundles = [
        {"name": name, "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {"path": str(path)}}
        for name, path in {"dags-folder": ROOT / "dags", "scratch": scratch}.items()
    ]
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "PENSTOCK_LAKE": str(home / "lake"),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        from airflow.utils.db import initdb

        initdb()
        yield home


@pytest.fixture
def dag(airflow_home: Path) -> Any:  # noqa: ARG001
    """The real pipeline's DAG, built anew."""
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(str(ROOT / "dags")).dags[NAME]


@pytest.fixture
def scheduled(dag: Any) -> Any:
    """The DAG as the scheduler knows it: out of the database's form."""
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))


def at(*moment: int) -> datetime:
    return datetime(*moment, tzinfo=UTC)  # type: ignore[arg-type, misc]


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_home")
def test_each_pipeline_has_its_dag_with_just_this_graph() -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    assert sorted(bag.dags) == pipelines.names()
    for name, dag in bag.dags.items():
        pipeline = pipelines.load(name)
        assert {task.task_id: task.downstream_task_ids for task in dag.tasks} == GRAPH
        assert {task.owner for task in dag.tasks} == {pipeline.owner}
        assert dag.tags == {"penstock", *pipeline.tags}
        assert dag.catchup and dag.max_active_runs == 1
        assert all(source.topic in dag.doc_md for source in pipeline.sources)


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_home")
def test_parsing_is_quick_and_imports_nothing_heavy(tmp_path: Path) -> None:
    """In a process that has imported what Airflow's DAG processor has, as its parsing processes are forks of it."""
    program = f"""
import json, sys, time
import airflow.sdk, airflow.plugins_manager, airflow.serialization.serialized_objects
import airflow.providers.standard.sensors.date_time
from airflow.dag_processing.dagbag import DagBag
before, began = set(sys.modules), time.process_time()
bag = DagBag({str(ROOT / "dags")!r})
print(json.dumps([time.process_time() - began, len(bag.dags), sorted(set(sys.modules) - before)]), file=open(sys.argv[1], "w"))
"""
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "out")], check=True, stdin=subprocess.DEVNULL, capture_output=True
    )
    seconds, dags, modules = json.loads((tmp_path / "out").read_text())
    heavy = {
        "pyspark",
        "delta",
        "torch",
        "mlflow",
        "deltalake",
        "pyarrow",
        "pandas",
        "kafka",
        "confluent_kafka",
        "sklearn",
        "jobs",
    }
    assert dags == len(pipelines.names())
    assert heavy.isdisjoint(module.partition(".")[0] for module in modules)
    assert seconds < 0.5


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_home")
def test_a_broken_pipeline_is_an_import_error_and_the_others_keep_their_dags(tmp_path: Path) -> None:
    for folder in ("dags", "pipelines"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "pipelines" / "broken.py").write_text("from pipelines.declare import Field\n\nField('Name')\n")
    program = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag("dags")
print(json.dumps([sorted(bag.dags), list(bag.import_errors.values())]), file=open("out", "w"))
"""
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env=environment, capture_output=True)
    dags, errors = json.loads((tmp_path / "out").read_text())
    assert dags == [name for name in pipelines.names() if name != "broken"]
    assert len(errors) == 1 and "pipelines/broken.py: field 'Name' has no valid name" in errors[0]


@pytest.mark.airflow
def test_the_schedule_is_first_day_to_last_day_in_whole_utc_days(scheduled: Any) -> None:
    pipeline = pipelines.load(NAME)
    assert pipeline.last_day is not None
    found, info = [], None
    while info := scheduled.next_dagrun_info(last_automated_run_info=info):
        assert info.data_interval.end - info.data_interval.start == timedelta(days=1)
        assert info.run_after == info.data_interval.end
        found.append(info.data_interval.start)
    days = (pipeline.last_day - pipeline.first_day).days + 1
    first = at(pipeline.first_day.year, pipeline.first_day.month, pipeline.first_day.day)
    assert found == [first + timedelta(days=number) for number in range(days)]


@pytest.mark.airflow
def test_a_backfill_covers_the_days_it_names_inside_the_schedule_or_not(scheduled: Any) -> None:
    days = scheduled.iter_dagrun_infos_between(at(2013, 3, 30), at(2013, 4, 4))
    assert [info.logical_date for info in days] == [at(2013, 3, 30), at(2013, 3, 31), *(at(2013, 4, day) for day in range(1, 5))]


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_home")
def test_an_open_end_goes_on_and_survives_the_database() -> None:
    from airflow.timetables.base import TimeRestriction

    from dags.schedule import PipelineDays

    open_end = PipelineDays.deserialize(PipelineDays(first_day=date(2013, 4, 1), last_day=None).serialize())
    interval = open_end.infer_manual_data_interval(run_after=_pendulum(2026, 7, 1, 9))
    assert interval == (at(2026, 6, 30), at(2026, 7, 1))
    following = open_end.next_dagrun_info(last_automated_data_interval=interval, restriction=TimeRestriction(None, None, True))
    assert following.data_interval == (at(2026, 7, 1), at(2026, 7, 2))


@pytest.mark.airflow
@pytest.mark.parametrize("moment", [(2012, 12, 31, 8), (2026, 7, 1, 9)], ids=["before the first day", "after the last day"])
def test_a_run_by_hand_outside_the_schedule_keeps_all_its_tasks(scheduled: Any, dag: Any, moment: tuple[int, ...]) -> None:
    """With Airflow's start_date and end_date such a run "succeeds" without a task."""
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    sync(dag)
    with create_session() as session:
        run = scheduled.create_dagrun(
            run_id=f"by-hand-{moment[0]}",
            logical_date=at(*moment),
            data_interval=scheduled.timetable.infer_manual_data_interval(run_after=_pendulum(*moment)),
            run_after=at(*moment),
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.QUEUED,
            session=session,
        )
        assert {task.task_id for task in run.get_task_instances(session=session)} == set(GRAPH)
        session.delete(run)


@pytest.mark.airflow
@pytest.mark.parametrize("conf", [{"from": "2013-02-30"}, {"to": "1 April 2013"}, {"from": ""}, {"train": "sometimes"}])
def test_the_form_refuses_what_is_no_date_and_no_choice(scheduled: Any, conf: dict[str, str]) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    scheduled.params.deep_merge({"from": "2013-04-01", "to": None, "train": "never"}).validate()
    with pytest.raises((ParamValidationError, ValueError), match="Invalid input for param"):
        scheduled.params.deep_merge(conf).validate()


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_home")
def test_every_task_works_on_the_days_that_resolve_found(dag: Any, tmp_path: Path) -> None:
    """`resolve` and `wait` are real; the later commands are kept as they would start, and the command line accepts them."""
    from jobs import cli

    record = tmp_path / "commands"
    for task in dag.tasks:
        if task.task_id not in ("resolve", "wait"):
            task.program = (sys.executable, "-c", RECORDER, str(record))
    run = dag.test(logical_date=at(2013, 4, 3), run_conf={"from": "2013-03-30", "to": "2013-04-01", "train": "always"})
    assert states(run) == dict.fromkeys(GRAPH, ("success", 1))
    commands = {words[0]: words[1:] for words in map(json.loads, record.read_text().splitlines())}
    days = ["--from", "2013-03-30", "--to", "2013-04-01"]
    own = ["--run-id", f"{NAME}/{run.run_id}", "--report"]
    assert {name: words[:-1] for name, words in commands.items()} == {
        "ingest": [NAME, *own],
        "features": [NAME, *days, *own],
        "train": [NAME, *days, "--when", "always", *own],
        "promote": [NAME, *days, "--when", "due", *own],
        "score": [NAME, *days, *own],
    }
    parser = cli._parser({command.name: command for command in cli.discover()})
    for name, words in commands.items():
        assert parser.parse_args([name, *words]).subject == NAME


@pytest.mark.airflow
def test_a_run_without_dates_is_about_its_data_interval(dag: Any, tmp_path: Path) -> None:
    for task in dag.tasks:
        if task.task_id not in ("resolve", "wait"):
            task.program = (sys.executable, "-c", RECORDER, str(tmp_path / "commands"))
    run = dag.test(logical_date=at(2013, 4, 6))
    report = run.get_task_instance("resolve").xcom_pull("resolve")
    interval = [run.data_interval_start.date().isoformat(), run.data_interval_end.date().isoformat()]
    assert [report["first"], report["last"], report["train"], report["promote"]] == ["2013-04-05", "2013-04-05", "due", "due"]
    assert [report["interval"], report["closes_at"]] == [interval, "2013-04-06T03:00:00+00:00"]


@pytest.mark.airflow
def test_half_a_range_is_refused_by_the_first_task_before_any_work(dag: Any, capfd: pytest.CaptureFixture[str]) -> None:
    # A run by REST may have no logical date, and so no data interval to fall back on.
    run = dag.test(logical_date=None, run_conf={"from": "2013-03-30"})
    assert states(run) == {name: ("failed", 1) if name == "resolve" else ("upstream_failed", 0) for name in GRAPH}
    output = "".join(capfd.readouterr())
    assert "penstock resolve ended with 64 (wrong arguments or declaration): only one end of the range was given" in output


@pytest.mark.airflow
def test_exit_codes_decide_about_a_retry_and_failures_carry_the_jobs_words(
    airflow_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    run = DagBag(str(airflow_home / "scratch")).dags["endings"].test(logical_date=at(2013, 4, 1))
    assert states(run) == {
        "fine": ("success", 1),
        "usage": ("failed", 1),
        "data": ("failed", 1),
        "bug": ("failed", 1),
        "away": ("success", 2),
        "other": ("success", 2),
        "died": ("success", 2),
        "killed": ("success", 2),
        "hopeless": ("failed", 2),
    }
    assert run.get_task_instance("away").xcom_pull("away") == {"message": None, "exit_code": 0, "rows": 1}
    output = "".join(capfd.readouterr())
    assert "JobFailed: penstock data ended with 65 (the data breaks a rule): data says why" in output
    assert "JobFailed: penstock away ended with 75: away says why" in output
    # A job that was killed has left no report: what it wrote last stands in.
    assert "JobFailed: penstock killed was killed by SIGKILL: killed speaks" in output
    assert "exit code 65, the data breaks a rule: a retry can't help" in output


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_home")
def test_a_killed_task_ends_its_job_and_all_that_the_job_started(tmp_path: Path) -> None:
    from dags.job_operator import JobFailed, JobOperator

    program = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '60']); "
        "open(sys.argv[1], 'w').write(str(child.pid)); print('ready', flush=True); time.sleep(60)"
    )
    task = JobOperator(task_id="long", arguments=(str(tmp_path / "pid"),), program=(sys.executable, "-c", program))
    failures: list[BaseException] = []

    def execute() -> None:
        try:
            task.execute({})
        except JobFailed as failure:
            failures.append(failure)

    thread = threading.Thread(target=execute)
    thread.start()
    pid = wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    began = time.monotonic()
    task.on_kill()
    thread.join(timeout=10)
    assert time.monotonic() - began < 4
    assert "was killed by SIGTERM" in str(failures[0])
    wait_for(lambda: not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_home")
def test_a_job_gets_the_endpoints_but_not_airflows_own_settings() -> None:
    from dags.job_operator import environment

    given = environment()
    assert given["PENSTOCK_LAKE"] == os.environ["PENSTOCK_LAKE"]
    assert not any(name.startswith("AIRFLOW__") for name in given)


@pytest.mark.airflow
@pytest.mark.usefixtures("airflow_home")
def test_a_long_report_is_cut_to_its_figures() -> None:
    from dags.job_operator import brief

    assert brief({"rows": 3, "days": ["2013-04-01"]}) == {"rows": 3, "days": ["2013-04-01"]}
    long = {"rows": 3, "interval": ["2013-04-01", "2013-04-02"], "days": ["2013-04-01"] * 5000}
    assert brief(long) == {"rows": 3, "interval": ["2013-04-01", "2013-04-02"], "left_out": ["days"]}


def states(run: Any) -> dict[str, tuple[str, int]]:
    """Each task's state and how often it was tried."""
    return {task.task_id: (str(task.state), task.try_number) for task in run.get_task_instances()}


def sync(dag: Any) -> None:
    """Write the DAG to Airflow's database, as its DAG processor does."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    DagBundlesManager().sync_bundles_to_db()
    folder = Path(dag.fileloc).parent
    bag = BundleDagBag(dag_folder=str(folder), bundle_path=folder, bundle_name="dags-folder")
    sync_bag_to_db(bag, "dags-folder", None)


def wait_for(found: Any, seconds: float = 10) -> Any:
    """The first true value of `found`."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def _pendulum(*moment: int) -> Any:
    import pendulum

    return pendulum.datetime(*moment)  # type: ignore[arg-type]
