"""`penstock replay flights --from D --to D`: the records known on these days, to Kafka, with their own timestamps.

Running it again sends what is missing, and nothing twice, as long as the arguments are the same. Where a partition holds other
records of these days, it is refused.
"""

import logging

from jobs.command import Job
from jobs.errors import UsageError
from jobs.kafka import Cluster
from jobs.replay import flights, send
from jobs.replay.damage import damaged

log = logging.getLogger(__name__)


def run(job: Job) -> None:
    """Replay the days. The report says, for each topic, what the history holds, what was there already and what was sent."""
    assert job.interval is not None
    every, again = job.options.broken_every, job.options.again
    if every < 0:
        raise UsageError(
            f"--broken-every {every} is negative: give how many good records lie between two broken ones, or 0 for none."
        )
    days = flights.covered(job.interval)
    cluster = Cluster()
    work = [damaged(history, every) for history in flights.histories(days)]
    log.info("%s: %s", days, ", ".join(f"{len(history)} for {history.source.topic}" for history, _ in work))
    topics = send.topics(cluster, [history for history, _ in work])
    lanes = [
        lane for history, _ in work for lane in send.lanes(cluster, topics[history.source.topic], history, days, again=again)
    ]
    job.report["topics"] = {
        history.source.topic: {
            "records": len(history),
            "broken": broken,
            "skipped": sum(lane.skip for lane in lanes if lane.history is history),
        }
        for history, broken in work
    }
    job.report["sent"] = send.send(lanes)
    if not job.options.json:
        for topic, told in job.report["topics"].items():
            print(f"{topic}: {told['records']} records ({told['broken']} of them broken), {told['skipped']} were there already")
