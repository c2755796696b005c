"""Both engines read ranges alike: any mix of their runs gives the same table."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from small_topic import apart, assert_accounted, declare, ingest, offsets, order, produce, rows

from jobs.ingest import local_engine, plan, spark_engine
from jobs.local.ports import Ports
from pipelines.declare import Source

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def held(source: Source) -> list[dict[str, Any]]:
    """All rows, without what names the run that read them."""
    return [{name: value for name, value in row.items() if name != "batch"} for row in rows(source)]


def noise(draw: random.Random, count: int) -> list[bytes | None]:
    """Records of which some fit and some don't."""
    kinds = (
        lambda n: order(n),
        lambda n: order(n, cents="seven"),
        lambda n: order(n)[: draw.randrange(1, 20)],
        lambda _: None,
        lambda _: draw.randbytes(12),
    )
    return [draw.choices(kinds, (20, 1, 1, 1, 1))[0](number) for number in range(count)]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("seed", range(3))
def test_any_mix_of_engines_gives_the_same_table(source: Source, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    # Small batches and small tasks, so that ranges are cut in many ways.
    monkeypatch.setattr(plan, "BATCH_RECORDS", draw.randrange(40, 200))
    monkeypatch.setattr(spark_engine, "TASK_RECORDS", draw.randrange(20, 100))
    other = declare(source.topic, name="other")
    for _ in range(4):
        for partition in range(2):
            produce(source, noise(draw, draw.randrange(0, 80)), partition)
        ingest(source, engine=draw.choice(("local", "spark")))
    ingest(source, engine="spark")
    monkeypatch.setattr(plan, "BATCH_RECORDS", 2_000_000)
    ingest(other)
    assert held(source) == held(other)
    assert_accounted(source)
    ingest(other, engine="spark", rebuild=True)
    assert [row | {"topic_epoch": 0} for row in held(other)] == held(source)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone Spark of one master and one worker with two cores, as `spark://…`."""
    port = Ports.free().kafka
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    environment |= {"SPARK_WORKER_DIR": str(tmp_path / "work"), "PYSPARK_PYTHON": sys.executable}
    program = f"{environment['SPARK_HOME']}/bin/spark-class"
    address = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    ours = [
        subprocess.Popen([program, *arguments], env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        for arguments in (
            (f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
            (f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "-c", "2", "-m", "1g", address),
        )
    ]
    yield address
    for process in ours:
        for child in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            child.kill()
        process.wait()


@pytest.mark.long
def test_a_cluster_that_loses_its_executor_reads_each_record_once(
    source: Source, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_MASTER", cluster)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(local_engine, "ALONE", 0)
    produce(source, [order(n) for n in range(120_000)])
    produce(source, [order(n) if n % 3 else b"{" for n in range(30_000)], partition=1)
    run = apart(source, engine="spark")
    lake = Path(os.environ["PENSTOCK_LAKE"])
    deadline = time.monotonic() + 120
    while not list(lake.rglob("*.parquet")):
        assert time.monotonic() < deadline and run.poll() is None, run.stderr and run.stderr.read()
        time.sleep(0.05)
    # The first file is there, nothing is committed: now the executor dies with its Python workers.
    (executor,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if {"org.apache.spark.executor.CoarseGrainedExecutorBackend", "127.0.0.1"} <= set(process.info["cmdline"] or ())
    ]
    executor.send_signal(signal.SIGKILL)
    _, errors = run.communicate(timeout=240)
    assert run.returncode == 0, errors
    assert offsets(source) == [(0, n) for n in range(120_000)] + [(1, n) for n in range(30_000)]
    assert_accounted(source)
