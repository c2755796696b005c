"""Starts and stops the embedded services: for `penstock up`, for the demo, and for the tests' fixtures.

All that they keep lies in one state folder: `kafka/`, `mlflow/`, `airflow/` with their data, `lake/`, `logs/`, `run/` with a
record of each process, and `endpoints.json` with the addresses.
"""

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs.errors import RetryError, UsageError
from jobs.local import airflow_server, broker, process, registry_server
from jobs.local.ports import HOST, Ports
from jobs.settings import PROJECT

SERVICES = ("kafka", "mlflow", "airflow")

ENDPOINTS = ("PENSTOCK_LAKE", "KAFKA_BOOTSTRAP_SERVERS", "MLFLOW_TRACKING_URI")
"""What jobs read from the environment (jobs.settings)."""

# Seconds for a service to answer: ten times what two idle cores take, since a laptop is seldom idle.
PATIENCE = {"kafka": 90, "mlflow": 240, "airflow": 420}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a service needs to start."""

    name: str
    port: int
    """The port that clients use."""
    environment: dict[str, str]
    prepare: Callable[[], dict[str, list[str]]]
    """Makes ready on disk what has to be, and gives the commands, by the name of the process."""
    ready: Callable[[], bool]


def say_aloud(line: str) -> None:
    """Prints a line of progress, whole and at once, since several threads speak; on stderr, since stdout is for results."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def start(
    state: Path,
    only: Sequence[str] = SERVICES,
    ports: Ports | None = None,
    *,
    dags: Path = PROJECT / "dags",
    say: Callable[[str], None] = say_aloud,
) -> dict[str, str]:
    """Starts the services named that do not run yet, all at once, and returns the addresses of all that run.

    They outlive this process. `say` is told of each one as it becomes ready.

    Raises UsageError for an unknown service or a taken port, before anything starts; RetryError where a service ends while it
    starts, or is not ready in time: then those of this call are stopped again.
    """
    unknown = sorted(set(only) - set(SERVICES))
    if unknown or not only:
        raise UsageError(f"No embedded service is called {', '.join(unknown) or '(nothing)'}: choose from {', '.join(SERVICES)}.")
    state = state.resolve()
    with _alone(state):
        running = _running(state)
        wanted = [name for name in SERVICES if name in only]
        for name in [name for name in wanted if name in running]:
            say(f"{name} is already running on port {running[name][0].port}")
        missing = [name for name in wanted if name not in running]
        # Where one component of Airflow died, the others are ended first, and all start anew.
        process.end(record for name in missing for record in recorded(state, name))
        _forget(state, missing)
        ports = ports or Ports()
        ports.check(missing)
        listening = {name: records[0].port for name, records in running.items()}
        endpoints = _endpoints(state, listening | {name: getattr(ports, name) for name in missing})
        plans = [_plan(name, state, ports, endpoints, dags) for name in missing]
        try:
            # When one fails, or somebody presses Ctrl-C, waiting for the others is in vain.
            failed = threading.Event()
            with ThreadPoolExecutor(max_workers=len(SERVICES)) as pool:
                try:
                    for done in as_completed([pool.submit(_start, plan, state, say, failed) for plan in plans]):
                        done.result()
                except BaseException:
                    failed.set()
                    raise
        except BaseException:
            process.end(record for name in missing for record in recorded(state, name))
            _forget(state, missing)
            raise
        _publish(state, endpoints)
        return endpoints


def stop(state: Path, *, say: Callable[[str], None] = say_aloud) -> list[str]:
    """Ends what `start` began in this state folder and nothing else, and returns the services' names; again and again is fine."""
    state = state.resolve()
    if not (state / "run").is_dir():
        say("nothing is running")
        return []
    with _alone(state):
        stopped = [name for name in SERVICES if recorded(state, name)]
        # Airflow first, since its tasks use the others. It has nothing to save, and its triggerer would take ten seconds.
        process.end(recorded(state, "airflow"), patience=4)
        process.end([*recorded(state, "kafka"), *recorded(state, "mlflow")])
        _forget(state, SERVICES)
        (state / "endpoints.json").unlink(missing_ok=True)
    say(f"stopped {', '.join(stopped)}" if stopped else "nothing is running")
    return stopped


def _plan(name: str, state: Path, ports: Ports, endpoints: Mapping[str, str], dags: Path) -> Plan:
    inherited = _inherited()
    match name:
        case "kafka":
            return Plan(
                name=name,
                port=ports.kafka,
                environment=inherited,
                prepare=lambda: {"kafka": broker.prepare(state, ports)},
                ready=lambda: broker.ready(ports.kafka),
            )
        case "mlflow":
            return Plan(
                name=name,
                port=ports.mlflow,
                environment=inherited | registry_server.environment(),
                prepare=lambda: {"mlflow": registry_server.prepare(state, ports.mlflow)},
                ready=lambda: registry_server.ready(ports.mlflow),
            )
        case _:
            # Tasks run `penstock …`, which finds the other services by these.
            jobs = {key: endpoints[key] for key in ENDPOINTS if key in endpoints}
            variables = inherited | jobs | {"PENSTOCK_STATE": str(state)} | airflow_server.environment(state, ports.airflow, dags)
            return Plan(
                name=name,
                port=ports.airflow,
                environment=variables,
                prepare=lambda: airflow_server.prepare(state, variables),
                ready=lambda: airflow_server.ready(ports.airflow),
            )


def _start(plan: Plan, state: Path, say: Callable[[str], None], failed: threading.Event) -> None:
    """Starts one service and waits until it answers, or until `failed` says that another one did not."""
    began = time.monotonic()
    say(f"{plan.name} is starting")
    records = []
    for name, command in plan.prepare().items():
        log = state / "logs" / f"{name}.log"
        record = process.start(name, command, port=plan.port, log=log, environment=plan.environment, folder=state)
        record.write(state / "run" / f"{name}.json")
        records.append(record)
    while not plan.ready():
        if failed.is_set():
            return
        for record in records:
            if record.process() is None:
                raise RetryError(f"{record.name} ended while it started; its log {record.log} ends so:\n{record.tail()}")
        if time.monotonic() - began > PATIENCE[plan.name]:
            raise RetryError(f"{plan.name} was not ready after {PATIENCE[plan.name]} s: see {records[0].log}, and try again.")
        time.sleep(0.3)
    say(f"{plan.name} ready after {time.monotonic() - began:.0f} s")


def _inherited() -> dict[str, str]:
    """This process's environment with the virtual environment's programs first, so that `penstock` is found."""
    bin_folder = str(Path(sys.executable).parent)
    return dict(os.environ) | {"PATH": os.pathsep.join([bin_folder, os.environ.get("PATH", os.defpath)])}


def _endpoints(state: Path, running: Mapping[str, int]) -> dict[str, str]:
    """The addresses of the services that run, by the port of each."""
    endpoints = {"PENSTOCK_LAKE": str(state / "lake")}
    if "kafka" in running:
        endpoints["KAFKA_BOOTSTRAP_SERVERS"] = f"{HOST}:{running['kafka']}"
    if "mlflow" in running:
        endpoints["MLFLOW_TRACKING_URI"] = f"http://{HOST}:{running['mlflow']}"
    if "airflow" in running:
        endpoints["AIRFLOW_URL"] = f"http://{HOST}:{running['airflow']}"
        endpoints["AIRFLOW_PASSWORD_FILE"] = str(airflow_server.password_file(state))
    return endpoints


def _publish(state: Path, endpoints: Mapping[str, str]) -> None:
    part = state / "endpoints.part"
    part.write_text(json.dumps(endpoints, indent=2) + "\n")
    part.rename(state / "endpoints.json")


def recorded(state: Path, service: str) -> list[process.Started]:
    """What was started for a service, whether it still lives or not."""
    paths = sorted((state / "run").glob(f"{service}*.json"))
    return [record for path in paths if (record := process.Started.read(path))]


def _running(state: Path) -> dict[str, list[process.Started]]:
    """The services all of whose processes live."""
    started = {name: recorded(state, name) for name in SERVICES}
    return {name: records for name, records in started.items() if records and all(record.process() for record in records)}


def _forget(state: Path, services: Sequence[str]) -> None:
    for service in services:
        for path in (state / "run").glob(f"{service}*.json"):
            path.unlink()


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Lets one command at a time start or stop services of a state folder."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RetryError(f"Another `penstock up` or `down` is at work in {state}: try again when it is done.") from None
        yield
