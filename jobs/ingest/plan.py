"""What an ingest is about to read: from where its table stands up to where Kafka ended when the run began.

Progress is the table's own: one application transaction for each Kafka partition, `kafka/<topic>/<epoch>/<partition>`, whose
version is the next offset. Contradictions between table and Kafka are refused here, before anything is read.
"""

import logging
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from jobs import batches, lake
from jobs.decode import events_schema
from jobs.errors import DataError, RetryError, UsageError
from jobs.kafka import Bounds, Cluster, Topic
from pipelines.declare import Source

log = logging.getLogger(__name__)

BATCH_RECORDS = 2_000_000
"""A larger backlog is read in several commits, each complete by itself."""

_TOPIC_ID = "penstock.topic_id"
_EPOCH = "penstock.topic_epoch"
_TIMESTAMP_TYPE = {"create": "CreateTime", "append": "LogAppendTime"}


@dataclass(frozen=True, slots=True)
class Reach:
    """How far Kafka reached for one source, and when that was asked."""

    topic: Topic
    bounds: dict[int, Bounds]
    moment: datetime
    """Before partitions and offsets were asked for: what had reached Kafka by then lies below their ends."""

    @property
    def undecided(self) -> bool:
        """Whether an open transaction holds records back that came before `moment`: then reading to the ends closes nothing."""
        return any(bounds.undecided for bounds in self.bounds.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The unit of work: the offsets [start, end) of one partition, for one batch. It travels to the reading processes."""

    source: Source
    batch: str
    epoch: int
    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.source.topic}/{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One batch of one source. Its commit uses the same table handle, so that of two plans from one state only one commits."""

    source: Source
    table: DeltaTable
    batch: str
    run_id: str
    epoch: int
    ranges: tuple[Range, ...]
    """Empty where nothing is new."""
    positions: dict[int, int]
    """Where each partition stands when the batch is committed: its next offset."""
    read_up_to: datetime | None
    """The moment up to which all is in the table after this batch; None where more batches follow, or a transaction is open."""


def reach(cluster: Cluster, sources: tuple[Source, ...]) -> dict[str, Reach]:
    """How far Kafka reaches for each source now.

    Raises UsageError for a topic that isn't there, or whose clock is not the declared one.
    """
    moment = datetime.now(UTC)
    topics = cluster.topics({source.topic for source in sources})
    for source in sources:
        if source.topic not in topics:
            raise UsageError(
                f"there is no topic {source.topic!r}, which source {source.name!r} reads: "
                "create it, correct the declaration, or fill it (`penstock replay`)."
            )
        _check_clock(cluster, source)
    bounds = cluster.bounds(topics.values())
    return {source.name: Reach(topics[source.topic], bounds[source.topic], moment) for source in sources}


def _check_clock(cluster: Cluster, source: Source) -> None:
    kind = cluster.configuration(source.topic)["message.timestamp.type"]
    if kind != _TIMESTAMP_TYPE[source.known_time]:
        raise UsageError(
            f"source {source.name!r} declares known_time={source.known_time!r}, but topic {source.topic!r} has "
            f"message.timestamp.type={kind}: the known time would be another clock's. "
            f"Declare the other, or set the topic to {_TIMESTAMP_TYPE[source.known_time]}."
        )


def make(cluster: Cluster, source: Source, reach: Reach, run_id: str) -> Plan:
    """The next batch of a source, bounded by `reach`.

    Raises DataError where the table and Kafka contradict each other: expired offsets, a recreated topic, an end below
    the stored offset, a partition that is gone.
    """
    table = _table(source, reach.topic)
    epoch = int(table.metadata().configuration[_EPOCH])
    stored = {partition: table.transaction_version(app_id(source, epoch, partition)) for partition in reach.bounds}
    bounds = reach.bounds
    if any(position is not None and position > bounds[partition].end for partition, position in stored.items()):
        # A neighbour that began later may have read beyond this run's reach: judge by what Kafka holds now.
        bounds = cluster.bounds([reach.topic])[source.topic]
    _refuse_contradictions(source, table, reach.topic, bounds, stored)
    starts = {
        partition: held.earliest if (position := stored[partition]) is None else position
        for partition, held in reach.bounds.items()
    }
    # A partition that was read beyond this run's reach, by a neighbour that came later, has nothing for it.
    backlog = {partition: max(0, held.end - starts[partition]) for partition, held in reach.bounds.items()}
    total = sum(backlog.values())
    share = min(1.0, BATCH_RECORDS / total) if total else 1.0
    batch = uuid.uuid4().hex[:16]
    ranges = tuple(
        Range(
            source=source,
            batch=batch,
            epoch=epoch,
            partition=partition,
            start=starts[partition],
            end=starts[partition] + int(behind * share),
        )
        for partition, behind in sorted(backlog.items())
        if int(behind * share)
    )
    if share < 1.0:
        log.info("%s: %d records behind, %d in this batch", source.name, total, sum(map(len, ranges)))
    return Plan(
        source=source,
        table=table,
        batch=batch,
        run_id=run_id,
        epoch=epoch,
        ranges=ranges,
        positions=starts | {one.partition: one.end for one in ranges},
        read_up_to=reach.moment if share == 1.0 and not reach.undecided else None,
    )


def app_id(source: Source, epoch: int, partition: int) -> str:
    """The application transaction that holds a partition's next offset."""
    return f"kafka/{source.topic}/{epoch}/{partition}"


def _refuse_contradictions(
    source: Source, table: DeltaTable, topic: Topic, bounds: dict[int, Bounds], stored: dict[int, int | None]
) -> None:
    known = table.metadata().configuration.get(_TOPIC_ID)
    wrong = [
        (partition, position, held)
        for partition, held in sorted(bounds.items())
        if (position := stored.get(partition)) is not None and not held.earliest <= position <= held.end
    ]
    if known != topic.id:
        what, remedy = f"topic {source.topic!r} was created again (its id was {known}, it is {topic.id})", _ANEW
        wrong = [(partition, stored.get(partition) or 0, held) for partition, held in sorted(bounds.items())]
    elif any(position > held.end for _, position, held in wrong):
        what, remedy = f"topic {source.topic!r} ends below what was read from it already", _ANEW
    elif wrong:
        what = f"topic {source.topic!r} no longer holds records that were not read yet: its retention took them"
        remedy = "Lengthen the topic's retention (retention.ms); " + _ANEW[0].lower() + _ANEW[1:]
    else:
        return
    lines = "".join(f"\n  {partition}: stored={position} kafka={held}" for partition, position, held in wrong)
    raise DataError(f"{what}.\n  partition: stored=next offset kafka=[earliest, end){lines}\nNothing was read. {remedy}")


_ANEW = (
    "To go on with what Kafka holds now, declare a source of another name on this topic: the old one's events stay as they are."
)


def _table(source: Source, topic: Topic) -> DeltaTable:
    """The source's table as it stands, created or widened where the declaration asks for it, in commits of their own."""
    uri = batches.events_uri(source)
    table = lake.load(uri)
    if table is None:
        lake.create(uri, events_schema(source), partition_by=["event_date"], configuration={_TOPIC_ID: topic.id, _EPOCH: "0"})
        table = lake.load(uri)
        assert table is not None
    return _widened(source, table)


def _widened(source: Source, table: DeltaTable) -> DeltaTable:
    """The table with a column for each declared field. A changed type is refused."""
    declared = {one.name: one for one in Schema.from_arrow(events_schema(source)).fields}
    present = {one.name: one for one in table.schema().fields}
    for name, column in declared.items():
        if name in present and present[name].type != column.type:
            raise UsageError(
                f"field {name!r} of source {source.name!r} is declared as {column.type}, "
                f"but its table holds {present[name].type}: "
                "a field can't change its meaning. Give the field, or the source, a new name."
            )
    missing = [column for name, column in declared.items() if name not in present]
    if not missing:
        return table
    log.info("%s: new columns %s", source.name, ", ".join(column.name for column in missing))
    try:
        table.alter.add_columns(missing)
    except DeltaError as failure:
        raise RetryError(f"the new columns of {source.name} could not be added ({failure}). Try again.") from failure
    widened = lake.load(batches.events_uri(source))
    assert widened is not None
    return widened
