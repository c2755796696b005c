"""What each commit on a source's events says of itself, and `ranges/<source>`, which repeats it as rows.

By kind of commit:

- `ingest`: of each partition, the offsets [start, end) were read. Each is a good row, a dead letter, or lies in a span that says
  why it has no row: `aborted`, `marker` (Kafka's control records), `compacted`, `expired`, `erased`.
- `rebuild`: the same, into a table that holds nothing else from then on.
- `replay`: good rows for dead letters that now fit; spans `replayed` are their positions.
- `erase`: rows taken away; spans `erased` are their positions.
- `acknowledge`: dead letters that somebody looked at, with name and reason in the note.

The rows are a projection of the commits, so whatever a killed run left out is mended by the next one. `settle` does both: it
looks at the commits since the last that is known to be accounted for, and adds their rows. How far it has looked is an
application transaction of the ranges table, moved by the commit that adds the rows, by compare and set: what lies beyond it has
no rows yet, and two runs can't add the same ones.

A run that finds nothing new adds no event, but it has learnt that everything up to its moment is in the table: it adds one row
about no partition with that moment, and no commit on the events table. The row needs no partner: if it is lost, days stay open
until the next ingest, and the events table, which the later stages pin by version, stays as it was.
"""

import base64
import json
import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from jobs import batches, lake, store
from jobs.errors import RetryError
from pipelines.declare import Source

log = logging.getLogger(__name__)

METADATA = "penstock"
"""Where a commit's own metadata keeps its account."""

_SETTLED = "settled"
_TRIES = 10
_PLAIN_SPANS = 100
"""More spans than these are packed: a compacted topic can have one for every second offset."""

Span = tuple[int, int, str]
"""Offsets [start, end), and what became of them."""


@dataclass(kw_only=True, slots=True)
class Partition:
    """What a commit says of one Kafka partition."""

    partition: int | None
    """None where the commit is about no partition."""
    start: int = 0
    end: int = 0
    good: int = 0
    dead: int = 0
    counts: Counter[tuple[date, date]] = field(default_factory=Counter)
    """Good rows by event day and known day."""
    dead_counts: Counter[tuple[date, str]] = field(default_factory=Counter)
    """Dead letters by known day and reason."""
    spans: list[Span] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class Account:
    """What a commit says of itself."""

    kind: Literal["ingest", "rebuild", "replay", "erase", "acknowledge"]
    batch: str
    run_id: str
    topic: str
    topic_id: str
    epoch: int
    partitions: Sequence[Partition]
    read_up_to: datetime | None = None
    note: dict[str, Any] | None = None

    def metadata(self) -> dict[str, Any]:
        """As JSON, for the commit."""
        return {
            "kind": self.kind,
            "batch": self.batch,
            "run_id": self.run_id,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "topic_epoch": self.epoch,
            "read_up_to": self.read_up_to.isoformat() if self.read_up_to else None,
            "note": self.note,
            "partitions": [
                {
                    "partition": one.partition,
                    "start": one.start,
                    "end": one.end,
                    "good": one.good,
                    "dead": one.dead,
                    "counts": [[str(event), str(known), rows] for (event, known), rows in sorted(one.counts.items())],
                    "dead_counts": [[str(known), reason, rows] for (known, reason), rows in sorted(one.dead_counts.items())],
                    "spans": _packed(one.spans),
                }
                for one in self.partitions
            ],
        }


def settle(source: Source, closure: Account | None = None) -> int:
    """Add the rows of all commits that have none yet, and that of `closure`, the account of a run with nothing to read.

    Returns the number of commits whose rows were added.

    Raises RetryError where neighbours were always first.
    """
    for _ in range(_TRIES):
        ranges = _ranges(source)
        settled = ranges.transaction_version(_SETTLED) or 0
        events, commits = lake.log(batches.events_uri(source), after=settled)
        missing = [entry for entry in reversed(commits) if METADATA in entry]
        rows = [row for entry in missing for row in _rows(entry[METADATA], entry["version"])]
        if closure is not None:
            rows += _rows(closure.metadata(), events.version())
        if not rows:
            return 0
        try:
            with store.asked(f"the account of {source.name} could not be written; its events are safe"):
                write_deltalake(
                    ranges,
                    pa.Table.from_pylist(rows, schema=batches.RANGES),
                    mode="append",
                    commit_properties=CommitProperties(app_transactions=[Transaction(_SETTLED, events.version())]),
                )
            return len(missing)
        except CommitFailedError:
            log.info("%s: a neighbour wrote its account at the same time", source.name)
    raise RetryError(
        f"the account of {source.name} was lost to neighbours {_TRIES} times. Its events are safe; run the ingest again."
    )


def settle_all(sources: Iterable[Source]) -> None:
    """Settle those that have events: an ingest that was killed may have left its account to whoever comes next."""
    for source in sources:
        if lake.load(batches.events_uri(source)) is not None:
            settle(source)


def erased(source: Source, table: DeltaTable, topic_id: str, epoch: int) -> dict[int, tuple[tuple[int, int], ...]]:
    """The spans [start, end) of a topic that were erased and must not come back when it is read in `epoch`, by partition,
    ascending, whatever was rebuilt since. `table` is the events table's handle; the account must be settled.

    An offset means the same record in all epochs of one topic id, up to where the topic ended when a later one began: beyond
    that, a topic that had lost its tail has other records. Of those that came between the loss and the new epoch nobody can tell:
    they stay away where an erased one was.
    """
    ranges = lake.load(batches.ranges_uri(source))
    if ranges is None:
        return {}
    rows = lake.query(
        ranges,
        "select kafka_partition, topic_epoch, spans from t "
        f"where topic_id = '{topic_id}' and topic_epoch <= {epoch} and kind in ('erase', 'rebuild')",
    )
    found: dict[int, set[tuple[int, int]]] = {}
    for row in rows.to_pylist():
        gone = [(span["start"], span["end"]) for span in row["spans"] or () if span["reason"] == "erased"]
        if not gone:
            continue
        partition, later = row["kafka_partition"], range(row["topic_epoch"] + 1, epoch + 1)
        ends = [table.transaction_version(batches.same_id(source, topic_id, one, partition)) for one in later]
        limit = min((end for end in ends if end is not None), default=None)
        same = {(start, end if limit is None else min(end, limit)) for start, end in gone if limit is None or start < limit}
        found.setdefault(partition, set()).update(same)
    return {partition: tuple(sorted(spans)) for partition, spans in found.items() if spans}


def _ranges(source: Source) -> DeltaTable:
    """The ranges table as it stands; a first one is made."""
    uri = batches.ranges_uri(source)
    table = lake.load(uri)
    if table is None:
        lake.create(uri, batches.RANGES)
        table = lake.load(uri)
        assert table is not None
    return table


def _rows(account: dict[str, Any], version: int) -> list[dict[str, Any]]:
    moment = datetime.fromisoformat(account["read_up_to"]) if account["read_up_to"] else None
    return [
        {
            "kind": account["kind"],
            "batch": account["batch"],
            "run_id": account["run_id"],
            "version": version,
            "topic": account["topic"],
            "topic_id": account["topic_id"],
            "topic_epoch": account["topic_epoch"],
            "kafka_partition": partition["partition"],
            "start_offset": partition["start"],
            "end_offset": partition["end"],
            "good": partition["good"],
            "dead": partition["dead"],
            "counts": json.dumps(partition["counts"]),
            "dead_counts": json.dumps(partition["dead_counts"]),
            "spans": [{"start": start, "end": end, "reason": reason} for start, end, reason in _unpacked(partition["spans"])],
            "read_up_to": moment,
            "note": json.dumps(account["note"]) if account["note"] else None,
        }
        for partition in account["partitions"]
    ]


def _packed(spans: Sequence[Span]) -> Any:
    """Spans as JSON; many of them as differences, compressed, since a commit's metadata is one line of its log."""
    if len(spans) <= _PLAIN_SPANS:
        return [list(span) for span in spans]
    reasons = sorted({reason for _, _, reason in spans})
    numbers: list[int] = []
    reached = 0
    for start, end, reason in spans:
        numbers += (start - reached, end - start, reasons.index(reason))
        reached = end
    packed = zlib.compress(json.dumps([reasons, numbers], separators=(",", ":")).encode())
    return {"zlib": base64.b64encode(packed).decode()}


def _unpacked(spans: Any) -> list[Span]:
    if isinstance(spans, list):
        return [(start, end, reason) for start, end, reason in spans]
    reasons, numbers = json.loads(zlib.decompress(base64.b64decode(spans["zlib"])))
    found: list[Span] = []
    reached = 0
    for gap, length, reason in zip(*[iter(numbers)] * 3, strict=True):
        found.append((reached + gap, reached + gap + length, reasons[reason]))
        reached += gap + length
    return found
