"""Background processes that outlive the command which started them, and can be ended later without hitting anyone else's.

A process id alone is not enough to end a process by: ids are reused. The record holds the start time too, and every
descendant carries a random token in its environment, by which it is found even after its parent has died (Airflow's
components leave such orphans).
"""

import contextlib
import json
import os
import secrets
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

TOKEN = "PENSTOCK_SERVICE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A process that `start` began, as `run/<name>.json` keeps it."""

    name: str
    pid: int
    started: float
    """Seconds since 1970, as the system tells it for the process: with the pid it is unique."""
    token: str
    port: int
    command: list[str]
    log: str

    def write(self, path: Path) -> None:
        """Puts the record in place at once, so that no reader sees half of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=2) + "\n")
        part.rename(path)

    @classmethod
    def read(cls, path: Path) -> "Started | None":
        """The record at `path`, or None where there is none."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None

    def process(self) -> psutil.Process | None:
        """The very process that was started, or None where it has ended, even if another has its id by now."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 1 and _lives(process)
        except psutil.Error:
            return None
        return process if same else None

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(Path(self.log).read_text(errors="replace").splitlines()[-lines:])
        return ""


def start(name: str, command: Sequence[str], *, port: int, log: Path, environment: Mapping[str, str], folder: Path) -> Started:
    """Starts `command` in a session of its own, so that it lives on when the shell closes, with its words in `log`."""
    token = secrets.token_hex(16)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        child = subprocess.Popen(
            list(command),
            # Titles that Airflow and gunicorn set would overwrite the environment, and the token with it, but for SPT_NOENV.
            env={**environment, TOKEN: token, "SPT_NOENV": "1"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        started = psutil.Process(child.pid).create_time()
    except psutil.NoSuchProcess:
        started = 0.0  # It has ended already, so no process can match the record.
    # Not our child to wait for: whoever calls goes away before it does. `_lives` reaps it if it ends earlier.
    child.returncode = 0
    return Started(name=name, pid=child.pid, started=started, token=token, port=port, command=list(command), log=str(log))


def end(records: Iterable[Started], *, patience: float = 20.0) -> None:
    """Ends the processes with all their descendants, orphans included: SIGTERM, at most `patience` seconds, SIGKILL.

    Returns when none is left. Processes that the records don't name are left alone, whatever their id.
    """
    records = list(records)
    victims = _family(records)
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.terminate()
    _wait(victims, patience)
    # Somebody may have started a child while it was told to go, so look again until nobody is left.
    while victims := _family(records):
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        _wait(victims, 5.0)


def _family(records: Sequence[Started]) -> list[psutil.Process]:
    """The recorded processes that live, their descendants, and whoever carries one of the tokens."""
    tokens = {record.token for record in records}
    family: dict[int, psutil.Process] = {}
    for record in records:
        if process := record.process():
            family[process.pid] = process
            with contextlib.suppress(psutil.Error):
                family.update({child.pid: child for child in process.children(recursive=True)})
    family.update({process.pid: process for process in carriers(tokens)})
    return [process for process in family.values() if _lives(process) and process.pid != os.getpid()]


def carriers(tokens: Collection[str]) -> list[psutil.Process]:
    """The living processes that carry one of the tokens: those started and all their descendants, whoever is the parent now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(TOKEN) in tokens and _lives(process):
                found.append(process)
    return found


def _wait(processes: Sequence[psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(_lives(process) for process in processes):
        time.sleep(0.1)


def _lives(process: psutil.Process) -> bool:
    """Whether it still runs. A zombie has ended: in a container its adopted parent may never reap it."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
