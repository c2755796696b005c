"""A source's table as its declaration wants it: made where there is none, widened where a field is new, refused where one
changed.

What was declared is kept with the table, as a property: of each field its type, its path, and the unit of its times. It only
grows, and it is written before the columns are: so a run that dies in between leaves nothing that another could take otherwise.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable, Schema
from deltalake import Field as DeltaField
from deltalake.exceptions import CommitFailedError, DeltaError

from jobs import batches, lake
from jobs.decode import events_schema
from jobs.errors import RetryError, UsageError
from pipelines.declare import Field, Source

log = logging.getLogger(__name__)

DECLARED = "penstock.contract"
"""The table's property that says what was declared: as JSON, by field, what `_meaning` tells."""

TOPIC = "penstock.topic"
"""The table's property that names its topic: positions of two topics would not be told apart."""

_TRIES = 10


def table(source: Source) -> DeltaTable:
    """The source's table as it stands, created or widened where the declaration asks for it, in commits of their own.

    Raises UsageError for a field that changed its meaning or disappeared, RetryError where neighbours were always first.
    """
    uri = batches.events_uri(source)
    for _ in range(_TRIES):
        held = lake.load(uri)
        if held is None:
            told = {DECLARED: _text(_declared(source)), TOPIC: source.topic}
            schema = events_schema(source)
            lake.create(uri, schema, partition_by=["event_date"], configuration=lake.settings(schema.names) | told)
            continue
        new = missing(source, held)
        kept = _kept(held)
        wanted = kept | _declared(source)
        if not new and wanted == kept:
            return held
        try:
            if wanted != kept:
                # Whoever else changes the property, or the columns, is seen by the store: one of the two looks again.
                held.alter.set_table_properties({DECLARED: _text(wanted)}, raise_if_not_exists=False)
            else:
                log.info("%s: new columns %s", source.name, ", ".join(column.name for column in new))
                held.alter.add_columns(new)
        except CommitFailedError:
            log.info("%s: a neighbour changed the table at the same time", source.name)
        except (DeltaError, OSError) as failure:
            raise RetryError(f"the table of {source.name} could not be widened ({failure}). Try again.") from failure
    raise RetryError(f"the table of {source.name} was changed by neighbours {_TRIES} times. Try again.")


def missing(source: Source, held: DeltaTable) -> list[DeltaField]:
    """The declared columns that the table has not got yet.

    Raises UsageError for another topic, for a field that changed its meaning, and for one that is declared no more.
    """
    topic = held.metadata().configuration.get(TOPIC, source.topic)
    if topic != source.topic:
        raise UsageError(
            f"source {source.name!r} reads topic {source.topic!r}, but its table holds the records of {topic!r}: "
            "a source stays with its topic. Give the source that reads the other one a new name."
        )
    declared = {one.name: one for one in Schema.from_arrow(events_schema(source)).fields}
    present = {one.name: one for one in held.schema().fields}
    for name, column in declared.items():
        if name in present and present[name].type != column.type:
            raise UsageError(
                f"field {name!r} of source {source.name!r} is declared as {column.type}, "
                f"but its table holds {present[name].type}: "
                "a field can't change its meaning. Give the field, or the source, a new name."
            )
    now = _declared(source)
    for name, was in _kept(held).items():
        if name in now and now[name] != was:
            raise UsageError(
                f"field {name!r} of source {source.name!r} is declared as {_words(now[name])}, "
                f"but what its table holds was read as {_words(was)}: "
                "a field can't change its meaning. Give the field, or the source, a new name."
            )
        if name not in now and name in present and not _has_successor(was, source):
            raise UsageError(
                f"field {name!r} of source {source.name!r}, {_words(was)}, is declared no more: its column would turn null "
                "without a word. Go on declaring it, not required where records no longer have it; or give the source a new name."
            )
    return [column for name, column in declared.items() if name not in present]


def _meaning(field: Field) -> dict[str, Any]:
    """What may never change. Whether it is required, and its default, may."""
    unit = {"time_unit": field.time_unit} if field.type == "timestamp" else {}
    return {"type": field.type, "path": list(field.keys)} | unit


def _declared(source: Source) -> dict[str, dict[str, Any]]:
    return {field.name: _meaning(field) for field in source.fields}


def _has_successor(was: Mapping[str, Any], source: Source) -> bool:
    """Whether a field of another name reads the same place by another meaning: what was there before has ended."""
    return any(list(field.keys) == was["path"] and _meaning(field) != was for field in source.fields)


def _kept(held: DeltaTable) -> dict[str, dict[str, Any]]:
    """What was declared so far. A table that an earlier release made says nothing: then today's declaration is taken for it."""
    found: dict[str, dict[str, Any]] = json.loads(held.metadata().configuration.get(DECLARED, "{}"))
    return found


def _text(meanings: Mapping[str, Mapping[str, Any]]) -> str:
    return json.dumps(meanings, sort_keys=True)


def _words(meaning: Mapping[str, Any]) -> str:
    unit = f" in {meaning['time_unit']}" if "time_unit" in meaning else ""
    return f"{meaning['type']}{unit} at {'.'.join(meaning['path'])!r}"
