"""`penstock dead-letters acknowledge`: somebody takes responsibility for a day's dead letters, by name and reason.

A commit without files, so it stays with the table for ever. It is about the letters that lay there when it was made; what comes
for the same day later counts again.
"""

import logging
import uuid
from typing import Any

from deltalake import DeltaTable

from jobs import account, batches, lake, letters
from jobs.account import Account, Partition
from jobs.command import Job
from jobs.commit import commit
from jobs.errors import RetryError, UsageError
from jobs.interval import Interval, parse_day
from jobs.letters import KnownDay
from pipelines.declare import Source

log = logging.getLogger(__name__)

TRIES = 10


def run(job: Job) -> None:
    """Acknowledge the letters of the days. The report says how many, by day and reason; none is no failure.

    Raises UsageError for an empty name or reason, and for more than one source.
    """
    options = job.options
    by, reason = options.by.strip(), options.reason.strip()
    for name, text in (("--by", by), ("--reason", reason)):
        if not text:
            raise UsageError(f"{name} is empty: it is kept with the table, for whoever asks later. Give who, and why.")
    if len(job.source) > 1:
        names = ", ".join(source.name for source in job.source)
        raise UsageError(f"{options.subject} reads several sources: acknowledge one of them at a time ({names}).")
    (source,) = job.source
    first = parse_day(options.day)
    days = Interval.inclusive(first, parse_day(options.last) if options.last else first)
    done = acknowledge(source, days, by, reason, job.run_id)
    job.report["sources"] = {
        source.name: {
            "acknowledged": sum(known.open.total() for known in done),
            "days": [{"day": known.day, "reasons": dict(known.open)} for known in done],
            "by": by,
            "reason": reason,
        }
    }
    if not options.json:
        for known in done:
            print(f"{source.name}, {known.day}: {known.open.total():,} dead letters acknowledged by {by}: {reason}")
        if not done:
            print(f"{source.name}, {days}: nothing to acknowledge")


def acknowledge(source: Source, days: Interval, by: str, reason: str, run_id: str) -> list[KnownDay]:
    """Acknowledge what is still dead and open on the days. Returns the days as they were before; none where nothing was open.

    Raises RetryError where neighbours were always first.
    """
    for _ in range(TRIES):
        table = lake.load(batches.events_uri(source))
        if table is None:
            return []
        account.settle(source)
        found = letters.by_known_day(source, version=table.version())
        again = lake.load(batches.events_uri(source))
        if again is None or _rewrites(again) != _rewrites(table):
            continue  # A rebuild may have voided what was counted.
        open_ = [known for day, known in sorted(found.items()) if days.start <= day < days.end and known.open]
        if not open_:
            return []
        told = _account(source, table, open_, {"by": by, "reason": reason}, run_id)
        if commit(source, table, [], told, {batches.REWRITE: _rewrites(table) + 1}):
            account.settle(source)
            return open_
        log.info("%s: somebody else changed its letters meanwhile; looking again", source.name)
    raise RetryError(f"{source.name}: the acknowledgement was lost to other writers {TRIES} times. Try again.")


def _rewrites(table: DeltaTable) -> int:
    return table.transaction_version(batches.REWRITE) or 0


def _account(source: Source, table: DeltaTable, days: list[KnownDay], who: dict[str, Any], run_id: str) -> Account:
    told = Partition(partition=None)
    for known in days:
        for reason, rows in known.open.items():
            told.dead_counts[known.day, reason] += rows
    newest = batches.ranges(source, "topic_id, version, kafka_partition, start_offset").column("topic_id")[-1].as_py()
    return Account(
        kind="acknowledge",
        batch=uuid.uuid4().hex[:16],
        run_id=run_id,
        topic=source.topic,
        topic_id=newest,
        epoch=table.transaction_version(batches.epoch_id(source)) or 0,
        partitions=[told],
        # The version at which the letters were counted: an ingest may commit before this does, and is not meant.
        note=who | {"days": [str(known.day) for known in days], "version": table.version()},
    )
