"""`penstock audit SOURCE|PIPELINE`: is every Kafka position one row, once, or accounted for?

Three witnesses must agree: the rows of the table, read file by file; its account, what each batch said it read and why offsets
have no row; and Kafka, where each partition begins and ends, or with `--read-kafka` every record that it still holds.
"""

import time
from dataclasses import asdict
from typing import Any

from jobs import account, batches, lake
from jobs.audit import against, findings, positions
from jobs.audit.findings import Finding
from jobs.audit.positions import EXPLAINED, REPLAYED, Key, Partition
from jobs.command import Job
from jobs.errors import DataError, UsageError
from jobs.kafka import Cluster
from pipelines.declare import Source

SHOWN = 20
"""Findings in the message; the report has them all, up to MOST."""
MOST = 10_000

_COLUMNS = "kind, batch, version, topic_epoch, kafka_partition, start_offset, end_offset, spans"
_TELLING = "end_offset > start_offset or kind in ('replay', 'erase')"
"""Rows of the account that say something of an offset: those of runs that found nothing new may be many more."""


def run(job: Job) -> None:
    """Audit the sources of the job. Raises DataError with the ranges where something is wrong."""
    cluster = Cluster()
    wrong: list[str] = []
    told = job.report["sources"] = {}
    for source in job.source:
        told[source.name], found = audit(cluster, source, read_kafka=bool(vars(job.options).get("read_kafka")))
        wrong += [f"{source.name}, {finding}" for finding in found]
        if not job.options.json:
            print(_line(source, told[source.name]))
    if wrong:
        more = f"\n  … and {len(wrong) - SHOWN} more, in the run report" if len(wrong) > SHOWN else ""
        raise DataError(
            "the table and Kafka do not agree:" + "".join(f"\n  {line}" for line in wrong[:SHOWN]) + more + "\n"
            "docs/ingest.md says what each means. `penstock ingest SOURCE --rebuild` reads again what Kafka still has."
        )


def audit(cluster: Cluster, source: Source, *, read_kafka: bool) -> tuple[dict[str, Any], list[Finding]]:
    """What the report says of one source, and what is wrong with it."""
    clock = time.monotonic()
    table = lake.load(batches.events_uri(source))
    topic = cluster.topics([source.topic]).get(source.topic)
    if topic is None:
        raise UsageError(f"there is no topic {source.topic!r}, which source {source.name!r} reads: correct the declaration.")
    if table is None:
        return {"rows": 0, "partitions": {}, "findings": [], "never_ingested": True}, []
    # What was committed after the handle was loaded is for the next audit.
    account.settle(source)
    rows = batches.ranges(source, _COLUMNS, _TELLING, version=table.version()).to_pylist()
    partitions = _partitions(source, table, rows)
    count = positions.read(table, partitions)
    found = [*findings.of_account(rows)]
    for key in sorted(partitions):
        found += findings.of_partition(partitions[key])
    epoch = table.transaction_version(batches.epoch_id(source)) or 0
    kafka: dict[int, against.Told] = {}
    was_read = any(one.next for (of, _), one in partitions.items() if of == epoch)
    if was_read and table.transaction_version(batches.topic_id(source, topic.id)) != epoch:
        what = f"topic {source.topic!r} was created again, and nothing of it was read"
        found += [Finding(what=what, epoch=epoch, partition=number, start=0, end=0) for number in topic.partitions]
    else:
        kafka, more = _against(cluster, source, topic, partitions, epoch, read_kafka=read_kafka)
        found += more
    without: dict[str, int] = {}
    for row in rows:
        for span in row["spans"] or ():
            if span["reason"] != "replayed":
                without[span["reason"]] = without.get(span["reason"], 0) + span["end"] - span["start"]
    return {
        "rows": count,
        "version": table.version(),
        "epoch": epoch,
        "without_row": without,
        "lag": sum(one.lag for one in kafka.values()),
        "only_here": sum(one.only_here for one in kafka.values()),
        "partitions": {str(number): asdict(one) for number, one in sorted(kafka.items())},
        "findings": [finding.told() for finding in found[:MOST]],
        "seconds": round(time.monotonic() - clock, 2),
    }, found


def _partitions(source: Source, table: Any, rows: list[dict[str, Any]]) -> dict[Key, Partition]:
    """Each partition that was read, with what the account says of its offsets."""
    partitions: dict[Key, Partition] = {}
    for row in rows:
        epoch, number = row["topic_epoch"], row["kafka_partition"]
        if number is None:
            continue
        if (epoch, number) not in partitions:
            stored = table.transaction_version(batches.position_id(source, epoch, number)) or 0
            partitions[epoch, number] = Partition(epoch=epoch, number=number, next=stored)
        for span in row["spans"] or ():
            flag = REPLAYED if span["reason"] == "replayed" else EXPLAINED
            partitions[epoch, number].mark(span["start"], span["end"], flag)
    return partitions


def _against(
    cluster: Cluster, source: Source, topic: Any, partitions: dict[Key, Partition], epoch: int, *, read_kafka: bool
) -> tuple[dict[int, against.Told], list[Finding]]:
    compacted = "compact" in cluster.configuration(source.topic)["cleanup.policy"]
    told: dict[int, against.Told] = {}
    found: list[Finding] = []
    for number, held in sorted(cluster.bounds([topic])[source.topic].items()):
        # A partition that was never read stands at 0: what expired of it before is not lost to us, but recorded when it is read.
        partition = partitions.get((epoch, number)) or Partition(epoch=epoch, number=number, next=held.earliest)
        told[number], wrong = against.ends(partition, held)
        found += wrong
        if read_kafka:
            found += against.records(source.topic, partition, told[number], compacted=compacted)
    return told, found


def _line(source: Source, told: dict[str, Any]) -> str:
    if told.get("never_ingested"):
        return f"{source.name}: never ingested"
    without = ", ".join(f"{count:,} {reason}" for reason, count in sorted(told["without_row"].items())) or "none"
    compared = [one["compared"] for one in told["partitions"].values() if one["compared"] is not None]
    return (
        f"{source.name}: {told['rows']:,} rows, {len(told['findings'])} findings, lag {told['lag']:,}; offsets without "
        f"a row: {without}; "
        f"rows that only the table still has: {told['only_here']:,}"
        + (f"; {sum(compared):,} records of Kafka compared" if compared else "")
        + f" ({told['seconds']} s)"
    )
