"""Events tables for the benchmark of features, generated once and kept while their parameters are the same."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from jobs import batches, lake
from jobs.decode import events_schema
from jobs.settings import state_folder
from pipelines.declare import Field, Source, days

LAST = date(2020, 12, 31)
"""The last day of each history: figures are those of the days up to the one before it."""
ITEMS = 5_000
CHUNK = 1_000_000
"""Rows written at once, so that memory stays small."""
RECIPE = 1
"""Raised whenever the generator changes, so that nothing old is reused."""

SALES = Source(
    name="sales",
    topic="sales",
    event_time="at",
    event_id="sale_id",
    repeats_within=days(2),
    fields=(
        Field("sale_id", required=True),
        Field("user"),
        Field("item", "int64"),
        Field("amount", "int64"),
        Field("at", "timestamp", required=True),
    ),
)
VISITS = Source(
    name="visits",
    topic="visits",
    event_time="starts_at",
    event_id="visit_id",
    repeats_within=days(2),
    fields=(Field("visit_id", required=True), Field("user"), Field("starts_at", "timestamp", required=True)),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """How much happened, over how many days up to LAST, to how many users."""

    events: int
    days: int
    users: int
    top: int = 0
    """Events of the first user; the others' shares fall with their rank. 0: all users have the same share."""
    visits: int = 0
    """Visits on each of the last four days, known two days before they start."""
    seed: int = 7

    @property
    def folder(self) -> Path:
        """Its lake."""
        told = json.dumps([RECIPE, asdict(self)], sort_keys=True)
        return state_folder() / "bench" / f"features-{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    @contextmanager
    def lake(self) -> Iterator[Path]:
        """Its lake, filled where it is not yet, for what runs inside."""
        before = os.environ.get("PENSTOCK_LAKE")
        os.environ["PENSTOCK_LAKE"] = str(self.folder)
        try:
            if not (self.folder / "done").exists():
                shutil.rmtree(self.folder, ignore_errors=True)
                self._fill()
                (self.folder / "done").touch()
            yield self.folder
        finally:
            if before is None:
                del os.environ["PENSTOCK_LAKE"]
            else:
                os.environ["PENSTOCK_LAKE"] = before

    def _fill(self) -> None:
        draw = np.random.default_rng(self.seed)
        first = LAST - timedelta(days=self.days - 1)
        step = max(1, self.days * CHUNK // self.events)
        done = 0
        for start in range(0, self.days, step):
            width = min(step, self.days - start)
            count = self.events * (start + width) // self.days - done
            rows = self._sales(draw, first + timedelta(days=start), width, done, count)
            _append(SALES, rows)
            done += count
        _close(SALES, done)
        if self.visits:
            _append(VISITS, self._visits(draw))
            _close(VISITS, 4 * self.visits)

    def _sales(self, draw: Any, first: date, width: int, begins: int, count: int) -> pa.Table:
        """Sales of some days: one in a hundred comes again, and one in twenty a day or two late."""
        fresh = count - count // 100
        at = np.sort(draw.integers(0, width * 86_400_000_000, fresh)) + _micros(first)
        number = begins + np.arange(fresh)
        user = self._users(draw, fresh)
        values = {"number": number, "user": user, "at": at, "known": at + _delays(draw, fresh)}
        values |= {"item": draw.integers(0, ITEMS, fresh), "amount": draw.integers(1, 100_000, fresh)}
        again = draw.integers(0, fresh, count - fresh)
        repeats = {name: column[again] for name, column in values.items()}
        repeats["known"] = repeats["known"] + draw.integers(1, 3_600_000_000, count - fresh)
        both = {name: np.concatenate([values[name], repeats[name]]) for name in values}
        order = np.argsort(both["known"], kind="stable")
        both = {name: column[order] for name, column in both.items()}
        text = pa.string()
        fields = {
            "sale_id": pc.binary_join_element_wise("s", pa.array(both["number"]).cast(text), ""),
            "user": pc.binary_join_element_wise("u", pa.array(both["user"]).cast(text), ""),
            "item": pa.array(both["item"]),
            "amount": pa.array(both["amount"]),
            "at": pa.array(both["at"]).cast(lake.INSTANT),
        }
        return _table(SALES, fields, both["known"], begins)

    def _visits(self, draw: Any) -> pa.Table:
        count = 4 * self.visits
        at = np.sort(draw.integers(0, 4 * 86_400_000_000, count)) + _micros(LAST - timedelta(days=3))
        fields = {
            "visit_id": pc.binary_join_element_wise("v", pa.array(np.arange(count)).cast(pa.string()), ""),
            "user": pc.binary_join_element_wise("u", pa.array(self._users(draw, count)).cast(pa.string()), ""),
            "starts_at": pa.array(at).cast(lake.INSTANT),
        }
        return _table(VISITS, fields, at - 2 * 86_400_000_000, 0)

    def _users(self, draw: Any, count: int) -> Any:
        if not self.top:
            return draw.integers(0, self.users, count)
        share = 1 / np.arange(2, self.users + 1)
        others = 1 + np.searchsorted(np.cumsum(share / share.sum()), draw.random(count)).clip(0, self.users - 2)
        return np.where(draw.random(count) < self.top / self.events, 0, others)


def _delays(draw: Any, count: int) -> Any:
    """How long after it happened each event was known: seconds, and for one in twenty up to two days."""
    soon = draw.integers(1_000, 60_000_000, count)
    return np.where(draw.random(count) < 0.05, draw.integers(0, 2 * 86_400_000_000, count), soon)


def _table(source: Source, fields: dict[str, pa.Array], known: Any, begins: int) -> pa.Table:
    """The rows as ingest writes them."""
    count = len(known)
    happened = fields[source.event_time]
    columns = fields | {
        "event_time": happened,
        "known_time": pa.array(known).cast(lake.INSTANT),
        "topic": pa.repeat(source.topic, count),
        "topic_epoch": pa.repeat(pa.scalar(0, pa.int32()), count),
        "kafka_partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "kafka_offset": pa.array(begins + np.arange(count)),
        "batch": pa.repeat("b", count),
        "event_date": happened.cast(pa.date32()),
    }
    schema = events_schema(source)
    return pa.table([columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in schema], schema=schema)


def _append(source: Source, rows: pa.Table) -> None:
    write_deltalake(
        batches.events_uri(source),
        rows,
        mode="append",
        partition_by=["event_date"],
        configuration=lake.settings(rows.schema.names),
    )


def _close(source: Source, rows: int) -> None:
    """The account of one batch that read everything, long after the last day."""
    table = lake.load(batches.events_uri(source))
    assert table is not None
    account: dict[str, Any] = {"kind": "ingest", "batch": "b", "run_id": "r", "version": table.version(), "topic": source.topic}
    account |= {"topic_id": "t", "topic_epoch": 0, "kafka_partition": 0, "start_offset": 0, "end_offset": rows, "good": rows}
    account |= {"dead": 0, "counts": "[]", "dead_counts": "[]", "spans": [], "note": None}
    account |= {"read_up_to": datetime(LAST.year + 5, 1, 1, tzinfo=UTC)}
    lake.append(batches.ranges_uri(source), pa.Table.from_pylist([account], schema=batches.RANGES))


def _micros(day: date) -> int:
    return (day - date(1970, 1, 1)).days * 86_400_000_000
