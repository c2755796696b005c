"""The SQL warehouse: its two tables for a pipeline, and how days are replaced there. All through SQLAlchemy Core.

PostgreSQL is what it is made for and tested with; SQLite serves too. One transaction holds an export. On PostgreSQL it locks the
tables against other exports, not against readers, who see the old days until it commits.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from jobs.errors import DataError, JobError, RetryError, UsageError
from jobs.interval import Interval
from jobs.secrets import mask
from jobs.settings import endpoint

log = logging.getLogger(__name__)

BATCH = 5_000
"""Rows in one insertion."""
WAIT = 10
"""Seconds for a connection to PostgreSQL."""
LOCK_WAIT = 300
"""Seconds for another export to end."""

_TRANSIENT = ("08", "40", "53", "55", "57")
"""SQLSTATE classes that a later try may not meet: connection, rollback (deadlock), resources, locks, an operator's hand."""
_WRONG = ("28", "3D", "3F", "42")
"""Classes that a person mends: authorization, an unknown database or schema, a missing right or column."""
_TWICE = ("23505", "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE")
"""Two rows with one key, as PostgreSQL and SQLite call it."""
_REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "unable to open database file", "invalid dsn")
"""How a server says so before there is a connection, where no SQLSTATE comes with it."""


@contextmanager
def opened() -> Iterator[sa.Engine]:
    """The warehouse of PENSTOCK_WAREHOUSE. Within, its failures are the job's: UsageError for what a person mends, RetryError for
    what passes, DataError for rows that it can't take."""
    text = endpoint("PENSTOCK_WAREHOUSE")
    try:
        url = sa.make_url(text.replace("postgres://", "postgresql://", 1) if text.startswith("postgres://") else text)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        arguments = {"connect_timeout": WAIT} if url.get_backend_name() == "postgresql" else {}
        # Values of rows stay out of messages.
        engine = sa.create_engine(url, connect_args=arguments, hide_parameters=True, poolclass=sa.NullPool)
    except (exc.ArgumentError, exc.NoSuchModuleError, ModuleNotFoundError, ValueError) as failure:
        kind = type(failure).__name__
        raise UsageError(
            f"PENSTOCK_WAREHOUSE is no address that SQLAlchemy knows ({kind}): write postgresql://USER:PASSWORD@HOST:PORT/DATABASE."
        ) from None
    try:
        yield engine
    except exc.SQLAlchemyError as failure:
        raise _failed(engine, failure) from failure
    finally:
        engine.dispose()


def shown(engine: sa.Engine) -> str:
    """The address, without its password."""
    return mask(engine.url.render_as_string(hide_password=True))


def tables(pipeline: str) -> tuple[sa.Table, sa.Table]:
    """The daily metrics and the labels of a pipeline."""
    metadata = sa.MetaData()
    metrics = sa.Table(
        f"{pipeline}_daily_metrics",
        metadata,
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("table_name", sa.Text, primary_key=True),
        sa.Column("metric", sa.Text, primary_key=True),
        sa.Column("value", sa.Double, nullable=False),
    )
    labels = sa.Table(
        f"{pipeline}_labels",
        metadata,
        # First, since days are what is deleted and asked for.
        sa.Column("mature_date", sa.Date, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("as_of", sa.DateTime(timezone=True), primary_key=True),
        sa.Column("label", sa.Integer),
        sa.Column("weight", sa.Double, nullable=False),
        sa.Column("mature_at", sa.DateTime(timezone=True), nullable=False),
    )
    return metrics, labels


def export(
    engine: sa.Engine,
    pipeline: str,
    interval: Interval,
    *,
    metrics: list[dict[str, Any]],
    labels: Iterable[list[dict[str, Any]]],
) -> dict[str, int]:
    """Make these the only rows of the days, in one transaction. Returns the rows by table.

    Of exports at once, the later waits for the earlier to end. Raises as `opened` does.
    """
    pair = tables(pipeline)
    _create(engine, pair)
    written: dict[str, int] = {}
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            names = ", ".join(connection.dialect.identifier_preparer.format_table(table) for table in pair)
            connection.execute(sa.text(f"set local lock_timeout = '{LOCK_WAIT}s'"))
            connection.execute(sa.text(f"lock table {names} in share row exclusive mode"))
        for table, blocks in zip(pair, ([metrics], labels), strict=True):
            day = table.c.mature_date if "mature_date" in table.c else table.c.day
            connection.execute(sa.delete(table).where(day >= interval.start, day < interval.end))
            written[table.name] = _insert(connection, table, (row for block in blocks for row in block))
    return written


def _insert(connection: sa.Connection, table: sa.Table, rows: Iterator[dict[str, Any]]) -> int:
    count = 0
    while batch := list(islice(rows, BATCH)):
        connection.execute(sa.insert(table), batch)
        count += len(batch)
        log.info("export: %s, %d rows so far", table.name, count)
    return count


def _create(engine: sa.Engine, pair: tuple[sa.Table, ...]) -> None:
    """Make the tables that are not there. Raises UsageError for one with other columns."""
    for table in pair:
        try:
            with engine.begin() as connection:
                table.create(connection, checkfirst=True)
        except (exc.ProgrammingError, exc.IntegrityError, exc.OperationalError):
            # A neighbour may have made it at the same moment.
            if not sa.inspect(engine).has_table(table.name):
                raise
        there = {column["name"] for column in sa.inspect(engine).get_columns(table.name)}
        lacking = [column.name for column in table.columns if column.name not in there]
        if lacking:
            raise UsageError(
                f"the warehouse's table {table.name} lacks {', '.join(lacking)}: it is not one that this export made, or an "
                "older one. Rename it, and export its days again."
            )


def _failed(engine: sa.Engine, failure: exc.SQLAlchemyError) -> JobError:
    """What a failure means for the job. Raises it again where it is a bug of ours."""
    cause = getattr(failure, "orig", None)
    said = " ".join(str(cause or failure).split())
    state = getattr(cause, "sqlstate", None) or ""
    where = f"the warehouse {shown(engine)}"
    if isinstance(failure, exc.IntegrityError | exc.DataError):
        # What the server says names the row's values.
        kind = state or getattr(cause, "sqlite_errorname", type(cause).__name__)
        if kind in _TWICE:
            why = "two labels of a day have the same key and as_of. Are the spine's keys unique, and repeats_within long enough?"
        else:
            column = getattr(getattr(cause, "diag", None), "column_name", None)
            why = (
                f"a value of {column or 'some column'} is null or of a kind that the warehouse can't hold, as text with a zero "
                "byte. Let the declaration leave such rows out, by a where=, or clean the field."
            )
        return DataError(f"{where} refused a row ({kind}), so nothing was exported: {why}")
    if state[:2] in _WRONG or (not state and any(word in said for word in _REFUSED)):
        return UsageError(f"{where} refused ({said}). Correct PENSTOCK_WAREHOUSE, or what that user may do there.")
    if isinstance(failure, exc.OperationalError | exc.TimeoutError) or state[:2] in _TRANSIENT:
        return RetryError(f"{where} did not answer, or was busy ({said}). Nothing was changed there. Try again.")
    raise failure
