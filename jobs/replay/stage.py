"""`penstock replay DATASET --from D --to D`: the records known on these days, to Kafka, with their own timestamps.

Running it again sends what is missing, and nothing twice, as long as the arguments are the same. Where a partition holds other
records of these days, it is refused. A data set of any size is sent some days at a time.
"""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from jobs.command import Job
from jobs.errors import UsageError
from jobs.interval import Interval, resolve
from jobs.kafka import Cluster
from jobs.replay import flights, purchases, retail, send
from jobs.replay.damage import damaged
from jobs.replay.history import History

log = logging.getLogger(__name__)

Piece = tuple[Interval, list[tuple[History, int]]]
"""Days, and for each topic what was known on them, with how many of it are damaged."""


def run(job: Job) -> None:
    """Replay the flights' days. The report says, for each topic, what the history holds, what was there already and what was
    sent."""
    assert job.interval is not None
    every = _broken_every(job)
    days = flights.covered(job.interval)
    _replay(job, [(days, [damaged(history, every) for history in flights.histories(days)])])


def purchases_made(job: Job) -> None:
    """Replay a shop's days, all that it covers where none are given."""
    every, asked = _broken_every(job), job.options
    try:
        shop = purchases.Shop(seed=asked.seed, users=asked.users, days=asked.days, events=asked.events)
    except (ValueError, OverflowError) as wrong:
        raise UsageError(str(wrong)) from wrong
    _replay(job, purchases.pieces(shop, _within(job, shop.covered), every))


def retail_read(job: Job) -> None:
    """Replay a file's days, all that it covers where none are given."""
    every, found = _broken_every(job), retail.records(job.options.file)
    _replay(job, retail.pieces(found, _within(job, retail.covered(found)), every))


def _broken_every(job: Job) -> int:
    every: int = job.options.broken_every
    if every < 0:
        raise UsageError(
            f"--broken-every {every} is negative: give how many good records lie between two broken ones, or 0 for none."
        )
    return every


def _within(job: Job, covered: Interval) -> Interval:
    """The days asked for, which the data set has to cover."""
    first, last = job.options.first, job.options.last
    job.interval = resolve(first=first, last=last, now=datetime.now(UTC)) if first or last else covered
    if job.interval.start < covered.start or job.interval.end > covered.end:
        raise UsageError(f"nothing is known of some days of {job.interval}: the data are of {covered}. Give days among these.")
    return job.interval


def _replay(job: Job, pieces: Iterable[Piece]) -> None:
    """Send the pieces, in order of time."""
    cluster = Cluster()
    topics = None
    job.report.update(topics={}, sent=0)
    for days, work in pieces:
        log.info("%s: %s", days, ", ".join(f"{len(history)} for {history.source.topic}" for history, _ in work))
        topics = topics or send.topics(cluster, [history for history, _ in work])
        lanes = [
            lane
            for history, _ in work
            for lane in send.lanes(cluster, topics[history.source.topic], history, days, again=job.options.again)
        ]
        for history, broken in work:
            told = job.report["topics"].setdefault(history.source.topic, {"records": 0, "broken": 0, "skipped": 0})
            told["records"] += len(history)
            told["broken"] += broken
            told["skipped"] += sum(lane.skip for lane in lanes if lane.history is history)
        job.report["sent"] += send.send(lanes)
    if not job.options.json:
        for topic, told in job.report["topics"].items():
            print(f"{topic}: {told['records']} records ({told['broken']} of them broken), {told['skipped']} were there already")
