"""Sets the project up in its own folder: virtual environment, dependencies from the locks, the project itself, the JVM's jars.

Run by `make setup` through bin/setup, with nothing installed yet, so it has only the standard library. It checks first, each time
with a remedy, then works. The second time it finds its stamp and is done at once. All it makes is Penstock's own: `.venv`,
`.penstock/bootstrap` and the cache of jars. The environment variables of uv and pip (indexes, certificates, caches) hold as ever.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from jobs.errors import UsageError  # noqa: E402
from jobs.local import java  # noqa: E402
from jobs.local.ports import Ports  # noqa: E402

VENV = PROJECT / ".venv"
STAMP = VENV / "set-up"
BOOTSTRAP = PROJECT / ".penstock" / "bootstrap"
GIGABYTES = 12
"""Free disk that a first installation needs: 7 for the environment, the rest for what is downloaded and unpacked on the way."""


def main() -> int:
    """The steps in order."""
    parser = argparse.ArgumentParser(description="Set Penstock up in its own folder.")
    parser.add_argument("--services", action="store_true", help="the embedded services are to start next: check their ports too")
    options = parser.parse_args()
    try:
        java.check()
        with _alone():
            if _is_done():
                return 0
            _check(services=options.services)
            _install()
    except UsageError as error:
        print(f"setup: {error}", file=sys.stderr)
        return error.exit_code
    except subprocess.CalledProcessError as error:
        print(
            f"setup: `{' '.join(map(str, error.cmd))}` failed: see above, mend it, and run `make setup` again.", file=sys.stderr
        )
        return 75
    return 0


def _check(*, services: bool) -> None:
    """What would otherwise fail after minutes of work."""
    if importlib.util.find_spec("ensurepip") is None:
        raise UsageError(
            "This Python has no ensurepip, so it can't make environments: install its venv package (Debian: python3.11-venv)."
        )
    free = shutil.disk_usage(PROJECT).free / 1e9
    if free < GIGABYTES and not VENV.is_dir():
        raise UsageError(
            f"The disk of {PROJECT} has {free:.1f} GB free, and the first installation needs {GIGABYTES}: make room there."
        )
    # Services of ours may hold them by right; then `penstock up` itself, which can tell, checks.
    if services and not any((PROJECT / ".penstock" / "run").glob("*.json")):
        Ports().check(("kafka", "mlflow", "airflow"))


def _install() -> None:
    uv = _uv()
    # A stamp that is older than what follows would lie.
    STAMP.unlink(missing_ok=True)
    python = VENV / "bin" / "python"
    if not _belongs_here(VENV):
        _say(f"making {VENV.name}")
        # uv fills it, so it needs no pip of its own.
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", VENV)
    _say("installing the dependencies from requirements.lock (minutes and 7 GB the first time)")
    # Compiled once, imports cost half of their CPU seconds in all later processes, also where PYTHONDONTWRITEBYTECODE is set.
    _run(uv, "pip", "sync", "--python", python, "--require-hashes", "--compile-bytecode", PROJECT / "requirements.lock")
    _run(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "--no-build-isolation", "--editable", PROJECT)
    _say("fetching the jars of Spark and Kafka")
    _run(python, "-m", "jobs.jars")
    _say("keeping the classes that Spark loads, so that each job starts sooner (about a minute)")
    _run(python, "-m", "jobs.archive")
    STAMP.write_text(_digest())
    _say("done")


def _uv() -> Path:
    """The pinned uv, in an environment of its own, so that no sync can remove or replace it."""
    uv = BOOTSTRAP / "bin" / "uv"
    lock = PROJECT / "bootstrap.lock"
    stamp = BOOTSTRAP / "set-up"
    wanted = hashlib.sha256(lock.read_bytes() + bytes(PROJECT)).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        _say("installing uv")
        _run(sys.executable, "-m", "venv", "--clear", BOOTSTRAP)
        _run(BOOTSTRAP / "bin" / "python", "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", lock)
        stamp.write_text(wanted)
    return uv


def _belongs_here(venv: Path) -> bool:
    """Whether the environment runs and was made in this place: its programs name their Python by its whole path."""
    program = venv / "bin" / "python"
    query: list[str | Path] = [program, "-c", "import sys; print(sys.prefix, *sys.version_info[:2])"]
    try:
        told = subprocess.run(query, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    except OSError:
        return False
    first_lines = [path.read_bytes().partition(b"\n")[0] for path in venv.glob("bin/penstock")]
    return told.split() == [str(venv), "3", "11"] and all(bytes(venv) in line for line in first_lines)


def _is_done() -> bool:
    return STAMP.exists() and STAMP.read_text() == _digest()


def _digest() -> str:
    """Of all that decides what is installed: the locks, the declarations, the place."""
    inputs = [PROJECT / name for name in ("requirements.lock", "bootstrap.lock", "pyproject.toml", "jobs/jars.toml")]
    return hashlib.sha256(b"\0".join([bytes(PROJECT), *(path.read_bytes() for path in inputs)])).hexdigest()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Lets one set-up at a time work in this folder; the next finds it done."""
    folder = PROJECT / ".penstock"
    folder.mkdir(exist_ok=True)
    with (folder / ".setup-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*command: str | Path) -> None:
    # A virtual environment that happens to be active is not the one meant.
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, cwd=PROJECT, env=environment)


def _say(line: str) -> None:
    print(f"setup: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
