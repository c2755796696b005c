"""Old files: they hold what was erased until somebody deletes them.

Whatever lies under a table's folder, is not in the table as it stands and holds rows of the person, goes: what the erasure took
out, what a compaction, a rebuild or another computation took out before, also where a registered model names it. Files that
nobody has committed yet may be a neighbour's, who is about to: they stay until they are older than the retention.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from deltalake.exceptions import DeltaError

from jobs import lake, named, store
from jobs.erase import rewriting
from jobs.errors import JobError
from pipelines.declare import Pipeline

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class Old:
    """Files of a table that have to go."""

    uri: str
    doomed: list[str] = field(default_factory=list)
    uncommitted: list[str] = field(default_factory=list)
    """They hold such rows too, but nobody has committed them: perhaps somebody is about to."""


def find(uri: str, retention: timedelta, matches: Callable[[str], bool]) -> Old:
    """The files that hold rows of the person and are not in the table as it stands."""
    stored = store.data_files(uri)
    current = _current(uri)
    suspects = []
    for file in stored:
        if file.path in current:
            continue
        try:
            if matches(file.path):
                suspects.append(file)
        except (pa.ArrowInvalid, FileNotFoundError):
            continue  # No Parquet file, or half of one, or a vacuum was first.
    grown = datetime.now(UTC) - retention
    known = _committed(uri, {file.path for file in suspects if file.modified > grown})
    # Looked at again: an ingest may have committed a file since the first look. What was in the log and is not in the table now
    # never comes back.
    current = _current(uri)
    old = Old(uri=uri)
    for file in suspects:
        if file.path not in current:
            (old.doomed if file.modified <= grown or file.path in known else old.uncommitted).append(file.path)
    return old


def _current(uri: str) -> set[str]:
    """The files of the table as it stands."""
    table = lake.load(uri)
    assert table is not None
    return {file.path for file in rewriting.held(table)}


def delete(old: Old) -> None:
    """Delete them."""
    for path in old.doomed:
        store.delete(old.uri, path)


def models(pipelines: list[Pipeline], olds: list[Old]) -> tuple[list[str], str]:
    """The model versions, as `pipeline/number`, that name one of the files; and whether the registry could be asked."""
    doomed = {old.uri: set(old.doomed) for old in olds if old.doomed}
    if not doomed:
        return [], "not asked: no file goes"
    try:
        names = named.of(pipelines)
    except JobError as failure:
        return [], f"could not be asked: {failure}"
    found: dict[str, None] = {}
    unknown = ""
    for one in names:
        if one.table not in doomed:
            continue
        try:
            table = lake.load(one.table, one.version)
        except (DeltaError, OSError):
            unknown = f"; {one} can't be loaded, so its files are not known"
            continue
        if table is not None and doomed[one.table] & {file.path for file in rewriting.held(table)}:
            found[f"{one.pipeline}/{one.model}"] = None
    return list(found), f"asked{unknown}"


def _committed(uri: str, paths: set[str]) -> set[str]:
    """Those of the files that a commit has named."""
    found: set[str] = set()
    for file in store.files(f"{uri}/{store.LOG}"):
        if not paths - found:
            break
        if file.path.endswith(".json"):
            text = (store.read(f"{uri}/{store.LOG}", file.path) or b"").decode()
            found |= {path for path in paths - found if path in text}
    return found
