"""Plain Parquet beside a table, for readers without Delta: where the files lie, and how one is put in place.

`<p>/parquet/<table>/event_date=D/data.parquet`, one file a day: a reader sees the old one or the new.
"""

import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path

from pyarrow import fs

from jobs import store, versions
from jobs.interval import Interval
from pipelines.declare import FeatureSet, Pipeline

FILE = "data.parquet"
_ABANDONED = 24 * 3600
"""Seconds after which a file that was never put in place is a killed run's."""


def folder(table_uri: str) -> str:
    """The place of a table's plain files: beside it, under `parquet`."""
    base, _, name = table_uri.rstrip("/").rpartition("/")
    return f"{base}/parquet/{name}"


def files(table_uri: str) -> list[str]:
    """The plain files of a table, relative to their folder."""
    return sorted(one.path for one in store.files(folder(table_uri)) if one.path.endswith(f"/{FILE}"))


def missing(pipeline: Pipeline, interval: Interval) -> Iterator[tuple[FeatureSet, list[date]]]:
    """The sets that ask for plain files and have a table, each with the days that have none, where there are any."""
    for declared in pipeline.features:
        if declared.parquet and versions.load(pipeline, f"features_{declared.name}") is not None:
            days = _missing(versions.uri(pipeline, f"features_{declared.name}"), interval)
            if days:
                yield declared, days


def _missing(table_uri: str, days: Interval) -> list[date]:
    filesystem, base = store.place(folder(table_uri))
    with store.asked(f"the plain files of {table_uri} could not be looked at"):
        found = filesystem.get_file_info([f"{base}/event_date={day}/{FILE}" for day in days.days()])
    return [day for day, info in zip(days.days(), found, strict=True) if info.type != fs.FileType.File]


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
