"""The letters that are still dead: dead rows for whose position there is no good row.

A replay keeps the dead letter, which is immutable, and adds a good row with its position. Only batches of replays hold such
rows, so they alone are looked into: files say by their statistics which batch they are of. Letters come by the block, never all
at once; what is kept of the replayed ones is eight bytes for each.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from jobs import batches, lake
from jobs.errors import UsageError
from jobs.interval import parse_day
from jobs.record import TOMBSTONE
from pipelines.declare import Source

Place = tuple[str, int, int]
"""Topic, epoch and partition."""

PLACE = ("topic", "topic_epoch", "kafka_partition")
_BATCHES = 500
"""Batches in one query."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which letters a command is about."""

    day: date | None = None
    """Their known day; None: all."""
    reason: str | None = None
    """A text that their reason contains; None: all reasons."""

    @classmethod
    def of(cls, options: Namespace) -> "Wanted":
        """From the command line. Raises UsageError for a day that is none, and for a text that would choose nothing."""
        if options.reason is not None and not options.reason.strip():
            raise UsageError(
                "--reason is empty: give a part of a reason as `penstock dead-letters list` shows it, or leave it out."
            )
        return cls(day=parse_day(options.day) if options.day else None, reason=options.reason)

    @property
    def sql(self) -> str:
        """A condition on a row of events."""
        terms = ["true"]
        if self.day is not None:
            terms.append(f"cast(known_time as date) = date '{self.day}'")
        if self.reason is not None:
            quoted = self.reason.replace("'", "''")
            terms.append(f"strpos(rejected_reason, '{quoted}') > 0")
        return " and ".join(terms)


def letters(
    table: DeltaTable, replayed: dict[Place, np.ndarray], columns: tuple[str, ...], where: str, *, tombstones: bool = False
) -> Iterator[pa.Table]:
    """Blocks of the letters that are still dead and for which the SQL condition holds, with these columns and their positions."""
    names = ", ".join(dict.fromkeys((*PLACE, "kafka_offset", *columns)))
    kinds = "" if tombstones else f" and rejected_reason <> '{TOMBSTONE}'"
    sql = f"select {names} from t where event_date is null and rejected_reason is not null{kinds} and ({where})"
    reader = pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(sql))
    for batch in reader:
        block = _plain(pa.Table.from_batches([batch]))
        if replayed:
            block = block.filter(pa.array(_still_dead(block, replayed)))
        if len(block):
            yield block


def replayed(source: Source, table: DeltaTable) -> dict[Place, np.ndarray]:
    """The offsets, ascending, of the letters that a replay made good, as the handle shows them. The account must be settled."""
    account = lake.load(batches.ranges_uri(source))
    if account is None:
        return {}
    # Those that a rebuild voids too: their rows are gone, or the handle is older than the rebuild.
    replays = lake.query(account, "select distinct batch from t where kind = 'replay'").column("batch").to_pylist()
    offsets: dict[Place, list[np.ndarray]] = {}
    for start in range(0, len(replays), _BATCHES):
        names = ", ".join(f"'{name}'" for name in replays[start : start + _BATCHES])
        found = _plain(
            lake.query(
                table,
                "select topic, topic_epoch, kafka_partition, kafka_offset from t "
                f"where event_date is not null and rejected_reason is null and batch in ({names})",
            )
        )
        for place, rows in _by_place(found):
            offsets.setdefault(place, []).append(found.column("kafka_offset").to_numpy()[rows])
    return {place: np.sort(np.concatenate(parts)) for place, parts in offsets.items()}


def _plain(block: pa.Table) -> pa.Table:
    """The block without DataFusion's views, which Arrow can't take rows of. Values of a block may be more than 2 GiB."""
    kinds = {pa.string_view(): pa.string(), pa.binary_view(): pa.large_binary()}
    return block.cast(pa.schema([(column.name, kinds.get(column.type, column.type)) for column in block.schema]))


def _still_dead(block: pa.Table, replayed: dict[Place, np.ndarray]) -> np.ndarray:
    keep = np.ones(len(block), bool)
    offsets = block.column("kafka_offset").to_numpy()
    for place, rows in _by_place(block):
        if (good := replayed.get(place)) is not None:
            own = offsets[rows]
            at = np.minimum(np.searchsorted(good, own), len(good) - 1)
            keep[rows] = good[at] != own
    return keep


def _by_place(rows: pa.Table) -> Iterator[tuple[Place, np.ndarray]]:
    """The numbers of the rows of each place."""
    numbered = pa.table({name: rows.column(name) for name in PLACE} | {"row": pa.array(np.arange(len(rows)))})
    for group in numbered.group_by(list(PLACE)).aggregate([("row", "list")]).to_pylist():
        yield (group["topic"], group["topic_epoch"], group["kafka_partition"]), np.array(group["row_list"])
