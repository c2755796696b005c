"""Read some sources up to where Kafka ended when it was asked: plan, read, commit, account, batch by batch.

Each source is complete by itself: one that fails leaves the others' commits as they are. All refusals of a round come before
anything of it is read.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from jobs import account
from jobs.commit import commit
from jobs.errors import RetryError
from jobs.ingest import plan
from jobs.ingest.plan import Accept, Plan, Reach
from jobs.ingest.progress import Progress
from jobs.ingest.ranges import Done, Range
from jobs.kafka import Cluster
from pipelines.declare import Source

TRIES = 10
"""How often a batch may lose to neighbours before the run gives up, to be tried again later."""

_Of = TypeVar("_Of")


class Engine(Protocol):
    """Who reads ranges."""

    @property
    def scale(self) -> int:
        """How many times as large as usual its batches may be, so that each of its cores has enough to do."""

    def prepare(self, behind: int) -> None:
        """Be told how many records will follow the batch that is read next."""

    def read_all(self, ranges: Sequence[Range]) -> list[Done]:
        """Read every range; what it returns is all that may be committed."""

    def close(self) -> None:
        """Give back what it holds."""


def catch_up(
    cluster: Cluster,
    engine: Engine,
    sources: tuple[Source, ...],
    reaches: Mapping[str, Reach],
    progress: Mapping[str, Progress],
    *,
    run_id: str,
    accept: Accept | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Read the sources up to their reaches. `stopping` is asked between batches: then what is committed is all.

    Raises DataError for contradictions between a table and Kafka, RetryError where services are away or neighbours were always
    first.
    """
    lost: Counter[str] = Counter()
    pending = sources
    while pending and not stopping():
        clock = time.monotonic()
        plans = _each(
            pending,
            lambda source: plan.make(
                cluster, source, reaches[source.name], run_id, accept=accept, records=progress[source.name].limit(engine.scale)
            ),
        )
        engine.prepare(sum(made.behind for made in plans))
        done = engine.read_all([work for made in plans for work in made.ranges])
        batches = [(made, [one for one in done if one.range.batch == made.batch]) for made in plans]
        kept = _each(batches, lambda batch: _outcome(lambda: _keep(cluster, *batch)))
        for (made, parts), committed in zip(batches, kept, strict=True):
            if committed is True:
                progress[made.source.name].note(made, parts, time.monotonic() - clock)
        for made, committed in zip(plans, kept, strict=True):
            if isinstance(committed, Exception):
                raise committed
            name = made.source.name
            lost[name] += not committed
            if lost[name] == TRIES:
                raise RetryError(f"{name}: {TRIES} batches were lost to other ingests of the same time. Try again.")
        pending = tuple(made.source for made, committed in zip(plans, kept, strict=True) if not committed or made.behind)


def _outcome(work: Callable[[], bool]) -> bool | Exception:
    """What `work` returns, or fails with: the commits of other sources are noted before it is raised."""
    try:
        return work()
    except Exception as failure:
        return failure


def _keep(cluster: Cluster, made: Plan, done: Sequence[Done]) -> bool:
    """Commit what was read and account for it; where there was nothing to read, only the account, if it closes anything."""
    told = made.account(done)
    made.require_same_topic(cluster)
    if made.is_empty:
        account.settle(made.source, closure=told if told.read_up_to else None)
        return True
    files = [written for one in done for written in one.files]
    if not commit(made.source, made.table, files, told, made.transactions()):
        return False
    account.settle(made.source)
    return True


def _each(items: Sequence[Any], work: Callable[[Any], _Of]) -> list[_Of]:
    """`work` on each item at once: it waits for the store and for Kafka."""
    with ThreadPoolExecutor(max_workers=max(1, len(items))) as pool:
        return list(pool.map(work, items))
