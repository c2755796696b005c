"""Which versions of which tables the registered models name: what they were trained on must stay readable."""

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import lake, registry
from jobs.errors import DataError
from jobs.registry import Version
from pipelines.declare import Pipeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """A version of a table that a model version names."""

    pipeline: str
    model: int
    table: str
    """The table's URI."""
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of {self.table}, which model {self.pipeline}/{self.model} names"


def of(pipelines: Iterable[Pipeline]) -> list[Named]:
    """What the registered versions of the pipelines name: examples, labels, and the events these were computed from.

    Raises RetryError where the registry is away, DataError where a version does not say what it was trained on.
    """
    return [named for pipeline in pipelines for version in registry.versions(pipeline) for named in _named(pipeline, version)]


def _named(pipeline: Pipeline, version: Version) -> list[Named]:
    snapshot = _snapshot(pipeline, version)
    # A snapshot of an earlier release names no table: then there was one.
    tables = {name: snapshot["tables"][name] for name in ("examples", "labels")}
    found = [(lake.uri(pipeline.name, one.get("table", name)), one["version"]) for name, one in tables.items()]
    for table in snapshot["sources"].values():
        for name, days in table.items():
            # Where nothing was written down of a day, the model names no version.
            found += [(lake.uri("events", name), each["version"]) for each in days if each["version"] is not None]
    return [
        Named(pipeline=pipeline.name, model=version.number, table=table, version=number) for table, number in dict.fromkeys(found)
    ]


def _snapshot(pipeline: Pipeline, version: Version) -> dict[str, Any]:
    """The `snapshot.json` that training logged."""
    what = f"version {version.number} of {pipeline.name} in the registry"
    with registry.answering() as client, tempfile.TemporaryDirectory(prefix="penstock-snapshot-") as folder:
        try:
            path = client.download_artifacts(version.run_id, "snapshot.json", folder)
        except Exception as failure:
            if registry.away(failure):
                raise
            raise DataError(
                f"{what} has no snapshot.json ({type(failure).__name__}), so what it was trained on can't be told: "
                "delete that version from the registry if nobody needs it, or restore its run's files."
            ) from failure
        snapshot = json.loads(Path(path).read_text())
    if not {"tables", "sources"} <= snapshot.keys():
        raise DataError(f"{what} has a snapshot.json without tables and sources: delete that version from the registry.")
    return snapshot  # type: ignore[no-any-return]
