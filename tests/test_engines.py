"""Both engines read ranges alike: any mix of their runs gives the same table."""

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession
from small_topic import apart, assert_accounted, declare, ingest, offsets, order, produce, rows

from jobs.errors import RetryError, UsageError
from jobs.ingest import local_engine, plan, spark_engine
from jobs.ingest.local_engine import LocalEngine
from jobs.ingest.progress import Progress
from jobs.ingest.ranges import Range
from jobs.ingest.spark_engine import SparkEngine
from jobs.kafka import Cluster
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


def planned(source: Source) -> list[Range]:
    """The ranges that the next ingest would read."""
    return list(plan.make(Cluster(), source, plan.reach(Cluster(), (source,))[source.name], "run").ranges)


def test_a_pool_whose_process_died_is_replaced(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service keeps its engine from round to round."""
    monkeypatch.setattr(local_engine, "ALONE", 2)
    monkeypatch.setattr(local_engine, "cores", lambda: 2)
    produce(source, [order(n) for n in range(10)])
    engine = LocalEngine()
    try:
        assert sum(done.good for done in engine.read_all(planned(source))) == 10
        assert engine._pool is not None
        for process in engine._pool._processes:
            os.kill(process, signal.SIGKILL)
        with pytest.raises(RetryError, match="a reading process died"):
            engine.read_all(planned(source))
        assert sum(done.good for done in engine.read_all(planned(source))) == 10
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("told", "files", "quotas"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, [1.5]),
        ("0::/\n", {"cpu.max": "max 100000\n"}, []),
        # The groups above bind too; a path that is the host's is not to be seen in the container.
        ("0::/pod/one\n", {"pod/one/cpu.max": "max 100000\n", "pod/cpu.max": "400000 100000\n"}, [4.0]),
        ("0::/host/pod\n", {"cpu.max": "50000 100000\n"}, [0.5]),
        (
            "4:memory:/a\n3:cpu,cpuacct:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "300000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            [3.0],
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, []),
        ("", {}, []),
    ],
)
def test_a_containers_share_of_the_cores_counts(
    told: str, files: dict[str, str], quotas: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in ({f"sys/fs/cgroup/{name}": text for name, text in files.items()} | {"proc/self/cgroup": told}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(local_engine._quotas(tmp_path)) == quotas
    monkeypatch.setattr(local_engine, "_quotas", lambda _: iter(quotas))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert local_engine.cores() == (math.ceil(quotas[0]) if quotas else 64)


def test_an_engine_of_many_cores_gets_larger_batches(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = spark.sparkContext.defaultParallelism
    monkeypatch.setattr(plan, "BATCH_RECORDS", 1_000)
    monkeypatch.setattr(spark_engine, "TASK_RECORDS", 3_000)
    scale = SparkEngine(spark).scale
    assert (LocalEngine().scale, scale) == (1, 3 * cores)
    come = Progress(name="orders", open_transaction=False)
    come.good, come.bytes = 100, 10_000
    assert (come.limit(1), come.limit(scale)) == (1_000, 3_000 * cores)
    # Large records bound it as well, by the bytes of each core.
    come.bytes = 100 * (4 << 20)
    assert (come.limit(1), come.limit(10)) == (128, 1_280)
    monkeypatch.setattr(spark_engine, "TASK_RECORDS", 1)
    assert SparkEngine(spark).scale == 1


def test_what_fails_in_a_task_comes_back_as_what_it_is(source: Source, spark: SparkSession) -> None:
    produce(source, [order(n) for n in range(10)])
    ranges = planned(source)
    engine = SparkEngine(spark)
    # No range of ours is like that, so it is a bug (70) and no reason to try again (75).
    with pytest.raises(TypeError) as caught:
        engine.read_all([replace(ranges[0], erased=((None, None),))])  # type: ignore[arg-type]
    assert any("reader.py" in note for note in caught.value.__notes__)
    # What Kafka no longer has may be there again by the next plan.
    with pytest.raises(
        RetryError, match=r"failed on Spark \(jobs\.errors\.RetryError: orders.* can't be read any more .*try again"
    ):
        engine.read_all([replace(ranges[0], start=1_000, first=1_000, end=1_010)])


class _HeldError(Exception):
    """One that can't be rebuilt from its arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def test_a_failure_that_can_not_travel_is_told_in_words() -> None:
    assert isinstance(spark_engine._travelling(_HeldError("a", "b")), RuntimeError)
    assert "_HeldError: ab" in str(spark_engine._travelling(_HeldError("a", "b")))


def test_tasks_are_told_where_the_schema_registry_is(
    source: Source, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = replace(source, format="avro")
    produce(registered, [b"\0\0\0\0\7" + bytes(8)])
    # Refused by its own words: so it was this address that the task had.
    monkeypatch.setenv("KAFKA_SCHEMA_REGISTRY_URL", "registry:8081")
    with pytest.raises(UsageError, match="it begins with http"):
        SparkEngine(spark).read_all(planned(registered))


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
