"""`penstock run` and what binds its stages to it. The broker is away, so that the first stage takes ten seconds to give up."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.kafka
COMMAND = [sys.executable, "-m", "jobs.cli", "run", "flight_delays", "--from", "2013-01-01", "--to", "2013-01-01"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return dict(os.environ) | {"PENSTOCK_LAKE": str(tmp_path), "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


def test_the_first_stage_that_fails_ends_the_run_with_its_code(environment: dict[str, str]) -> None:
    ended = subprocess.run([*COMMAND, "--json"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    report = json.loads(ended.stdout)
    assert ended.returncode == report["exit_code"] == 75
    assert report["stages"] == [{"stage": "ingest", "exit_code": 75}]
    assert "127.0.0.1:1" in ended.stderr, "the stage's own words reach whoever started the run"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_stage_ends_with_the_run_that_started_it(environment: dict[str, str], how: signal.Signals) -> None:
    run = subprocess.Popen(COMMAND, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (stages := psutil.Process(run.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # Past its fork, where the tie to the parent is made.
    while stages[0].cmdline()[-1:] == COMMAND[-1:]:
        time.sleep(0.05)
    run.send_signal(how)
    run.wait(timeout=10)
    gone, alive = psutil.wait_procs(stages, timeout=8)
    assert gone and not alive
