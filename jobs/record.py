"""One record of a source, read strictly: its declared fields, or the reason why it does not fit the contract.

This is what the contract means. `jobs.decode` reads plain records by the block, and asks here about all others, so that a
record is judged the same whatever lies beside it.
"""

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from pipelines.declare import Field, Source

INSTANT = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):?[0-5]\d)$"
"""Texts that are instants: ISO 8601 with seconds and an offset. A time without an offset is ambiguous, so it is none."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
EARLIEST = (datetime(1990, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND
LATEST = (datetime(2101, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND
"""Instants in [EARLIEST, LATEST), in microseconds since 1970, are plausible.

Outside, one unit was taken for another, or a default for a value."""

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
TOMBSTONE = "tombstone"

_instant = re.compile(INSTANT, re.ASCII)
_surrogate = re.compile(r"\\u[dD][89a-fA-F]")


class Unfit(Exception):  # noqa: N818
    """The record does not fit; the message is the reason, a few fixed words and the field's name."""


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it stands, so that a key that comes twice is seen."""


def read(source: Source, raw: bytes | None) -> tuple[Any, ...]:
    """The values of the declared fields, in their order, as Python's; timestamps as whole microseconds since 1970.

    Raises Unfit for whatever does not fit. Fields that are not declared are ignored.
    """
    constants: list[str] = []
    values = _object(raw, constants)
    fields = dict(values)
    if len(fields) < len(values):
        names = [name for name, _ in values]
        for field in source.fields:
            if names.count(field.name) > 1:
                raise Unfit(f"repeated field {field.name}")
    row = tuple(_value(field, fields.get(field.name)) for field in source.fields)
    if constants:
        # NaN and its kin stand in a field that isn't declared: no number of ours, but no JSON either.
        raise Unfit("not JSON")
    return row


def _object(raw: bytes | None, constants: list[str]) -> _Pairs:
    """The record as a JSON object. Adds to `constants` each NaN or Infinity that it holds."""
    if raw is None or raw.strip() in (b"", b"null"):
        raise Unfit(TOMBSTONE)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise Unfit("not UTF-8") from None

    def constant(name: str) -> float:
        constants.append(name)
        return math.nan

    try:
        value = json.loads(text, object_pairs_hook=_Pairs, parse_constant=constant, parse_int=_parse_int)
    except json.JSONDecodeError:
        raise Unfit("not JSON") from None
    except RecursionError:
        raise Unfit("nested too deeply") from None
    if not isinstance(value, _Pairs):
        raise Unfit("not a JSON object")
    if _surrogate.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Unfit("not Unicode") from None
    return value


def _parse_int(digits: str) -> float:
    """Python refuses to read integers of thousands of digits; they fit no field, but may stand in one that isn't declared."""
    return int(digits) if len(digits) < 1000 else math.inf


def _value(field: Field, value: Any) -> Any:
    if value is None:
        if field.required:
            raise Unfit(f"missing required field {field.name}")
        return None
    return _READERS[field.type](field, value)


def _string(field: Field, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong_type(field)
    return value


def _int64(field: Field, value: Any) -> int:
    # A bool is an int for Python, not for the contract.
    if isinstance(value, bool) or not isinstance(value, int):
        if value in (math.inf, -math.inf):
            raise Unfit(f"integer out of range in field {field.name}")
        raise _wrong_type(field)
    if not -(2**63) <= value < 2**63:
        raise Unfit(f"integer out of range in field {field.name}")
    return value


def _float64(field: Field, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type(field)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Unfit(f"not a finite number in field {field.name}")
    return number


def _bool(field: Field, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong_type(field)
    return value


def _timestamp(field: Field, value: Any) -> int:
    if field.time_unit == "iso":
        instant = _iso(field, value)
    else:
        number = _int64(field, value)
        # The nanosecond's fraction of a microsecond is cut off, as everywhere in the lake.
        instant = number * 1_000_000 // PER_SECOND[field.time_unit]
    if not EARLIEST <= instant < LATEST:
        raise Unfit(f"implausible time in field {field.name}")
    return instant


def _iso(field: Field, value: Any) -> int:
    if not isinstance(value, str):
        raise _wrong_type(field)
    if not _instant.fullmatch(value):
        raise Unfit(f"not an instant in field {field.name}")
    try:
        return (datetime.fromisoformat(value) - EPOCH) // MICROSECOND
    except (ValueError, OverflowError):
        raise Unfit(f"not an instant in field {field.name}") from None


def _wrong_type(field: Field) -> Unfit:
    return Unfit(f"wrong type in field {field.name}")


_READERS: dict[str, Callable[[Field, Any], Any]] = {
    "string": _string,
    "int64": _int64,
    "float64": _float64,
    "bool": _bool,
    "timestamp": _timestamp,
}
