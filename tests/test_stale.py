"""Which days are stale, and which are not: by hand, from the account and the ledger alone."""

import json
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from small_history import ORDERS, PIPELINE, RATES, VISITS, at, event

from jobs import batches, lake, ledger, stale, versions
from jobs.decode import events_schema
from jobs.interval import Interval
from pipelines.declare import Pipeline, Source


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


def days(source: Source, interval: Interval | None = None) -> list[int]:
    """The stale days, as days of January."""
    return [one.day.day for one in stale.stale(PIPELINE, interval) if one.source == source.name]


def test_windows_and_labels_reach_as_far_as_they_read() -> None:
    computed(8, 25)
    commit(ORDERS, 6, (12, 13, 2), (12, 12, 1))
    # Windows of seven days, and two days of repeats around them. What is known on the 13th is no matter for the 12th.
    assert days(ORDERS) == list(range(12, 21))
    found = stale.stale(PIPELINE)
    assert [one.rows for one in found] == [1] + 8 * [3]
    assert (found[0].day, found[0].source, found[0].batch, found[0].kind) == (january(12), "orders", "replay6", "replay")
    assert days(ORDERS, Interval(january(19), january(23))) == [19, 20]
    assert [str(days) for days in stale.intervals(one.day for one in found)] == ["2020-01-12 to 2020-01-20"]


def test_a_dimension_reaches_as_far_as_its_fact_may_be_old() -> None:
    computed(8, 25)
    commit(RATES, 6, (12, 12, 1))
    assert days(RATES) == [12, 13, 14, 15]


def test_the_spine_concerns_the_examples_of_the_day_after_and_the_labels_of_the_horizon_before() -> None:
    computed(5, 28)
    commit(VISITS, 6, (14, 12, 1))
    # By the examples the 12th to the 15th, by the labels the 14th to the 19th.
    assert days(VISITS) == list(range(12, 20))
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
    assert days(VISITS) == list(range(first, 20))


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
    assert days(ORDERS) == [10, 13, 14]


@pytest.mark.parametrize("kind", ["ingest", "replay", "erase", "rebuild"])
def test_each_kind_that_changes_rows_counts(kind: str) -> None:
    computed(10, 10)
    commit(ORDERS, 6, (10, 10, 4), kind=kind, epoch=1)
    assert [(one.kind, one.rows) for one in stale.stale(PIPELINE)] == [(kind, 4)]


def test_a_rebuild_counts_also_for_what_it_left_out() -> None:
    computed(8, 25)
    commit(ORDERS, 3, (12, 13, 5), (11, 11, 5), kind="ingest")
    commit(ORDERS, 4, (11, 11, 5), kind="erase")
    assert days(ORDERS) == []
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
