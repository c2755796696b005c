"""Versions of a pipeline's tables: a changed declaration makes a new table beside the old.

`<pipeline>/<table>` is the first version, `<table>_v2`, `<table>_v3` those of later declarations. Each table has the digest of
what its rows depend on as a property, so that whoever declares the same reads the same, also after a change was taken back.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Any

from deltalake import DeltaTable

from jobs import lake, made_of, store
from jobs.interval import DAY
from pipelines.declare import DailySpine, Dimension, FeatureSet, Pipeline, Source, Spine, Table

DECLARATION = "penstock.declaration"
"""The property that holds the digest. A table without it was made by a release that knew no versions, and is nobody's."""
NAME = "penstock.table"
"""The property that holds the table's name without its version: a feature set may be called `user_v2`."""

_ELSEWHERE = ("expectations", "parquet", "tiles")
"""Of a feature set, what changes no row of its table, nor of the examples."""

Plain = dict[str, Any] | list[Any] | str | int | float | bool | None


def uri(pipeline: Pipeline, table: str) -> str:
    """Where the version lies that this declaration reads and writes; where there is none yet, the first free place."""
    wanted = digest(pipeline, table)
    there = every(pipeline, table)
    for place in there:
        handle = lake.load(place)
        if handle is not None and declaration_of(handle) == wanted:
            return place
    taken = set(_folders(pipeline.name))
    number = 1
    while (name := table if number == 1 else f"{table}_v{number}") in taken:
        number += 1
    return lake.uri(pipeline.name, name)


def load(pipeline: Pipeline, table: str) -> DeltaTable | None:
    """The version of this declaration as it stands; None where there is none yet."""
    return lake.load(uri(pipeline, table))


def every(pipeline: Pipeline, table: str) -> list[str]:
    """All versions of a table that are there, of whatever declaration, the oldest first."""
    found = []
    for name in _folders(pipeline.name):
        number = re.fullmatch(rf"{re.escape(table)}(?:_v([0-9]+))?", name)
        place = lake.uri(pipeline.name, name)
        handle = lake.load(place) if number else None
        if number and handle is not None and handle.metadata().configuration.get(NAME, name) == table:
            found.append((int(number.group(1) or 1), place))
    return [place for _, place in sorted(found)]


def tables(pipeline: Pipeline) -> tuple[str, ...]:
    """The names of the tables that have versions and that a run over a day writes: sets, labels, examples."""
    return (*(f"features_{one.name}" for one in pipeline.features if one.accuracy == "day"), "labels", "examples")


def tiles(pipeline: Pipeline) -> tuple[str, ...]:
    """The names of the tables of tiles. They have versions too; a run makes those that it lacks."""
    return tuple(f"tiles_{one.name}" for one in pipeline.features if one.tiles)


def properties(pipeline: Pipeline, table: str) -> dict[str, str]:
    """The properties that a version gets when it is made."""
    return {DECLARATION: digest(pipeline, table), NAME: table, made_of.PROPERTY: made_of.of(pipeline, table).text()}


def declaration_of(table: DeltaTable) -> str:
    """The digest that a table was made with; empty for one that was made before there were versions."""
    return str(table.metadata().configuration.get(DECLARATION, ""))


def name_of(table: DeltaTable) -> str:
    """A version's own name, as `examples_v2`: what stands behind the pipeline's in its place."""
    return str(table.table_uri).rstrip("/").rpartition("/")[2]


@functools.cache
def digest(pipeline: Pipeline, table: str) -> str:
    """A digest of what the rows of a table depend on in the declaration, 16 hexadecimal digits.

    An option that is left at its default counts as not there, so a release that adds one leaves the versions as they are.
    """
    text = json.dumps(_parts(pipeline, table), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parts(pipeline: Pipeline, table: str) -> dict[str, Plain]:
    lateness = str(pipeline.lateness)
    if table == "examples":
        return {
            "spine": _spine(pipeline.spine),
            "sets": [_set(one) for one in pipeline.features],
            "dimensions": [_dimension(one) for one in pipeline.dimensions],
            "lateness": lateness,
        }
    if table == "labels":
        label = pipeline.label
        texts = (label.of, *(text for one in label.aggregates for text in (one.of, one.where)))
        fields = (*label.entity, *((label.key,) if label.key else ()))
        return {
            # What an example carries changes no label.
            "spine": _spine(dataclasses.replace(pipeline.spine, columns=())),
            # Of a spine's events those known at their `as_of` itself are examples only where windows are closed.
            **({"closed": True} if any(one.closed for one in pipeline.features) else {}),
            "label": _plain(label) | {"source": _source(label.source, fields, texts)},  # type: ignore[operator]
            "lateness": lateness,
        }
    kind, _, name = table.partition("_")
    declared = next(one for one in pipeline.features if one.name == name)
    if kind == "tiles":
        # A tile serves every window, as far back as the longest; how fine it is depends on what they have beside whole days.
        parts = sorted({str(window % DAY) for window in declared.windows if window % DAY})
        rest: dict[str, Plain] = {"longest": str(max(declared.windows)), "parts": [*parts]}
        return {"tiles": _set(declared, ("windows", "derived", "spine_entity")), "form": 2, **rest}
    # Only examples look for an entity by the spine's names.
    return {"set": _set(declared, ("spine_entity",)), "lateness": lateness}


def _set(declared: FeatureSet, without: tuple[str, ...] = ()) -> Plain:
    aggregates = (text for one in declared.aggregates for text in (one.of, one.where))
    texts = (*aggregates, declared.where, *(one.sql for one in declared.per_event))
    fields = (*declared.entity, *(name for lookup in declared.lookups for name in lookup.entity))
    return _plain(declared, (*_ELSEWHERE, *without)) | {  # type: ignore[operator]
        "source": _source(declared.source, fields, texts),
        "lookups": [_dimension(one) for one in declared.lookups],
    }


def _dimension(declared: Dimension) -> Plain:
    fields = (*declared.entity, *declared.fields)
    history = declared.source
    source = _table(history, fields) if isinstance(history, Table) else _source(history, fields, ())
    return _plain(declared) | {"source": source}  # type: ignore[operator]


def _spine(spine: Spine | DailySpine) -> Plain:
    texts = [column.sql or column.name for column in spine.columns]
    if isinstance(spine, Spine):
        # Features find their entities by any field of the event.
        return _plain(spine) | {"source": _source(spine.source, (spine.key, spine.at), texts)}  # type: ignore[operator]
    return _plain(spine) | {"source": _source(spine.source, spine.entity, (*texts, spine.where))}  # type: ignore[operator]


def _source(source: Source, fields: Iterable[str], texts: Iterable[str | None]) -> Plain:
    """Of a contract what decides which events there are, and what the expressions see: not how records are read."""
    words = {word.lower() for text in texts if text for word in re.findall(r"\w+", text)}
    used = {*fields, source.event_id, source.event_time}
    return {
        "name": source.name,
        "event_id": source.event_id,
        "event_time": source.event_time,
        "repeats_within": str(source.repeats_within),
        "fields": {one.name: one.type for one in source.fields if one.name in used or one.name.lower() in words},
    }


def _table(table: Table, fields: Iterable[str]) -> Plain:
    used = {*fields, table.valid_from}
    return {
        "name": table.name,
        "path": table.path,
        "valid_from": table.valid_from,
        "fields": {one.name: one.type for one in table.fields if one.name in used},
    }


def _plain(value: Any, without: tuple[str, ...] = ()) -> Plain:
    """A declaration as JSON can hold it, what is left at its default left out."""
    if dataclasses.is_dataclass(value):
        said: dict[str, Plain] = {"": type(value).__name__}
        for field in dataclasses.fields(value):
            one = getattr(value, field.name)
            # Sources and tables are told by whoever knows what of them is used.
            if field.init and field.name not in without and one != field.default and not isinstance(one, Source | Table):
                said[field.name] = _plain(one)
        return said
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, timedelta | date | datetime):
        return str(value)
    assert value is None or isinstance(value, str | int | float | bool), value
    return value


def _folders(name: str) -> list[str]:
    return store.folders(lake.uri(name))
