"""`penstock ingest SOURCE --rebuild`: all that Kafka still has, read again by today's contract, in place of what the table holds.

The files lie beside the table's own, where nobody sees them, until one commit takes the old ones out and these in. So a rebuild
that dies leaves orphans and nothing else, and starts from the beginning. It is a new epoch: the account of the old ones no longer
counts.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from jobs import account, batches, contract, lake
from jobs.commit import commit
from jobs.errors import DataError, RetryError
from jobs.ingest import plan
from jobs.ingest.plan import Plan, Reach
from jobs.ingest.ranges import Done, Range
from jobs.ingest.topic import ends
from jobs.kafka import Cluster
from pipelines.declare import Source

log = logging.getLogger(__name__)

TRIES = 10


def rebuild(
    source: Source, reach: Reach, read_all: Callable[[Sequence[Range]], list[Done]], run_id: str, *, accept_loss: bool
) -> tuple[Plan, list[Done]]:
    """Read everything and swap it in.

    Raises DataError where the table holds records that Kafka no longer has, and nobody accepted their loss; RetryError where
    something else than an ingest changed the table meanwhile, or the topic was created again.
    """
    cluster = Cluster()
    table = contract.table(source)
    # An erasure may have been killed before its account was written; one that commits from here on is seen below.
    account.settle(source)
    epoch = _epoch(source, table)
    rewrites = table.transaction_version(batches.REWRITE) or 0
    # Asked after the table was loaded: all its rows of this topic lie below.
    now = ends(cluster, reach.topic)
    if not accept_loss:
        _refuse_loss(source, table, reach, now, epoch)
    planned = plan.batch(
        source,
        table,
        reach,
        run_id,
        epoch=epoch + 1,
        starts=dict.fromkeys(reach.bounds, 0),
        begins=True,
        records=1 << 62,
        kind="rebuild",
        erased=account.erased(source, table, reach.topic.id, epoch + 1),
        same=now,
    )
    log.info("%s: reading %d records again", source.name, sum(map(len, planned.ranges)))
    done = read_all(planned.ranges)
    files = [written for one in done for written in one.files]
    for _ in range(TRIES):
        table = contract.table(source)
        if _epoch(source, table) != epoch or (table.transaction_version(batches.REWRITE) or 0) != rewrites:
            raise RetryError(
                f"{source.name} was rebuilt, erased from, replayed into or acknowledged while this rebuild read. "
                "Nothing was changed; "
                "run it again."
            )
        planned.require_same_topic(cluster)
        if not accept_loss:
            _refuse_holes(source, table, epoch, done)
        # What neighbours have read meanwhile goes too: it lies beyond this reach, and the next ingest reads it in the new epoch.
        moved = planned.transactions() | {batches.REWRITE: rewrites + 1}
        if commit(source, table, files, planned.account(done), moved, mode="overwrite"):
            account.settle(source)
            return planned, done
    raise RetryError(f"{source.name}: the rebuild was lost to other writers {TRIES} times. Stop them, or try again.")


def _epoch(source: Source, table: DeltaTable) -> int:
    return table.transaction_version(batches.epoch_id(source)) or 0


def _refuse_loss(source: Source, table: DeltaTable, reach: Reach, now: Mapping[int, int], epoch: int) -> None:
    """Raise DataError where a rebuild would lose rows that can't be read again."""
    same_topic = table.transaction_version(batches.topic_id(source, reach.topic.id)) == epoch
    kept = " or ".join(
        f"(kafka_partition = {partition} and kafka_offset >= {held.earliest} and kafka_offset < {now[partition]})"
        for partition, held in sorted(reach.bounds.items())
    )
    still = f"topic_epoch = {epoch} and ({kept})" if same_topic else "false"
    _refuse(
        source,
        lake.query(
            table,
            "select topic_epoch, kafka_partition, count(*) as lost, min(kafka_offset) as first, max(kafka_offset) as last from t "
            f"where not ({still}) group by topic_epoch, kafka_partition order by topic_epoch, kafka_partition",
        ).to_pylist(),
    )


def _refuse_holes(source: Source, table: DeltaTable, epoch: int, done: Sequence[Done]) -> None:
    """Raise DataError where the table has rows at offsets at which Kafka had no record any more: compaction took them.

    Only after the reading can that be known. What was erased meanwhile has no rows.
    """
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one in done:
        spans[one.range.partition] += [(start, end) for start, end, reason in one.spans if reason != "erased"]
    lost = []
    for partition, holes in sorted(spans.items()):
        if not holes:
            continue
        bounds = np.array(sorted(holes))
        # Block by block: a table may have more positions than memory.
        reader = QueryBuilder().register("t", table)
        rows = reader.execute(f"select kafka_offset from t where topic_epoch = {epoch} and kafka_partition = {partition}")
        gone = [_within(bounds, batch.column(0).to_numpy()) for batch in pa.RecordBatchReader.from_stream(rows)]
        offsets = np.unique(np.concatenate(gone)) if gone else np.array([], np.int64)
        if len(offsets):
            first, last = int(offsets[0]), int(offsets[-1])
            lost.append({"topic_epoch": epoch, "kafka_partition": partition, "lost": len(offsets), "first": first, "last": last})
    _refuse(source, lost)


def _within(bounds: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The offsets that lie in one of the spans, which ascend."""
    at = np.searchsorted(bounds[:, 0], offsets, side="right") - 1
    found: npt.NDArray[np.int64] = offsets[(at >= 0) & (offsets < bounds[np.maximum(at, 0), 1])]
    return found


def _refuse(source: Source, lost: list[dict[str, Any]]) -> None:
    if lost:
        lines = "".join(
            f"\n  epoch {row['topic_epoch']}, partition {row['kafka_partition']}: {row['lost']:,} rows, offsets "
            f"{row['first']} to {row['last']}"
            for row in lost
        )
        raise DataError(
            f"Kafka no longer has {sum(row['lost'] for row in lost):,} records that {source.name} holds; a rebuild "
            "would lose them:"
            f"{lines}\nNothing was changed. `--accept-loss` rebuilds without them."
        )
