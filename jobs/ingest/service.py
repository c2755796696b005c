"""`penstock ingest --continuous`: the same reading, over and over, with a commit every so often, until SIGTERM.

A round is a whole run: it asks where Kafka ends, reads up to there, commits. Between rounds the service waits, and looks each
second how much has come: what has waited too long, or weighs too much, starts the next. Services that are away are waited for,
longer after each failure; what a person has to decide ends it.
"""

import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from jobs import letters
from jobs.command import Job
from jobs.errors import RetryError
from jobs.ingest import plan
from jobs.ingest.catch_up import Engine, catch_up
from jobs.ingest.gauges import Gauges
from jobs.ingest.plan import NoTopicError, Reach
from jobs.ingest.progress import Progress
from jobs.ingest.wishes import Wishes
from jobs.kafka import Bounds, Cluster

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks at how much waits."""

PATIENCE = 20
"""Rounds that may fail one after the other before the service gives up (75), for whoever runs it to start it again."""

LONGEST_PAUSE = 30.0
"""Seconds from a failed round to the next, at most, unless rounds are further apart anyway. The first pauses are 1, 2, 4, …"""

_RECORD_BYTES = 500
"""What a record is taken to weigh before the first have come."""


def serve(job: Job, wishes: Wishes, cluster: Cluster, engine: Engine, progress: Mapping[str, Progress]) -> None:
    """Go on until SIGTERM or SIGINT; the batch at hand is still committed.

    Raises DataError for what a person has to decide, RetryError after PATIENCE rounds that failed.
    """
    gauges = Gauges(wishes.metrics)
    failures = 0
    with _told_to_stop() as stop:
        while not stop.is_set():
            clock = time.monotonic()
            reaches: Mapping[str, Reach] = {}
            try:
                reaches = _reach(cluster, job)
                for source in job.source:
                    progress[source.name].reset(reaches[source.name])
                catch_up(
                    *(cluster, engine, job.source, reaches, progress),
                    run_id=job.run_id,
                    accept=wishes.accept,
                    stopping=stop.is_set,
                )
                _warn(job, progress)
                failures = 0
            except RetryError as failure:
                failures += 1
                gauges.failed()
                if failures == PATIENCE:
                    raise
                log.warning("round %d of at most %d failed: %s", failures, PATIENCE, failure)
            gauges.show(progress)
            for source in job.source:
                if source.name in reaches:
                    gauges.lag(source.name, _lag(reaches[source.name].bounds, progress[source.name]))
            if failures:
                pause = min(2.0 ** (failures - 1), max(LONGEST_PAUSE, wishes.every))
                _wait(stop, job, cluster, gauges, progress, until=time.monotonic() + pause)
            else:
                _wait(stop, job, cluster, gauges, progress, until=clock + wishes.every, megabytes=wishes.megabytes)
    log.info("told to stop: all that was read is committed")


def _reach(cluster: Cluster, job: Job) -> Mapping[str, Reach]:
    """How far Kafka reaches. A topic that was there when the service began is away, as a broker may be, until it is created."""
    try:
        return plan.reach(cluster, job.source)
    except NoTopicError as failure:
        raise RetryError(str(failure)) from failure


def _warn(job: Job, progress: Mapping[str, Progress]) -> None:
    for source in job.source:
        for known in letters.over_limit(source, progress[source.name].days):
            log.warning("too many dead letters: %s", known)
        progress[source.name].days.clear()


def _wait(
    stop: threading.Event,
    job: Job,
    cluster: Cluster,
    gauges: Gauges,
    progress: Mapping[str, Progress],
    *,
    until: float,
    megabytes: float | None = None,
) -> None:
    """Wait for the next round: until it is due, or, where `megabytes` are given, until so much waits in Kafka."""
    while not stop.wait(min(LOOK, max(0.0, until - time.monotonic()))):
        if time.monotonic() >= until:
            return
        try:
            topics = cluster.topics({source.topic for source in job.source})
            bounds = cluster.bounds(topics.values())
        except RetryError:
            continue
        waiting = 0.0
        for source in job.source:
            told = progress[source.name]
            lag = _lag(bounds.get(source.topic, {}), told)
            gauges.lag(source.name, lag)
            records = told.good + told.dead
            waiting += sum(lag.values()) * (told.bytes / records if records else _RECORD_BYTES)
        if megabytes is not None and waiting >= megabytes * 1e6:
            return


def _lag(bounds: Mapping[int, Bounds], told: Progress) -> dict[int, int]:
    """Offsets not yet read, of each partition whose position is known: a table that was not yet looked at may hold it all."""
    return {n: max(0, held.end - told.positions[n]) for n, held in bounds.items() if n in told.positions}


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set. A second one ends the process at once."""
    stop = threading.Event()

    def heard(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
