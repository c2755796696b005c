"""Which loopback ports the embedded services listen on, and whether they are free."""

import contextlib
import dataclasses
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from jobs.errors import UsageError

HOST = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ports:
    """One port for each listener. The defaults are uncommon ones, so that they meet nobody else's Kafka or Airflow."""

    kafka: int = 19092
    controller: int = 19093
    """Where the broker's own quorum of one votes; clients never use it."""
    mlflow: int = 15000
    airflow: int = 18080

    @classmethod
    def free(cls) -> "Ports":
        """Ports that nobody listens on now, all different: for tests. Another process may still take one before it is used."""
        names = [field.name for field in dataclasses.fields(cls)]
        with contextlib.ExitStack() as open_sockets:
            sockets = [open_sockets.enter_context(socket.socket()) for _ in names]
            for listener in sockets:
                listener.bind((HOST, 0))
            return cls(**{name: listener.getsockname()[1] for name, listener in zip(names, sockets, strict=True)})

    def of(self, service: str) -> tuple[int, ...]:
        """What a service listens on, the port for clients first."""
        names = ("kafka", "controller") if service == "kafka" else (service,)
        return tuple(getattr(self, name) for name in names)

    def check(self, services: Iterable[str]) -> None:
        """Raises UsageError where one of the services' ports is taken, naming who holds it where that can be known."""
        for service in services:
            for port in self.of(service):
                if not _is_free(port):
                    raise UsageError(
                        f"Port {port}, which the embedded {service} needs, is taken by {_holder(port)}: "
                        "stop that first. (`penstock up --only …` starts some of the services alone.)"
                    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: a connection that is still closing is no reason to refuse.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _holder(port: int) -> str:
    """Who listens on a port, in words. Other users' processes are only seen by root, and before the set-up nobody's."""
    try:
        import psutil
    except ImportError:
        return f"another process (`lsof -i :{port}` may name it)"
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return "another process"
