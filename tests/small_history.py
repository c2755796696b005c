"""A small pipeline with all that features know, and histories for it: by hand, or at random and full of edges."""

import json
import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs import batches, lake
from jobs.decode import events_schema
from pipelines.declare import (
    Aggregate,
    Column,
    Dimension,
    FeatureSet,
    Field,
    Label,
    Pipeline,
    Source,
    Spine,
    Training,
    days,
    hours,
)

ORDERS = Source(
    name="orders",
    topic="orders",
    event_time="ordered_at",
    event_id="order_id",
    repeats_within=days(2),
    fields=(
        Field("order_id", required=True),
        Field("visit_id"),
        Field("user"),
        Field("shop", "int64"),
        Field("amount", "int64"),
        Field("paid", "bool"),
        Field("price", "decimal(12,2)"),
        Field("weight", "float64"),
        Field("kind"),
        Field("ordered_at", "timestamp", required=True),
    ),
)
VISITS = Source(
    name="visits",
    topic="visits",
    event_time="starts_at",
    event_id="visit_id",
    repeats_within=days(2),
    fields=(
        Field("visit_id", required=True),
        Field("user"),
        Field("shop", "int64"),
        Field("size", "float64"),
        Field("starts_at", "timestamp", required=True),
    ),
)
RATES = Source(
    name="rates",
    topic="rates",
    event_time="at",
    event_id="rate_id",
    repeats_within=days(2),
    fields=(
        Field("rate_id", required=True),
        Field("shop", "int64"),
        Field("level", "float64"),
        Field("at", "timestamp", required=True),
    ),
)
AGGREGATES = (
    Aggregate("orders", "count"),
    Aggregate("large", "count", where="amount > 5"),
    Aggregate("spent", "sum", "amount"),
    Aggregate("mean", "mean", "amount", where="paid"),
    Aggregate("paid_rate", "rate", "paid"),
)
PIPELINE = Pipeline(
    name="shop",
    description="A small one.",
    first_day=date(2020, 1, 1),
    lateness=hours(3),
    spine=Spine(
        source=VISITS,
        key="visit_id",
        at="starts_at",
        before=hours(2),
        columns=(
            Column("user"),
            Column("size"),
            Column("twice", sql="size * 2", type="float64"),
            Column("shop_name", sql="cast(shop as string)", type="string"),
        ),
    ),
    features=(
        FeatureSet(name="user", source=ORDERS, entity=("user",), windows=(days(3), days(1), days(7)), aggregates=AGGREGATES),
        FeatureSet(name="pair", source=ORDERS, entity=("user", "shop"), windows=(days(2),), aggregates=AGGREGATES[:3]),
    ),
    dimensions=(Dimension(name="rate", source=RATES, entity=("shop",), fields=("level",), within=days(2)),),
    label=Label(source=ORDERS, key="visit_id", of="amount > 5", horizon=days(2), lateness=hours(5)),
    training=Training(every=days(7), days=days(30), validation=days(7), holdout=days(7)),
)
TABLES = {"features_user": "event_date", "features_pair": "event_date", "examples": "as_of_date", "labels": "mature_date"}


def at(text: str) -> datetime:
    """`at("2020-01-10 12:00")`, in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


CLOSED = at("2030-01-01")
"""All days of these histories are closed by then."""


def event(source: Source, fields: dict[str, Any], *, known: datetime, partition: int = 0, offset: int) -> dict[str, Any]:
    """A good row of the source's events table."""
    happened = fields[source.event_time]
    position = {"topic": source.topic, "topic_epoch": 0, "kafka_partition": partition, "kafka_offset": offset, "batch": "b"}
    return {**fields, "event_time": happened, "known_time": known, **position, "event_date": happened.date()}


def write(source: Source, rows: Iterable[dict[str, Any]], *, read_up_to: datetime = CLOSED) -> None:
    """Make the rows the source's events, and close all days before `read_up_to`."""
    rows = list(rows)
    table = pa.Table.from_pylist(rows, schema=events_schema(source))
    before = lake.load(batches.ranges_uri(source))
    version = lake.replace(batches.events_uri(source), table, where="true", partition_by=["event_date"])
    days_of = Counter((str(row["event_date"]), str(row["known_time"].date())) for row in rows)
    # In place of what was there, as a rebuild is.
    kind = "ingest" if before is None else "rebuild"
    account = {"kind": kind, "batch": "b", "run_id": "r", "version": version, "topic": source.topic, "topic_id": "t"}
    account |= {
        "topic_epoch": 0,
        "kafka_partition": 0,
        "start_offset": 0,
        "end_offset": len(table),
        "good": len(table),
        "dead": 0,
    }
    counts = json.dumps([[*pair, number] for pair, number in sorted(days_of.items())])
    account |= {"counts": counts, "dead_counts": "[]", "spans": [], "read_up_to": read_up_to, "note": None}
    lake.append(batches.ranges_uri(source), pa.Table.from_pylist([account], schema=batches.RANGES))


def random_history(seed: int, first: date, last: date) -> dict[str, list[dict[str, Any]]]:
    """Events of all sources with event days in [first, last]: edges of days, late and early news, repeats, ties, nulls."""
    draw = random.Random(seed)
    span = (last - first).days + 1
    edges = [timedelta(0), timedelta(microseconds=1), timedelta(microseconds=-1), timedelta(hours=3), timedelta(hours=5)]
    delays = [
        timedelta(0),
        timedelta(microseconds=1),
        timedelta(minutes=20),
        timedelta(hours=9),
        timedelta(hours=-30),
        days(1),
        days(3),
        days(8),
    ]

    def moment() -> datetime:
        midnight = datetime(first.year, first.month, first.day, tzinfo=UTC) + timedelta(days=draw.randrange(span))
        return midnight + (draw.choice(edges) if draw.random() < 0.3 else timedelta(seconds=draw.randrange(86400)))

    def known(happened: datetime) -> datetime:
        if draw.random() < 0.2:
            return (happened + draw.choice(delays)).replace(hour=0, minute=0, second=0, microsecond=0) + draw.choice(edges)
        return happened + draw.choice(delays)

    offsets = iter(range(1_000_000))

    def sent(source: Source, fields: dict[str, Any]) -> list[dict[str, Any]]:
        """One event, and now and then its repeats, with other content, some of them too far away to be repeats."""
        rows = [event(source, fields, known=known(fields[source.event_time]), partition=draw.randrange(3), offset=next(offsets))]
        while draw.random() < 0.2:
            moved = {
                **fields,
                source.event_time: fields[source.event_time] + draw.choice([timedelta(0), hours(30), days(2), days(3), days(-1)]),
            }
            moved |= {"amount": draw.randrange(10)} if "amount" in fields else {}
            when = draw.choice([rows[0]["known_time"], known(moved[source.event_time])])
            rows.append(event(source, moved, known=when, partition=draw.randrange(3), offset=next(offsets)))
        return rows

    history: dict[str, list[dict[str, Any]]] = {"orders": [], "visits": [], "rates": []}
    users, shops = ["ann", "bob", "cleo", None], [1, 2, None]
    for number in range(300):
        starts = moment()
        fields = {
            "visit_id": f"v{number}",
            "user": draw.choice(users),
            "shop": draw.choice(shops),
            "size": draw.choice([0.5, 1.25, None]),
            "starts_at": starts,
        }
        rows = sent(VISITS, fields)
        for row in rows:
            row["known_time"] -= draw.choice([days(3), days(3), hours(1)])
        history["visits"] += rows
    for number in range(400):
        visit = draw.choice(history["visits"])
        happened = (
            visit["starts_at"] + draw.choice([timedelta(0), hours(-2), hours(5), hours(46)]) if draw.random() < 0.5 else moment()
        )
        fields = {
            "order_id": f"o{number}",
            "visit_id": draw.choice([visit["visit_id"], None]),
            "user": draw.choice(users),
            "shop": draw.choice(shops),
        }
        fields |= {"amount": draw.choice([None, *range(10)]), "paid": draw.choice([True, False, None]), "ordered_at": happened}
        history["orders"] += sent(ORDERS, fields)
    for number in range(80):
        history["rates"] += sent(
            RATES, {"rate_id": f"r{number}", "shop": draw.choice(shops), "level": draw.random(), "at": moment()}
        )
    # Drawn apart, so that what a seed gives the other fields stays as it is.
    draw = random.Random(seed + 1000)
    for row in history["orders"]:
        row["price"] = draw.choice(
            [None, Decimal("0.01"), Decimal("-3.50"), Decimal("1234567890.12"), Decimal(draw.randrange(999)) / 4]
        )
        row["weight"] = draw.choice([None, 0.125, -0.125, 2.675, 0.1, draw.random() * 100])
        row["kind"] = draw.choice([None, "a", "b", "b", "c"])
    return history


def write_all(history: dict[str, list[dict[str, Any]]], pipeline: Pipeline = PIPELINE) -> None:
    """Make a history the events of the pipeline's sources."""
    for source in pipeline.sources:
        write(source, history[source.name])


def rows(table: str, root: Path | None = None) -> list[dict[str, Any]]:
    """What a table of the pipeline holds, in a fixed order; instants without their zone, as DuckDB gives them."""
    handle = lake.load(f"{root}/shop/{table}" if root else lake.uri("shop", table))
    assert handle is not None, table
    found = lake.query(handle, "select * from t").to_pylist()
    return in_order({k: v.replace(tzinfo=None) if isinstance(v, datetime) else v for k, v in row.items()} for row in found)


def in_order(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by their text, columns by their name: so that two tables compare whatever the order in which they were written."""
    return sorted(({k: row[k] for k in sorted(row)} for row in found), key=lambda row: str(list(row.values())))
