"""What a run would do, told from the account, the ledger and the decisions, without Spark and without the registry."""

import json
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from small_history import ORDERS, PIPELINE, VISITS, at, write

from jobs import batches, champion, lake, ledger, needs, verdict, versions
from jobs.champion import Decision
from jobs.command import Job
from jobs.interval import DAY, Interval, midnight
from jobs.plan import stage
from pipelines.declare import Expectation, Pipeline, Training, days, hours

FIRST = date(2020, 1, 10)
SHORT = replace(PIPELINE, training=Training(every=days(4), days=days(3), validation=days(1), holdout=days(1)))
"""With an embargo of three days, a training at the end of the 23rd is on examples of the 12th at the latest."""


@pytest.fixture(autouse=True)
def own_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A lake whose sources were read up to the 30th, three hours past midnight."""
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for source in PIPELINE.sources:
        write(source, [], read_up_to=at("2020-01-30 03:00"))
    yield


def january(day: int) -> date:
    return date(2020, 1, day)


def make(pipeline: Pipeline, name: str) -> str:
    """A table without rows. Returns its place."""
    uri, schema = versions.uri(pipeline, name), pa.schema([("as_of_date", pa.date32()), ("key", pa.string())])
    lake.create(uri, schema, partition_by=["as_of_date"], configuration=versions.properties(pipeline, name))
    return uri


def compute(first: int, last: int, pipeline: Pipeline = SHORT, seconds: float = 2.0) -> None:
    """Leave what the features stage leaves of these days: tables, though empty, and entries in the ledger."""
    names = versions.tables(pipeline)
    for name in names:
        make(pipeline, name)
    inputs = batches.snapshot(pipeline)
    ledger.record(
        pipeline,
        [
            ledger.Entry(
                stage=f"features/{name}",
                day=january(day),
                inputs=inputs,
                output_version=1,
                rows=10,
                run_id="r",
                declaration=versions.digest(pipeline, name),
                seconds=seconds / len(names),
            )
            for day in range(first, last + 1)
            for name in names
        ],
    )


def note(what: str, day: int, version: int = 1, **changes: Any) -> None:
    entry = ledger.Entry(stage=what, day=january(day), inputs={}, output_version=version, rows=7, run_id="r", seconds=3.0)
    ledger.record(SHORT, [replace(entry, **changes)])


def examples_since(day: int) -> None:
    """Put one example into the table."""
    rows = pa.table({"as_of_date": pa.array([january(day)], pa.date32()), "key": ["k"]})
    lake.append(make(SHORT, "examples"), rows, partition_by=["as_of_date"])


def decide(version: int, decision: Any = "promoted") -> None:
    made = Decision(
        decision=decision, candidate=version, champion=None, rule={}, figures={}, reasons=[], snapshot={}, run_id="r", by="t"
    )
    assert champion.commit(SHORT, champion.history(SHORT), [made], run_id="r")


def plan(first: int, last: int, pipeline: Pipeline = SHORT, *, as_json: bool = True) -> dict[str, Any]:
    made = Job(
        command="plan",
        options=Namespace(json=as_json),
        run_id="r",
        pipeline=pipeline,
        interval=Interval.inclusive(january(first), january(last)),
    )
    began = time.process_time()
    stage.run(made)
    assert time.process_time() - began < 3
    return made.report


def told(report: dict[str, Any], name: str) -> list[tuple[int, int, str, list[str]]]:
    return [(one["from"].day, one["to"].day, one["state"], one["why"]) for one in report["stages"] if one["stage"] == name]


def test_an_empty_lake_has_everything_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "empty"))
    report = plan(10, 12)
    why = ["open: visits, orders, rates read up to nothing"]
    assert told(report, "ingest") == [(10, 12, "waiting", why)]
    assert told(report, "features") == [(10, 12, "waiting", ["never computed", "the day is open"])]
    assert told(report, "train") == [(12, 12, "waiting", ["there are no examples yet"])]
    assert told(report, "promote") == [(12, 12, "waiting", ["no version was ever trained"])]
    assert told(report, "score") == [(10, 12, "waiting", ["there is no champion yet"])]
    assert report["seconds_estimated"] == 0
    assert not (tmp_path / "empty").exists(), "looking makes no table"


def test_days_that_stand_alike_are_one_line() -> None:
    compute(10, 14)
    compute(17, 18)
    report = plan(9, 30)
    assert told(report, "ingest") == [
        (9, 29, "done", []),
        (30, 30, "waiting", ["open: visits, orders, rates read up to 2020-01-30 03:00"]),
    ]
    assert told(report, "features") == [
        (9, 9, "missing", ["never computed"]),
        (10, 14, "done", []),
        (15, 16, "missing", ["never computed"]),
        (17, 18, "done", []),
        (19, 29, "missing", ["never computed"]),
        (30, 30, "waiting", ["never computed", "the day is open"]),
    ]
    # Four tables of ten rows each, and two seconds a day.
    lines = [one for one in report["stages"] if one["stage"] == "features"]
    assert [(one["rows"], one["seconds"]) for one in lines] == [(0, 2.0), (200, None), (0, 4.0), (80, None), (0, 22.0), (0, 2.0)]
    assert report["seconds_estimated"] == 30.0
    assert report["tables"]["features_user"] == {"version": "features_user", "days": 7, "rows": 70}


def test_stale_days_say_which_batches_which_code_and_which_declaration(monkeypatch: pytest.MonkeyPatch) -> None:
    compute(10, 20)
    row: dict[str, Any] = dict.fromkeys(batches.RANGES.names)
    row |= {"kind": "replay", "batch": "ab12", "version": 9, "topic": "orders", "topic_epoch": 0, "kafka_partition": 0}
    row |= {"start_offset": 0, "end_offset": 0, "dead_counts": "[]", "spans": [], "good": 3, "dead": 0}
    row["counts"] = json.dumps([["2020-01-17", "2020-01-18", 3]])
    lake.append(batches.ranges_uri(ORDERS), pa.Table.from_pylist([row], schema=batches.RANGES))
    report = plan(10, 20)
    batch = "rows of orders: replay ab12"
    assert told(report, "features") == [(10, 17, "done", []), (18, 20, "stale", [batch])]
    assert [one["changed_rows"] for one in report["stages"] if one["stage"] == "features"] == [0, 3]
    # The three came in on the 18th.
    assert sum(one["rows"] for one in report["stages"] if one["stage"] == "ingest") == 3

    narrow = replace(SHORT, features=(replace(SHORT.features[0], windows=(days(1),)), SHORT.features[1]))
    lacking = "declaration: no features_user, examples as declared now"
    assert told(plan(10, 20, narrow), "features")[0] == (10, 17, "stale", [lacking])
    compute(10, 12, narrow)
    found = plan(10, 20, narrow)
    assert told(found, "features")[:2] == [(10, 12, "done", []), (13, 17, "stale", [lacking])]
    assert found["tables"]["features_user"]["version"] == "features_user_v2"

    before = ledger.fingerprint("features")
    monkeypatch.setattr(ledger, "fingerprint", lambda _=None: "new")
    code = f"code: {before}, now new"
    assert told(plan(16, 18), "features") == [(16, 17, "stale", [code]), (18, 18, "stale", [code, batch])]


def test_a_table_that_was_moved_away_leaves_its_days_to_do() -> None:
    compute(10, 12)
    uri = Path(versions.uri(SHORT, "labels"))
    uri.rename(uri.with_name("gone"))
    assert told(plan(10, 12), "features") == [(10, 12, "stale", ["declaration: no labels as declared now"])]
    compute(11, 11)
    assert [one.state for one in needs.features(SHORT, Interval.inclusive(january(10), january(12)))] == [
        "stale",
        "done",
        "stale",
    ]


def test_training_decision_and_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    compute(5, 23)
    examples_since(6)
    assert told(plan(11, 13), "train") == [(13, 13, "waiting", ["not due: examples since 2020-01-06 are too few days"])]
    assert told(plan(20, 23), "train") == [(23, 23, "missing", ["due"])]
    assert told(plan(20, 23), "promote") == [(23, 23, "waiting", ["for the training"])]
    assert told(plan(20, 24), "train") == [(24, 24, "missing", ["due, after the features"])]
    note("train", 23, version=1)
    assert told(plan(20, 23), "train") == [(23, 23, "done", ["version 1"])]
    assert told(plan(20, 25), "train") == [(25, 25, "waiting", ["not due until the run over 2020-01-27"])]
    assert told(plan(20, 27), "train")[0][2] == "missing"
    assert told(plan(20, 23), "promote") == [(23, 23, "missing", ["version 1 waits for a decision"])]
    decide(1)
    assert told(plan(20, 23), "promote") == [(23, 23, "done", ["the champion is version 1"])]
    for day in (20, 21):
        note("score", day)
    report = plan(20, 25)
    assert told(report, "score") == [
        (20, 21, "done", []),
        (22, 23, "missing", ["never scored"]),
        (24, 25, "waiting", ["for the features"]),
    ]
    assert [one["seconds"] for one in report["stages"] if one["stage"] == "score"] == [None, 6.0, 6.0]
    compute(21, 21)
    assert told(plan(20, 21), "score")[1] == (21, 21, "stale", ["the features were computed again since"])
    before = ledger.fingerprint("score")
    monkeypatch.setattr(ledger, "fingerprint", lambda stage=None: "new" if stage == "score" else "old")
    assert f"code: {before}, now new" in told(plan(20, 20), "score")[0][3]


def test_days_that_the_stages_refuse_wait() -> None:
    compute(10, 11)
    note("train", 20)
    decide(1)
    row: dict[str, Any] = dict.fromkeys(batches.RANGES.names)
    row |= {"kind": "ingest", "batch": "ab12", "version": 0, "topic": "visits", "topic_epoch": 0, "kafka_partition": 0}
    row |= {"start_offset": 0, "end_offset": 9, "counts": "[]", "spans": [], "good": 0, "dead": 9}
    row["dead_counts"] = json.dumps([["2020-01-13", "not JSON", 9]])
    lake.append(batches.ranges_uri(VISITS), pa.Table.from_pylist([row], schema=batches.RANGES))
    expected = Expectation(volume=(0.5, 2.0))
    strict = replace(SHORT, expectations=(expected,))
    breach = verdict.Row(
        day=january(11),
        table="examples",
        column=None,
        rule="volume",
        limit=verdict.limit(expected),
        value=9.0,
        verdict=verdict.FAILS,
        message="nine times as many",
        inputs="{}",
        run_id="r",
        recorded_at=at("2020-01-12"),
    )
    verdict.replace(strict, Interval(january(11), january(12)), [breach])
    report = plan(10, 13, strict)
    broken = "an expectation is broken: see `penstock quality show`"
    assert told(report, "features") == [
        (10, 10, "done", []),
        (11, 11, "done", [broken]),
        (12, 12, "missing", ["never computed"]),
        (13, 13, "waiting", ["never computed", "too many dead letters of visits"]),
    ]
    assert told(report, "score") == [
        (10, 10, "missing", ["never scored"]),
        (11, 11, "waiting", [broken]),
        (12, 13, "waiting", ["for the features"]),
    ]


def test_the_table_fits_its_width_and_says_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    compute(10, 14, seconds=200.0)
    plan(10, 20, as_json=False)
    out = capsys.readouterr().out
    named = enumerate(PIPELINE.features * 5)
    many = [replace(one, name=f"set_with_a_name_that_is_rather_long_{number}") for number, one in named]
    plan(10, 30, replace(SHORT, features=tuple(many)), as_json=False)
    lacking = capsys.readouterr().out
    assert max(map(len, (out + lacking).splitlines())) <= stage.WIDTH
    assert "2020-01-15 to 2020-01-20  features  missing              0     1,200  never computed" in out
    assert "features_user                                          50 rows of 5 days in features_user" in out
    assert out.endswith("\nto do: about 1,200 s\n")
    assert lacking.endswith("\nto do: about 4,200 s, and ingest, train, promote, of which the ledger has no time yet\n")
    assert "and 8 more as declared now" in " ".join(lacking.split())


def test_the_median_of_what_days_took() -> None:
    for seconds in (1.0, 9.0, 2.0):
        compute(10, 10, seconds=seconds)
    compute(11, 13)
    assert [one["seconds"] for one in plan(14, 15)["stages"] if one["stage"] == "features"] == [4.0]


def test_chunks_are_runs_of_days() -> None:
    wanted = [january(day) for day in (3, 4, 5, 6, 7, 9)]
    assert [str(one) for one in needs.chunks(wanted, 2)] == [
        "2020-01-03 to 2020-01-04",
        "2020-01-05 to 2020-01-06",
        "2020-01-07",
        "2020-01-09",
    ]
    assert needs.chunks([], 5) == [] and len(needs.chunks(wanted, 31)) == 2


def test_the_moment_of_closing_is_the_pipelines() -> None:
    """The 29th closes at three, to which all sources were read; with four hours it stays open."""
    assert told(plan(29, 29), "ingest") == [(29, 29, "done", [])]
    assert told(plan(29, 29, replace(SHORT, lateness=hours(4))), "ingest")[0][2] == "waiting"
    write(VISITS, [], read_up_to=midnight(january(29)) + DAY + timedelta(hours=2))
    assert told(plan(29, 29), "ingest") == [(29, 29, "done", [])], "the newest moment counts"
