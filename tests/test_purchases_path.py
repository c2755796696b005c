"""The shop from Kafka to predictions in short: a real broker, Spark, torchrun and MLflow, through the commands' own functions."""

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn
from small_topic import drop

import pipelines
from jobs import cli, lake, versions
from jobs.features import lookups
from jobs.interval import DAY, Interval
from jobs.replay import purchases as shop
from pipelines import purchases
from pipelines.declare import Pipeline, Promotion, days
from pipelines.purchases import ITEMS, PIPELINE, PURCHASES

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("spark"),
    *(getattr(pytest.mark, name) for name in ("kafka", "spark", "torch", "mlflow")),
]

SHOP = shop.Shop(users=120, days=30, events=2_400, items=300)
REPLAY = ("replay", "purchases", "--users", "120", "--days", "30", "--events", "2400", "--broken-every", "200")
FIRST, LAST = date(2024, 1, 4), date(2024, 1, 29)

_, _, EXAMPLE = str(purchases.__doc__).partition("appended to `features`:")
THIRD = dataclasses.replace(PIPELINE, name="third", features=(*PIPELINE.features, eval(EXAMPLE.strip(), vars(purchases))))
SHORT = dataclasses.replace(
    PIPELINE,
    name="short_shop",
    label=dataclasses.replace(PIPELINE.label, horizon=days(3), lateness=timedelta(0)),
    training=dataclasses.replace(
        PIPELINE.training, days=days(8), validation=days(1), holdout=days(4), epochs=1, ranks=1, hidden=(8,), embedding=2
    ),
    promotion=Promotion(min_gain=-1.0, min_rows=50, resamples=50),
)
DECLARED = {pipeline.name: pipeline for pipeline in (SHORT, THIRD)}


@dataclass(kw_only=True)
class Course:
    """What was run, and the reports by command."""

    folder: Path
    reports: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def penstock(self, *arguments: str) -> dict[str, Any]:
        path = self.folder / "report.json"
        assert cli.main([*arguments, "--json", "--report", str(path)]) == 0
        report = dict(json.loads(path.read_text()))
        self.reports.setdefault(arguments[0], []).append(report)
        return report


def on(first: date, last: date) -> tuple[str, ...]:
    return ("--from", str(first), "--to", str(last))


@pytest.fixture(scope="module")
def path(kafka: str, mlflow_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    """A shop of a month replayed, ingested, computed as a range, trained on, decided about, and a day scored."""
    folder = tmp_path_factory.mktemp("shop")
    load = pipelines.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_LAKE", str(folder / "lake"))
        patch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka)
        patch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
        patch.setattr(pipelines, "load", lambda name: DECLARED.get(name) or load(name))
        done = Course(folder=folder)
        drop(PURCHASES.topic, ITEMS.topic)
        # In two goes, and once more.
        done.penstock(*REPLAY, *on(date(2024, 1, 1), date(2024, 1, 12)))
        done.penstock(*REPLAY)
        done.penstock(*REPLAY)
        done.penstock("ingest", "purchases")
        done.penstock("features", SHORT.name, *on(FIRST, LAST))
        done.penstock("train", SHORT.name, *on(FIRST, LAST), "--when", "always")
        done.penstock("promote", SHORT.name, *on(FIRST, LAST))
        done.penstock("score", SHORT.name, *on(LAST, LAST))
        yield done
        drop(PURCHASES.topic, ITEMS.topic)


def rows(pipeline: Pipeline, table: str, sql: str = "select * from t") -> list[dict[str, Any]]:
    versioned = table.startswith(("features_", "examples", "labels"))
    handle = lake.load(versions.uri(pipeline, table) if versioned else lake.uri(pipeline.name, table))
    assert handle is not None, table
    return lake.query(handle, sql).to_pylist()


def test_a_replay_goes_on_where_it_stopped_and_sends_nothing_twice(path: Course) -> None:
    first, rest, again = path.reports["replay"]
    assert first["sent"] > 900 and rest["sent"] > 1_000 and again["sent"] == 0
    told = rest["topics"]["shop.purchases"]
    assert told["broken"] == told["records"] // 201
    assert told["skipped"] == first["topics"]["shop.purchases"]["records"]
    known = list(shop.events(SHOP))
    (read,) = path.reports["ingest"]
    assert read["sources"]["shop_purchases"]["good"] == len(known) == told["records"] - told["broken"]
    assert read["sources"]["shop_purchases"]["dead"] == told["broken"]


@pytest.mark.usefixtures("path")
def test_the_figures_are_those_of_the_shop() -> None:
    """Counted in Python, from the rows that were made."""
    day = date(2024, 1, 20)
    seen: dict[str, dict[str, Any]] = {}
    for row in shop.events(SHOP, Interval.inclusive(shop.START, day)):
        # Repeats come later, so the first is kept.
        seen.setdefault(row["purchase_id"], row)
    bought = [row for row in seen.values() if row["quantity"] > 0 and row["user_id"] is not None]
    found = {row["user_id"]: row for row in rows(SHORT, "features_user", f"select * from t where event_date = '{day}'")}
    assert found.keys() == {row["user_id"] for row in seen.values() if row["user_id"] is not None}
    for user, row in found.items():
        own = [one for one in bought if one["user_id"] == user]
        week = [one for one in own if one["purchased_at"].date() > day - 7 * DAY]
        everything = [one for one in seen.values() if one["user_id"] == user]
        assert row["user_purchases_30d"] == len(own) and row["user_purchases_7d"] == len(week)
        assert row["user_items_30d"] == len({one["item_id"] for one in own})
        assert row["user_spent_30d"] == sum(one["quantity"] * one["price"] for one in everything)
        last = max((one["purchased_at"].date() for one in own), default=None)
        assert row["user_days_since"] == (None if last is None else (day - last).days)
        assert (row["user_last_category_30d"] is not None) == bool(own)
    countries = {row["country"]: row for row in rows(SHORT, "features_country", f"select * from t where event_date = '{day}'")}
    for country, row in countries.items():
        own = [one for one in seen.values() if one["country"] == country and one["quantity"] > 0]
        assert row["country_purchases_30d"] == len(own)


@pytest.mark.usefixtures("path")
def test_examples_are_users_on_days_and_labels_tell_who_came_back() -> None:
    known = list(shop.events(SHOP))
    labels = {(row["key"], row["as_of"]): row for row in rows(SHORT, "labels")}
    examples = [row for row in rows(SHORT, "examples") if row["as_of_date"] == date(2024, 1, 21)]
    assert len(examples) > 80
    for row in examples:
        user, country = json.loads(row["key"])
        assert row["country"] == country and row["user_purchases_30d"] >= 1
        end = row["as_of"] + SHORT.label.horizon
        later = [
            one
            for one in known
            if one["user_id"] == user
            and one["quantity"] > 0
            and row["as_of"] <= one["purchased_at"] < end
            and one["known_time"] < end
        ]
        assert labels[row["key"], row["as_of"]]["label"] == bool(later)
    assert {row["label"] for row in labels.values()} == {0, 1}


def test_a_model_was_trained_promoted_and_scores_every_example(path: Course) -> None:
    (decided,) = path.reports["promote"]
    assert rows(SHORT, "promotions", "select candidate, decision from t") == [{"candidate": 1, "decision": "promoted"}], decided
    scored = rows(SHORT, "predictions", f"select * from t where as_of_date = '{LAST + DAY}'")
    wanted = {row["key"] for row in rows(SHORT, "examples") if row["as_of_date"] == LAST + DAY}
    assert {row["key"] for row in scored} == wanted and len(wanted) > 80
    assert all(0 <= row["score"] <= 1 for row in scored)


def test_items_are_broadcast_and_no_plan_is_a_wrong_one(path: Course, spark: SparkSession) -> None:
    """As the seed example has it: the metadata goes to the purchases, not they to it, however large Spark takes it to be."""
    plans = path.reports["features"][0]["plans"]
    assert set(plans) == {"features_user", "features_country", "examples", "labels"}
    for table, text in plans.items():
        assert not re.findall(r"EvalPython|CartesianProduct|BroadcastNestedLoopJoin", text), (table, text)
    (lookup,) = PIPELINE.features[0].lookups
    fields = f"{lookup.entity[0]} string, event_time timestamp, known_time timestamp, topic_epoch int, kafka_partition int, "
    frame = spark.createDataFrame([], fields + "kafka_offset long")
    facts = frame.withColumns({name: fn.lit("x") for name in lookup.fields})
    before = spark.conf.get("spark.sql.autoBroadcastJoinThreshold")
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    text = lookups.looked_up(frame, facts, lookup, small=True)._jdf.queryExecution().toString()
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", before)
    assert "BroadcastHashJoin" in text and "SortMergeJoin" not in text


@pytest.mark.long
def test_a_day_gives_what_its_range_gave(path: Course) -> None:
    """The day again by itself; the test of the third set has another."""
    tables = ("features_user", "features_country", "examples", "labels")
    before = {table: sorted(rows(SHORT, table), key=repr) for table in tables}
    day = date(2024, 1, 17)
    report = path.penstock("features", SHORT.name, *on(day, day), "--force")
    assert all(told["rows"] > 0 for told in report["tables"].values())
    for table, was in before.items():
        assert sorted(rows(SHORT, table), key=repr) == was, table


def test_a_third_set_takes_less_than_ten_lines(path: Course) -> None:
    """The example of the pipeline's own docstring."""
    assert len(EXAMPLE.strip().splitlines()) < 10
    day = date(2024, 1, 25)
    path.penstock("features", THIRD.name, *on(day, day))
    known = [row for row in shop.events(SHOP, Interval.inclusive(shop.START, day)) if row["user_id"] == "u0"]
    (found,) = rows(THIRD, "features_visit", f"select * from t where event_date = '{day}' and user_id = 'u0'")
    assert found["visit_dearest_90d"] == max(row["price"] for row in known)
    newest = {row["purchase_id"]: row for row in sorted(known, key=lambda row: row["purchased_at"])}
    assert len(found["visit_items_90d"]) == 5 and found["visit_items_90d"][0] in {
        row["item_id"] for row in list(newest.values())[-2:]
    }
    for name in ("features_user", "features_country"):
        alone, within = (rows(one, name, f"select * from t where event_date = '{day}'") for one in (THIRD, SHORT))
        assert sorted(alone, key=repr) == sorted(within, key=repr)
