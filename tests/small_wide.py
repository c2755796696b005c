"""Small pipelines with every aggregate and every kind of clock, spine and label, and what their SQL means in plain Python.

`WIDE` has windows of hours, lookups and tiles; `EXACT` goes by each example's own moment; in `DAILY` an entity on a day is one.
"""

import math
import random
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import plain
import pyarrow as pa
from plain import Plain
from small_history import ORDERS, RATES, VISITS, at

from jobs import lake, versions
from jobs.command import Job
from jobs.features import stage
from jobs.interval import Interval
from pipelines.declare import (
    Aggregate,
    Column,
    DailySpine,
    Dimension,
    Expression,
    FeatureSet,
    Field,
    Label,
    Pipeline,
    Spine,
    Table,
    Training,
    days,
    hours,
)

ITEMS = Table(
    name="items",
    path="reference/items",
    valid_from="since",
    fields=(
        Field("kind"),
        Field("shop", "int64"),
        Field("grade"),
        Field("cost", "float64"),
        Field("since", "timestamp", required=True),
    ),
)
ITEM = Dimension(name="item", source=ITEMS, entity=("kind",), fields=("grade", "cost"), within=None)
PLACE = Dimension(name="place", source=ITEMS, entity=("shop",), fields=("grade",), within=days(5))
RATE = Dimension(name="rate", source=RATES, entity=("shop",), fields=("level",), within=days(2))

EVERY = (
    Aggregate("orders", "count"),
    Aggregate("large", "count", where="amount > 5"),
    Aggregate("spent", "sum", "amount"),
    Aggregate("income", "sum", "price", where="paid"),
    Aggregate("weighed", "sum", "weight", scale=2),
    Aggregate("mean", "mean", "amount", where="paid"),
    Aggregate("mean_price", "mean", "price"),
    Aggregate("mean_weight", "mean", "weight", scale=1),
    Aggregate("spread", "stddev", "amount"),
    Aggregate("spread_price", "stddev", "price"),
    Aggregate("spread_weight", "stddev", "weight", scale=2),
    Aggregate("paid_rate", "rate", "paid"),
    Aggregate("large_rate", "rate", "amount > 5", where="paid"),
    Aggregate("least", "min", "amount"),
    Aggregate("lightest", "min", "weight", where="paid"),
    Aggregate("dearest", "max", "price"),
    Aggregate("first_kind", "first", "kind", type="string"),
    Aggregate("first_amount", "first", "amount", where="amount > 5"),
    Aggregate("last_weight", "last", "weight"),
    Aggregate("recent", "last_k", "amount", k=3),
    Aggregate("kinds", "last_k", "kind", k=2, type="string"),
    Aggregate("shops", "distinct", "shop"),
    Aggregate("amounts", "distinct", "amount", where="paid"),
    Aggregate("kinds_seen", "distinct", "kind"),
    Aggregate("visits_about", "approx_distinct", "visit_id"),
)
TILED = tuple({one.function: one for one in EVERY}.values())
"""One of each function: wide plans take seconds each to compile."""
FEW = tuple({each.function: each for each in EVERY}.values())
"""One of each function."""
LOOKED_UP = (
    Aggregate("worth", "sum", "worth"),
    Aggregate("level", "mean", "rate_level", scale=3),
    Aggregate("grade", "last", "item_grade", type="string"),
    Aggregate("cost", "max", "item_cost", where="item_grade <> 'x'"),
)
TRAINING = Training(every=days(7), days=days(30), validation=days(7), holdout=days(7))

WIDE = Pipeline(
    name="wide",
    description="Every aggregate.",
    first_day=date(2020, 1, 1),
    lateness=hours(3),
    spine=Spine(source=VISITS, key="visit_id", at="starts_at", before=hours(2), columns=(Column("user"), Column("size"))),
    features=(
        FeatureSet(
            name="all",
            source=ORDERS,
            entity=("user",),
            windows=(hours(36), hours(6), days(3)),
            where="kind is null or kind <> 'c'",
            lookups=(RATE, ITEM),
            per_event=(Expression("twice", "amount * 2"), Expression("worth", "twice + shop")),
            aggregates=(*EVERY, *LOOKED_UP),
            derived=(
                Expression("share", "try_divide(all_spent_6h, all_spent_3d)"),
                Expression("loud", "upper(all_first_kind_36h)", type="string"),
            ),
        ),
        FeatureSet(
            name="tiled", source=ORDERS, entity=("user", "shop"), windows=(days(2), days(5)), aggregates=TILED, tiles=True
        ),
    ),
    dimensions=(PLACE, replace(RATE, name="tariff")),
    label=Label(
        source=ORDERS,
        entity=("user",),
        aggregates=(
            Aggregate("orders", "count", where="paid"),
            Aggregate("spent", "sum", "amount"),
            Aggregate("dearest", "max", "price"),
        ),
        of="orders > 0 and (spent > 5 or dearest > 100)",
        horizon=days(2),
        lateness=hours(5),
        negatives=0.5,
    ),
    training=TRAINING,
)
EXACT = Pipeline(
    name="exact",
    description="Each example's own moment.",
    first_day=date(2020, 1, 1),
    lateness=hours(3),
    spine=Spine(source=ORDERS, key="order_id", at="ordered_at", before=hours(0), columns=(Column("amount"), Column("kind"))),
    features=(
        FeatureSet(
            name="open",
            source=ORDERS,
            entity=("user",),
            windows=(days(3), hours(6)),
            aggregates=FEW,
            accuracy="event",
            derived=(Expression("quiet", "if(open_large_3d = 0, 1.0, 0.0)"),),
        ),
        FeatureSet(
            name="closed",
            source=ORDERS,
            entity=("user",),
            windows=(days(2),),
            aggregates=EVERY[:6],
            accuracy="event",
            closed=True,
        ),
        FeatureSet(
            name="others",
            source=ORDERS,
            entity=("user",),
            windows=(days(2),),
            aggregates=tuple(each for each in EVERY if each.name in ("orders", "spent", "shops", "last_weight", "recent")),
            accuracy="event",
            closed=True,
            own_event=False,
        ),
        FeatureSet(name="daily", source=ORDERS, entity=("user",), windows=(days(2),), aggregates=EVERY[:6]),
    ),
    dimensions=(RATE,),
    label=Label(source=ORDERS, key="order_id", of="paid", horizon=days(2), lateness=hours(5), negatives_per_positive=0.5),
    training=TRAINING,
)
DAILY = Pipeline(
    name="daily",
    description="An entity on a day.",
    first_day=date(2020, 1, 1),
    lateness=hours(3),
    spine=DailySpine(
        source=ORDERS, entity=("user", "shop"), within=days(3), where="amount > 2", columns=(Column("user"), Column("shop"))
    ),
    features=(
        FeatureSet(name="pair", source=ORDERS, entity=("user", "shop"), windows=(days(2), hours(30)), aggregates=FEW),
        FeatureSet(name="user", source=ORDERS, entity=("user",), windows=(days(5),), aggregates=EVERY[:6]),
    ),
    dimensions=(RATE, PLACE),
    label=Label(
        source=ORDERS,
        entity=("user", "shop"),
        aggregates=(Aggregate("orders", "count"), Aggregate("kinds", "distinct", "kind")),
        of="orders > 1 and kinds > 1",
        horizon=days(2),
        lateness=hours(5),
        negatives_per_positive=1.5,
    ),
    training=TRAINING,
)


def _divided(above: Any, below: Any) -> Any:
    return above / below if above is not None and below else None


def _sum(*values: Any) -> Any:
    return None if None in values else sum(values)


def _or(*values: bool | None) -> bool | None:
    return True if True in values else None if None in values else False


def _and(*values: bool | None) -> bool | None:
    return False if False in values else None if None in values else True


def _over(value: Any, limit: int) -> bool | None:
    return None if value is None else value > limit


MEANINGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "amount > 5": lambda row: _over(row["amount"], 5),
    "amount > 2": lambda row: _over(row["amount"], 2),
    "kind is null or kind <> 'c'": lambda row: row["kind"] is None or row["kind"] != "c",
    "item_grade <> 'x'": lambda row: None if row["item_grade"] is None else row["item_grade"] != "x",
    "amount * 2": lambda row: None if row["amount"] is None else row["amount"] * 2,
    "twice + shop": lambda row: _sum(row["twice"], row["shop"]),
    "size * 2": lambda row: None if row["size"] is None else row["size"] * 2,
    "cast(shop as string)": lambda row: None if row["shop"] is None else str(row["shop"]),
    "try_divide(all_spent_6h, all_spent_3d)": lambda row: _divided(row["all_spent_6h"], row["all_spent_3d"]),
    "if(open_large_3d = 0, 1.0, 0.0)": lambda row: 1.0 if row["open_large_3d"] == 0 else 0.0,
    "upper(all_first_kind_36h)": lambda row: row["all_first_kind_36h"] and row["all_first_kind_36h"].upper(),
    "orders > 1 and kinds > 1": lambda row: row["orders"] > 1 and row["kinds"] > 1,
    "orders > 0 and (spent > 5 or dearest > 100)": lambda row: _and(
        row["orders"] > 0, _or(row["spent"] > 5, _over(row["dearest"], 100))
    ),
}
"""What each expression of these pipelines and of `small_history.PIPELINE` means."""


def random_items(seed: int, first: date, last: date) -> list[dict[str, Any]]:
    """Versions of the items: some at one instant, at the edges of days, some with null in the entity."""
    draw = random.Random(seed)
    found = []
    for _ in range(40):
        day = first + timedelta(days=draw.randrange((last - first).days + 1))
        since = at(str(day)) + draw.choice([timedelta(0), timedelta(microseconds=-1), timedelta(hours=draw.randrange(24))])
        row = {"kind": draw.choice(["a", "b", "c", None]), "shop": draw.choice([1, 2, None]), "since": since}
        found.append(row | {"grade": draw.choice(["x", "y", "z", None]), "cost": draw.choice([0.5, 1.5, 2.5, None])})
    return [*found, *(row | {"grade": "y", "cost": 9.5} for row in found[:15])]


def write_items(rows: list[dict[str, Any]]) -> None:
    """Make the rows the table of items."""
    types = {"int64": pa.int64(), "float64": pa.float64(), "timestamp": lake.INSTANT}
    schema = pa.schema([(field.name, types.get(field.type, pa.string())) for field in ITEMS.fields])
    lake.replace(lake.uri("reference", "items"), pa.Table.from_pylist(rows, schema=schema), where="true", partition_by=[])


def compute(pipeline: Pipeline, first: date, last: date, *, force: bool = True, chunk_days: int = 31) -> dict[str, Any]:
    """Run the stage. Returns its part of the run report."""
    options = Namespace(json=True, force=force, chunk_days=chunk_days, preview=None, entity=None)
    job = Job(command="features", options=options, run_id="test", pipeline=pipeline, interval=Interval.inclusive(first, last))
    stage.run(job)
    return job.report


def found(pipeline: Pipeline) -> dict[str, list[dict[str, Any]]]:
    """What the pipeline's tables hold: the sets by their own names, examples, labels."""
    daily = {f"features_{s.name}": s.name for s in pipeline.features if s.accuracy == "day"}
    return {name: _rows(pipeline, table) for table, name in {**daily, "examples": "examples", "labels": "labels"}.items()}


def _rows(pipeline: Pipeline, table: str) -> list[dict[str, Any]]:
    handle = lake.load(versions.uri(pipeline, table))
    assert handle is not None, table
    rows = lake.query(handle, "select * from t").to_pylist()
    return [{k: v.replace(tzinfo=None) if isinstance(v, datetime) else v for k, v in row.items()} for row in rows]


def expected(told: Plain, first: date, last: date) -> dict[str, list[dict[str, Any]]]:
    """The same by the reference."""
    every = plain.days(first, last)
    daily = [s for s in told.pipeline.features if s.accuracy == "day"]
    sets = {s.name: [row for day in every for row in told.features(s, day)] for s in daily}
    rest = {"examples": [row for day in every for row in told.examples(day)]}
    return sets | rest | {"labels": [row for day in every for row in told.labels(day)]}


def assert_same(mine: dict[str, list[dict[str, Any]]], theirs: dict[str, list[dict[str, Any]]]) -> None:
    """The same rows, cell by cell; of a standard deviation the last digits may differ, as its root is of a quotient."""
    assert mine.keys() == theirs.keys()
    for table, rows in mine.items():
        ours, others = _in_order(rows), _in_order(theirs[table])
        assert [key for key, _ in ours] == [key for key, _ in others], table
        for (key, own), (_, other) in zip(ours, others, strict=True):
            assert own.keys() == other.keys(), (table, set(own) ^ set(other))
            wrong = {name: (own[name], other[name]) for name in own if not _alike(name, own[name], other[name])}
            assert not wrong, f"{table} {key}, ours and the reference: {wrong}"


def _in_order(rows: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    names = ("event_date", "as_of", "key", "user", "shop", "kafka_partition", "kafka_offset")
    return sorted(((str([row.get(name) for name in names]), row) for row in rows), key=lambda one: one[0])


def _alike(name: str, one: Any, other: Any) -> bool:
    if "_spread" in name and one is not None and other is not None:
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)
