"""`penstock dead-letters replay`: letters read again by today's contract; what fits is appended as good rows, once.

A good row has the position and the known time of its letter, which stays as it was. Each commit is complete by itself, and moves
the application transaction `rewrite` on from the value at which the letters were looked up: of two replays at once, or of a
replay beside a rebuild or an erase, one is refused, and it looks again. So a replay may be killed at any step and run again.
"""

import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs import account, batches, contract, lake, letters, record
from jobs.account import Account, Partition
from jobs.command import Job
from jobs.commit import commit
from jobs.dead_letters import pending, touched
from jobs.dead_letters.pending import Wanted
from jobs.decode import INSTANT, decode, events_schema
from jobs.errors import RetryError
from jobs.files import Folder, Written, completed, count_days
from pipelines.declare import Source

log = logging.getLogger(__name__)

TRIES = 10
"""How often a replay may lose to neighbours before it gives up, to be tried again later."""

BLOCK_LETTERS = 200_000
"""Letters that one commit makes good, about."""
BLOCK_BYTES = 64 << 20
"""Decoded rows are written out beyond this."""

_COLUMNS = ("known_time", "batch", "rejected_reason", "raw_value")


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What a replay did for one source."""

    fit: Counter[str] = field(default_factory=Counter)
    """Letters that fit now, by the reason for which they were dead."""
    unfit: Counter[str] = field(default_factory=Counter)
    """Letters that still don't, by today's reason."""
    days: set[date] = field(default_factory=set)
    """The known days of those that fit."""
    batches: list[str] = field(default_factory=list)
    """What was committed."""


@dataclass(kw_only=True, slots=True)
class _Batch:
    """Letters of one topic and epoch that become good in one commit."""

    source: Source
    topic: str
    epoch: int
    seen: dict[date, frozenset[str]]
    """The batches whose letters were acknowledged, by known day."""
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    letters: int = 0
    partitions: dict[int, Partition] = field(default_factory=dict)
    fit: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[tuple[date, str]] = field(default_factory=Counter)
    files: list[Written] = field(default_factory=list)
    rows: list[pa.Table] = field(default_factory=list)

    def add(self, good: pa.Table, block: pa.Table) -> None:
        """Rows that fit, and the letters that they come from, one for one."""
        event_time = good.column(self.source.event_time)
        own = {name: good.column(name) for name in good.column_names}
        own |= {name: block.column(name) for name in ("known_time", "kafka_partition", "kafka_offset")}
        self.rows.append(pa.table(own | {"event_time": event_time, "event_date": pc.cast(event_time, pa.date32())}))
        days = block.column("known_time").cast(pa.date32()).to_pylist()
        reasons, origins = block.column("rejected_reason").to_pylist(), block.column("batch").to_pylist()
        places = zip(block.column("kafka_partition").to_pylist(), block.column("kafka_offset").to_pylist(), strict=True)
        for (partition, offset), day, reason, origin in zip(places, days, reasons, origins, strict=True):
            told = self.partitions.setdefault(partition, Partition(partition=partition))
            told.good += 1
            told.dead_counts[day, reason] += 1
            told.spans.append((offset, offset + 1, "replayed"))
            self.fit[reason] += 1
            self.acknowledged[day, reason] += origin in self.seen.get(day, ())
        self.letters += len(block)

    @property
    def weight(self) -> int:
        """Bytes of the rows that were collected."""
        return sum(rows.nbytes for rows in self.rows)

    def flush(self) -> None:
        """Write what was collected."""
        rows = pa.concat_tables(self.rows).combine_chunks()
        partitions = rows.column("kafka_partition")
        for partition in pc.unique(partitions).to_pylist():
            self.partitions[partition].counts += count_days(rows.filter(pc.equal(partitions, partition)))
        same = {"topic": self.topic, "topic_epoch": self.epoch, "batch": self.name}
        folder = Folder(batches.events_uri(self.source))
        self.files += folder.write(completed(rows, events_schema(self.source), same), prefix=f"{self.name}-replay")
        self.rows = []

    def account(self, run_id: str, topic_id: str) -> Account:
        """What the commit says of itself."""
        for told in self.partitions.values():
            told.spans = _merged(told.spans)
        taken = [[str(day), reason, rows] for (day, reason), rows in sorted(self.acknowledged.items()) if rows]
        return Account(
            kind="replay",
            batch=self.name,
            run_id=run_id,
            topic=self.topic,
            topic_id=topic_id,
            epoch=self.epoch,
            partitions=[told for _, told in sorted(self.partitions.items())],
            note={letters.ACKNOWLEDGED: taken} if taken else None,
        )


def run(job: Job) -> None:
    """Replay the letters of the job's sources. The report says, for each, how many fit, how many still don't and why."""
    wanted, dry = Wanted.of(job.options), job.options.dry_run
    told: dict[str, Any] = job.report.setdefault("sources", {})
    for source in job.source:
        outcome = Outcome()
        try:
            replay(source, wanted, job.run_id, outcome, dry=dry)
        finally:
            told[source.name] = {
                "fit": outcome.fit.total(),
                "fit_by_reason": dict(outcome.fit),
                "unfit": outcome.unfit.total(),
                "unfit_by_reason": dict(outcome.unfit),
                "known_days": sorted(outcome.days),
                "batches": outcome.batches,
            }
        if not job.options.json:
            done = "would fit now" if dry else "fit now and are good events"
            print(f"{source.name}: {outcome.fit.total():,} dead letters {done}, {outcome.unfit.total():,} still don't fit")
            for reason, rows in outcome.unfit.most_common():
                print(f"  {rows:,}: {reason}")
    touched.tell(job)


def replay(source: Source, wanted: Wanted, run_id: str, outcome: Outcome, *, dry: bool = False) -> None:
    """Make good what fits, in one commit or several.

    Raises UsageError where the contract can't be the table's, RetryError where neighbours were always first.
    """
    if lake.load(batches.events_uri(source)) is None:
        return
    for _ in range(TRIES):
        if _attempt(source, wanted, run_id, outcome, dry=dry):
            return
        log.info("%s: somebody else changed its letters meanwhile; looking again", source.name)
    raise RetryError(f"{source.name}: the replay was lost to other writers {TRIES} times. Stop them, or try again.")


def _attempt(source: Source, wanted: Wanted, run_id: str, outcome: Outcome, *, dry: bool) -> bool:
    """One look at the letters. False where a neighbour changed them, so that what was looked up may no longer be so."""
    outcome.unfit = Counter()
    table = _table(source, dry=dry)
    account.settle(source)
    rewrites = table.transaction_version(batches.REWRITE) or 0
    good, seen = pending.replayed(source, table), _acknowledged(source)
    kinds = lake.query(
        table, "select distinct topic, topic_epoch from t where event_date is null and rejected_reason is not null"
    ).to_pylist()
    for kind in sorted(kinds, key=lambda one: (one["topic"], one["topic_epoch"])):
        here = f"topic = '{kind['topic']}' and topic_epoch = {kind['topic_epoch']} and {wanted.sql}"

        def fresh(topic: str = kind["topic"], epoch: int = kind["topic_epoch"]) -> _Batch:
            return _Batch(source=source, topic=topic, epoch=epoch, seen=seen)

        batch = fresh()
        for block in pending.letters(table, good, _COLUMNS, here):
            _read(source, block, batch, outcome)
            if dry:
                outcome.fit += batch.fit
                outcome.days.update(day for told in batch.partitions.values() for day, _ in told.dead_counts)
                batch = fresh()
                continue
            if batch.weight > BLOCK_BYTES:
                batch.flush()
            if batch.letters >= BLOCK_LETTERS:
                if not _keep(source, batch, rewrites, run_id, outcome):
                    return False
                rewrites, batch = rewrites + 1, fresh()
        if batch.letters:
            if not _keep(source, batch, rewrites, run_id, outcome):
                return False
            rewrites += 1
    return True


def _table(source: Source, *, dry: bool) -> DeltaTable:
    if not dry:
        return contract.table(source)
    table = lake.load(batches.events_uri(source))
    assert table is not None
    contract.missing(source, table)
    return table


def _read(source: Source, block: pa.Table, batch: _Batch, outcome: Outcome) -> None:
    """Decode a block of letters; those that fit go to the batch, with what an ingest would make of them."""
    decoded = decode(source, block.column("raw_value").to_pylist())
    known = block.column("known_time").cast(INSTANT).cast(pa.int64()).to_numpy()
    plausible = (known >= record.EARLIEST) & (known < record.LATEST)
    index = decoded.index.to_numpy()
    fits = plausible[index]
    outcome.unfit.update(decoded.rejected.values())
    if rest := int((~fits).sum()):
        outcome.unfit[letters.IMPLAUSIBLE] += rest
    if fits.any():
        batch.add(decoded.good.filter(pa.array(fits)), block.take(pa.array(index[fits])))


def _keep(source: Source, batch: _Batch, rewrites: int, run_id: str, outcome: Outcome) -> bool:
    """Commit a batch, where nothing that was read already has changed since `rewrites`."""
    if batch.rows:
        batch.flush()
    table = contract.table(source)
    if (table.transaction_version(batches.REWRITE) or 0) != rewrites:
        return False
    told = batch.account(run_id, _topic_id(source, batch.topic, batch.epoch))
    if not commit(source, table, batch.files, told, {batches.REWRITE: rewrites + 1}):
        return False
    account.settle(source)
    outcome.fit += batch.fit
    outcome.days.update(day for one in told.partitions for day, _ in one.dead_counts)
    outcome.batches.append(batch.name)
    return True


def _topic_id(source: Source, topic: str, epoch: int) -> str:
    """Kafka's own id of the topic that was read in the epoch."""
    ranges = lake.load(batches.ranges_uri(source))
    assert ranges is not None
    # Voided rows too: if a rebuild came in between, the commit is refused anyhow.
    where = f"topic = '{topic}' and topic_epoch = {epoch} and kind in ('ingest', 'rebuild')"
    known = lake.query(ranges, f"select topic_id from t where {where} order by version desc limit 1")
    return str(known.column("topic_id")[0].as_py())


def _acknowledged(source: Source) -> dict[date, frozenset[str]]:
    """By known day, the batches whose letters of that day somebody has acknowledged."""
    looked = letters.acknowledgements(source)
    if not looked:
        return {}
    columns = "batch, version, kafka_partition, start_offset"
    versions = batches.ranges(source, columns, "dead_counts <> '[]' and kind in ('ingest', 'rebuild')").to_pylist()
    return {day: frozenset(row["batch"] for row in versions if row["version"] <= at) for day, at in looked.items()}


def _merged(spans: list[account.Span]) -> list[account.Span]:
    """The spans, ascending, neighbours joined."""
    return list(_joined(sorted(spans)))


def _joined(spans: list[account.Span]) -> Iterator[account.Span]:
    start, end, reason = spans[0]
    for first, last, _ in spans[1:]:
        if first > end:
            yield start, end, reason
            start = first
        end = last
    yield start, end, reason
