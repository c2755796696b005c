"""Every aggregate, clock, spine and label by the engine against the reference in plain Python, on random histories."""

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import small_wide
from plain import Plain
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn
from small_history import ORDERS, at, event, random_history, write, write_all
from small_wide import DAILY, EXACT, MEANINGS, WIDE, assert_same, compute, expected, found

from jobs import batches, reach
from jobs.features import once
from jobs.interval import Interval
from pipelines.declare import Aggregate, FeatureSet, Pipeline, Spine, days, hours

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BEGIN, FIRST, LAST, END = date(2020, 1, 6), date(2020, 1, 15), date(2020, 1, 18), date(2020, 1, 22)
MIDNIGHT = at("2020-01-19")
"""The end of the last day."""
NOTHING = dict.fromkeys(field.name for field in ORDERS.fields)


@pytest.fixture(autouse=True)
def own_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lake for each test."""
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    yield tmp_path


def told(spark: SparkSession, pipeline: Pipeline, history: dict[str, list[dict[str, Any]]], items: Any) -> Plain:
    """The reference, with Spark's hashes of the labels' keys and moments."""
    asked: list[tuple[str, int]] = []
    first = Plain(pipeline, history, MEANINGS, tables={"items": items}, hashed=lambda *pair: asked.append(pair) or 0)
    expected(first, FIRST, LAST)
    pairs = spark.createDataFrame(asked or [("", 0)], ["key", "micros"]).distinct()
    hashes = {(row[0], row[1]): row[2] for row in pairs.select("key", "micros", fn.xxhash64("key", "micros")).collect()}
    return Plain(pipeline, history, MEANINGS, tables={"items": items}, hashed=lambda *pair: hashes[pair])


def edges() -> list[dict[str, Any]]:
    """Orders at the edges of the windows that end with the last day, on both clocks, each of a user of its own."""
    micro, found = timedelta(microseconds=1), []
    for name, window in {"0h": hours(0), "6h": hours(6), "36h": hours(36), "3d": days(3)}.items():
        for side, moment in {"at": MIDNIGHT - window, "before": MIDNIGHT - window - micro}.items():
            for clock, known in {"soon": moment, "at T": MIDNIGHT, "just": MIDNIGHT - micro}.items():
                fields = NOTHING | {
                    "order_id": f"edge {name} {side} {clock}",
                    "user": f"{name} {side} {clock}",
                    "amount": 7,
                    "shop": 1,
                }
                number = 900_000 + len(found)
                found.append(event(ORDERS, fields | {"ordered_at": moment}, known=known, offset=number))
    return found


def forget(root: Path, pipeline: Pipeline) -> None:
    """Take the files away of the days that no run over the days has to read."""
    interval, gone = Interval.inclusive(FIRST, LAST), 0
    for source in pipeline.sources:
        needed = [reached.read for reached in [reach.history(pipeline, source, interval)] if reached is not None]
        if isinstance(pipeline.spine, Spine) and pipeline.spine.source == source:
            needed.append(reach.spine(pipeline, interval).read)
        for s in pipeline.features:
            if s.tiles and s.source == source:
                # The tile of the first day in a window serves the windows that end with it too.
                first = reach.back(reach.of_set(pipeline, s, interval), max(s.windows))
                needed.append(Interval(first.start - source.repeats_within, interval.end + source.repeats_within))
        for file in (root / "events" / source.name).glob("event_date=*/*.parquet"):
            day = date.fromisoformat(file.parent.name.removeprefix("event_date="))
            if not any(days.start <= day < days.end for days in needed):
                file.unlink()
                gone += 1
    assert gone, "every day was in reach"


def histories(pipeline: Pipeline) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[dict[str, Any]]], Any]:
    """The events that came in time, all events, and the items, which are written."""
    history = random_history(11, BEGIN, END)
    if pipeline is WIDE:
        history["orders"] += edges()
    items = small_wide.random_items(11, BEGIN, END)
    small_wide.write_items(items)
    draw = random.Random(12)
    return {name: [row for row in rows if draw.random() < 0.9] for name, rows in history.items()}, history, items


@pytest.mark.parametrize(
    ("pipeline", "chunk_days"),
    [
        pytest.param(WIDE, 3, id="wide"),
        pytest.param(EXACT, 4, id="exact"),
        pytest.param(EXACT, 3, id="exact in chunks", marks=pytest.mark.long),
        pytest.param(DAILY, 3, id="daily in chunks", marks=pytest.mark.long),
    ],
)
def test_every_aggregate(spark: SparkSession, pipeline: Pipeline, chunk_days: int, own_lake: Path) -> None:
    """Rows 12, 15, 16 and 17 of the cases: repeats, late news, ties and window edges, as the reference in plain Python has them.

    In one range, or a chunk of three days and one of a single day, which the engine computes in another way. The files of days
    out of reach are gone, so a run that looked at them would fail.
    """
    early, _, items = histories(pipeline)
    write_all(early, pipeline)
    forget(own_lake, pipeline)
    report = compute(pipeline, FIRST, LAST, chunk_days=chunk_days)
    for table, text in report["plans"].items():
        assert not re.findall(r"EvalPython|CartesianProduct|BroadcastNestedLoopJoin", text), (table, text)
    theirs = expected(told(spark, pipeline, early, items), FIRST, LAST)
    assert all(theirs.values())
    assert_same(found(pipeline), theirs)


@pytest.mark.long
@pytest.mark.parametrize("pipeline", [WIDE, EXACT, DAILY], ids=lambda one: one.name)
def test_late_rows_make_days_stale_and_mended(spark: SparkSession, pipeline: Pipeline) -> None:
    """Days that were computed before rows came that they would have read are computed again, and then are as if all had been
    there; tiles that such rows would change are made again."""
    early, history, items = histories(pipeline)
    write_all(early, pipeline)
    compute(pipeline, FIRST, LAST)
    write_all(history, pipeline)
    compute(pipeline, FIRST, LAST, force=False)
    assert_same(found(pipeline), expected(told(spark, pipeline, history, items), FIRST, LAST))


def test_a_daily_run_with_tiles_reads_what_arrived(own_lake: Path) -> None:
    """Of the events that happened and were known on the days before, no file is opened: they are gone."""
    draw = random.Random(6)
    orders = []
    for number in range(600):
        when = at("2020-01-05") + timedelta(seconds=draw.randrange(14 * 86400))
        fields = NOTHING | {"order_id": f"o{number}", "user": draw.choice("abc"), "shop": number % 2, "amount": number % 7}
        orders.append(event(ORDERS, fields | {"ordered_at": when}, known=when, offset=number))
    tiled = replace(WIDE.features[1], windows=(days(2), days(12)))
    pipeline = replace(WIDE, features=(tiled,), dimensions=())
    for source in pipeline.sources:
        write(source, orders if source is ORDERS else [])
    compute(pipeline, LAST - timedelta(days=1), LAST - timedelta(days=1))
    oldest = min(
        LAST - ORDERS.repeats_within,
        *(
            reached.read.start
            for reached in [reach.history(pipeline, ORDERS, Interval.inclusive(LAST, LAST), tiled=False)]
            if reached
        ),
    )
    gone = [
        file
        for file in (own_lake / "events" / "orders").glob("event_date=*/*.parquet")
        if date.fromisoformat(file.parent.name.removeprefix("event_date=")) < oldest
    ]
    assert len(gone) > 5
    for file in gone:
        file.unlink()
    compute(pipeline, LAST, LAST)
    theirs = Plain(pipeline, {"orders": orders, "visits": []}, MEANINGS).features(tiled, LAST)
    mine = [row for row in found(pipeline)["tiled"] if row["event_date"] == LAST]
    assert len(mine) == 6 and max(row["tiled_large_12d"] for row in mine) > 8
    assert_same({"tiled": mine}, {"tiled": theirs})


def test_edges_by_hand() -> None:
    """Row 17 of the cases: the reference itself, at the window's edges, on both clocks."""
    reference = Plain(WIDE, {"orders": edges(), "visits": [], "rates": []}, MEANINGS, tables={"items": []})
    rows = {
        row["user"]: tuple(row[f"all_orders_{w}"] for w in ("6h", "36h", "3d"))
        for row in reference.features(WIDE.features[0], LAST)
    }
    visible = {
        ("0h", "before"): (1, 1, 1),
        ("6h", "at"): (1, 1, 1),
        ("6h", "before"): (0, 1, 1),
        ("36h", "at"): (0, 1, 1),
        ("36h", "before"): (0, 0, 1),
        ("3d", "at"): (0, 0, 1),
    }
    assert rows == {f"{name} {side} {clock}": counts for (name, side), counts in visible.items() for clock in ("soon", "just")}


def test_closed_windows_are_those_of_the_seed_example(spark: SparkSession) -> None:
    """Accuracy `event` with closed edges, row for row as Spark's `rangeBetween(-30 * 86400, 0)` has it, with ties in a second."""
    window, draw = days(30), random.Random(5)
    orders = []
    for number in range(400):
        when = at("2020-01-01") + timedelta(seconds=draw.choice([86400 * draw.randrange(45), draw.randrange(45 * 86400)]))
        fields = NOTHING | {"order_id": f"o{number}", "user": draw.choice(["ann", "bob", "cleo"]), "amount": draw.randrange(100)}
        orders.append(event(ORDERS, fields | {"ordered_at": when}, known=when, offset=number))
    sets = tuple(
        FeatureSet(
            name=name, source=ORDERS, entity=("user",), windows=(window,), aggregates=small_wide.EVERY[0:3:2], accuracy="event",
            closed=True, own_event=own,
        )
        for name, own in {"closed": True, "others": False}.items()
    )  # fmt: skip
    pipeline = replace(EXACT, name="seed", features=sets, dimensions=())
    write(ORDERS, orders)
    compute(pipeline, date(2020, 2, 5), date(2020, 2, 14))
    sql = (
        "select order_id as key, count(*) over w as orders, sum(amount) over w as spent, amount as own "
        f"from (select * from delta.`{batches.events_uri(ORDERS)}`) "
        "window w as (partition by user order by unix_seconds(event_time) range between 30 * 86400 preceding and current row) "
        "order by key"
    )
    theirs = {
        row["key"]: (row["orders"], row["spent"], row["orders"] - 1, row["spent"] - row["own"])
        for row in spark.sql(sql).collect()
    }
    names = ("closed_orders_30d", "closed_spent_30d", "others_orders_30d", "others_spent_30d")
    mine = {row["key"]: tuple(row[name] for name in names) for row in found(pipeline)["examples"]}
    assert len(mine) > 50
    assert mine == {key: tuple(map(float, theirs[key])) for key in mine}
    assert len({row["as_of"] for row in found(pipeline)["examples"]}) < len(mine), "no two orders in one second"


def test_hot_keys_and_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    """One user with nearly all events: exact counts, a sketch within 5 percent, and the same with tiles and in any order."""
    draw = random.Random(8)
    orders = []
    for number in range(12_000):
        when = at("2020-01-10") + timedelta(seconds=draw.randrange(9 * 86400))
        user = "hot" if number % 100 else f"cold{number % 700}"
        fields = NOTHING | {"order_id": f"o{number}", "visit_id": f"v{number % 10_101}", "user": user, "amount": number % 7}
        orders.append(event(ORDERS, fields | {"ordered_at": when}, known=when, offset=number))
    aggregates = (
        Aggregate("orders", "count"),
        Aggregate("visits", "distinct", "visit_id"),
        Aggregate("about", "approx_distinct", "visit_id"),
        Aggregate("spread", "stddev", "amount"),
    )
    one = FeatureSet(name="one", source=ORDERS, entity=("user",), windows=(days(9), days(2)), aggregates=aggregates)
    pipeline = replace(EXACT, name="hot", features=(one, replace(one, name="two", tiles=True)), dimensions=())
    write(ORDERS, orders)
    compute(pipeline, LAST - timedelta(days=1), LAST)
    first = found(pipeline)
    reference = Plain(pipeline, {"orders": orders}, MEANINGS)
    rows = {row["user"]: row for row in first["one"] if row["event_date"] == LAST}
    exact = {row["user"]: row for row in reference.features(one, LAST)}
    assert rows.keys() == exact.keys()
    for user, row in rows.items():
        for window in ("9d", "2d"):
            for name in ("orders", "visits"):
                assert row[f"one_{name}_{window}"] == exact[user][f"one_{name}_{window}"]
            assert row[f"one_about_{window}"] == pytest.approx(exact[user][f"one_about_{window}"], rel=0.05)
    assert rows["hot"]["one_visits_9d"] > 9_000
    renamed = [{name.replace("two_", "one_"): value for name, value in row.items()} for row in first["two"]]
    assert_same({"one": first["one"]}, {"one": renamed})
    # The last day by itself: sums and values are one reading, as the files' ends tell that nobody has too many.
    with monkeypatch.context() as patched:
        patched.setattr(once, "_by_arrays", None)
        compute(pipeline, LAST, LAST)
    assert_same(found(pipeline), first)
    # In another order: the hot user's values don't go into one array then, the others' do.
    draw.shuffle(orders)
    monkeypatch.setattr(once, "MANY", 5_000)
    write(ORDERS, orders)
    compute(pipeline, LAST, LAST)
    assert_same(found(pipeline), first)
