"""The ledger: what was computed from what. Advice, not truth.

A row is written after a stage's output, one append for a range, through delta-rs. A missing row means "compute again",
never "lost". The code's fingerprint in each row tells results of different code apart.
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


def record(pipeline: Pipeline, entries: list[Entry]) -> None:
    """Append the entries, in one commit."""
    now = datetime.now(UTC)
    rows = [
        {
            "stage": entry.stage,
            "day": entry.day,
            "inputs": json.dumps(entry.inputs, sort_keys=True),
            "fingerprint": fingerprint(),
            "output_version": entry.output_version,
            "rows": entry.rows,
            "status": entry.status,
            "run_id": entry.run_id,
            "recorded_at": now,
        }
        for entry in entries
    ]
    if rows:
        lake.append(lake.uri(pipeline.name, "ledger"), pa.Table.from_pylist(rows, schema=SCHEMA))


def computed(pipeline: Pipeline, stage: str, interval: Interval) -> set[date]:
    """The days of the interval for which a stage recorded an output, by whatever code."""
    table = lake.load(lake.uri(pipeline.name, "ledger"))
    if table is None:
        return set()
    found = lake.query(
        table,
        f"select distinct day from t where stage = '{stage}' "
        f"and day >= date '{interval.start}' and day < date '{interval.end}' and status = 'done'",
    )
    return set(found.column("day").to_pylist())


def inputs(pipeline: Pipeline, stages: str, interval: Interval | None = None) -> dict[date, dict[str, Any]]:
    """What the newest output of each day was computed from, by whatever code, of the stages whose names begin with `stages`.

    None for the interval looks at all days.
    """
    table = lake.load(lake.uri(pipeline.name, "ledger"))
    if table is None:
        return {}
    days = "true" if interval is None else f"day >= date '{interval.start}' and day < date '{interval.end}'"
    found = lake.query(
        table,
        f"select day, inputs from t where starts_with(stage, '{stages}') and status = 'done' and {days} order by recorded_at",
    )
    return {row["day"]: json.loads(row["inputs"]) for row in found.to_pylist()}


@functools.cache
def fingerprint() -> str:
    """A digest of the code that computes: every Python file of `jobs` and `pipelines`. Same digest, same results."""
    return digest_files(sorted(path for folder in ("jobs", "pipelines") for path in (PROJECT / folder).rglob("*.py")), PROJECT)


def digest_files(paths: list[Path], root: Path) -> str:
    """A SHA-256 over the names, relative to `root`, and the bytes of files, the first 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(root)).encode())
        digest.update(b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
