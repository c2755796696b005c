"""Avro records, each a value by itself: as the declared schema wrote them, or framed with the number of a registered schema.

What fastavro does wrong silently is mended here: a decimal beyond its schema's precision was rounded, an instant beyond
Python's years failed its record, and bytes nested in a recursive schema could end the process.
"""

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from typing import Any

import fastavro
import fastavro.read
from fastavro import _read_py
from fastavro.schema import SchemaParseException, UnknownType

from jobs import record, schema_registry
from jobs.errors import UsageError
from pipelines.declare import Source

log = logging.getLogger(__name__)

_FRAME = 5
"""Bytes before the record where a registry is used: 0, and the schema's number in four, the most significant first."""


def read(source: Source, raw: bytes | None) -> dict[str, Any]:
    """The record's fields by name, nested records as dicts, logical types as Python's.

    Raises Unfit for bytes that are no such record, or name no schema that can be used, RetryError where the registry is away,
    UsageError where it can't be used.
    """
    if not raw:
        raise record.Unfit(record.TOMBSTONE)
    if source.avro_schema is not None:
        return _read(_declared(source.name, source.avro_schema), raw)
    if raw[0] != 0 or len(raw) < _FRAME:
        raise record.Unfit("no schema number before the record")
    number = int.from_bytes(raw[1:_FRAME], "big")
    reader = _registered(number, schema_registry.schema(number))
    # Reasons name no number: garbage has any, and each reason is counted by itself for ever.
    if isinstance(reader, str):
        raise record.Unfit(reader)
    return _read(reader, raw[_FRAME:])


_Reader = Callable[[BytesIO], Any]


def _read(reader: _Reader, raw: bytes) -> dict[str, Any]:
    stream = BytesIO(raw)
    try:
        value = reader(stream)
    except MemoryError:
        raise
    except RecursionError:
        raise record.Unfit("nested too deeply") from None
    except Exception:
        # Arbitrary bytes: a dozen kinds of exception, by where they end or what they claim.
        raise record.Unfit("not Avro") from None
    if stream.tell() != len(raw):
        raise record.Unfit("bytes left after the record")
    assert isinstance(value, dict)
    return value


@lru_cache(maxsize=64)
def _declared(name: str, text: str) -> _Reader:
    try:
        reader = _reader(text)
    except _UNREADABLE as failure:
        raise UsageError(
            f"avro_schema of source {name!r} is no Avro schema ({failure}): correct it, its producer has the right one."
        ) from None
    assert reader is not None  # The declaration has checked that it is a record.
    return reader


@lru_cache(maxsize=1024)
def _registered(number: int, text: str) -> _Reader | str:
    """The reader of a registered schema, or why there is none."""
    try:
        reader = _reader(text)
    except _UNREADABLE as failure:
        log.warning("schema %d of the registry can't be read: %s", number, failure)
        return "the schema is no Avro"
    return reader or "the schema is no Avro record"


_UNREADABLE = (SchemaParseException, UnknownType, ValueError, KeyError, TypeError)


def _reader(text: str) -> _Reader | None:
    """Reads records of a schema; None where it is no record's."""
    schema: Any = fastavro.parse_schema(json.loads(text))
    if not isinstance(schema, dict) or schema["type"] != "record":
        return None
    # Compiled, fastavro does not watch the stack, and a record of a recursive schema is as deep as its bytes say.
    read: Any = _read_py.schemaless_reader if _recursive(schema, frozenset()) else fastavro.schemaless_reader
    return lambda stream: read(stream, schema, None)


def _recursive(schema: Any, around: frozenset[str]) -> bool:
    """Whether a type holds itself; `around` are the names of the records around this one."""
    if isinstance(schema, str):
        return schema in around
    if isinstance(schema, list):
        return any(_recursive(branch, around) for branch in schema)
    if schema["type"] in ("record", "error"):
        around |= {schema["name"]}
        return any(_recursive(field["type"], around) for field in schema["fields"])
    inside = {"array": "items", "map": "values"}.get(schema["type"] if isinstance(schema["type"], str) else "", "type")
    return schema["type"] not in ("enum", "fixed") and _recursive(schema[inside], around)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNHEARD_OF = datetime.max.replace(tzinfo=UTC)
"""Stands for instants that Python can't hold; no field takes it."""


def _instant(times: int, by: int = 1) -> Callable[..., datetime]:
    """A reader of instants, of which `times / by` gives microseconds."""

    def read(value: int, *_schemas: Any) -> datetime:
        try:
            return _EPOCH + timedelta(microseconds=value * times // by)
        except OverflowError:
            return _UNHEARD_OF

    return read


_LONGEST = 64
"""Bytes of a number beyond any decimal that a field can be."""


def _decimal(value: bytes, schema: dict[str, Any] | None = None, *_schemas: Any) -> Decimal:
    if len(value) > _LONGEST:
        return Decimal("1e9999")
    sign, digits, _ = Decimal(int.from_bytes(value, "big", signed=True)).as_tuple()
    return Decimal((sign, digits, -(schema or {}).get("scale", 0)))


fastavro.read.LOGICAL_READERS.update(
    {
        "long-timestamp-millis": _instant(1000),
        "long-timestamp-micros": _instant(1),
        "long-timestamp-nanos": _instant(1, 1000),
        "bytes-decimal": _decimal,
        "fixed-decimal": _decimal,
    }
)
