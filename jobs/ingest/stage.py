"""`penstock ingest SOURCE|PIPELINE`: read what is new in Kafka into the events tables.

Once, up to where Kafka ended when the run began; or as a service that goes on; or all of it again.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jobs import letters
from jobs.command import Job
from jobs.errors import DataError
from jobs.ingest import plan, rebuild, service
from jobs.ingest.catch_up import Engine, catch_up
from jobs.ingest.local_engine import LocalEngine
from jobs.ingest.progress import Progress
from jobs.ingest.wishes import Wishes
from jobs.kafka import Cluster

log = logging.getLogger(__name__)


def run(job: Job) -> None:
    """Ingest the sources of the job. The report says, for each, what came in and up to when.

    Raises DataError where table and Kafka contradict each other, and where the dead letters of a day are more than declared (then
    all is kept, and the run has failed).
    """
    wishes = Wishes.of(job.options)
    cluster = Cluster()
    reaches = plan.reach(cluster, job.source, wishes.until)
    progress = {name: Progress(name=name, open_transaction=reach.undecided) for name, reach in reaches.items()}
    try:
        with _engine(wishes.engine) as engine:
            if wishes.continuous:
                # `penstock maintain` asks how long runs last: of a service its batches count, not its life.
                job.report["continuous"] = True
                service.serve(job, wishes, cluster, engine, progress)
            elif wishes.rebuild:
                for source in job.source:
                    clock = time.monotonic()
                    made, done = rebuild.rebuild(
                        source, reaches[source.name], engine.read_all, job.run_id, accept_loss=wishes.accept.loss
                    )
                    progress[source.name].note(made, done, time.monotonic() - clock)
            else:
                catch_up(cluster, engine, job.source, reaches, progress, run_id=job.run_id, accept=wishes.accept)
    finally:
        job.report["sources"] = {name: one.told() for name, one in progress.items()}
    if not job.options.json:
        for name, one in progress.items():
            moment = one.read_up_to or ("an open transaction" if one.open_transaction else "no moment that closes a day")
            print(f"{name}: {one.good} events and {one.dead} dead letters, read up to {moment}")
    if not wishes.continuous:
        _require_few_letters(job, progress)


def _require_few_letters(job: Job, progress: Mapping[str, Progress]) -> None:
    """Raise DataError for all sources of which a day that was touched has too many dead letters."""
    refusals = []
    for source in job.source:
        try:
            letters.require(
                [source], progress[source.name].days, f"the ingest of {source.name} has kept all it read, but it failed"
            )
        except DataError as refusal:
            refusals.append(str(refusal))
    if refusals:
        raise DataError("\n".join(refusals))


@contextmanager
def _engine(name: str) -> Iterator[Engine]:
    if name == "spark":
        from jobs.ingest.spark_engine import SparkEngine
        from jobs.spark import session

        with session("penstock-ingest") as spark:
            yield SparkEngine(spark)
        return
    engine = LocalEngine()
    try:
        yield engine
    finally:
        engine.close()
