"""Features of runs that are killed for good at any of their steps, and of two whole runs at once: what one run leaves."""

import os
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import small_history
from small_history import PIPELINE, rows, write_all
from small_topic import DYING

from jobs import ledger, plain, verdict, versions
from jobs.command import Job
from jobs.features import stage
from jobs.interval import Interval
from pipelines.declare import Column, Expectation, days

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark"), pytest.mark.timeout(900)]

DAYS = [date(2020, 1, 14), date(2020, 1, 15)]
# All that a run can write, of little.
USER = replace(
    PIPELINE.features[0],
    windows=(days(1), days(3)),
    aggregates=PIPELINE.features[0].aggregates[:1],
    tiles=True,
    parquet=True,
    expectations=(Expectation(column="user_orders_1d", nulls=0.5),),
)
SMALL = replace(PIPELINE, features=(USER,), dimensions=(), spine=replace(PIPELINE.spine, columns=(Column("user"),)))
TABLES = ("features_user", "labels", "examples")
STEPS = {
    "the tiles are written": "from jobs.features import stored; after(stored.tables, 'write')",
    "a table is written": "after(stage, 'write'); stage.WRITERS = 1",
    "a plain file is put in place": "from jobs.features import parquet; after(parquet, '_write'); stage.WRITERS = 1",
    "the verdicts are written": "from jobs import verdict; after(verdict, 'replace')",
    "the ledger is about to be told": "from jobs import ledger; ledger.record = die",
}
_RUN = """
import sys
sys.path.insert(0, "tests")
from jobs.errors import JobError
from jobs.features import stage
import test_features_kills
"""
_CALL = """
try:
    test_features_kills.compute()
except JobError as failure:
    print(failure, file=sys.stderr)
    sys.exit(int(failure.exit_code))
"""


def compute() -> dict[str, Any]:
    """Run the stage. Returns its part of the report."""
    asked = Namespace(json=True, force=False, chunk_days=31, preview=None, entity=None)
    run_id = f"run-{os.getpid()}"
    made = Job(command="features", options=asked, run_id=run_id, pipeline=SMALL, interval=Interval.inclusive(*DAYS))
    stage.run(made)
    return made.report


def apart(step: str = "") -> "subprocess.Popen[str]":
    """The stage in a process of its own, which dies at a step."""
    return subprocess.Popen([sys.executable, "-c", DYING + _RUN + step + _CALL], stderr=subprocess.PIPE, text=True)


def ended(run: "subprocess.Popen[str]") -> tuple[int, str]:
    """Its exit code, and what it said."""
    _, said = run.communicate(timeout=300)
    return run.returncode, said


def everything() -> dict[str, list[dict[str, Any]]]:
    """All that readers see: tables, plain files, verdicts."""
    found = {table: rows(table) for table in TABLES}
    folder = Path(plain.folder(versions.uri(SMALL, "features_user")))
    order = [("user", "ascending")]
    found |= {f"plain {day}": pq.read_table(folder / f"event_date={day}").sort_by(order).to_pylist() for day in DAYS}
    told = verdict.rows(SMALL, Interval.inclusive(*DAYS))
    found["verdicts"] = sorted(({"day": row.day, "value": row.value, "verdict": row.verdict} for row in told), key=str)
    return found


@pytest.fixture
def lakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a lake with the same events, and the one that is meant from then on."""
    history = small_history.random_history(5, date(2020, 1, 10), date(2020, 1, 18))

    def made(name: str) -> None:
        monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / name))
        write_all(history)

    return made


def test_killed_at_every_step(lakes: Callable[[str], None]) -> None:
    lakes("unbroken")
    compute()
    whole = everything()
    assert all(whole.values())
    lakes("broken")
    for step, death in STEPS.items():
        code, said = ended(apart(death))
        assert code == -signal.SIGKILL, (step, said)
        # Nobody takes the days for done.
        assert ledger.entries(SMALL) == [], step
    report = compute()
    assert set(report["days"]["computed"]) == set(map(str, DAYS))
    assert everything() == whole
    assert {entry.run_id for _, _, entry in ledger.entries(SMALL)} == {f"run-{os.getpid()}"}


def test_two_whole_runs_at_once(lakes: Callable[[str], None]) -> None:
    """Each ends well or is told to try again, and then all is there once."""
    lakes("alone")
    compute()
    whole = everything()
    lakes("both")
    runs = [ended(run) for run in [apart(), apart()]]
    assert {code for code, _ in runs} <= {0, 75}, runs
    # With nothing left to do where one of them won.
    compute()
    assert everything() == whole
