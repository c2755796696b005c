"""An archive of the classes that Spark and Delta load, from which each later session starts. `python -m jobs.archive` makes it.

Short jobs spend a fifth of their CPU on loading classes, the same ones each time; the JVM can keep them in a file, parsed and
checked (JEP 350). The file is about 190 MB and takes one to two minutes to make, once for each machine, environment and
Java. Without it, or where it no longer fits, sessions start as ever, only slower: it changes no result.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from jobs import jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def path() -> Path:
    """Where the archive for this environment and this Java lies. The JVM itself refuses one whose class path differs."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    inputs = [os.path.realpath(java), str(jars.wheel_jars()), str(jars.declared()["spark"].folder)]
    return Path(sys.prefix) / "share" / "penstock" / f"spark-{hashlib.sha256(chr(10).join(inputs).encode()).hexdigest()[:12]}.jsa"


def flags() -> tuple[str, ...]:
    """The JVM flags that use the archive, where there is one; a mismatch is no news for whoever runs a job."""
    return (
        (f"-XX:SharedArchiveFile={path()}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off") if path().exists() else ()
    )


def make() -> bool:
    """Run what jobs do with Spark, once and small, and keep the classes that it loaded. Returns whether the JVM kept them."""
    from pyspark import SparkContext

    from jobs import spark

    target = path()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="archive-", suffix=".part", dir=target.parent) as part:
        archive = Path(part) / target.name
        with spark.session(
            "penstock-archive", jvm=(f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
        ) as opened:
            _work(opened, f"{part}/table")
        # The JVM writes as it exits, which it does when its standard input ends.
        gateway = SparkContext._gateway
        assert gateway is not None
        process = gateway.proc
        gateway.shutdown()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()
        if archive.exists():
            archive.rename(target)
    return target.exists()


def _work(spark: "SparkSession", table: str) -> None:
    """What a stage asks of Spark: Delta in both directions, shuffles, windows, kept frames, joins."""
    from pyspark.sql import Window
    from pyspark.sql import functions as fn

    events = spark.range(2000).selectExpr(
        "id", "id % 7 as k", "cast(id % 5 as string) as name", "date_add(date '2020-01-01', cast(id % 3 as int)) as day"
    )
    for _ in range(2):
        events.write.format("delta").mode("overwrite").option("replaceWhere", "day >= '2020-01-01'").partitionBy("day").save(
            table
        )
    found = spark.read.format("delta").option("versionAsOf", 1).load(table).where("day < '2020-01-03'")
    first = fn.row_number().over(Window.partitionBy("id").orderBy("name", "k"))
    kept = found.withColumn("first", first).where("first = 1").persist()
    sums = kept.groupBy("k", "day").agg(fn.sum("id").alias("n"), fn.max(fn.struct("id", "name")).alias("newest"))
    over = Window.partitionBy("k").orderBy("day").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    running = sums.select(
        "k", "day", fn.sum("n").over(over).alias("n"), fn.explode(fn.sequence(fn.lit(1), fn.lit(3))).alias("move")
    )
    joined = kept.join(running, on=["k", "day"], how="left").selectExpr(
        "k", "cast(n as double) as n", "timestamp(day) as at", "day"
    )
    joined.hint("rebalance", "day").sortWithinPartitions("day", "k").write.format("delta").partitionBy("day").save(
        f"{table}-joined"
    )
    spark.read.format("delta").load(f"{table}-joined").agg(fn.expr("count_if(n > 1)")).first()
    kept.unpersist()


if __name__ == "__main__" and not path().exists():
    print("archive: made" if make() else "archive: this Java makes none; Spark starts without", file=sys.stderr)
