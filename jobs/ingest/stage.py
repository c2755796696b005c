"""`penstock ingest SOURCE|PIPELINE`: read what is new in Kafka into the events tables.

Plan, read, commit, account, for each source; again where a neighbour committed first, or the backlog is larger than a batch. Each
source is complete by itself: one that fails leaves the others' commits as they are.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from jobs.command import Job
from jobs.errors import RetryError
from jobs.ingest import account, commit, plan, workers
from jobs.ingest.plan import Plan, Reach
from jobs.ingest.reader import Done
from jobs.kafka import Cluster

log = logging.getLogger(__name__)

TRIES = 10
"""How often a batch may lose to neighbours before the run gives up, to be tried again later."""

_Of = TypeVar("_Of")


def run(job: Job) -> None:
    """Ingest the sources of the job. The report says, for each, what came in and up to when."""
    cluster = Cluster()
    reaches = plan.reach(cluster, job.source)
    report = job.report["sources"] = {source.name: _blank(reaches[source.name]) for source in job.source}
    lost: Counter[str] = Counter()
    pending = job.source
    while pending:
        # All refusals come before anything is read.
        plans = _each(pending, lambda source: plan.make(cluster, source, reaches[source.name], job.run_id))
        done = workers.read_all([work for made in plans for work in made.ranges])
        batches = [(made, [one for one in done if one.range.batch == made.batch]) for made in plans]
        kept = _each(batches, lambda batch: _keep(*batch))
        for (made, parts), committed in zip(batches, kept, strict=True):
            if committed:
                _note(report[made.source.name], made, parts)
                continue
            lost[made.source.name] += 1
            if lost[made.source.name] == TRIES:
                raise RetryError(f"{made.source.name}: {TRIES} batches were lost to other ingests of the same time. Try again.")
        pending = tuple(
            made.source
            for made, committed in zip(plans, kept, strict=True)
            if not committed or _is_behind(made, reaches[made.source.name])
        )
    if not job.options.json:
        for name, told in report.items():
            moment = told["read_up_to"] or "an open transaction"
            print(f"{name}: {told['good']} events and {told['dead']} dead letters, read up to {moment}")


def _is_behind(made: Plan, reach: Reach) -> bool:
    """Whether more is to be read after this batch."""
    return any(made.positions[partition] < held.end for partition, held in reach.bounds.items())


def _keep(made: Plan, done: Sequence[Done]) -> bool:
    """Commit what was read and account for it; where there was nothing to read, only the account."""
    if not made.ranges:
        account.settle(made.source, closure=made)
        return True
    if not commit.commit(made, done):
        return False
    account.settle(made.source)
    return True


def _blank(reach: Reach) -> dict[str, Any]:
    return {
        "good": 0,
        "dead": 0,
        "bytes": 0,
        "batches": 0,
        "reasons": {},
        "positions": {},
        "read_up_to": None,
        "open_transaction": reach.undecided,
    }


def _note(told: dict[str, Any], made: Plan, done: Sequence[Done]) -> None:
    """Add a committed batch to the report."""
    told["good"] += sum(one.good for one in done)
    told["dead"] += sum(one.dead for one in done)
    told["bytes"] += sum(one.bytes for one in done)
    told["batches"] += bool(made.ranges)
    told["reasons"] = dict(sum((one.reasons for one in done), Counter(told["reasons"])))
    told["positions"] = {str(partition): position for partition, position in sorted(made.positions.items())}
    told["read_up_to"] = made.read_up_to


def _each(items: Sequence[Any], work: Callable[[Any], _Of]) -> list[_Of]:
    """`work` on each item at once: it waits for the store and for Kafka."""
    with ThreadPoolExecutor(max_workers=max(1, len(items))) as pool:
        return list(pool.map(work, items))
