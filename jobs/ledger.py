"""The ledger: what was computed from what. Advice, not truth.

A row is written after a stage's output, one append for a range, through delta-rs. A missing row means "compute again",
never "lost". The code's fingerprint in each row tells results of different code apart, and the declaration's digest those of
different declarations.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs import lake
from jobs.interval import Interval
from jobs.settings import PROJECT
from pipelines.declare import Pipeline

SCHEMA = pa.schema(
    [
        ("stage", pa.string()),
        ("day", pa.date32()),
        ("inputs", pa.string()),
        ("fingerprint", pa.string()),
        ("output_version", pa.int64()),
        ("rows", pa.int64()),
        ("status", pa.string()),
        ("run_id", pa.string()),
        ("recorded_at", lake.INSTANT),
        ("declaration", pa.string()),
        ("seconds", pa.float64()),
    ]
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One stage's output for one day."""

    stage: str
    day: date
    inputs: Mapping[str, Any]
    """The last ingest batch of each source and the version of each table that was read."""
    output_version: int
    rows: int
    run_id: str
    status: str = "done"
    declaration: str = ""
    """Of a table that has versions, the digest of the one that holds it, see `jobs.versions`."""
    seconds: float = 0.0
    """The day's and the output's share of the run's time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """What the ledger says of one stage's output for one day."""

    inputs: Mapping[str, Any]
    fingerprint: str
    declaration: str
    """Empty where none was written down."""
    output_version: int
    rows: int
    seconds: float
    run_id: str
    recorded_at: datetime


def uri(pipeline: Pipeline) -> str:
    """Where a pipeline's ledger lies."""
    return lake.uri(pipeline.name, "ledger")


def record(pipeline: Pipeline, entries: list[Entry]) -> None:
    """Append the entries, in one commit."""
    now = datetime.now(UTC)
    rows = [
        {
            "stage": entry.stage,
            "day": entry.day,
            "inputs": json.dumps(entry.inputs, sort_keys=True),
            "fingerprint": fingerprint(entry.stage.partition("/")[0]),
            "output_version": entry.output_version,
            "rows": entry.rows,
            "status": entry.status,
            "run_id": entry.run_id,
            "recorded_at": now,
            "declaration": entry.declaration,
            "seconds": entry.seconds,
        }
        for entry in entries
    ]
    if rows:
        # A ledger of an earlier release lacks columns.
        lake.append(uri(pipeline), pa.Table.from_pylist(rows, schema=SCHEMA), widen=True)


def computed(pipeline: Pipeline, stage: str, interval: Interval, declaration: str | None = None) -> set[date]:
    """The days of the interval for which a stage recorded an output, by whatever code; with `declaration`, only for that one."""
    found = entries(pipeline, stage, interval)
    return {day for _, day, entry in found if declaration in (None, entry.declaration)}


def entries(pipeline: Pipeline, stages: str = "", interval: Interval | None = None) -> list[tuple[str, date, Recorded]]:
    """What the ledger says of the stages whose names begin with `stages`: stage, day and output, the oldest first.

    None for the interval looks at all days.
    """
    table = lake.load(uri(pipeline))
    if table is None:
        return []
    days = "true" if interval is None else f"day >= date '{interval.start}' and day < date '{interval.end}'"
    there = {field.name for field in table.schema().fields}
    added = ", ".join(f"{name if name in there else 'null'} as {name}" for name in ("declaration", "seconds"))
    found = lake.query(
        table,
        f"select stage, day, inputs, fingerprint, output_version, rows, run_id, recorded_at, {added} from t "
        f"where starts_with(stage, '{stages}') and status = 'done' and {days} order by recorded_at",
    )
    return [
        (
            row["stage"],
            row["day"],
            Recorded(
                inputs=json.loads(row["inputs"]),
                fingerprint=row["fingerprint"],
                declaration=row["declaration"] or "",
                output_version=row["output_version"],
                rows=row["rows"],
                seconds=row["seconds"] or 0.0,
                run_id=row["run_id"],
                recorded_at=row["recorded_at"],
            ),
        )
        for row in found.to_pylist()
    ]


@functools.cache
def fingerprint(stage: str | None = None) -> str:
    """A digest of the code that computes: same digest, same results.

    Of a stage: its own package, the modules right in `jobs` that all stages share, and the language of declarations. What else
    a declaration says is in its digest. Without a stage: every Python file of `jobs` and `pipelines`.
    """
    if stage is None:
        paths = [path for folder in ("jobs", "pipelines") for path in (PROJECT / folder).rglob("*.py")]
    else:
        shared = (PROJECT / "jobs").glob("*.py")
        paths = [*shared, *(PROJECT / "jobs" / stage).rglob("*.py"), PROJECT / "pipelines" / "declare.py"]
    return digest_files(sorted(paths), PROJECT)


def digest_files(paths: list[Path], root: Path) -> str:
    """A SHA-256 over the names, relative to `root`, and the bytes of files, the first 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(root)).encode())
        digest.update(b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
