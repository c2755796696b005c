"""`penstock demo`: real flights from Kafka to a promoted model and two days of predictions, through Airflow.

The services start side by side, and three months of flights are replayed as soon as the broker answers. One manual run
covers the three months: features in one Spark job, one training, one decision. Two scheduled runs follow, a day each,
each after its day was replayed. All through the commands and the DAG that a real deployment uses; at the end a table.
"""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pipelines
from jobs.command import Job
from jobs.errors import RetryError, UsageError
from jobs.interval import Interval
from jobs.local import airflow_server, services, summary
from jobs.local.airflow_api import FINISHED, Airflow
from jobs.local.ports import Ports
from jobs.settings import state_folder

PIPELINE = "flight_delays"
FIRST_KNOWN = date(2012, 12, 29)
"""The timetable is known three days ahead: the flights of 1 January reach Kafka from this day on."""
MONTHS = Interval.inclusive(date(2013, 1, 1), date(2013, 3, 31))
SCHEDULED = (date(2013, 4, 1), date(2013, 4, 2))
BROKEN_EVERY = 5000
"""A damaged record after so many good ones, so that there are dead letters to see."""
ADDRESSES = ("PENSTOCK_LAKE", "KAFKA_BOOTSTRAP_SERVERS", "MLFLOW_TRACKING_URI")
PATIENCE = 1800.0
"""Seconds for one run of the DAG: ten times what it takes."""
DATA = ("airflow", "kafka", "lake", "logs", "mlflow")


class Clock:
    """Prints what happens with the seconds since the start, and remembers how long each step took."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.steps: dict[str, float] = {}
        self.states: dict[tuple[str, str], str] = {}

    def say(self, line: str) -> None:
        """One line of progress."""
        print(f"{time.monotonic() - self.began:5.0f} s  {line}", file=sys.stderr, flush=True)

    def took(self, step: str, since: float) -> None:
        """Remember a step's seconds."""
        self.steps[step] = time.monotonic() - since

    def state(self, run_id: str, task: str, state: str, seconds: float | None) -> None:
        """One line where a task began, ended or is to be tried again, and nothing where that was said before."""
        if self.states.get((run_id, task)) == state or state not in ("running", "success", "failed", "up_for_retry"):
            return
        self.states[run_id, task] = state
        self.say(f"  {task}: {state}" + (f" after {seconds:.0f} s" if seconds and state != "running" else ""))


def run(job: Job) -> None:
    """Run the demo in the state folder, which it begins anew; the services it started are stopped at its end."""
    state = state_folder().resolve()
    clock = Clock()
    try:
        pipeline = pipelines.load(PIPELINE)
    except ValueError as wrong:
        raise UsageError(str(wrong)) from wrong
    _begin_anew(state, clock)
    try:
        endpoints = _start(state, clock)
        password = airflow_server.password_in(endpoints["AIRFLOW_PASSWORD_FILE"])
        airflow = Airflow(endpoints["AIRFLOW_URL"], airflow_server.USER, password)
        found = summary.collect(pipeline, airflow, _drive(airflow, clock))
        clock.took("all of it", clock.began)
        table = summary.table(found, summary.places(endpoints, state), clock.steps)
    finally:
        services.stop(state, say=clock.say)
    job.report.update(found, steps=clock.steps)
    (state / "demo.txt").write_text(table)
    if not job.options.json:
        print(f"\n{table}\nLook around with `make up`, which starts the services again over these data; `make down` stops them.")


def _begin_anew(state: Path, clock: Clock) -> None:
    """An empty state folder, at the cost of an earlier demo's data alone."""
    marker = state / "demo.json"
    if (state / "endpoints.json").exists():
        raise UsageError(f"The services of {state} are running: stop them with `make down`, then start the demo again.")
    held = [name for name in DATA if (state / name).exists() and name != "logs"]
    if held and not marker.exists():
        raise UsageError(
            f"{state} holds {', '.join(held)} that are not the demo's, and the demo begins with nothing. "
            "Name another folder, for example `PENSTOCK_STATE=/tmp/demo make demo`, or remove them."
        )
    Ports().check(services.SERVICES)
    if held:
        clock.say(f"beginning anew: the last demo's data in {state} go")
    for name in DATA:
        shutil.rmtree(state / name, ignore_errors=True)
    state.mkdir(parents=True, exist_ok=True)
    marker.write_text("{}\n")


def _start(state: Path, clock: Clock) -> dict[str, str]:
    """Start everything; the replay runs as soon as the broker is there."""
    since = time.monotonic()
    _use(state, services.start(state, ["kafka"], say=clock.say))
    with ThreadPoolExecutor() as pool:
        rest = pool.submit(services.start, state, ["mlflow", "airflow"], say=clock.say)
        _replay(FIRST_KNOWN, MONTHS.last, clock, "replay of three months")
        endpoints = rest.result()
    _use(state, endpoints)
    clock.took("start of the services", since)
    return endpoints


def _use(state: Path, endpoints: dict[str, str]) -> None:
    """Speak to the services of the demo alone, whatever the shell has exported: it may be a company's Kafka, or its Spark."""
    for name in [name for name in os.environ if name in ("SPARK_MASTER", "SPARK_REMOTE") or name.startswith("KAFKA_SECURITY_")]:
        del os.environ[name]
    os.environ.update({name: address for name, address in endpoints.items() if name in ADDRESSES}, PENSTOCK_STATE=str(state))


def _replay(first: date, last: date, clock: Clock, step: str) -> None:
    since = time.monotonic()
    command = ["replay", "flights", "--from", str(first), "--to", str(last), "--broken-every", str(BROKEN_EVERY)]
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RetryError(f"the {step} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    clock.took(step, since)
    clock.say(f"{step}: in Kafka after {time.monotonic() - since:.0f} s")


def _drive(airflow: Airflow, clock: Clock) -> dict[str, str]:
    """The range run, then the two scheduled runs. Returns their ids by name.

    Each day is replayed while the run before it computes, after that one's ingest. Its own run can't start earlier: the
    DAG lets one run at a time.
    """
    airflow.wait_for_dag(PIPELINE)
    conf = {"from": str(MONTHS.start), "to": str(MONTHS.last)}
    run_id = airflow.trigger(PIPELINE, conf, before=SCHEDULED[0])
    clock.say(f"Airflow runs {MONTHS} ({len(MONTHS)} days) as one range")
    airflow.unpause(PIPELINE)
    names = {f"{MONTHS}": run_id}
    for day in SCHEDULED:
        _follow(airflow, run_id, clock, until="ingest")
        _replay(day, day, clock, f"replay of {day}")
        replayed = time.time()
        _follow(airflow, run_id, clock)
        clock.say(f"Airflow's schedule runs {day}")
        run_id = _scheduled(airflow, day)
        names[str(day)] = run_id
        _follow(airflow, run_id, clock, until="ingest")
        if _instant(airflow.tasks(PIPELINE, run_id)["ingest"]["start_date"]) < replayed:
            raise RetryError(
                f"the run of {day} ingested before its day was replayed: this machine is too slow for the demo's order."
            )
    _follow(airflow, run_id, clock)
    return names


def _scheduled(airflow: Airflow, day: date, seconds: float = 120) -> str:
    """The id of the scheduled run over a day: found by its logical date, since an id carries the interval's end."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for run in airflow.runs(PIPELINE):
            if run["run_type"] == "scheduled" and (run["logical_date"] or "").startswith(str(day)):
                return str(run["dag_run_id"])
        time.sleep(1)
    raise RetryError(f"Airflow has not scheduled {day} within {seconds:.0f} s; see the scheduler's log.")


def _follow(airflow: Airflow, run_id: str, clock: Clock, until: str | None = None) -> None:
    """Say each change of a run's tasks until it, or its task `until`, is done. Raises RetryError where a task fails."""
    deadline = time.monotonic() + PATIENCE
    tasks: dict[str, dict[str, Any]] = {}
    while time.monotonic() < deadline:
        run = airflow.run(PIPELINE, run_id)
        tasks = airflow.tasks(PIPELINE, run_id)
        for name, task in tasks.items():
            clock.state(run_id, name, str(task["state"]), task["duration"])
        failed = [name for name, task in tasks.items() if task["state"] == "failed"]
        if failed:
            tail = airflow.log(PIPELINE, run_id, failed[0], tasks[failed[0]]["try_number"])[-3000:]
            raise RetryError(f"{failed[0]} failed in run {run_id}; its log ends so:\n{tail}")
        if run["state"] in FINISHED or (until and tasks.get(until, {}).get("state") == "success"):
            return
        time.sleep(1.5)
    states = {name: task["state"] for name, task in tasks.items()}
    raise RetryError(f"run {run_id} has not ended within {PATIENCE:.0f} s: {states}. See the logs in the state folder.")


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
