"""A range in chunks: a run that dies anywhere is completed by the next, and equals an unbroken one; what stands is left alone."""

import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import small_history
from small_history import PIPELINE, rows, write_all
from small_topic import DYING

from jobs import ledger, needs, versions
from jobs.command import Job
from jobs.errors import UsageError
from jobs.features import stage
from jobs.interval import Interval
from jobs.spark import session
from pipelines.declare import Column, Pipeline, days

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

# Spark's time goes into tables and chunks, so these are few.
USER = replace(PIPELINE.features[0], windows=(days(1), days(3)), aggregates=PIPELINE.features[0].aggregates[:1])
SMALL = replace(PIPELINE, features=(USER,), dimensions=(), spine=replace(PIPELINE.spine, columns=(Column("user"),)))
TABLES = ("features_user", "labels", "examples")
DAYS = [date(2020, 1, 14), date(2020, 1, 15)]


def compute(pipeline: Pipeline = SMALL, last: date = DAYS[-1], **options: Any) -> dict[str, Any]:
    """Run the stage. Returns its part of the report."""
    asked = Namespace(**{"json": True, "force": False, "chunk_days": 1, "preview": None, "entity": None, **options})
    made = Job(command="features", options=asked, run_id="test", pipeline=pipeline, interval=Interval.inclusive(DAYS[0], last))
    stage.run(made)
    return made.report


def everything() -> dict[str, list[dict[str, Any]]]:
    return {table: rows(table) for table in TABLES}


class Died(BaseException):
    """As good as a kill: nothing in the stage catches it."""


def dying(after: int, whole: Callable[..., Any]) -> Callable[..., Any]:
    """A function that works so many times, and then the run is dead."""
    calls = iter(range(after))

    def one(*arguments: Any, **options: Any) -> Any:
        if next(calls, None) is None:
            raise Died
        return whole(*arguments, **options)

    return one


_APART = (
    DYING
    + """
import sys
sys.path.insert(0, "tests")
from jobs.features import stage
import test_chunks

after(stage, "write")  # One table is written, the others not.
stage.WRITERS = 1
test_chunks.compute()
"""
)


def test_a_run_that_dies_anywhere_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = small_history.random_history(5, date(2020, 1, 10), date(2020, 1, 18))
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "unbroken"))
    write_all(history)
    report = compute(chunk_days=31)
    whole = everything()
    assert all(whole.values()) and all(report["plans"][table] for table in TABLES)
    assert {table: facts["rows"] for table, facts in report["tables"].items()} == {t: len(found) for t, found in whole.items()}

    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "broken"))
    write_all(history)
    # Killed for good between two tables.
    ended = subprocess.run([sys.executable, "-c", _APART], stderr=subprocess.PIPE, text=True, timeout=200, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert rows("features_user") and versions.load(SMALL, "examples") is None and ledger.entries(SMALL) == []
    with monkeypatch.context() as died:
        # All of the first chunk is written, and nothing of it told.
        died.setattr(ledger, "record", dying(0, ledger.record))
        with pytest.raises(Died):
            compute()
    with monkeypatch.context() as died:
        # The first chunk is done, the second not begun.
        died.setattr(stage, "plan", dying(1, stage.plan))
        with pytest.raises(Died):
            compute()
    report = compute()
    assert report["days"] == {"skipped": DAYS[:1], "computed": {str(DAYS[1]): ["never computed"]}}
    assert everything() == whole
    assert sum(entry.rows for _, _, entry in ledger.entries(SMALL)) == sum(map(len, whole.values()))
    assert all(entry.seconds > 0 for _, _, entry in ledger.entries(SMALL))

    # All stands: no session is opened.
    monkeypatch.setattr(stage, "session", lambda: pytest.fail("a session was opened"))
    report = compute()
    assert (report["days"], report["tables"]) == ({"computed": {}, "skipped": DAYS}, {})
    with pytest.raises(UsageError, match="--chunk-days is 0"):
        compute(chunk_days=0)
    monkeypatch.setattr(stage, "session", session)

    # A changed declaration: a new version beside the old, of the tables that it concerns.
    changed = replace(SMALL, features=(replace(USER, windows=(days(1),)),))
    report = compute(changed, DAYS[0])
    assert report["days"]["computed"] == {str(DAYS[0]): ["declaration: no features_user, examples as declared now"]}
    there = {table: versions.uri(changed, table).rpartition("/")[2] for table in TABLES}
    assert there == {"features_user": "features_user_v2", "labels": "labels", "examples": "examples_v2"}
    narrow = {row["user"]: row["user_orders_1d"] for row in rows("features_user_v2")}
    wide = {row["user"]: row["user_orders_1d"] for row in whole["features_user"] if row["event_date"] == DAYS[0]}
    assert narrow == {user: orders for user, orders in wide.items() if orders}
    assert everything() == whole, "the tables of the earlier declaration stand as they were"
    # Taken back, nothing is to be done. Other code would do all again.
    both = Interval.inclusive(*DAYS)
    assert [one.state for one in needs.features(SMALL, both)] == ["done", "done"]
    monkeypatch.setattr(ledger, "fingerprint", lambda _=None: "other")
    assert [one.why[0].endswith(", now other") for one in needs.features(SMALL, both)] == [True, True]
