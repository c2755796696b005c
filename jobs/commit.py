"""One commit on a source's events: all its files, its account, and the application transactions that it moves.

Compare and set: the commit uses the table handle on which its plan was made, so delta-rs refuses it where a neighbour has moved
one of the same transactions since. A refused commit deletes nothing: it may be its own, with the answer lost.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Literal

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from jobs import batches, lake, store
from jobs.account import METADATA, Account
from jobs.decode import events_schema
from jobs.errors import JobError, RetryError
from jobs.files import Written
from pipelines.declare import Source

log = logging.getLogger(__name__)


def commit(
    source: Source,
    table: DeltaTable,
    files: Sequence[Written],
    account: Account,
    transactions: Mapping[str, int],
    *,
    mode: Literal["append", "overwrite"] = "append",
) -> bool:
    """Commit a batch. Returns False where a neighbour was first, so that the batch has to be planned again.

    `overwrite` replaces all that the handle shows, and is refused whatever a neighbour has committed since.

    Raises RetryError where the store failed, also where it does not tell whether the batch is in.
    """
    properties = CommitProperties(
        app_transactions=[Transaction(name, version) for name, version in transactions.items()],
        custom_metadata={METADATA: account.metadata()},
        # delta-rs would let it pass beside an append, whose rows would stay.
        max_commit_retries=0 if mode == "overwrite" else None,
    )
    try:
        table.create_write_transaction(
            [one.action() for one in files],
            mode=mode,
            schema=events_schema(source),
            partition_by=["event_date"],
            commit_properties=properties,
        )
    except (DeltaError, OSError) as failure:
        if not is_committed(source, table.version(), account.batch):
            if not isinstance(failure, CommitFailedError):
                raise store.failed(failure, f"{source.name}: batch {account.batch} could not be committed") from failure
            log.info("%s: batch %s was not committed: %s", source.name, account.batch, failure)
            return False
        log.info("%s: the answer to batch %s was lost, but it is committed", source.name, account.batch)
    return True


def is_committed(source: Source, since: int, batch: str) -> bool:
    """Whether the table's log has the batch, after the version `since`. Raises RetryError where that can't be known now."""
    try:
        _, commits = lake.log(batches.events_uri(source), after=since)
    except JobError as failure:
        raise RetryError(
            f"{source.name}: batch {batch} may or may not be committed: the store failed and does not tell. "
            f"The next run finds out, and reads nothing twice ({failure})"
        ) from failure
    return any(entry.get(METADATA, {}).get("batch") == batch for entry in commits)
