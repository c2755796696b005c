"""A job's process, bound to the task that started it: it ends when the task is killed, whichever way.

Airflow's stock ways to run a command leave it running when their own process is killed with SIGKILL, and a retry then
starts beside it.
"""

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

PATIENCE = 3.0
"""Seconds between SIGTERM and SIGKILL. Airflow kills the task itself 5 s after it asked for the end."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Child:
    """A command in a process group of its own, whose output comes line by line."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        parent = os.getpid()

        def bind() -> None:
            """Between fork and exec: let the kernel send SIGTERM when the parent dies, even by SIGKILL."""
            if _LIBC is not None:
                _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
                if os.getppid() != parent:
                    os._exit(128 + signal.SIGTERM)

        # Without a standard input of its own, a child keeps open the socket that is the task's: a killed task would
        # seem to run until the child ends. One thread has forked so far, so preexec_fn is safe.
        self._process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=bind,
        )

    @property
    def pid(self) -> int:
        """The process's id, and its group's."""
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """What the process writes to either output, until it has ended.

        Its own children may hold the output open longer; they get `PATIENCE` to go.
        """
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        rest = b""
        deadline: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while deadline is None or time.monotonic() < deadline:
                if selector.select(timeout=0.2):
                    chunk = os.read(output, 65536)
                    if not chunk:
                        break
                    *whole, rest = (rest + chunk).split(b"\n")
                    yield from (_text(line) for line in whole)
                if deadline is None and self._ended():
                    deadline = time.monotonic() + PATIENCE
        if rest:
            yield _text(rest)

    def wait(self) -> int:
        """Its exit code once it has ended, or minus the signal that ended it; then ends what is left of its group."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.end()
        return self._process.wait()

    def end(self) -> None:
        """End the process and its whole group: SIGTERM, at most `PATIENCE` seconds, SIGKILL. Again and again is fine."""
        # Once its end was taken note of, the kernel may give its id to another process.
        if self._process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and not self._ended():
            time.sleep(0.05)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _ended(self) -> bool:
        """Whether the process has ended, without taking note of it."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r")
