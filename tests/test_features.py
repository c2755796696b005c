"""Features, examples and labels against their definition: by hand at the edges, and by another engine on random histories."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import reference
import small_history
from pyspark.sql import SparkSession
from small_history import ORDERS, PIPELINE, RATES, TABLES, VISITS, at, event, in_order, rows, write, write_all

from jobs import batches, cli, lake, reach, versions
from jobs.command import Job
from jobs.errors import DataError, UsageError
from jobs.features import check, events, plan, stage
from jobs.interval import Interval
from pipelines.declare import Aggregate, Expression, FeatureSet, days

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

FIRST, LAST = date(2020, 1, 14), date(2020, 1, 18)


@pytest.fixture(autouse=True)
def own_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lake for each test."""
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    yield tmp_path


def compute(first: date, last: date, pipeline: Any = PIPELINE, *, force: bool = True, chunk_days: int = 31) -> dict[str, Any]:
    """Run the stage. Returns its part of the run report."""
    job = Job(
        command="features",
        options=Namespace(json=True, force=force, chunk_days=chunk_days, preview=None, entity=None),
        run_id="test",
        pipeline=pipeline,
        interval=Interval.inclusive(first, last),
    )
    stage.run(job)
    return job.report


def everything() -> dict[str, list[dict[str, Any]]]:
    return {table: rows(table) for table in TABLES}


def expected(told: reference.Reference, first: date, last: date) -> dict[str, list[dict[str, Any]]]:
    every = reference.days(first, last)
    sets = {f"features_{s.name}": [row for day in every for row in told.features(s, day)] for s in PIPELINE.features}
    rest = {
        "examples": [row for day in every for row in told.examples(day)],
        "labels": [row for day in every for row in told.labels(day)],
    }
    return {table: in_order(found) for table, found in (sets | rest).items()}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_range_equals_reference_and_days(seed: int, own_lake: Path) -> None:
    """One pass over five days, the definition in another engine, and runs day by day: the same cells."""
    history = small_history.random_history(seed, date(2020, 1, 1), date(2020, 1, 22))
    write_all(history)
    told = reference.Reference(PIPELINE, history)
    report = compute(FIRST, LAST)
    whole = everything()
    assert whole == expected(told, FIRST, LAST)
    assert {table: facts["rows"] for table, facts in report["tables"].items()} == {t: len(found) for t, found in whole.items()}
    assert report["spine"] == {"late": sum(told.late(day) for day in reference.days(FIRST, LAST))}
    assert report["spine"]["late"] > 0
    assert len(whole["examples"]) > 20
    assert len(whole["labels"]) > 5
    if seed > 1:
        return
    # What lies before the windows is gone, so a run that looked at it would fail.
    for source in PIPELINE.sources:
        found = reach.history(PIPELINE, source, Interval.inclusive(LAST, LAST)) or reach.spine(
            PIPELINE, Interval.inclusive(LAST, LAST)
        )
        for folder in (own_lake / "events" / source.name).glob("event_date=*"):
            if folder.name < f"event_date={found.read.start}":
                for file in folder.glob("*.parquet"):
                    file.unlink()
    assert not list((own_lake / "events" / "orders" / "event_date=2020-01-05").glob("*.parquet"))
    compute(LAST, LAST)
    assert everything() == whole


@pytest.mark.long
def test_days_one_by_one_and_again() -> None:
    """Three runs of one day equal one run of three; a second run changes nothing; neighbours' files are left alone."""
    history = small_history.random_history(3, date(2020, 1, 1), date(2020, 1, 22))
    write_all(history)
    middle = FIRST + timedelta(days=1)
    for day in (FIRST, FIRST + timedelta(days=2)):
        compute(day, day)
    around = files("features_user")
    compute(middle, middle)
    single = everything()
    assert {day: found for day, found in files("features_user").items() if day != str(middle)} == around
    compute(FIRST, FIRST + timedelta(days=2))
    assert everything() == single
    handle = lake.load(lake.uri("shop", "ledger"))
    assert handle is not None
    ledger = lake.query(handle, "select day, stage, count(*) as runs, max(rows) as rows from t group by day, stage").to_pylist()
    assert {row["stage"] for row in ledger} == {f"features/{table}" for table in TABLES}
    assert {(row["day"], row["runs"]) for row in ledger if row["stage"] == "features/labels"} == {
        (FIRST, 2),
        (middle, 2),
        (FIRST + timedelta(days=2), 2),
    }
    assert sum(row["rows"] for row in ledger if row["stage"] == "features/examples") == len(single["examples"])


def test_news_after_the_day_changes_nothing() -> None:
    """Invariant 6: what reached Kafka after the day leaves it as it was, in the tables that train and in those that score."""
    history = small_history.random_history(4, date(2020, 1, 1), date(2020, 1, 18))
    end = datetime(2020, 1, 19)
    early = {name: [row for row in found if row["known_time"].replace(tzinfo=None) < end] for name, found in history.items()}
    leak = {name: [row for row in found if row not in early[name]] for name, found in history.items()}
    visible = [row for row in leak["orders"] if row["event_time"].replace(tzinfo=None) < end]
    assert len(visible) > 10, "no event happened before the end of the day and was known after it: nothing could leak"
    write_all(early)
    compute(LAST, LAST)
    before = everything()
    write_all(early | {"orders": early["orders"] + leak["orders"], "rates": early["rates"] + leak["rates"]})
    compute(LAST, LAST)
    assert everything() == before
    # An engine that goes by event time alone would have changed every one of these tables.
    blind = expected(reference.Reference(PIPELINE, history, two_clocks=False), LAST, LAST)
    for table in ("features_user", "features_pair", "examples"):
        assert blind[table] != before[table]


def test_edges() -> None:
    """Rows 12, 16 and 17 of the cases, by hand: windows, clocks, repeats, ties, spines, labels at their instants."""
    offsets = iter(range(1000))

    def order(
        user: str, when: str, known: str = "", *, id: str = "", visit: str | None = None, amount: int | None = 1
    ) -> dict[str, Any]:
        number = next(offsets)
        fields = {"order_id": id or f"o{number}", "visit_id": visit, "user": user, "amount": amount, "ordered_at": at(when)}
        return event(ORDERS, fields, known=at(known or when), offset=number)

    def visit(id: str, starts: str, known: str, size: float | None = None) -> dict[str, Any]:
        fields = {"visit_id": id, "user": "ann", "shop": 1, "size": size, "starts_at": at(starts)}
        return event(VISITS, fields, known=at(known), offset=next(offsets))

    def rate(id: str, when: str, known: str, level: float) -> dict[str, Any]:
        return event(RATES, {"rate_id": id, "shop": 1, "level": level, "at": at(when)}, known=at(known), offset=next(offsets))

    # The day is the 10th, so T is midnight of the 11th, and the windows begin on the 10th, the 8th and the 4th.
    orders = [
        order("at T", "2020-01-11"),
        order("before T", "2020-01-10 23:59:59.999999"),
        order("one day", "2020-01-10"),
        order("over one day", "2020-01-09 23:59:59.999999"),
        order("seven days", "2020-01-04"),
        order("over seven days", "2020-01-03 23:59:59.999999"),
        order("known at T", "2020-01-10", "2020-01-11"),
        order("known before T", "2020-01-10", "2020-01-10 23:59:59.999999"),
        order("known first", "2020-01-10 12:00", "2020-01-01"),
        # It was on its way for longer than any window: no day ever saw it.
        order("too late", "2020-01-03", "2020-01-10 12:00"),
        order("repeat", "2020-01-10", "2020-01-10 01:00", id="r", amount=3),
        order("repeat", "2020-01-10", "2020-01-10 00:30", id="r", amount=5),
        order("far repeat", "2020-01-10", "2020-01-10 00:30", id="f"),
        order("far repeat", "2020-01-07", "2020-01-10 00:31", id="f"),
        order("known later", "2020-01-09", "2020-01-11", id="l"),
        order("known later", "2020-01-10", "2020-01-10", id="l"),
        order("ann", "2020-01-10", amount=None),
        # Labels of visits that start on the 9th at 02:00: as of midnight, until midnight of the 11th, mature at 05:00.
        order("x", "2020-01-10 23:59:59.999999", "2020-01-11 04:59:59.999999", visit="late label", amount=9),
        order("x", "2020-01-11", "2020-01-11", visit="past horizon", amount=9),
        order("x", "2020-01-10", "2020-01-11 05:00", visit="known at maturity", amount=9),
        order("x", "2020-01-08 23:59:59.999999", visit="before as_of", amount=9),
        order("x", "2020-01-09", visit="cancelled", amount=None),
        order("x", "2020-01-10", visit="cancelled", amount=9),
        order("x", "2020-01-09 01:00", "2020-01-09 01:00", visit="first known", amount=1),
        order("x", "2020-01-09", "2020-01-09 02:00", visit="first known", amount=9),
    ]
    names = ["late label", "past horizon", "known at maturity", "before as_of", "cancelled", "first known", "no outcome"]
    visits = [
        *(visit(name, "2020-01-09 02:00", "2020-01-01") for name in names),
        # Examples of the 10th: as of 03:00 on the 11th up to 03:00 on the 12th, two hours before they start.
        visit("opens", "2020-01-11 05:00", "2020-01-11 02:59:59.999999"),
        visit("too early", "2020-01-11 04:59:59.999999", "2020-01-01"),
        visit("closes", "2020-01-12 04:59:59.999999", "2020-01-01"),
        visit("too far", "2020-01-12 05:00", "2020-01-01"),
        visit("unknown", "2020-01-11 05:00", "2020-01-11 03:00"),
        visit("twice", "2020-01-11 06:00", "2020-01-02", size=1.0),
        visit("twice", "2020-01-11 06:00", "2020-01-01", size=2.0),
        visit("first copy late", "2020-01-11 05:00", "2020-01-11 03:30", size=3.0),
        visit("first copy late", "2020-01-12 04:00", "2020-01-11 04:00", size=4.0),
    ]
    rates = [
        rate("known after T", "2020-01-10 23:00", "2020-01-11", 1.0),
        rate("tie", "2020-01-10 12:00", "2020-01-10 12:00", 2.0),
        rate("tie, known last", "2020-01-10 12:00", "2020-01-10 13:00", 3.0),
        rate("older, known last", "2020-01-10 11:00", "2020-01-10 14:00", 4.0),
        rate("a day before", "2020-01-09 23:59:59.999999", "2020-01-09 23:59:59.999999", 5.0),
    ]
    for source, found in ((ORDERS, orders), (VISITS, visits), (RATES, rates)):
        write(source, found)
    day = date(2020, 1, 10)
    compute(day, day)
    counts = {
        row["user"]: tuple(row[f"user_orders_{w}d"] for w in (1, 3, 7)) for row in rows("features_user") if row["user"] != "x"
    }
    assert counts == {
        "before T": (1, 1, 1),
        "one day": (1, 1, 1),
        "over one day": (0, 1, 1),
        "seven days": (0, 0, 1),
        "known before T": (1, 1, 1),
        "known first": (1, 1, 1),
        "repeat": (1, 1, 1),
        "far repeat": (1, 1, 2),
        "known later": (1, 1, 1),
        "ann": (1, 1, 1),
    }
    by_user = {row["user"]: row for row in rows("features_user")}
    assert by_user["repeat"]["user_spent_1d"] == 5
    assert (by_user["ann"]["user_spent_1d"], by_user["ann"]["user_mean_1d"], by_user["ann"]["user_paid_rate_1d"]) == (
        0,
        None,
        None,
    )
    assert by_user["ann"]["available_at"] == datetime(2020, 1, 11, 3)
    examples = {row["key"]: row for row in rows("examples")}
    assert set(examples) == {"opens", "closes", "twice", "first copy late"}
    assert len(rows("examples")) == 4
    assert (examples["twice"]["size"], examples["twice"]["twice"], examples["first copy late"]["size"]) == (2.0, 4.0, 4.0)
    assert {row["rate_level"] for row in examples.values()} == {3.0}
    # No order has a shop, so the pair has no row: counts and sums are 0, what is divided stays unknown.
    assert {(row["pair_orders_2d"], row["pair_spent_2d"], row["user_mean_1d"]) for row in examples.values()} == {(0.0, 0.0, None)}
    report = compute(date(2020, 1, 11), date(2020, 1, 11))
    labels = {row["key"]: (row["label"], row["mature_date"]) for row in rows("labels")}
    assert labels == {"late label": (1, date(2020, 1, 11)), "first known": (0, date(2020, 1, 11))}
    assert report["labels"] == {"matured": 7, "labelled": 2, "undecided": 1, "without_outcome": 4}


def test_a_day_that_becomes_empty() -> None:
    """Row 13 of the cases."""
    history = small_history.random_history(5, date(2020, 1, 1), date(2020, 1, 20))
    write_all(history)
    compute(FIRST, LAST)
    whole = everything()
    assert all(any(row[TABLES[t]] == LAST for row in found) for t, found in whole.items() if t != "examples")
    for source in PIPELINE.sources:
        write(source, [])
    report = compute(LAST, LAST)
    assert {facts["rows"] for facts in report["tables"].values()} == {0}
    days_left = {t: LAST + timedelta(days=1) if t == "examples" else LAST for t in TABLES}
    assert everything() == {t: [row for row in found if row[TABLES[t]] != days_left[t]] for t, found in whole.items()}


def test_an_open_day_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """75 through the command line, before Spark is asked for anything."""
    assert cli.main(["features", "flight_delays", "--from", "2013-04-01", "--to", "2013-04-01"]) == 75
    assert "2013-04-01 is still open" in capsys.readouterr().err
    assert not lake.load(lake.uri("flight_delays", "examples"))


def test_plans(spark: SparkSession) -> None:
    """No Python in the workers, no Cartesian product, and only the days in reach are read."""
    history = small_history.random_history(6, date(2020, 1, 1), date(2020, 1, 22))
    write_all(history)
    interval = Interval.inclusive(LAST, LAST)
    planned = plan.plan(spark, PIPELINE, interval, batches.snapshot(PIPELINE))
    for output in planned.outputs:
        text = output.frame._jdf.queryExecution().toString()
        for bad in ("Python", "CartesianProduct", "BroadcastNestedLoopJoin"):
            assert bad not in text, f"{output.table} has {bad}: {text}"
    planned.release()
    seen = {row["event_date"] for row in history["orders"]}
    found = reach.history(PIPELINE, ORDERS, interval)
    assert found is not None
    assert found.read == Interval(date(2020, 1, 10), date(2020, 1, 21))
    assert min(seen) < found.read.start
    assert max(seen) > found.read.last
    read = events.read(spark, ORDERS, 1, found, ["user"]).inputFiles()
    assert {file.split("event_date=")[1][:10] for file in read} == {
        str(day) for day in seen if found.read.start <= day <= found.read.last
    }


@pytest.mark.parametrize("most", [500_000, 0])
def test_repeats_among_many_events(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Row 12 of the cases, in the two ways for many events: the same events count as where all are sorted."""
    write_all(small_history.random_history(8, date(2020, 1, 1), date(2020, 1, 22)))
    found = reach.history(PIPELINE, ORDERS, Interval.inclusive(FIRST, LAST))
    assert found is not None
    read = events.read(spark, ORDERS, batches.snapshot(PIPELINE)["orders"], found, ["user"])
    monkeypatch.setattr(events, "IDS", most)

    def offsets(rows: int) -> list[int]:
        kept: list[Any] = []
        frame = events.without_repeats(read, ORDERS, kept, rows=rows)
        counted = sorted(row["kafka_offset"] for row in frame.select("kafka_offset").collect())
        for one in kept:
            one.unpersist()
        return counted

    few = offsets(0)
    assert offsets(events.FEW + 1) == few
    assert len(few) < read.count()
    # None of these has a repeat.
    single = read.limit(1)
    assert events.without_repeats(single, ORDERS, [], rows=events.FEW + 1).count() == 1


def test_wrong_expressions_are_refused(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1.5, "x")], "price double, user string")

    def set_of(aggregate: Aggregate) -> FeatureSet:
        return FeatureSet(name="s", source=ORDERS, entity=("user",), windows=(days(1),), aggregates=(aggregate,))

    with pytest.raises(UsageError, match=r"'price' is double, but only integers and decimals .* scale=2"):
        check.sets(frame, [set_of(Aggregate("total", "sum", "price"))])
    with pytest.raises(UsageError, match="'price' is double, but a rate needs a condition"):
        check.sets(frame, [set_of(Aggregate("share", "rate", "price"))])
    with pytest.raises(UsageError, match=r"aggregate 'n' of feature set 's': where= is 'user'"):
        check.sets(frame, [set_of(Aggregate("n", "count", where="user"))])
    with pytest.raises(UsageError, match="'cents' is no expression over the fields"):
        check.sets(frame, [set_of(Aggregate("total", "sum", "cents"))])


@pytest.mark.parametrize(
    "sql",
    [
        "lead(amount) over (partition by user order by event_time)",
        "sum(amount)",
        "explode(array(1, 2))",
        "cast(rand() * 10 as int)",
        "cast(unix_seconds(current_timestamp()) as int)",
        "if(current_user() = 'x', amount, 0)",
    ],
)
def test_what_looks_at_other_rows_is_refused(spark: SparkSession, sql: str) -> None:
    """It would see what came after the day, or another value in each run."""
    frame = spark.createDataFrame([], "amount int, user string, event_time timestamp")
    one = FeatureSet(name="s", source=ORDERS, entity=("user",), windows=(days(1),), aggregates=(Aggregate("n", "sum", sql),))
    with pytest.raises(UsageError, match=r"aggregate 'n' of feature set 's'.*looks at other rows"):
        check.sets(frame, [one])
    made = replace(one, aggregates=(Aggregate("n", "count"),), per_event=(Expression("more", sql),))
    with pytest.raises(UsageError, match=r"per_event column 'more'.*(looks at other rows|is no expression)"):
        check.per_event(frame, made)
    assert check.per_event(frame, replace(made, per_event=(Expression("more", "amount + 1"),))).columns[-1] == "more"


def test_a_value_that_an_expression_can_not_take_ends_with_65_and_is_not_told(capfd: pytest.CaptureFixture[str]) -> None:
    """As wrong data, not as a bug of ours; the message names what to do, and no value, nor do Spark's own logs."""
    write_all(small_history.random_history(9, date(2020, 1, 12), date(2020, 1, 18)))
    wrong = replace(PIPELINE.features[1], aggregates=(Aggregate("number", "max", "cast(order_id as int)"),))
    with pytest.raises(DataError, match=r"features_pair.*\(CAST_\).*try_cast") as refused:
        compute(LAST, LAST, replace(PIPELINE, features=(wrong,)))
    assert "'o" not in str(refused.value) + "".join(capfd.readouterr())


def test_an_expression_may_end_with_a_comment() -> None:
    rows = small_history.random_history(5, date(2020, 1, 12), date(2020, 1, 18))
    write_all(rows)
    plain, noted = (
        replace(
            PIPELINE,
            name=name,
            features=(
                replace(
                    PIPELINE.features[1],
                    where=f"amount > 0{note}",
                    aggregates=tuple(
                        replace(one, of=f"{one.of}{note}" if one.of else "", where=f"shop > 0{note}")
                        for one in PIPELINE.features[1].aggregates
                    ),
                ),
            ),
            label=replace(PIPELINE.label, of=f"{PIPELINE.label.of}{note}"),
        )
        for name, note in (("bare", ""), ("noted", " -- of this order"))
    )
    for pipeline in (plain, noted):
        compute(LAST, LAST, pipeline)
    bare, other = (
        lake.query(lake.load(versions.uri(one, "features_pair")), 'select * from t order by "user", shop')  # type: ignore[arg-type]
        for one in (plain, noted)
    )
    assert bare.num_rows > 0 and bare.to_pylist() == other.to_pylist()


def test_a_changed_declaration_makes_a_table_beside_the_old() -> None:
    """Each table keeps the meaning it was written with, and what the change doesn't touch stays where it is."""
    write_all(small_history.random_history(7, date(2020, 1, 10), date(2020, 1, 20)))
    compute(LAST, LAST)
    before = everything()
    wider = replace(PIPELINE.features[1], aggregates=(*PIPELINE.features[1].aggregates, Aggregate("seen", "count", where="paid")))
    changed = replace(PIPELINE, features=(PIPELINE.features[0], wider))
    compute(LAST, LAST, changed)
    assert everything() == before
    assert {name: versions.uri(changed, name).rpartition("/")[2] for name in versions.tables(changed)} == {
        "features_user": "features_user",
        "features_pair": "features_pair_v2",
        "labels": "labels",
        "examples": "examples_v2",
    }
    names = [*PIPELINE.features[1].columns, "user", "shop"]
    told = [
        [str({name: row[name] for name in names}) for row in table]
        for table in (rows("features_pair_v2"), before["features_pair"])
    ]
    assert sorted(told[0]) == sorted(told[1])
    assert all(row["pair_seen_2d"] is not None for row in rows("features_pair_v2"))


def files(table: str) -> dict[str, list[str]]:
    """The files of a table by day, as its log names them."""
    handle = lake.load(lake.uri("shop", table))
    assert handle is not None
    found: dict[str, list[str]] = {}
    for file in handle.file_uris():
        found.setdefault(file.split("event_date=")[1][:10], []).append(file)
    return {day: sorted(names) for day, names in found.items()}
