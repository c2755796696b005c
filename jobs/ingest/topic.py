"""Whether Kafka's topic is still the one that the table was read from."""

from dataclasses import dataclass

from deltalake import DeltaTable

from jobs import batches
from jobs.errors import RetryError
from jobs.kafka import Bounds, Cluster, Topic
from pipelines.declare import Source

_NEVER = 1 << 60
"""A timestamp that no record has, in milliseconds."""


def ends(cluster: Cluster, topic: Topic) -> dict[int, int]:
    """Where each partition ends, open transactions included."""
    return cluster.since(topic, _NEVER)


def require_same_topic(cluster: Cluster, source: Source, topic_id: str) -> None:
    """Raise RetryError unless the source's topic still has this id of Kafka's: no id ever comes twice."""
    now = cluster.topics([source.topic]).get(source.topic)
    if now is None or now.id != topic_id:
        what = "deleted" if now is None else "created again"
        raise RetryError(
            f"topic {source.topic!r} was {what} while it was read; nothing of this batch was committed. Run the ingest again: it "
            "says what can be done."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Contradiction:
    """What table and Kafka disagree on, and what a person can do."""

    what: str
    new_topic: bool
    lines: str

    def __str__(self) -> str:
        if self.new_topic:
            remedy = (
                "If the topic began anew, `--accept-new-topic` reads it from its beginning, beside what was read "
                "before. If this is "
                "another cluster by mistake, correct KAFKA_BOOTSTRAP_SERVERS."
            )
        else:
            remedy = (
                "`--accept-loss` goes on where Kafka begins, and records the loss for ever. Lengthen the topic's retention "
                "(retention.ms), or ingest more often."
            )
        return f"{self.what}.\n  partition: stored=next offset kafka=[earliest, end){self.lines}\nNothing was read. {remedy}"


def contradiction(
    source: Source, table: DeltaTable, topic: Topic, bounds: dict[int, Bounds], stored: dict[int, int | None], *, anew: bool
) -> Contradiction | None:
    """What table and Kafka disagree on, if anything. `anew`: the topic's id is not the one that was read in this epoch."""
    was_read = any(position is not None for position in stored.values())
    wrong = {
        partition: held
        for partition, held in sorted(bounds.items())
        if (position := stored[partition]) is not None and not held.earliest <= position <= held.end
    }
    if anew and (was_read or table.transaction_version(batches.epoch_id(source)) is not None):
        what, new_topic, wrong = f"topic {source.topic!r} was created again (its id is now {topic.id})", True, dict(bounds)
    elif any((stored[partition] or 0) > held.end for partition, held in wrong.items()):
        what, new_topic = f"topic {source.topic!r} ends below what was read from it already", True
    elif wrong:
        lost = sum(held.earliest - (stored[partition] or 0) for partition, held in wrong.items())
        what = f"topic {source.topic!r} no longer holds {lost:,} records that were not read yet: its retention took them"
        new_topic = False
    else:
        return None
    lines = "".join(f"\n  {partition}: stored={stored[partition] or 0} kafka={held}" for partition, held in wrong.items())
    return Contradiction(what=what, new_topic=new_topic, lines=lines)
