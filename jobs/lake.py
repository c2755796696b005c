"""The lake's tables, without Spark: where they lie, how they are read and how a few rows are written.

Everything goes through delta-rs. `DeltaTable.to_pyarrow_table` is never called: processes that did aborted at exit
(deltalake 1.6, pyarrow 25); queries run in delta-rs's own engine instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from jobs import store
from jobs.errors import JobError, RetryError
from jobs.settings import endpoint

_LOOKS = 20
INSTANT = pa.timestamp("us", tz="UTC")
"""How every table writes an instant. A timestamp without a zone would raise the table's protocol."""

ENDS = (
    *("event_time", "known_time", "topic_epoch", "kafka_partition", "kafka_offset", "batch"),
    *("as_of", "mature_at", "feature_date", "available_at"),
    *("event_day", "_size"),
)
"""The columns whose least and greatest values a log may hold. A person's fields are not among them: `penstock erase` can't reach
a log."""


def settings(columns: Iterable[str]) -> dict[str, str]:
    """What Delta shall do for a table with these columns: keep its log, where models name old versions, and tell ENDS alone."""
    told = [name for name in columns if name in ENDS]
    ends = {"delta.dataSkippingStatsColumns": ",".join(told)} if told else {"delta.dataSkippingNumIndexedCols": "0"}
    return {"delta.enableExpiredLogCleanup": "false"} | ends


def uri(*parts: str) -> str:
    """Where a table lies, `uri("events", "flights_landed")`: under the lake's root, a folder or an `s3://` URI."""
    root = endpoint("PENSTOCK_LAKE").rstrip("/")
    if "://" not in root:
        root = str(Path(root).absolute())
    return "/".join((root, *parts))


class _Table(DeltaTable):
    """A handle of which the questions that may go to the store fail as all that asks the store here does."""

    def transaction_version(self, app_id: str) -> int | None:
        with store.asked(f"the log of {self.table_uri} could not be read"):
            return super().transaction_version(app_id)

    def get_add_actions(self, flatten: bool = False) -> Any:
        with store.asked(f"the log of {self.table_uri} could not be read"):
            return super().get_add_actions(flatten)


def load(table_uri: str, version: int | None = None) -> DeltaTable | None:
    """A handle on the table as it stands, or at `version`; None where there is no table yet.

    A handle never shows neighbours' commits, and its own only after some kinds of write: load it again for each commit.

    As all that asks the store here, it raises RetryError where the store is away, UsageError where it is closed to us.
    """
    try:
        with store.asked(f"the table {table_uri} could not be loaded"):
            return _Table(table_uri, version=version)
    except TableNotFoundError:
        return None


def log(table_uri: str, *, after: int = -1) -> tuple[DeltaTable, list[dict[str, Any]]]:
    """A handle on the table as it stands, and its commits after the version `after`, the newest first.

    delta-rs counts the commits' versions down from the handle's, over the log as it finds it: they are right only where nobody
    committed in between. Raises RetryError where somebody always did.
    """
    for _ in range(_LOOKS):
        with store.asked(f"the log of {table_uri} could not be read"):
            table = _Table(table_uri)
            since = table.version() - after
            commits = table.history(since) if since > 0 else []
            if DeltaTable(table_uri).version() == table.version():
                return table, commits
    raise RetryError(f"{table_uri} was written during each of {_LOOKS} looks at its log. Run this one again.")


def query(table: DeltaTable, sql: str) -> pa.Table:
    """The rows of a query over one table, which the query calls `t`. Filters on partitions read only their files."""
    with store.asked(f"the table {table.table_uri} could not be read"):
        return pa.table(QueryBuilder().register("t", table).execute(sql).read_all())


def create(
    table_uri: str, schema: pa.Schema, *, partition_by: Sequence[str] = (), configuration: Mapping[str, str] | None = None
) -> None:
    """Make the table, empty, where there is none. Of two at once one makes it, and both have it.

    Raises UsageError where the lake is no place to write to, RetryError where it failed otherwise.

    delta-rs's own retry would repeat the loser's creation as version 1, and refuse whoever writes meanwhile ("Metadata changed").
    """
    try:
        DeltaTable.create(
            table_uri,
            schema,
            mode="ignore",
            partition_by=list(partition_by) or None,
            configuration=dict(configuration) if configuration else None,
            commit_properties=CommitProperties(max_commit_retries=0),
            raise_if_key_not_exists=False,
        )
    except (DeltaError, OSError) as failure:
        with suppress(JobError):
            if isinstance(failure, DeltaError) and load(table_uri) is not None:
                return
        raise store.failed(failure, f"the table {table_uri} could not be created") from failure


def append(table_uri: str, rows: pa.Table, *, partition_by: Sequence[str] = (), widen: bool = False) -> int:
    """Append rows, creating the table where there is none. Returns the version that holds them.

    `widen` gives a table the columns that it lacks; older rows have nulls there.
    """
    with store.asked(f"rows could not be added to {table_uri}"):
        write_deltalake(
            table_uri,
            rows,
            mode="append",
            partition_by=list(partition_by) or None,
            schema_mode="merge" if widen else None,
        )
        return DeltaTable(table_uri).version()


def replace(
    table_uri: str, rows: pa.Table, *, where: str, partition_by: Sequence[str], metadata: dict[str, str] | None = None
) -> int:
    """Make `rows` the only ones for which the SQL condition `where` holds, in one commit; no rows leave none.

    Raises RetryError where a neighbour changed the same part at the same time. Returns the version that holds them.
    """
    properties: Any = CommitProperties(custom_metadata=metadata) if metadata else None
    create(table_uri, rows.schema, partition_by=partition_by, configuration=settings(rows.schema.names))
    try:
        with store.asked(f"{table_uri} could not be written where {where}"):
            write_deltalake(
                table_uri, rows, mode="overwrite", predicate=where, partition_by=list(partition_by), commit_properties=properties
            )
            return DeltaTable(table_uri).version()
    except CommitFailedError as failure:
        raise RetryError(
            f"another run wrote {table_uri} where {where} at the same time ({failure}). Run this one again."
        ) from failure
