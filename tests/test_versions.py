"""A changed declaration makes a new version of a table beside the old; what changes no row makes none."""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import small_people
from deltalake import DeltaTable
from small_history import ORDERS, PIPELINE
from small_people import DAY as BOUGHT
from small_people import KEY, PEOPLE

from jobs import inputs, lake, ledger, versions
from jobs.command import Job
from jobs.erase import derived
from jobs.erase.events import Found
from jobs.erase.person import Person
from jobs.interval import DAY, Interval, midnight
from jobs.maintain import stage as upkeep
from jobs.promote import holdout
from pipelines.declare import (
    Aggregate,
    Column,
    DailySpine,
    Dimension,
    Expectation,
    Expression,
    Field,
    Label,
    Pipeline,
    Spine,
    Table,
    Training,
    days,
    hours,
)

USER, PAIR = PIPELINE.features
TABLES = ("features_user", "features_pair", "labels", "examples")


@pytest.fixture(autouse=True)
def own_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    yield tmp_path


def make(pipeline: Pipeline, table: str, rows: pa.Table | None = None) -> str:
    """A version as the declaration has it. Returns its name."""
    uri = versions.uri(pipeline, table)
    rows = pa.table({"key": ["k"], "as_of_date": [BOUGHT]}) if rows is None else rows
    configuration = versions.properties(pipeline, table)
    lake.create(uri, rows.schema, partition_by=rows.column_names[-1:], configuration=configuration)
    lake.append(uri, rows, partition_by=rows.column_names[-1:])
    return uri.rpartition("/")[2]


def with_set(**changes: Any) -> Pipeline:
    return replace(PIPELINE, features=(replace(USER, **changes), PAIR))


def with_source(**changes: Any) -> Pipeline:
    """The orders changed, wherever they are read."""
    orders = replace(ORDERS, **changes)
    features = tuple(replace(one, source=orders) for one in PIPELINE.features)
    return replace(PIPELINE, features=features, label=replace(PIPELINE.label, source=orders))


ITEMS = Table(
    name="items",
    path="reference/items",
    valid_from="since",
    fields=(Field("shop", "int64"), Field("size", "float64"), Field("since", "timestamp", required=True)),
)
LOOKED_UP = with_set(lookups=(Dimension(name="item", source=ITEMS, entity=("shop",), fields=("size",), within=None),))


@pytest.mark.parametrize(
    ("changed", "new"),
    [
        # What is about training, about names for people, or about checks, changes no row.
        (replace(PIPELINE, training=replace(PIPELINE.training, every=days(1))), ()),
        (replace(PIPELINE, description="Another.", tags=("a",), owner="b", first_day=date(2021, 1, 1)), ()),
        (with_set(expectations=(Expectation(volume=(0.5, 2.0)),), parquet=True, tiles=True), ()),
        (replace(PIPELINE, expectations=(Expectation(volume=(0.5, 2.0)),)), ()),
        (with_source(retention=days(9), dead_letter_limit=0.5, topic="another", subject="user"), ()),
        (with_source(fields=(*ORDERS.fields, Field("unused"))), ()),
        (with_set(spine_entity=("user",)), ("examples",)),
        (with_set(windows=(days(1),)), ("features_user", "examples")),
        (with_set(where="amount > 1"), ("features_user", "examples")),
        (with_set(aggregates=(Aggregate("orders", "count", where="paid"),)), ("features_user", "examples")),
        (with_set(derived=(Expression("twice", "user_orders_1d * 2"),)), ("features_user", "examples")),
        (LOOKED_UP, ("features_user", "examples")),
        (with_source(repeats_within=days(3)), TABLES),
        (
            with_source(fields=tuple(replace(f, type="float64") if f.name == "amount" else f for f in ORDERS.fields)),
            TABLES,
        ),
        # Only the orders' own set by user counts what is paid.
        (
            with_source(fields=tuple(replace(f, type="string") if f.name == "paid" else f for f in ORDERS.fields)),
            ("features_user", "examples"),
        ),
        (replace(PIPELINE, lateness=hours(4)), TABLES),
        (replace(PIPELINE, label=replace(PIPELINE.label, negatives=0.5)), ("labels",)),
        (replace(PIPELINE, label=replace(PIPELINE.label, of="amount > 6")), ("labels",)),
        (replace(PIPELINE, spine=replace(PIPELINE.spine, columns=(Column("user"),))), ("examples",)),
        (replace(PIPELINE, spine=replace(PIPELINE.spine, before=hours(3))), ("labels", "examples")),
        (replace(PIPELINE, dimensions=()), ("examples",)),
    ],
)
def test_a_new_version_exactly_where_rows_may_change(changed: Pipeline, new: tuple[str, ...]) -> None:
    assert tuple(t for t in TABLES if versions.digest(changed, t) != versions.digest(PIPELINE, t)) == new


def test_an_option_at_its_default_is_as_if_it_were_not_there() -> None:
    """So a release that adds an option makes no new versions."""
    assert "accuracy" not in str(versions._parts(PIPELINE, "features_user"))
    assert "retention" not in str(versions._parts(PIPELINE, "examples"))


def test_tiles_have_a_version_of_their_own() -> None:
    def tiles(**changes: Any) -> str:
        return versions.digest(with_set(tiles=True, **changes), "tiles_user")

    assert versions.tables(with_set(tiles=True)) == ("features_user", "features_pair", "labels", "examples")
    assert versions.tiles(with_set(tiles=True)) == ("tiles_user",)
    # A tile serves all windows of days, as far back as the longest.
    assert tiles() == tiles(windows=(days(7),)) == tiles(derived=(Expression("twice", "user_orders_7d * 2"),))
    assert len({tiles(), tiles(windows=(days(8),)), tiles(windows=(days(7), hours(5))), tiles(where="paid")}) == 4


def test_a_version_is_found_again_after_the_declaration_changed_twice() -> None:
    changed = with_set(windows=(days(1),))
    assert make(PIPELINE, "features_user") == "features_user"
    assert make(changed, "features_user") == "features_user_v2"
    assert make(with_set(windows=(days(2),)), "features_user") == "features_user_v3"
    assert versions.uri(PIPELINE, "features_user") == lake.uri("shop", "features_user")
    assert versions.uri(changed, "features_user") == lake.uri("shop", "features_user_v2")
    assert versions.load(with_set(windows=(days(5),)), "features_user") is None
    assert [uri.rpartition("/")[2] for uri in versions.every(PIPELINE, "features_user")] == [
        "features_user",
        "features_user_v2",
        "features_user_v3",
    ]


def test_a_feature_set_may_be_called_like_a_version() -> None:
    both = replace(PIPELINE, features=(USER, replace(USER, name="user_v2")))
    assert [make(both, f"features_{one.name}") for one in both.features] == ["features_user", "features_user_v2"]
    changed = replace(both, features=(replace(USER, windows=(days(1),)), both.features[1]))
    assert make(changed, "features_user") == "features_user_v3"
    for name, held in (("user", ["features_user", "features_user_v3"]), ("user_v2", ["features_user_v2"])):
        assert [uri.rpartition("/")[2] for uri in versions.every(changed, f"features_{name}")] == held


def test_a_table_without_the_property_is_nobodys() -> None:
    """An earlier release made it, and nothing says from what."""
    lake.append(lake.uri("shop", "labels"), pa.table({"key": ["k"], "mature_date": [BOUGHT]}), partition_by=["mature_date"])
    assert versions.uri(PIPELINE, "labels") == lake.uri("shop", "labels_v2")
    assert versions.every(PIPELINE, "labels") == [lake.uri("shop", "labels")]


def test_readers_take_the_version_of_their_declaration() -> None:
    plain = replace(PIPELINE, features=(), dimensions=(), spine=replace(PIPELINE.spine, columns=(Column("user"),)))
    columns = {"key": ["k"], "user": ["ann"], "as_of_date": [BOUGHT]}
    make(plain, "examples", pa.table(columns))
    later = replace(plain, lateness=hours(4))
    make(later, "examples", pa.table(columns | {"user": ["bob"]}))
    for pipeline, user in ((plain, "ann"), (later, "bob")):
        assert lake.query(inputs.examples(pipeline), "select user from t").to_pylist() == [{"user": user}]
    # A model of the earlier declaration names its table.
    assert lake.query(inputs.examples(later, name="examples"), "select user from t").to_pylist() == [{"user": "ann"}]


def test_the_ledger_widens_and_tells_declarations_apart() -> None:
    """A ledger of an earlier release has neither declarations nor seconds."""
    old = pa.Table.from_pylist([dict.fromkeys(ledger.SCHEMA.names)], schema=ledger.SCHEMA).drop_columns(
        ["declaration", "seconds"]
    )
    row = old.slice(0, 0)
    lake.append(ledger.uri(PIPELINE), row)
    wanted = versions.digest(PIPELINE, "examples")
    one = Interval(BOUGHT, BOUGHT + DAY)
    entry = ledger.Entry(stage="features/examples", day=BOUGHT, inputs={}, output_version=1, rows=1, run_id="r")
    assert ledger.entries(PIPELINE) == []
    ledger.record(PIPELINE, [replace(entry, declaration="another", seconds=2.5)])
    assert ledger.computed(PIPELINE, "features/examples", one, wanted) == set()
    ledger.record(PIPELINE, [replace(entry, declaration=wanted)])
    assert ledger.computed(PIPELINE, "features/examples", one, wanted) == {BOUGHT}
    assert [(found.declaration, found.seconds) for _, _, found in ledger.entries(PIPELINE)] == [("another", 2.5), (wanted, 0.0)]


def test_the_code_of_a_stage_is_its_own_and_what_all_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ("jobs/reach.py", "jobs/features/plan.py", "jobs/train/fit.py", "pipelines/declare.py", "pipelines/shop.py")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setattr(ledger, "PROJECT", tmp_path)
    whole, features = (ledger.fingerprint.__wrapped__(stage) for stage in (None, "features"))
    touched = {}
    for name in files:
        (tmp_path / name).write_text("x = 1")
        touched[name] = (ledger.fingerprint.__wrapped__() != whole, ledger.fingerprint.__wrapped__("features") != features)
        (tmp_path / name).write_text("")
    assert touched == {name: (True, name in (files[0], files[1], files[3])) for name in files}


DAILY = Pipeline(
    name="daily",
    description="A customer on a day.",
    first_day=BOUGHT,
    lateness=hours(3),
    spine=DailySpine(source=PEOPLE, entity=("customer",), within=days(7)),
    features=(replace(small_people.pipeline().features[0], tiles=True),),
    label=Label(
        source=PEOPLE,
        entity=("customer",),
        aggregates=(Aggregate("orders", "count"),),
        of="orders > 0",
        horizon=days(7),
    ),
    training=Training(every=days(1), days=days(9), validation=days(1), holdout=days(6)),
)


def erased() -> dict[str, int]:
    person = Person(source=PEOPLE, key=KEY)
    found = Found(person=person, named_by=derived.named_by(person))
    told = {}
    for target in derived.targets(person, found):
        derived.erase(target, "run")
        told[target.uri.rpartition("/")[2]] = target.erased
        assert derived.current(target) == 0
    return told


def test_an_erasure_reaches_all_versions_and_daily_examples() -> None:
    earlier = replace(DAILY, lateness=hours(1))
    by_person = pa.table({"customer": [KEY, "bob"], "event_date": [BOUGHT] * 2})
    by_key = pa.table({"key": [KEY, "bob"], "as_of_date": [BOUGHT] * 2})
    for pipeline in (earlier, DAILY):
        make(pipeline, "features_buyer", by_person)
        make(pipeline, "examples", by_key)
        make(pipeline, "labels", by_key)
    make(DAILY, "tiles_buyer", by_person)
    lake.append(lake.uri("daily", "predictions"), by_key, partition_by=["as_of_date"])
    # A set that is not declared any more, with tiles.
    gone = replace(DAILY, features=(replace(DAILY.features[0], name="gone"),))
    for table in ("features_gone", "tiles_gone"):
        make(gone, table, by_person)
    mine = ("features_buyer", "features_buyer_v2", "tiles_buyer", "examples", "examples_v2", "labels", "labels_v2", "predictions")
    assert erased() == dict.fromkeys((*mine, "features_gone", "tiles_gone"), 1)


def test_an_erasure_finds_the_person_in_the_key_of_a_pair() -> None:
    pair = replace(DAILY, spine=replace(DAILY.spine, entity=("id", "customer")))
    keys = [f'["1","{KEY}"]', '["2","bob"]', f'["{KEY}","bob"]', "no JSON", "7", None]
    make(pair, "examples", pa.table({"key": keys, "as_of_date": [BOUGHT] * len(keys)}))
    assert erased() == {"examples": 1}
    left = lake.query(DeltaTable(lake.uri("daily", "examples")), "select key from t").column("key").to_pylist()
    assert sorted(left, key=str) == sorted(keys[1:], key=str)


def test_maintenance_sees_all_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    make(PIPELINE, "examples")
    make(replace(PIPELINE, lateness=hours(1)), "examples")
    monkeypatch.setattr("pipelines.load", lambda _: PIPELINE)
    options = Namespace(subject="shop", dry_run=True, no_registry=True, json=True)
    job = Job(command="maintain", options=options, run_id="r", source=PIPELINE.sources)
    assert [kept.name for kept in upkeep._tables(job)] == ["shop/examples", "shop/examples_v2"]


@pytest.mark.parametrize("lateness", [hours(0), hours(3)])
@pytest.mark.parametrize("kind", ["day", "event"])
def test_labels_of_a_day_are_looked_for_where_they_can_mature(lateness: Any, kind: Any) -> None:
    """Each moment at which an example of the day can be, for both clocks of features."""
    sets = (USER, replace(PAIR, accuracy=kind))
    pipeline = replace(PIPELINE, lateness=lateness, features=sets)
    assert isinstance(pipeline.spine, Spine) and pipeline.exact == (kind == "event")
    day = date(2020, 1, 10)
    # A day of examples begins when the day before has closed, or with the day itself where features go by each moment.
    first = midnight(day) + (hours(0) if pipeline.exact else lateness) + pipeline.label.horizon + pipeline.label.lateness
    assert holdout.matured(pipeline, day) == (first.date(), (first + DAY - timedelta(microseconds=1)).date())


def test_closed_windows_make_other_labels() -> None:
    """They decide which of a spine's events were known in time."""
    closed = tuple(replace(one, accuracy="event", closed=True) for one in PIPELINE.features)
    other = replace(PIPELINE, features=closed)
    assert versions.digest(other, "labels") != versions.digest(PIPELINE, "labels")
