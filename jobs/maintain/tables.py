"""One table's upkeep: compaction, vacuum, a checkpoint.

Beside running writers: a compaction is a commit without new data, so an append that was planned before it still commits, and a
compaction that lost to a rewrite is given up, for the next maintenance. What is compacted or vacuumed moves no transaction.
"""

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
from deltalake import ColumnProperties, PostCommitHookProperties, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError

from jobs import lake, store
from jobs.errors import DataError, RetryError

log = logging.getLogger(__name__)

TARGET = 128 << 20
"""The size that files are merged towards. Fuller ones stay as they are."""

TRIES = 4
_COMMIT_EVERY = timedelta(seconds=60)
"""A compaction of many days commits what it has so often: a lost commit then costs a minute's work."""

WRITER = WriterProperties(
    compression="ZSTD",
    default_column_properties=ColumnProperties(statistics_enabled="NONE"),
    column_properties={name: ColumnProperties(statistics_enabled="CHUNK") for name in lake.ENDS},
)
HOOKS = PostCommitHookProperties(cleanup_expired_logs=False)
"""Old versions stay loadable: models may name them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A table and what must stay of it."""

    uri: str
    retention: timedelta
    versions: set[int] = field(default_factory=set)
    """Versions that models name."""

    @property
    def name(self) -> str:
        """As reports say it: the last two parts of its place."""
        return "/".join(self.uri.rsplit("/", 2)[-2:])


def compact(table: Kept, *, dry_run: bool) -> dict[str, Any]:
    """Merge small files, day by day. The report says the files and bytes that the table holds before and after."""
    handle = lake.load(table.uri)
    assert handle is not None
    files, size, partitions = _shape(handle)
    told: dict[str, Any] = {"files_before": files, "bytes_before": size, "partitions_to_compact": partitions}
    if dry_run or not partitions:
        return {**told, "files_after": files, "bytes_after": size}
    for _ in range(TRIES):
        handle = lake.load(table.uri)
        assert handle is not None
        try:
            handle.optimize.compact(
                target_size=TARGET,
                max_concurrent_tasks=2,
                min_commit_interval=_COMMIT_EVERY,
                writer_properties=WRITER,
                post_commithook_properties=HOOKS,
            )
            break
        except CommitFailedError as lost:
            log.info("%s: the compaction lost to a neighbour: %s", table.name, lost)
        except DeltaError as failure:
            # A neighbour that erases deletes at once what this one was reading.
            log.info("%s: the compaction failed: %s", table.name, failure)
    else:
        told["note"] = f"the compaction lost to neighbours {TRIES} times; the next maintenance takes it up"
        log.warning("%s: %s", table.name, told["note"])
    files, size, _ = _shape(lake.load(table.uri))
    return {**told, "files_after": files, "bytes_after": size}


def require_loadable(table: Kept, reasons: dict[int, str]) -> None:
    """Raise DataError where a version that a model names can't be loaded: then nobody knows which files it needs."""
    for version in sorted(table.versions):
        try:
            handle = lake.load(table.uri, version)
        except (DeltaError, OSError) as failure:
            raise DataError(
                f"{reasons[version]}, can't be loaded ({' '.join(str(failure).split())[:200]}), so the files that it needs are "
                "not known: nothing was deleted. Delete that model version from the registry if nobody needs it, or restore the "
                "table's log."
            ) from failure
        assert handle is not None


def vacuum(table: Kept, *, dry_run: bool) -> dict[str, Any]:
    """Delete the files that neither a version within the retention nor a named one needs, orphans among them."""
    handle = lake.load(table.uri)
    assert handle is not None
    options: dict[str, Any] = {
        "retention_hours": int(table.retention.total_seconds() // 3600),
        # The declaration decides, not the property of the table; it is at least a day.
        "enforce_retention_duration": False,
        "full": True,
        "keep_versions": sorted(table.versions) or None,
        "post_commithook_properties": HOOKS,
    }
    try:
        doomed = handle.vacuum(dry_run=True, **options)
        size = sum(store.size(table.uri, path) for path in doomed)
        if not dry_run and doomed:
            doomed = handle.vacuum(dry_run=False, **options)
    except (DeltaError, OSError) as failure:
        raise RetryError(f"{table.uri} could not be vacuumed ({failure}). Try again.") from failure
    return {"deleted_files": len(doomed), "deleted_bytes": size, "kept_versions": sorted(table.versions)}


def checkpoint(table: Kept) -> None:
    """Write the table's state as one file, unless that is done: then loading it reads little of the log."""
    handle = lake.load(table.uri)
    assert handle is not None
    last = store.read(table.uri, f"{store.LOG}/_last_checkpoint")
    if last is None or json.loads(last)["version"] < handle.version():
        handle.create_checkpoint()


def _shape(handle: Any) -> tuple[int, int, int]:
    """A table's files, their bytes, and in how many partitions more than one file is small."""
    actions = pa.table(handle.get_add_actions(flatten=False))
    sizes = actions.column("size_bytes").to_pylist()
    small: Counter[str] = Counter()
    for path, size in zip(actions.column("path").to_pylist(), sizes, strict=True):
        if size < TARGET:
            small[path.rpartition("/")[0]] += 1
    return len(sizes), sum(sizes), sum(1 for count in small.values() if count > 1)
