"""`penstock dead-letters list`: how many letters are still dead and why, on which days, and a few of them to look at."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs import account, batches, lake, letters
from jobs.command import Job
from jobs.dead_letters import pending, touched
from jobs.dead_letters.pending import Wanted
from jobs.errors import UsageError
from jobs.record import TOMBSTONE
from jobs.secrets import mask_fields
from pipelines.declare import Source

_GROUP = ("rejected_reason", "day", "topic_epoch", "kafka_partition")
_POSITION = ("topic", "topic_epoch", "kafka_partition", "kafka_offset")

Position = tuple[str, int, int, int]


@dataclass(kw_only=True, slots=True)
class Found:
    """The letters of a source that are still dead."""

    counts: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    """By reason, known day, epoch and partition."""
    first: dict[str, list[Position]] = field(default_factory=dict)
    """The first positions of each reason, ascending."""


def run(job: Job) -> None:
    """List the letters of the job's sources. The report holds the counts; letters themselves are printed, and never kept.

    Raises UsageError for wrong options.
    """
    wanted, samples = Wanted.of(job.options), job.options.samples
    if samples < 0:
        raise UsageError(f"--samples {samples} is below 0: give how many of each reason, or 0 for none.")
    told: dict[str, Any] = job.report.setdefault("sources", {})
    for source in job.source:
        told[source.name], few = _told(source, wanted, samples)
        job.shown.setdefault("samples", {})[source.name] = few
        if not job.options.json:
            _show(source, told[source.name], few)
    touched.tell(job)


def _told(source: Source, wanted: Wanted, samples: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the report says of a source, and a few of its letters by reason."""
    table = lake.load(batches.events_uri(source))
    found, days, shown = Found(), {}, {}
    if table is not None:
        account.settle(source)
        found = _find(source, table, wanted, samples)
        days = letters.by_known_day(source)
        shown = {reason: _samples(table, first) for reason, first in sorted(found.first.items())}
    reasons: Counter[str] = Counter()
    for (reason, *_), rows in found.counts.items():
        reasons[reason] += rows
    tombstones = reasons.pop(TOMBSTONE, 0)
    told = {
        "pending": reasons.total(),
        "tombstones": tombstones,
        "limit": source.dead_letter_limit,
        "reasons": dict(reasons.most_common()),
        "counts": [
            {"reason": reason, "day": day, "epoch": epoch, "partition": partition, "letters": rows}
            for (reason, day, epoch, partition), rows in sorted(found.counts.items())
            if reason != TOMBSTONE
        ],
        "days": [
            {
                "day": day,
                "good": known.good,
                "dead": known.dead,
                "acknowledged": known.acknowledged,
                "share": round(known.share, 6),
                "over": known.over,
            }
            for day, known in sorted(days.items())
            if known.dead and wanted.day in (None, day)
        ],
    }
    return told, shown


def _find(source: Source, table: DeltaTable, wanted: Wanted, samples: int) -> Found:
    """Count the letters, block by block, without their values."""
    found = Found()
    good = pending.replayed(source, table)
    for block in pending.letters(table, good, ("rejected_reason", "known_time"), wanted.sql, tombstones=True):
        block = block.append_column("day", block.column("known_time").cast(pa.date32()))
        for row in block.group_by(list(_GROUP)).aggregate([([], "count_all")]).to_pylist():
            found.counts[tuple(row[name] for name in _GROUP)] += row["count_all"]
        ordered = block.sort_by([(name, "ascending") for name in ("rejected_reason", *_POSITION)])
        reasons = ordered.column("rejected_reason").combine_chunks()
        start = 0
        for run in pc.run_end_encode(reasons).run_ends.to_pylist():
            reason = reasons[start].as_py()
            if reason != TOMBSTONE and samples:
                few = [
                    tuple(row.values()) for row in ordered.slice(start, min(run - start, samples)).select(_POSITION).to_pylist()
                ]
                found.first[reason] = sorted([*found.first.get(reason, ()), *few])[:samples]
            start = run
    return found


def _samples(table: DeltaTable, first: list[Position]) -> list[dict[str, Any]]:
    """The letters at the positions, masked."""
    terms = " or ".join(
        f"(topic = '{topic}' and topic_epoch = {epoch} and kafka_partition = {partition} and kafka_offset = {offset})"
        for topic, epoch, partition, offset in first
    )
    rows = lake.query(
        table,
        "select topic_epoch, kafka_partition, kafka_offset, known_time, raw_key, raw_value from t "
        f"where event_date is null and rejected_reason is not null and ({terms}) "
        "order by topic, topic_epoch, kafka_partition, kafka_offset",
    )
    return [
        {
            "epoch": row["topic_epoch"],
            "partition": row["kafka_partition"],
            "offset": row["kafka_offset"],
            "known_time": row["known_time"],
            "key": mask_fields(row["raw_key"]),
            "value": mask_fields(row["raw_value"]),
        }
        for row in rows.to_pylist()
    ]


def _show(source: Source, told: dict[str, Any], samples: dict[str, Any]) -> None:
    print(f"{source.name}: {told['pending']:,} dead letters, and {told['tombstones']:,} tombstones, which never count")
    for reason, rows in told["reasons"].items():
        print(f"  {reason}: {rows:,}")
        for one in told["counts"]:
            if one["reason"] == reason:
                epoch = f"epoch {one['epoch']}, " if one["epoch"] else ""
                print(f"    {one['day']}, {epoch}partition {one['partition']}: {one['letters']:,}")
        for one in samples.get(reason, ()):
            print(f"    {one['partition']}/{one['offset']} at {one['known_time']}: key {one['key'] or 'none'}, {one['value']}")
    for one in told["days"]:
        verdict = "over the limit: its features are refused" if one["over"] else "within the limit"
        accepted = f", {one['acknowledged']:,} of them acknowledged" if one["acknowledged"] else ""
        print(
            f"  {one['day']}: {one['dead']:,} of {one['good'] + one['dead']:,} records are dead{accepted}; "
            f"{one['share']:.1%} count, at most {told['limit']:.1%} is declared: {verdict}"
        )
