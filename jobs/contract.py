"""A source's table as its declaration wants it: made where there is none, widened where a field is new, refused where one
changed."""

import logging

from deltalake import DeltaTable, Schema
from deltalake import Field as DeltaField
from deltalake.exceptions import DeltaError

from jobs import batches, lake
from jobs.decode import events_schema
from jobs.errors import RetryError, UsageError
from pipelines.declare import Source

log = logging.getLogger(__name__)

_CONFIGURATION = {
    # A registered model names versions that may be years old: only `penstock maintain` takes anything away.
    "delta.enableExpiredLogCleanup": "false",
}


def table(source: Source) -> DeltaTable:
    """The source's table as it stands, created or widened where the declaration asks for it, in commits of their own.

    Raises UsageError for a field that changed its meaning.
    """
    uri = batches.events_uri(source)
    held = lake.load(uri)
    if held is None:
        lake.create(uri, events_schema(source), partition_by=["event_date"], configuration=_CONFIGURATION)
        held = lake.load(uri)
        assert held is not None
    return _widened(source, held)


def missing(source: Source, held: DeltaTable) -> list[DeltaField]:
    """The declared columns that the table has not got yet. Raises UsageError for a field that changed its meaning."""
    declared = {one.name: one for one in Schema.from_arrow(events_schema(source)).fields}
    present = {one.name: one for one in held.schema().fields}
    for name, column in declared.items():
        if name in present and present[name].type != column.type:
            raise UsageError(
                f"field {name!r} of source {source.name!r} is declared as {column.type}, "
                f"but its table holds {present[name].type}: "
                "a field can't change its meaning. Give the field, or the source, a new name."
            )
    return [column for name, column in declared.items() if name not in present]


def _widened(source: Source, held: DeltaTable) -> DeltaTable:
    new = missing(source, held)
    if not new:
        return held
    log.info("%s: new columns %s", source.name, ", ".join(column.name for column in new))
    try:
        held.alter.add_columns(new)
    except DeltaError as failure:
        raise RetryError(f"the new columns of {source.name} could not be added ({failure}). Try again.") from failure
    widened = lake.load(batches.events_uri(source))
    assert widened is not None
    return widened
