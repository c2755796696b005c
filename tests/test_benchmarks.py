"""The benchmarks run whole, at sizes that prove nothing else."""

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


@pytest.mark.long
@pytest.mark.spark
def test_features_by_every_way() -> None:
    """It compares each of our results with DuckDB's, and ends where one differs."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.features", "--quick"], cwd=PROJECT, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("goal:") > 10
