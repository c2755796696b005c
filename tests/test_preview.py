"""`penstock features PIPELINE --preview DAY --entity K`: what a run would write, and the events behind it."""

import json
from argparse import Namespace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import small_history
from small_history import ORDERS, PIPELINE, at, event, rows, write, write_all
from test_features import compute

from jobs import cli
from jobs.command import Job
from jobs.errors import UsageError
from jobs.features import preview, stage
from jobs.interval import Interval

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
DAY = date(2020, 1, 15)


def shown(entity: str | None, day: date = DAY) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is printed as JSON beside the report, and the report."""
    options = Namespace(json=True, preview=str(day), entity=entity)
    job = Job(command="features", options=options, run_id="p", pipeline=PIPELINE, interval=Interval.inclusive(day, day))
    stage.run(job)
    return job.shown["preview"], job.report


def test_values_and_events_are_those_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    history = small_history.random_history(3, date(2020, 1, 5), date(2020, 1, 16))
    # A repeat that says another user: the first by position counts, whose it is.
    moved = {"order_id": "o", "user": "zoe", "amount": 3, "ordered_at": at("2020-01-15 10:00")}
    history["orders"] += [
        event(ORDERS, moved, known=at("2020-01-15 10:00"), partition=7, offset=900),
        event(ORDERS, {**moved, "user": "yan"}, known=at("2020-01-15 10:01"), partition=7, offset=901),
    ]
    write_all(history)
    compute(DAY, DAY)
    row = max((row for row in rows("features_user")), key=lambda row: row["user_orders_7d"])
    found, report = shown(row["user"])
    assert set(found) == {"user"}
    names = PIPELINE.features[0].columns
    assert {name: found["user"]["row"][name] for name in names} == {name: row[name] for name in names}
    assert found["user"]["stored"]["user_orders_7d"] == row["user_orders_7d"]
    assert len(found["user"]["events"]) == found["user"]["events_in_all"] == row["user_orders_7d"] == report["events"]["user"]
    assert sum("3d" in one["windows"] for one in found["user"]["events"]) == row["user_orders_3d"]
    positions = {(one["kafka_partition"], one["kafka_offset"]) for one in found["user"]["events"]}
    assert positions <= {(one["kafka_partition"], one["kafka_offset"]) for one in history["orders"]}
    assert row["user"] not in json.dumps(report)
    (only,) = shown("zoe")[0]["user"]["events"]
    assert (only["topic"], only["kafka_offset"], only["event_time"]) == ("orders", 900, "2020-01-15 10:00:00")
    nobody = shown("yan")[0]["user"]
    assert (nobody["row"], nobody["events"]) == (None, [])
    text = preview.told(PIPELINE.features[0], {"user": row["user"]}, DAY, found["user"])
    assert "user_orders_7d" in text
    assert "in the table" not in text


@pytest.mark.parametrize(("entity", "words"), [(None, "needs an entity"), ("user=ann,cart=1", "user=...; user=...,shop=...")])
def test_an_entity_that_no_set_has(entity: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        preview.named(PIPELINE, entity)


@pytest.mark.parametrize(
    ("text", "user"),
    [("shop=3,user=ann", "ann"), ('{"shop": 3, "user": "a=b, c"}', "a=b, c"), ('{"user": "{", "shop": "3"}', "{")],
)
def test_a_composite_entity_is_named_by_its_fields(text: str, user: str) -> None:
    ((found, entity),) = preview.named(PIPELINE, text)
    assert (found.name, entity) == ("pair", {"shop": "3", "user": user})


def test_an_entity_that_is_no_json() -> None:
    with pytest.raises(UsageError, match="no JSON object"):
        preview.named(PIPELINE, '{"shop": 3')


def test_an_open_day_is_said_to_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    row = event(
        ORDERS, {"order_id": "o", "user": "ann", "ordered_at": at("2020-01-15 10:00")}, known=at("2020-01-15 10:00"), offset=1
    )
    for source in PIPELINE.sources:
        write(source, [row] if source is ORDERS else [], read_up_to=at("2020-01-15 12:00"))
    assert shown("ann")[0]["user"]["row"]["user_orders_1d"] == 1
    assert "2020-01-15 is still open" in caplog.text and "so far" in caplog.text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--from", "2013-04-01", "--preview", "2013-04-02"), "leave --from and --to out"),
        (("--preview", "2013-04-02", "--from", "2013-04-01"), "leave --from and --to out"),
        (("--preview", "2013-04-02", "--to", "2013-04-03"), "leave --from and --to out"),
        (("--from", "2013-04-01", "--to", "2013-04-01", "--entity", "AA"), "--entity is of --preview"),
    ],
)
def test_a_preview_is_about_one_day(
    more: tuple[str, ...], words: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    try:
        ended = cli.main(["features", "flight_delays", *more])
    except SystemExit as stopped:
        ended = int(stopped.code or 0)
    assert ended == 64 and words in capfd.readouterr().err
