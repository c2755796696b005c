"""Which days are stale, and which are not: by hand, from the account and the ledger alone."""

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_history import ORDERS, PIPELINE, RATES, VISITS, at, event

from jobs import batches, lake, ledger, stale, versions
from jobs.decode import events_schema
from jobs.interval import DAY, Interval
from pipelines.declare import Aggregate, DailySpine, Dimension, Field, Label, Pipeline, Source, Spine, Table, days, hours


@pytest.fixture(autouse=True)
def own_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lake for each test, with an empty table of events for each source."""
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    for source in PIPELINE.sources:
        lake.create(batches.events_uri(source), events_schema(source), partition_by=["event_date"])


def january(day: int) -> date:
    return date(2020, 1, day)


def computed(first: int, last: int, pipeline: Pipeline = PIPELINE, **read: int) -> None:
    """Record that the days' features were computed from these versions of the events; 5 where none is given."""
    inputs = {source.name: 5 for source in pipeline.sources} | read
    ledger.record(
        pipeline,
        [
            ledger.Entry(
                stage=f"features/{table}",
                day=january(day),
                inputs=inputs,
                output_version=1,
                rows=1,
                run_id="r",
                declaration=versions.digest(pipeline, table),
            )
            for day in range(first, last + 1)
            for table in versions.tables(pipeline)
        ],
    )


def commit(source: Source, version: int, *counts: tuple[int, int, int], kind: str = "replay", epoch: int = 0) -> None:
    """A commit with rows by event day and known day, all in January."""
    row: dict[str, Any] = dict.fromkeys(batches.RANGES.names)
    row |= {"kind": kind, "batch": f"{kind}{version}", "version": version, "topic": source.topic, "topic_epoch": epoch}
    row |= {"kafka_partition": 0, "start_offset": 0, "end_offset": 0, "dead_counts": "[]", "spans": []}
    row["counts"] = json.dumps([[str(january(happened)), str(january(known)), rows] for happened, known, rows in counts])
    lake.append(batches.ranges_uri(source), pa.Table.from_pylist([row], schema=batches.RANGES))


def days_of(source: Source, interval: Interval | None = None) -> list[int]:
    """The stale days, as days of January."""
    return [one.day.day for one in stale.stale(PIPELINE, interval) if one.source == source.name]


def test_windows_and_labels_reach_as_far_as_they_read() -> None:
    computed(8, 25)
    commit(ORDERS, 6, (12, 13, 2), (12, 12, 1))
    # Windows of seven days, and two days of repeats around them. What is known on the 13th is no matter for the 12th.
    assert days_of(ORDERS) == list(range(12, 21))
    found = stale.stale(PIPELINE)
    assert [one.rows for one in found] == [1] + 8 * [3]
    assert (found[0].day, found[0].source, found[0].batch, found[0].kind) == (january(12), "orders", "replay6", "replay")
    assert days_of(ORDERS, Interval(january(19), january(23))) == [19, 20]
    assert [str(days) for days in stale.intervals(one.day for one in found)] == ["2020-01-12 to 2020-01-20"]


def test_a_dimension_reaches_as_far_as_its_fact_may_be_old() -> None:
    computed(8, 25)
    commit(RATES, 6, (12, 12, 1))
    assert days_of(RATES) == [12, 13, 14, 15]


def test_the_spine_concerns_the_examples_of_the_day_after_and_the_labels_of_the_horizon_before() -> None:
    computed(5, 28)
    commit(VISITS, 6, (14, 12, 1))
    # By the examples the 12th to the 15th, by the labels the 14th to the 19th.
    assert days_of(VISITS) == list(range(12, 20))
    commit(VISITS, 7, (5, 1, 1))
    assert [one.day.day for one in stale.stale(PIPELINE) if one.batch == "replay7"] == [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize(("known", "first"), [("2020-01-12 02:59", 11), ("2020-01-12 03:00", 12)])
def test_on_the_day_after_only_what_came_before_the_day_closed_counts(known: str, first: int) -> None:
    # The pipeline waits three hours.
    computed(5, 28)
    commit(VISITS, 6, (14, 12, 1), kind="ingest")
    fields = {"visit_id": "v", "user": "ann", "shop": 1, "size": 1.0, "starts_at": at("2020-01-14 12:00")}
    row = event(VISITS, fields, known=at(known), offset=0) | {"batch": "ingest6"}
    lake.append(
        batches.events_uri(VISITS), pa.Table.from_pylist([row], schema=events_schema(VISITS)), partition_by=["event_date"]
    )
    assert days_of(VISITS) == list(range(first, 20))


def test_fresh_news_and_acknowledgements_leave_all_as_it_is() -> None:
    for day in range(10, 15):
        computed(day, day, orders=day, visits=day, rates=day)
        for source in PIPELINE.sources:
            # The next run brings what happened on the day after, what was late and came then, and the schedule of days to come.
            news = [(day + 1, day + 1, 9), (day - 1, day + 1, 1), (day, day + 1, 1)]
            commit(source, day + 1, *news, kind="ingest")
            commit(source, day + 1, (day, day, 1), kind="acknowledge")
    assert stale.stale(PIPELINE) == []


def test_a_straggler_by_the_producers_clock_is_seen() -> None:
    computed(10, 12, orders=5)
    commit(ORDERS, 5, (10, 10, 7), kind="ingest")
    commit(ORDERS, 6, (13, 13, 7), (10, 11, 1), kind="ingest")
    assert [(one.day.day, one.rows) for one in stale.stale(PIPELINE)] == [(11, 1), (12, 1)]


def test_the_newest_run_of_a_day_counts() -> None:
    computed(10, 14)
    commit(ORDERS, 6, (10, 10, 1))
    computed(11, 12, orders=6)
    assert days_of(ORDERS) == [10, 13, 14]


@pytest.mark.parametrize("kind", ["ingest", "replay", "erase", "rebuild"])
def test_each_kind_that_changes_rows_counts(kind: str) -> None:
    computed(10, 10)
    commit(ORDERS, 6, (10, 10, 4), kind=kind, epoch=1)
    assert [(one.kind, one.rows) for one in stale.stale(PIPELINE)] == [(kind, 4)]


def test_a_rebuild_counts_also_for_what_it_left_out() -> None:
    computed(8, 25)
    commit(ORDERS, 3, (12, 13, 5), (11, 11, 5), kind="ingest")
    commit(ORDERS, 4, (11, 11, 5), kind="erase")
    assert days_of(ORDERS) == []
    commit(ORDERS, 6, kind="rebuild", epoch=1)
    assert [(one.day.day, one.rows) for one in stale.stale(PIPELINE)] == [(day, 5) for day in range(13, 21)]


def test_without_a_ledger_nothing_is_stale() -> None:
    commit(ORDERS, 6, (12, 12, 1))
    assert stale.stale(PIPELINE) == []


def brute(source: Source, happened: datetime, known: datetime) -> set[int]:
    """The days whose run would have read the row, from the words of the design, without the code's arithmetic."""
    found = set()
    for number in range(1, 29):
        end = at(f"2020-01-{number:02}") + timedelta(days=1)
        closes = end + PIPELINE.lateness
        windows = max(window for one in PIPELINE.features for window in one.windows)
        if source == ORDERS and known < end and end - windows <= happened < end:
            found.add(number)
        if source == RATES and known < end and end - PIPELINE.dimensions[0].within <= happened < end:
            found.add(number)
        as_of = happened - PIPELINE.spine.before
        if source == VISITS and known < as_of and known < closes and closes <= as_of < closes + timedelta(days=1):
            found.add(number)
        matures = as_of + PIPELINE.label.horizon + PIPELINE.label.lateness
        if source == VISITS and known < as_of and end - timedelta(days=1) <= matures < end:
            found.add(number)
    return found


@pytest.mark.parametrize("source", PIPELINE.sources, ids=lambda source: source.name)
@pytest.mark.parametrize("delay", [-70, -30, -3, 0, 5, 26, 60, 170])
def test_no_day_that_would_have_read_a_row_is_left_out(source: Source, delay: int) -> None:
    computed(1, 28)
    for version, text in enumerate(("2020-01-12 00:00", "2020-01-12 01:30", "2020-01-12 05:00", "2020-01-12 23:59"), start=6):
        happened = at(text)
        known = happened + timedelta(hours=delay)
        commit(source, version, (happened.day, known.day, 1), kind="ingest")
        row: dict[str, Any] = dict.fromkeys(events_schema(source).names)
        row |= {source.event_id: "x", source.event_time: happened, "event_time": happened, "known_time": known}
        row |= {"batch": f"ingest{version}", "event_date": happened.date()}
        lake.append(batches.events_uri(source), pa.Table.from_pylist([row], schema=events_schema(source)))
        found = {one.day.day for one in stale.stale(PIPELINE) if one.batch == f"ingest{version}"}
        wanted = brute(source, happened, known)
        assert found >= wanted
        # Too many only by the repeats around, and the rest of the days at both ends.
        assert not found or min(found) >= min(known.day - 1, 12), found


# Daily spines, lookups, labels over a horizon, features as of each moment.

USER, PAIR = PIPELINE.features
DAILY = replace(
    PIPELINE,
    spine=DailySpine(source=VISITS, entity=("user",), within=days(3)),
    features=(
        replace(
            USER,
            windows=(days(2),),
            lookups=(Dimension(name="rate", source=RATES, entity=("shop",), fields=("level",), within=days(2)),),
        ),
    ),
    dimensions=(),
    label=Label(
        source=ORDERS,
        entity=("user",),
        aggregates=(Aggregate("orders", "count"),),
        of="orders > 0",
        horizon=days(2),
        lateness=hours(5),
    ),
)
EXACT = replace(PIPELINE, features=(replace(USER, accuracy="event"), PAIR))


def ends_in(days_: Iterable[int], window: timedelta, happened: datetime, known: datetime) -> bool:
    """Whether a window that ends with one of the days holds the row."""
    ends = [at("2020-01-01") + number * DAY for number in days_]
    return any(end - window <= happened < end and known < end for end in ends)


def brute_daily(source: Source, happened: datetime, known: datetime) -> set[int]:
    found = set()
    wait = DAILY.label.horizon + DAILY.label.lateness
    for number in range(1, 29):
        # The days of the examples whose labels mature on this one.
        maturing = [n for n in range(1, 29) if (at("2020-01-01") + n * DAY + DAILY.lateness + wait).day == number]
        if source == ORDERS:
            ends = [at("2020-01-01") + n * DAY + DAILY.lateness for n in maturing]
            labelled = any(end <= happened < end + DAILY.label.horizon and known < end + wait for end in ends)
            if ends_in([number], days(2), happened, known) or labelled:
                found.add(number)
        if source == VISITS and ends_in([number, *maturing], days(3), happened, known):
            found.add(number)
        if source == RATES:
            # Some event of the window may be known at a moment x after this, and not more than two days after it happened.
            end, since = at("2020-01-01") + number * DAY, max(happened, known)
            if since < end and since < happened + days(2) and end - days(2) <= happened + days(2):
                found.add(number)
    return found


def brute_exact(source: Source, happened: datetime, known: datetime) -> set[int]:
    found = set()
    wait = EXACT.label.horizon + EXACT.label.lateness
    moment = timedelta(minutes=30)
    for number in range(1, 29):
        start = at("2020-01-01") + (number - 1) * DAY
        moments = [start + n * moment for n in range(48)]
        # What day-accurate sets and dimensions an example knows is of the last day that had closed.
        used = {((as_of - EXACT.lateness).date() - DAY).day for as_of in moments if as_of > at("2020-01-03")}
        if source == ORDERS:
            seen = any(as_of - days(7) <= happened < as_of and known < as_of for as_of in moments)
            labelled = any(
                as_of <= happened < as_of + EXACT.label.horizon and known < as_of + wait for as_of in (m - wait for m in moments)
            )
            if seen or labelled or ends_in({number, *used}, days(2), happened, known):
                found.add(number)
        if source == RATES and ends_in(used, days(2), happened, known):
            found.add(number)
        as_of = happened - EXACT.spine.before if isinstance(EXACT.spine, Spine) else happened
        if source == VISITS and known < as_of and any(start <= when < start + DAY for when in (as_of, as_of + wait)):
            found.add(number)
    return found


@pytest.mark.parametrize("source", PIPELINE.sources, ids=lambda source: source.name)
@pytest.mark.parametrize(("pipeline", "rule"), [(DAILY, brute_daily), (EXACT, brute_exact)], ids=["daily", "exact"])
def test_no_day_of_other_spines_and_clocks_is_left_out(pipeline: Pipeline, rule: Any, source: Source) -> None:
    computed(1, 28, pipeline)
    version = 6
    for delay in (-70, -30, 0, 5, 26, 60, 170):
        for text in ("2020-01-12 00:00", "2020-01-12 05:00", "2020-01-12 23:59"):
            happened = at(text)
            known = happened + timedelta(hours=delay)
            commit(source, version, (happened.day, known.day, 1), kind="erase")
            found = {one.day.day for one in stale.stale(pipeline) if one.batch == f"erase{version}"}
            assert found >= rule(source, happened, known), (text, delay)
            assert not found or min(found) >= min(known.day - 1, 12), found
            version += 1


def items(*rows: tuple[int, str, float]) -> int:
    """Make the rows the snapshot table. Returns its version."""
    table = pa.table(
        {
            "shop": [shop for shop, _, _ in rows],
            "since": pa.array([at(since) for _, since, _ in rows], lake.INSTANT),
            "size": [size for _, _, size in rows],
        }
    )
    return lake.replace(lake.uri("reference/items"), table, where="true", partition_by=[])


ITEMS = Table(
    name="items",
    path="reference/items",
    valid_from="since",
    fields=(Field("shop", "int64"), Field("size", "float64"), Field("since", "timestamp", required=True)),
)


@pytest.mark.parametrize(("within", "last"), [(None, 28), (days(3), 17)])
def test_a_snapshot_table_concerns_the_days_that_may_see_what_changed(within: timedelta | None, last: int) -> None:
    lookup = Dimension(name="item", source=ITEMS, entity=("shop",), fields=("size",), within=within)
    first = items((1, "2020-01-05 12:00", 1.0), (2, "2020-01-14 00:00", 2.0))
    by_day = replace(PIPELINE, dimensions=(lookup,))
    by_event = replace(PIPELINE, features=(replace(USER, windows=(days(2),), lookups=(lookup,)), PAIR), dimensions=())
    for pipeline in (by_day, by_event):
        computed(1, 28, pipeline, items=first)
        assert stale.stale(pipeline) == []
    second = items((1, "2020-01-05 12:00", 1.0), (2, "2020-01-14 00:00", 3.0), (3, "2020-01-15 00:00", 4.0))
    found = stale.stale(by_day)
    assert [one.day.day for one in found] == list(range(14, last + 1))
    assert {(one.source, one.kind, one.batch) for one in found} == {("items", "table", f"version {second} after {first}")}
    # The old row, the new one of the same moment, and one a day later.
    assert [one.rows for one in found][:2] == [2, 3]
    # An event sees what is three days old, and a window sees events for two days more.
    assert [one.day.day for one in stale.stale(by_event)] == list(range(14, min(last + 2, 28) + 1))
    computed(1, 28, by_day, items=second)
    assert stale.stale(by_day) == []


def test_a_plain_table_that_changed_concerns_all_its_days() -> None:
    plain = replace(ITEMS, format="parquet", path=lake.uri("reference/plain"))
    lookup = Dimension(name="item", source=plain, entity=("shop",), fields=("size",), within=days(3))
    pipeline = replace(PIPELINE, dimensions=(lookup,))
    folder = Path(plain.path)
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"shop": [1]}), folder / "a.parquet")
    read = batches.snapshot(pipeline)
    computed(10, 12, pipeline, items=read["items"])
    assert stale.stale(pipeline) == []
    pq.write_table(pa.table({"shop": [1, 2]}), folder / "a.parquet")
    assert [(one.day.day, one.kind) for one in stale.stale(pipeline)] == [(10, "table"), (11, "table"), (12, "table")]


def test_another_declarations_days_are_not_this_ones() -> None:
    """What was computed as another declaration has it lies in other tables."""
    computed(10, 12)
    commit(ORDERS, 6, (10, 10, 1))
    assert [one.day.day for one in stale.stale(PIPELINE)] == [10, 11, 12]
    later = replace(PIPELINE, lateness=hours(4))
    assert stale.stale(later) == []
    computed(11, 11, later)
    assert [one.day.day for one in stale.stale(later)] == [11]
