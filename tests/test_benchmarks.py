"""The benchmark of the ingest runs whole, at sizes that prove nothing else."""

import subprocess
import sys

import pytest

from jobs.settings import PROJECT


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.spark
def test_every_contender_reads_everything() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ingest", "--quick"], cwd=PROJECT, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("goal:") > 10
