"""A job's process never outlives its task, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dags.child import Child

ROOT = Path(__file__).resolve().parent.parent

# A job that can't be asked to go, with a child of its own; both tell their ids in a file.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "60"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
print("ready", flush=True)
time.sleep(60)
"""


def run(code: str, *arguments: object) -> Child:
    return Child([sys.executable, "-c", code, *map(str, arguments)], os.environ)


def gone(pid: int, within: float = 5.0) -> bool:
    """Whether the process ends in time; one that nobody has waited for yet has ended."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_lines_of_both_outputs_come_in_order_and_the_exit_code_after_them() -> None:
    child = run(
        r"import os, sys; os.write(1, b'one\ntwo\r\n'); os.write(2, b'three \xff\n'); "
        r"os.write(1, b'last'); print(sys.stdin.read()); sys.exit(65)"
    )
    assert list(child.lines()) == ["one", "two", "three \N{REPLACEMENT CHARACTER}", "last"]
    assert child.wait() == 65


def test_the_end_takes_the_whole_group_within_four_seconds(tmp_path: Path) -> None:
    child = run(STUBBORN, tmp_path / "pids")
    assert next(child.lines()) == "ready"
    began = time.monotonic()
    child.end()
    assert child.wait() == -signal.SIGKILL
    assert time.monotonic() - began < 4
    assert all(gone(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_a_killed_job_ends_at_once_though_its_own_child_holds_the_output(tmp_path: Path) -> None:
    child = run(STUBBORN, tmp_path / "pids")
    lines = child.lines()
    assert next(lines) == "ready"
    job, grandchild = map(int, (tmp_path / "pids").read_text().split())
    os.kill(job, signal.SIGKILL)
    began = time.monotonic()
    assert list(lines) == []
    assert child.wait() == -signal.SIGKILL
    assert time.monotonic() - began < 8
    assert gone(grandchild)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_no_twin_is_left_when_the_runner_is_killed() -> None:
    runner = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from dags.child import Child
child = Child([sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"], os.environ)
print(next(child.lines()), child.pid, flush=True)
child.wait()
"""
    with subprocess.Popen([sys.executable, "-c", runner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        word, pid = process.stdout.readline().split()
        assert word == "ready" and psutil.pid_exists(int(pid))
        process.kill()
        assert gone(int(pid))
