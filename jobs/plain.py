"""Plain Parquet beside a table, for readers without Delta: where the files lie, and how one is put in place.

`<p>/parquet/<table>/event_date=D/data.parquet`, one file a day: a reader sees the old one or the new.
"""

import json
import shutil
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow import fs

from jobs import store, versions
from jobs.interval import Interval
from pipelines.declare import FeatureSet, Pipeline

FILE = "data.parquet"
_MADE_OF = b"penstock.made-of"
_ABANDONED = 24 * 3600
"""Seconds after which a file that was never put in place is a killed run's."""


def folder(table_uri: str) -> str:
    """The place of a table's plain files: beside it, under `parquet`."""
    base, _, name = table_uri.rstrip("/").rpartition("/")
    return f"{base}/parquet/{name}"


def files(table_uri: str) -> list[str]:
    """The plain files of a table, relative to their folder."""
    return sorted(one.path for one in store.files(folder(table_uri)) if one.path.endswith(f"/{FILE}"))


def sources(table: DeltaTable, partition: str) -> dict[date, list[str]]:
    """The table's own files of each day."""
    actions = pa.table(table.get_add_actions(flatten=True))
    found: dict[date, list[str]] = defaultdict(list)
    days = actions[f"partition.{partition}"].cast(pa.date32()).to_pylist()
    for day, path in sorted(zip(days, actions["path"].to_pylist(), strict=True)):
        found[day].append(path)
    return found


def made_of(paths: list[str]) -> dict[bytes, bytes]:
    """What a plain file says of itself in its footer: which of the table's files it was copied from."""
    return {_MADE_OF: json.dumps(sorted(paths)).encode()}


def missing(pipeline: Pipeline, interval: Interval) -> Iterator[tuple[FeatureSet, DeltaTable, list[date]]]:
    """The sets that ask for plain files and have a table, with it and the days that have none, or one of other rows."""
    for declared in pipeline.features:
        table = versions.load(pipeline, f"features_{declared.name}") if declared.parquet else None
        if table is not None:
            days = _missing(table, interval)
            if days:
                yield declared, table, days


def _missing(table: DeltaTable, days: Interval) -> list[date]:
    filesystem, base = store.place(folder(table.table_uri))
    held = sources(table, "event_date")
    found = []
    for day in days.days():
        with store.asked(f"the plain files of {table.table_uri} could not be looked at"):
            try:
                with filesystem.open_input_file(f"{base}/event_date={day}/{FILE}") as file:
                    said = pq.read_schema(file).metadata
            except (FileNotFoundError, pa.ArrowInvalid):
                said = None
        if (said or {}).get(_MADE_OF) != made_of(held.get(day, []))[_MADE_OF]:
            found.append(day)
    return found


@contextmanager
def placed(target: str) -> Iterator[Path]:
    """Within, a local file to write; at the end it is FILE in the folder `target`, at once. A failure changes nothing."""
    filesystem, base = store.place(target)
    local = isinstance(filesystem, fs.LocalFileSystem)
    home = Path(base) if local else Path(tempfile.gettempdir())
    if local:
        with store.asked(f"{target} could not be made"):
            home.mkdir(parents=True, exist_ok=True)
        _clear(home)
    part = home / f".{uuid.uuid4().hex}.part"
    try:
        yield part
        with store.asked(f"{target}/{FILE} could not be written"):
            if local:
                part.replace(home / FILE)
            else:
                _upload(part, filesystem, f"{base}/{FILE}")
    finally:
        part.unlink(missing_ok=True)


def _upload(part: Path, filesystem: fs.FileSystem, path: str) -> None:
    """An object appears when its upload is complete. It comes from a whole file, so nothing ends it halfway but the store."""
    with part.open("rb") as whole, filesystem.open_output_stream(path) as out:
        shutil.copyfileobj(whole, out, 1 << 20)


def _clear(home: Path) -> None:
    for left in home.glob(".*.part"):
        with suppress(OSError):
            if left.stat().st_mtime < time.time() - _ABANDONED:
                left.unlink()
