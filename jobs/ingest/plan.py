"""What an ingest is about to read: from where its table stands up to where Kafka ended when the run began.

Progress is the table's own: one application transaction for each Kafka partition, `kafka/<topic>/<epoch>/<partition>`, whose
version is the next offset. Contradictions between table and Kafka are refused here, before anything is read.
"""

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal

from deltalake import DeltaTable

from jobs import account, batches, contract
from jobs.account import Account, Partition
from jobs.errors import DataError, UsageError
from jobs.ingest.ranges import Done, Range
from jobs.ingest.topic import contradiction, ends, require_same_topic
from jobs.kafka import Bounds, Cluster, Topic
from pipelines.declare import Source

log = logging.getLogger(__name__)

BATCH_RECORDS = 2_000_000
"""A larger backlog is read in several commits, each complete by itself."""

_TIMESTAMP_TYPE = {"create": "CreateTime", "append": "LogAppendTime"}


class NoTopicError(UsageError):
    """A topic that isn't there: a wrong declaration, or, to a service that has read it, one that is away."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far Kafka reached for one source, and when that was asked."""

    topic: Topic
    bounds: dict[int, Bounds]
    moment: datetime
    """Before partitions and offsets were asked for: what had reached Kafka by then lies below their ends."""
    compacted: bool
    """Whether the topic keeps only the newest record of each key."""
    short: bool = False
    """Whether `--until` ends the reading before Kafka does: then it closes no day."""

    @cached_property
    def undecided(self) -> bool:
        """Whether an open transaction holds records back that came before `moment`: then reading to the ends closes nothing."""
        return any(bounds.undecided for bounds in self.bounds.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Accept:
    """What a person has accepted, so that it is no longer refused."""

    loss: bool = False
    """Records that retention took before they were read: the reading goes on where Kafka begins, and the loss is recorded."""
    new_topic: bool = False
    """That the topic began anew: it is read from its beginning, in a new epoch, and what was read before stays."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One batch of one source. Its commit uses the same table handle, so that of two plans from one state only one commits."""

    source: Source
    table: DeltaTable
    kind: Literal["ingest", "rebuild"] = "ingest"
    batch: str
    run_id: str
    epoch: int
    topic_id: str
    begins: bool
    """Whether this batch is the first of its epoch."""
    ranges: tuple[Range, ...]
    """Empty where nothing is new."""
    positions: dict[int, int]
    """Where each partition stands when the batch is committed: its next offset."""
    same: Mapping[int, int]
    """Where the batch is the first of an epoch after others: where each partition ended then, see `batches.same_id`."""
    behind: int
    """Offsets that remain to be read after this batch, up to the run's reach."""
    read_up_to: datetime | None
    """The moment up to which all is in the table after this batch; None where more batches follow, or a transaction is open."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.ranges and not self.begins

    def transactions(self) -> dict[str, int]:
        """The application transactions that the commit moves."""
        # The epoch is always among them, so that every two commits of one source know of each other, whatever partitions they
        # read.
        return {
            batches.epoch_id(self.source): self.epoch,
            batches.topic_id(self.source, self.topic_id): self.epoch,
            **{batches.position_id(self.source, self.epoch, work.partition): work.end for work in self.ranges},
            **{batches.same_id(self.source, self.topic_id, self.epoch, n): end for n, end in self.same.items()},
        }

    def require_same_topic(self, cluster: Cluster) -> None:
        """Raise RetryError where the topic is no longer the one of the plan: what was read could be another's records."""
        require_same_topic(cluster, self.source, self.topic_id)

    def account(self, done: Sequence[Done]) -> Account:
        """What the batch read, partition by partition; a partition may have been read in several parts. Where nothing was, the
        account is about no partition: one row for all of them."""
        read = [_partition(work, [one for one in done if one.range.partition == work.partition]) for work in self.ranges]
        return Account(
            kind=self.kind,
            batch=self.batch,
            run_id=self.run_id,
            topic=self.source.topic,
            topic_id=self.topic_id,
            epoch=self.epoch,
            partitions=read or [Partition(partition=None)],
            read_up_to=self.read_up_to,
        )


def reach(cluster: Cluster, sources: tuple[Source, ...], until: datetime | None = None) -> dict[str, Reach]:
    """How far Kafka reaches for each source now, or up to the first record of each partition at or after `until`.

    Raises UsageError for a topic that isn't there, or whose clock is not the declared one.
    """
    moment = datetime.now(UTC)
    topics = cluster.topics({source.topic for source in sources})
    compacted = {}
    for source in sources:
        if source.topic not in topics:
            raise NoTopicError(
                f"there is no topic {source.topic!r}, which source {source.name!r} reads: "
                "create it, correct the declaration, or fill it (`penstock replay`)."
            )
        configuration = cluster.configuration(source.topic)
        _check_clock(source, configuration["message.timestamp.type"])
        compacted[source.topic] = "compact" in configuration["cleanup.policy"]
    bounds = cluster.bounds(topics.values())
    found = {}
    for source in sources:
        topic = topics[source.topic]
        full = Reach(topic=topic, bounds=bounds[topic.name], moment=moment, compacted=compacted[topic.name])
        found[source.name] = full if until is None else _shortened(full, cluster.until(topic, until))
    return found


def _shortened(full: Reach, ends: dict[int, int]) -> Reach:
    bounds = {
        partition: replace(held, end=max(held.earliest, min(held.end, ends[partition])))
        for partition, held in full.bounds.items()
    }
    return replace(full, bounds=bounds, short=bounds != full.bounds)


def _check_clock(source: Source, kind: str) -> None:
    if kind != _TIMESTAMP_TYPE[source.known_time]:
        raise UsageError(
            f"source {source.name!r} declares known_time={source.known_time!r}, but topic {source.topic!r} has "
            f"message.timestamp.type={kind}: the known time would be another clock's. "
            f"Declare the other, or set the topic to {_TIMESTAMP_TYPE[source.known_time]}."
        )


def make(
    cluster: Cluster, source: Source, reach: Reach, run_id: str, *, accept: Accept | None = None, records: int | None = None
) -> Plan:
    """The next batch of a source, bounded by `reach` and by about so many `records` (BATCH_RECORDS).

    Raises DataError where the table and Kafka contradict each other and nobody accepted it: expired offsets, a recreated topic,
    an end below the stored offset; RetryError where the topic was created again since `reach`.
    """
    accept = accept or Accept()
    require_same_topic(cluster, source, reach.topic.id)
    table = contract.table(source)
    epoch = table.transaction_version(batches.epoch_id(source)) or 0
    stored = {n: table.transaction_version(batches.position_id(source, epoch, n)) for n in reach.bounds}
    read_in = table.transaction_version(batches.topic_id(source, reach.topic.id))
    bounds = reach.bounds
    if any(position is not None and position > bounds[partition].end for partition, position in stored.items()):
        # A neighbour that began later may have read beyond this run's reach, as `--until` may: judge by what Kafka holds now.
        bounds = cluster.bounds([reach.topic])[source.topic]
    same: Mapping[int, int] = {}
    wrong = contradiction(source, table, reach.topic, bounds, stored, anew=read_in != epoch)
    if wrong is not None and wrong.new_topic and accept.new_topic:
        log.warning("%s: %s; it is read from its beginning, as epoch %d", source.name, wrong.what, epoch + 1)
        epoch, stored, same = epoch + 1, dict.fromkeys(reach.bounds), ends(cluster, reach.topic)
    elif wrong is not None and not wrong.new_topic and accept.loss:
        log.warning("%s: %s; the loss is accepted and recorded", source.name, wrong.what)
    elif wrong is not None:
        raise DataError(str(wrong))
    starts = {partition: stored[partition] or 0 for partition in reach.bounds}
    return batch(
        source,
        table,
        reach,
        run_id,
        epoch=epoch,
        starts=starts,
        begins=read_in != epoch,
        records=records,
        erased=_erased(source, table, reach.topic, epoch, starts),
        same=same,
    )


def _erased(
    source: Source, table: DeltaTable, topic: Topic, epoch: int, starts: Mapping[int, int]
) -> dict[int, tuple[tuple[int, int], ...]]:
    """What must not come back, where the epoch reads again what an earlier one has read."""
    begun = {n: table.transaction_version(batches.same_id(source, topic.id, epoch, n)) for n in starts}
    # An epoch that an earlier release began says nothing; a partition that came later has nothing of before.
    known = [(starts[n], end) for n, end in begun.items() if end is not None]
    if not epoch or (known and all(start >= end for start, end in known)):
        return {}
    # An erasure may have been killed before its account was written.
    account.settle(source)
    return account.erased(source, table, topic.id, epoch)


def batch(
    source: Source,
    table: DeltaTable,
    reach: Reach,
    run_id: str,
    *,
    epoch: int,
    starts: dict[int, int],
    begins: bool,
    records: int | None = None,
    kind: Literal["ingest", "rebuild"] = "ingest",
    erased: Mapping[int, tuple[tuple[int, int], ...]] | None = None,
    same: Mapping[int, int] | None = None,
) -> Plan:
    """The batch that reads on from `starts`, about so many `records` of all partitions together, in proportion to what they
    hold."""
    records = records or BATCH_RECORDS
    # A partition that was read beyond this run's reach, by a neighbour that came later, has nothing for it.
    backlog = {n: max(0, held.end - max(starts[n], held.earliest)) for n, held in reach.bounds.items()}
    total = sum(backlog.values())
    name = uuid.uuid4().hex[:16]
    ranges = []
    for partition, held in sorted(reach.bounds.items()):
        # Rounded up, so that every batch gets on.
        share = backlog[partition] if total <= records else -(-backlog[partition] * records // total)
        work = Range(
            source=source,
            batch=name,
            epoch=epoch,
            partition=partition,
            start=starts[partition],
            first=max(starts[partition], held.earliest),
            end=max(starts[partition], held.earliest) + share,
            compacted=reach.compacted,
            erased=(erased or {}).get(partition, ()),
        )
        if work.end > work.start and held.end > starts[partition]:
            ranges.append(work)
    behind = total - sum(map(len, ranges))
    return Plan(
        source=source,
        table=table,
        kind=kind,
        batch=name,
        run_id=run_id,
        epoch=epoch,
        topic_id=reach.topic.id,
        begins=begins and bool(ranges or epoch),
        ranges=tuple(ranges),
        positions=starts | {one.partition: one.end for one in ranges},
        same=same or {},
        behind=behind,
        read_up_to=None if behind or reach.undecided or reach.short else reach.moment,
    )


def _partition(work: Range, parts: list[Done]) -> Partition:
    told = Partition(partition=work.partition, start=work.start, end=work.end)
    for part in sorted(parts, key=lambda one: one.range.start):
        told.good += part.good
        told.dead += part.dead
        told.counts += part.counts
        told.dead_counts += part.dead_counts
        told.spans += part.spans
    return told
