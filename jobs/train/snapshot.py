"""What a training read, pinned at its start: enough to build the same training set again."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from jobs import lake, ledger, versions
from jobs.errors import DataError
from jobs.interval import Interval
from jobs.parts import Parts, embargo
from jobs.train import sources
from pipelines.declare import Pipeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """The two tables at the versions that the training reads, whatever is written meanwhile."""

    examples: DeltaTable
    labels: DeltaTable

    @classmethod
    def newest(cls, pipeline: Pipeline) -> "Pinned":
        """The tables as they stand. Raises DataError where one isn't there."""
        return cls.at(pipeline, {})

    @classmethod
    def at(cls, pipeline: Pipeline, wanted: dict[str, int]) -> "Pinned":
        """The tables at the versions that are wanted, or as they stand. Raises DataError where one isn't there."""
        found = {}
        for name in ("examples", "labels"):
            table = lake.load(versions.uri(pipeline, name), wanted.get(name))
            if table is None:
                raise DataError(
                    f"{pipeline.name} has no {name} yet. Run `penstock features {pipeline.name}` over the days to train on."
                )
            found[name] = table
        return cls(**found)

    def oldest(self) -> Any:
        """The first day (`as_of_date`) that has examples."""
        return _days(self.examples, "as_of_date", None)["day"].to_pylist()[0]


def describe(pipeline: Pipeline, pinned: Pinned, parts: Parts) -> dict[str, Any]:
    """The content of `snapshot.json`: versions and files of what was read, the parts, the code and the declaration.

    `sources` says, for each table and source, from which versions of the events its days were computed.
    """
    span = Interval(parts.training.start, parts.holdout.end)
    mature = Interval(span.start, span.end + embargo(pipeline))
    return {
        "pipeline": pipeline.name,
        "declaration": declaration(pipeline),
        "fingerprint": ledger.fingerprint(),
        "sources": {
            "examples": sources.describe(pipeline, "examples", pinned.examples, span),
            "labels": sources.describe(pipeline, "labels", pinned.labels, mature),
        },
        "tables": {
            "examples": _table(pinned.examples, "as_of_date", span),
            "labels": _table(pinned.labels, "mature_date", mature),
        },
        "parts": {
            name: {"from": str(part.start), "to": str(part.last)}
            for name, part in (("training", parts.training), ("validation", parts.validation), ("holdout", parts.holdout))
        },
    }


def digest(snapshot: dict[str, Any]) -> str:
    """A SHA-256 of a snapshot, the first 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps(snapshot, sort_keys=True).encode()).hexdigest()[:16]


def declaration(pipeline: Pipeline) -> str:
    """A digest of what is declared: frozen values, whose text says all of them."""
    return hashlib.sha256(repr(pipeline).encode()).hexdigest()[:16]


def _table(table: DeltaTable, partition: str, days: Interval) -> dict[str, Any]:
    return {
        "table": versions.name_of(table),
        "version": table.version(),
        "files": sorted(_days(table, partition, days)["path"].to_pylist()),
    }


def _days(table: DeltaTable, partition: str, days: Interval | None) -> pa.Table:
    """The files of a table's days: `path` and `day`, the oldest first. Raises DataError where it has no file."""
    actions = pa.table(table.get_add_actions(flatten=True))
    files = pa.table({"path": actions["path"], "day": actions[f"partition.{partition}"].cast(pa.date32())})
    if days is not None:
        files = files.filter(pc.and_(pc.greater_equal(files["day"], days.start), pc.less(files["day"], days.end)))
    if not files.num_rows:
        raise DataError(
            f"{table.table_uri} has no {partition} within {days or 'any day'}. Compute the features of those days first."
        )
    return files.sort_by("day")
