"""The Spark session: one a process, opened by whoever needs it first.

`SPARK_MASTER` names a cluster, `SPARK_REMOTE` a Spark Connect server; without them Spark runs inside this process, on
all cores, tuned for what a laptop holds: the settings below say what each one saves.
"""

import fcntl
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs import archive, jars
from jobs.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERYWHERE = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The only clock of the lake.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    # A day's features and Delta's looks at its logs generate more classes than the default of 100, which then are compiled again
    # and again: in the second chunk of a run a tenth of the CPU.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # A long that overflows, or a cast that fails, ends the job instead of becoming null.
    "spark.sql.ansi.enabled": "true",
    # The default of 50 tasks for each look at a table's log is for logs of millions of files.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Else listing or vacuuming a table starts up to 10,000 tasks.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Tables are named by path alone: no Hive metastore, whose start costs seconds and leaves files behind.
    "spark.sql.catalogImplementation": "in-memory",
}
"""What every session has, wherever it runs."""

# Short jobs spend their time in loading and compiling code. The first compiler alone and the serial collector took
# half of the CPU seconds of the defaults for opening a session and writing and reading one small table.
# The other sizes are what such a job comes to: from the small defaults it collects again and again while classes load, and
# throws compiled code away to compile it again (a fifth of a day's features).
JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:MetaspaceSize=400m",
    "-XX:ReservedCodeCacheSize=160m",
    "-Xms1g",
    "-Xmn400m",
    # The code that Spark generates for wide rows is past the size up to which the JVM compiles by default; interpreted, a
    # quarter's features took a quarter more.
    "-XX:-DontCompileHugeMethods",
)

SCRATCH = "penstock-spark."
"""How the folders of sessions begin. (With a dash, they were not locked.)"""


@contextmanager
def session(name: str = "penstock", *, jvm: tuple[str, ...] | None = None) -> "Iterator[SparkSession]":
    """The process's session: the one that is open already, or a new one that ends with the block.

    `jvm` are flags for a JVM of this process's own, instead of those that use the archive of classes.
    Raises UsageError where Spark can't start here.
    """
    from pyspark.sql import SparkSession

    # The active session is a thread's own; a stage that runs in another thread must not open, and then close, the same one.
    active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if active is not None:
        yield active
        return
    with _scratch() as scratch:
        opened = _open(name, scratch, archive.flags() if jvm is None else jvm)
        try:
            yield opened
        finally:
            opened.stop()


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder of the session's own, locked while this process lives. One without a lock is a killed process's: it goes now."""
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
    folder, lock = _locked_folder()
    try:
        with folder as name:
            yield Path(name)
    finally:
        os.close(lock)


def _locked_folder() -> tuple["tempfile.TemporaryDirectory[str]", int]:
    """A new folder and its lock. Another start may clear it before it is locked: then it is gone, and one more is made."""
    while True:
        folder = tempfile.TemporaryDirectory(prefix=SCRATCH)
        with suppress(FileNotFoundError):
            lock = os.open(folder.name, os.O_RDONLY | os.O_DIRECTORY)
            # Where the file system knows no locks, nobody gets one to clear with either.
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            if Path(folder.name).exists():
                return folder, lock
            os.close(lock)
        folder.cleanup()


def _open(name: str, scratch: Path, jvm: tuple[str, ...]) -> "SparkSession":
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    # py4j tells of each closed connection while Spark stops.
    logging.getLogger("py4j").setLevel(logging.ERROR)
    builder: Any = SparkSession.builder.appName(name)
    if not os.environ.get("SPARK_REMOTE"):
        for key, value in _settings(os.environ.get("SPARK_MASTER") or "local[*]", scratch, jvm).items():
            builder = builder.config(key, value)
    try:
        opened: SparkSession = builder.getOrCreate()
    except PySparkRuntimeError as failure:
        raise UsageError(f"Spark did not start ({failure}). It needs Java 17 or 21: install one, or set JAVA_HOME.") from failure
    if os.environ.get("SPARK_REMOTE"):
        opened.conf.set("spark.sql.session.timeZone", "UTC")
    else:
        opened.sparkContext.setLogLevel("ERROR")
        _hush(opened)
        _name_class(opened)
    return opened


def _name_class(opened: "SparkSession") -> None:
    """Tell the JVM's side which class most calls of Spark's functions name.

    Else it looks for it in each package that Spark imports, through all jars, for each list of columns in a plan.
    """
    from py4j.java_gateway import java_import  # type: ignore[import-untyped]

    java_import(opened.sparkContext._jvm, "org.apache.spark.api.python.PythonUtils")


def _settings(master: str, scratch: Path, jvm: tuple[str, ...]) -> dict[str, str]:
    """The configuration of a session that this process starts."""
    files = [str(path) for path in jars.fetch("spark")]
    settings = EVERYWHERE | {"spark.master": master, "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    if not master.startswith("local"):
        return settings | {"spark.jars": ",".join(files)}
    # A desktop's host name may lead to an address that is gone with the next network.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Where tasks run Python, it is this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    cores = os.cpu_count() or 1
    return settings | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1536m",
        # On the JVM's own class path, they are neither copied nor served to executors.
        "spark.driver.extraClassPath": ":".join(files),
        "spark.driver.extraJavaOptions": " ".join((*JVM, *jvm, f"-Dderby.system.home={scratch}")),
        "spark.local.dir": str(scratch),
        "spark.sql.shuffle.partitions": str(cores),
    }


def _hush(spark: "SparkSession") -> None:
    """Spark logs a failing task's error twice, with the value that it failed on, which may be a person's; then it raises it."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    log4j = spark.sparkContext._jvm.org.apache.logging.log4j
    for name in ("executor.Executor", "scheduler.TaskSetManager"):
        log4j.core.config.Configurator.setLevel(f"org.apache.spark.{name}", log4j.Level.OFF)
