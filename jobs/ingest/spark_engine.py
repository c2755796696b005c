"""The Spark engine: the ranges of a batch as tasks on Spark's executors, for topics that outgrow one machine.

A task writes its files straight to the lake and returns their descriptions, never rows; the driver makes the same commit as the
local engine. Only attempts that returned are committed, so a task that ran twice, or was speculated, leaves an orphan and no
double row.

The executors run this project's code (an image, or the environment on the same machine), and find secrets (`KAFKA_SECURITY_*`,
`AWS_*`) in an environment of their own; where Kafka, the lake and the schema registry are, they are told.
"""

import os
import pickle
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jobs.errors import RetryError, UsageError
from jobs.ingest import plan
from jobs.ingest.ranges import Done, Range, divide
from jobs.settings import endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOLD = ("KAFKA_BOOTSTRAP_SERVERS", "PENSTOCK_LAKE")
_TOLD_WHERE_SET = ("KAFKA_SCHEMA_REGISTRY_URL",)

_SAID = re.compile(r"^[\w.]+Error: .*", re.MULTILINE)

TASK_RECORDS = 500_000
"""Ranges longer than this become several tasks: a lost executor then loses little."""


class SparkEngine:
    """Reads ranges by Spark."""

    def __init__(self, spark: "SparkSession") -> None:
        if not hasattr(spark, "sparkContext") or os.environ.get("SPARK_REMOTE"):
            raise UsageError(
                "the spark engine needs a driver of its own: set SPARK_MASTER (local[*], spark://…, k8s://…) and unset "
                "SPARK_REMOTE."
            )
        self._context = spark.sparkContext

    @property
    def scale(self) -> int:
        """Batches in which each core has a whole task."""
        cores: int = self._context.defaultParallelism
        return max(1, cores * TASK_RECORDS // plan.BATCH_RECORDS)

    def prepare(self, behind: int) -> None:
        """The executors are there already."""

    def read_all(self, ranges: Sequence[Range]) -> list[Done]:
        """Read every range. Raises RetryError where a task failed for good; what would fail each time is raised as itself."""
        if not ranges:
            return []
        cores = self._context.defaultParallelism
        tasks = max(cores, -(-sum(map(len, ranges)) // TASK_RECORDS))
        shares = divide(list(ranges), -(-tasks // cores) * cores)
        told = {name: endpoint(name) for name in _TOLD}
        told |= {name: os.environ[name] for name in _TOLD_WHERE_SET if os.environ.get(name)}
        try:
            answers = self._context.parallelize(shares, len(shares)).mapPartitions(lambda some: _read(told, some)).collect()
        except Exception as failure:
            if not type(failure).__module__.startswith(("py4j.", "pyspark.")):
                raise
            # Python's own words for it stand among two stacks of calls.
            reason = (_SAID.findall(str(failure)) or [str(failure)[:300]])[-1]
            raise RetryError(
                f"a reading task failed on Spark ({reason.strip()}). Nothing of this batch was committed; try again."
            ) from failure
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [answer for answer in answers if isinstance(answer, Done)]

    def close(self) -> None:
        """The session belongs to whoever opened it."""


def _read(told: dict[str, str], shares: Iterable[Sequence[Range]]) -> "Iterator[Done | Exception]":
    """One task: its share of the ranges."""
    os.environ.update(told)
    from jobs.ingest.local_engine import read_here

    for share in shares:
        try:
            yield from read_here(share)
        except (RetryError, OSError, MemoryError):
            raise
        except Exception as failure:
            # Trying again would not help, here or on another machine, so it travels as an answer.
            yield _travelling(failure)


def _travelling(failure: Exception) -> Exception:
    """The failure as it can be raised elsewhere, with the traceback of where it was."""
    failure.add_note("".join(traceback.format_exception(failure)))
    try:
        pickle.loads(pickle.dumps(failure))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(failure)))
    return failure
