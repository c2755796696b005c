"""How far the reading of one source has come: for the log as it goes, and for the run report."""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from jobs.ingest import plan
from jobs.ingest.plan import Plan, Reach
from jobs.ingest.ranges import Done

log = logging.getLogger(__name__)

BATCH_BYTES = 512 << 20
"""A batch of large records is planned smaller than BATCH_RECORDS, so that a killed run loses at most so much work."""

FIRST_RECORDS = 250_000
"""The first batch of a long backlog, which tells how large its records are. It is small enough for one process, while others
start."""


@dataclass(kw_only=True, slots=True)
class Progress:
    """What came in from one source since the run began."""

    name: str
    open_transaction: bool
    good: int = 0
    dead: int = 0
    bytes: int = 0
    batches: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Dead letters by reason."""
    without_row: Counter[str] = field(default_factory=Counter)
    """Offsets that hold no record, by reason."""
    days: set[date] = field(default_factory=set)
    """The known days that were touched."""
    epoch: int = 0
    positions: dict[int, int] = field(default_factory=dict)
    behind: int = 0
    read_up_to: datetime | None = None
    longest_batch: float = 0.0
    """Seconds."""
    round_batch: float = 0.0
    """The seconds of the longest batch of this round."""
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def reset(self, reach: Reach) -> None:
        """A new round of a service begins."""
        self.open_transaction = reach.undecided
        self.round_batch = 0.0

    def limit(self, scale: int) -> int:
        """About how many records the next batch may have, by an engine whose batches are `scale` times as large."""
        records = self.good + self.dead
        if not records:
            return min(plan.BATCH_RECORDS, FIRST_RECORDS)
        return max(1, min(scale * plan.BATCH_RECORDS, scale * BATCH_BYTES * records // max(1, self.bytes)))

    def note(self, made: Plan, done: Sequence[Done], seconds: float) -> None:
        """Add a batch that is committed."""
        self.good += sum(one.good for one in done)
        self.dead += sum(one.dead for one in done)
        self.bytes += sum(one.bytes for one in done)
        self.batches += not made.is_empty
        for one in done:
            for (known, reason), rows in one.dead_counts.items():
                self.reasons[reason] += rows
                self.days.add(known)
            self.days.update(known for _, known in one.counts)
            for start, end, reason in one.spans:
                self.without_row[reason] += end - start
        self.epoch = made.epoch
        self.positions = made.positions
        self.behind = made.behind
        self.read_up_to = made.read_up_to
        self.longest_batch = max(self.longest_batch, seconds)
        self.round_batch = max(self.round_batch, seconds)
        self.seconds = time.monotonic() - self.began
        if made.behind:
            log.info(
                "%s: %d records in %.0f s, %.0f a second, %d behind, %.0f s left",
                *(self.name, self.good + self.dead, self.seconds, self.rate, made.behind, made.behind / max(1.0, self.rate)),
            )

    @property
    def rate(self) -> float:
        """Records a second, of all that came in."""
        return (self.good + self.dead) / max(1e-3, self.seconds)

    def told(self) -> dict[str, Any]:
        """For the run report."""
        return {
            "good": self.good,
            "dead": self.dead,
            "bytes": self.bytes,
            "batches": self.batches,
            "reasons": dict(self.reasons),
            "without_row": dict(self.without_row),
            "epoch": self.epoch,
            "positions": {str(partition): position for partition, position in sorted(self.positions.items())},
            "behind": self.behind,
            "read_up_to": self.read_up_to,
            "open_transaction": self.open_transaction,
            "records_per_second": round(self.rate),
            "longest_batch_seconds": round(self.longest_batch, 3),
        }
