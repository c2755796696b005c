"""What a call of `penstock ingest` asks for, checked: an option that would have no effect is an error."""

from argparse import Namespace
from dataclasses import dataclass, field
from datetime import UTC, datetime

from jobs.errors import UsageError
from jobs.ingest.plan import Accept


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """The options of one call. Without any, a run reads what is new, on this machine, and ends."""

    engine: str = "local"
    until: datetime | None = None
    accept: Accept = field(default_factory=Accept)
    rebuild: bool = False
    continuous: bool = False
    every: float = 60.0
    """Seconds between two commits of the service, at most."""
    megabytes: float = 64.0
    """What may wait in Kafka before the service commits sooner."""
    metrics: tuple[str, int] | None = None
    """Host and port where Prometheus finds the service's figures."""

    @classmethod
    def of(cls, options: Namespace) -> "Wishes":
        """From the command line. Raises UsageError for what contradicts itself."""
        given = {name: value for name, value in vars(options).items() if value is not None and value is not False}
        service = [f"--{name}" for name in ("every", "megabytes", "metrics") if name in given]
        if service and "continuous" not in given:
            raise UsageError(f"{service[0]} is for the service alone: give --continuous too, or leave it out.")
        for one, other in (("continuous", "until"), ("continuous", "rebuild"), ("rebuild", "accept_new_topic")):
            if one in given and other in given:
                raise UsageError(f"{_flag(one)} and {_flag(other)} exclude each other: give one of them.")
        for name in ("accept_loss", "accept_new_topic"):
            if name in given and "continuous" in given:
                raise UsageError(
                    f"--continuous and {_flag(name)} exclude each other: a service would accept, months later, what nobody has "
                    f"looked at. Run the ingest once with {_flag(name)}, then start the service without."
                )
        for name in ("every", "megabytes"):
            if name in given and not given[name] > 0:
                raise UsageError(f"--{name} {given[name]:g} is not above 0: give how much, for example --{name} 30.")
        return cls(
            **{name: given[name] for name in ("engine", "every", "megabytes") if name in given},
            until=_instant(given["until"]) if "until" in given else None,
            accept=Accept(loss="accept_loss" in given, new_topic="accept_new_topic" in given),
            rebuild="rebuild" in given,
            continuous="continuous" in given,
            metrics=_address(given["metrics"]) if "metrics" in given else None,
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _instant(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--until {text!r} is no instant: write it as 2013-04-01T06:00:00Z.") from None
    if moment.tzinfo is None:
        raise UsageError(f"--until {text} has no offset, so it is ambiguous: write {text}Z for UTC.")
    return moment.astimezone(UTC)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 <= int(port) < 65536:
        raise UsageError(f"--metrics {text!r} is no address: give a port, or host:port, for example 127.0.0.1:9400.")
    return host or "127.0.0.1", int(port)
