"""The service's figures for Prometheus."""

import time
from collections.abc import Mapping
from functools import partial

from jobs.errors import UsageError
from jobs.ingest.progress import Progress


class Gauges:
    """Figures that are served on an address, or nowhere."""

    def __init__(self, address: tuple[str, int] | None) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

        registry = CollectorRegistry()
        self._lag = Gauge("penstock_ingest_lag_records", "Offsets not yet read", ["source", "partition"], registry=registry)
        self._read_up_to = Gauge(
            "penstock_ingest_read_up_to_timestamp_seconds",
            "All that had reached Kafka by then is read",
            ["source"],
            registry=registry,
        )
        self._freshness = Gauge(
            "penstock_ingest_freshness_seconds",
            "How long ago the moment was up to which all is read",
            ["source"],
            registry=registry,
        )
        self._records = Counter("penstock_ingest_records", "Records committed", ["source", "outcome"], registry=registry)
        self._bytes = Counter("penstock_ingest_bytes", "Bytes of the values committed", ["source"], registry=registry)
        self._batches = Counter("penstock_ingest_batches", "Batches committed", ["source"], registry=registry)
        self._failures = Counter("penstock_ingest_failed_rounds", "Rounds that failed and are tried again", registry=registry)
        self._round = Histogram(
            "penstock_ingest_batch_seconds",
            "The longest batch of a round, from its plan to its commit",
            ["source"],
            buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300),
            registry=registry,
        )
        self._shown: dict[str, tuple[int, int, int, int]] = {}
        if address is not None:
            host, port = address
            try:
                start_http_server(port, addr=host, registry=registry)
            except OSError as failure:
                raise UsageError(
                    f"--metrics {host}:{port} can't be served ({failure.strerror}): give an address that is free."
                ) from failure

    def show(self, progress: Mapping[str, Progress]) -> None:
        """Bring the figures up to date after a round."""
        for name, told in progress.items():
            good, dead, size, batches = self._shown.get(name, (0, 0, 0, 0))
            self._records.labels(name, "good").inc(told.good - good)
            self._records.labels(name, "dead").inc(told.dead - dead)
            self._bytes.labels(name).inc(told.bytes - size)
            self._batches.labels(name).inc(told.batches - batches)
            if told.batches > batches:
                self._round.labels(name).observe(told.round_batch)
            self._shown[name] = (told.good, told.dead, told.bytes, told.batches)
            if told.read_up_to is not None:
                moment = told.read_up_to.timestamp()
                self._read_up_to.labels(name).set(moment)
                self._freshness.labels(name).set_function(partial(_age, moment))

    def lag(self, name: str, lag: Mapping[int, int]) -> None:
        """Offsets not yet read, by partition, as far as both ends are known."""
        for partition, offsets in lag.items():
            self._lag.labels(name, str(partition)).set(max(0, offsets))

    def failed(self) -> None:
        """A round failed."""
        self._failures.inc()


def _age(moment: float) -> float:
    return time.time() - moment
