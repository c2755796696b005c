"""One record of a source, read strictly: its declared fields, or the reason why it does not fit the contract.

This is what the contract means. `jobs.decode` reads most records a faster way, and asks here about all that it is not sure
of, so that a record is judged the same whatever lies beside it.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from jobs.strict_json import DEPTH as DEPTH
from jobs.strict_json import TOMBSTONE as TOMBSTONE
from jobs.strict_json import Float, Pairs, has_constant, object_of, text_of
from jobs.strict_json import Unfit as Unfit
from pipelines.declare import NUMBER, Field, Source, Value

INSTANT = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):?[0-5]\d)$"
"""Texts that are instants: ISO 8601 with seconds and an offset. A time without an offset is ambiguous, so it is none."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
EARLIEST = (datetime(1990, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND
LATEST = (datetime(2101, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND
"""Instants in [EARLIEST, LATEST), in microseconds since 1970, are plausible.

Outside, one unit was taken for another, or a default for a value."""

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_instant = re.compile(INSTANT, re.ASCII)


def read(source: Source, raw: bytes | None) -> tuple[Any, ...]:
    """The values of the declared fields, in their order, as Python's; timestamps as whole microseconds since 1970.

    Raises Unfit for whatever does not fit. Fields that are not declared are ignored.
    """
    if source.format == "avro":
        from jobs import avro

        return _row(source, avro.read(source, raw))
    text = text_of(raw)
    pairs = object_of(text, exact=source.exact)
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        for field in source.fields:
            if names.count(field.keys[0]) > 1:
                raise Unfit(f"repeated field {field.name}")
    row = _row(source, values)
    if ("NaN" in text or "Infinity" in text) and has_constant(text):
        # It stands in a field that isn't declared: no number of ours, but no JSON either.
        raise Unfit("not JSON")
    return row


def _found(field: Field, record: dict[str, Any]) -> Any:
    """What stands where the field lies; None where nothing does."""
    value: Any = record
    for key in field.keys:
        if isinstance(value, Pairs):
            values = dict(value)
            if len(values) < len(value) and sum(name == key for name, _ in value) > 1:
                raise Unfit(f"repeated field {field.name}")
            value = values.get(key)
        elif isinstance(value, dict):
            value = value.get(key)
        elif value is not None:
            raise _wrong_type(field)
    return value


def _row(source: Source, values: dict[str, Any]) -> tuple[Any, ...]:
    row: list[Any] = []
    for field in source.fields:
        value = values.get(field.keys[0]) if len(field.keys) == 1 else _found(field, values)
        if value is not None:
            row.append(_READERS.get(field.type, _decimal)(field, value))  # type: ignore[no-untyped-call]
        elif field.required:
            raise Unfit(f"missing required field {field.name}")
        else:
            row.append(None if field.default is None else default(field, field.default))
    return tuple(row)


def default(field: Field, value: Value) -> Any:
    """The field's declared default as a row holds it."""
    if isinstance(value, datetime):
        return (value - EPOCH) // MICROSECOND
    if field.type == "float64":
        return float(value)
    return value if field.digits is None else Decimal(str(value))


def _string(field: Field, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, UUID):
        return str(value)
    raise _wrong_type(field)


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
    if isinstance(value, datetime):
        # Avro's own instants; one without a zone is none.
        if value.tzinfo is None:
            raise Unfit(f"not an instant in field {field.name}")
        instant = (value - EPOCH) // MICROSECOND
    elif field.time_unit == "iso":
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


def _decimal(field: Field, value: Any) -> Decimal:
    """The number, exact. A text must be a number as JSON writes it; zeros at the end of decimals do not count."""
    assert field.digits is not None
    precision, scale = field.digits
    if isinstance(value, str):
        if not NUMBER.fullmatch(value):
            raise Unfit(f"not a number in field {field.name}")
    elif isinstance(value, Float):
        value = value.text
    elif isinstance(value, float) and not math.isfinite(value):
        # NaN, or an integer of thousands of digits.
        raise Unfit(f"{'not a finite number' if math.isnan(value) else 'decimal out of range'} in field {field.name}")
    elif isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _wrong_type(field)
    try:
        sign, digits, exponent = Decimal(value).as_tuple()
    except InvalidOperation:
        # An exponent of twenty digits, which zero alone survives.
        mantissa, power = re.split("[eE]", value)
        if not mantissa.strip("-0."):
            return Decimal(0)
        raise Unfit(f"{_decimals(scale) if power.startswith('-') else 'decimal out of range'} in field {field.name}") from None
    assert isinstance(exponent, int)  # No text of ours and no Avro decimal is infinite.
    if exponent >= -scale and len(digits) + exponent <= precision - scale:
        return Decimal(value)
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    exponent += len(text) - len(kept)
    if not kept:
        return Decimal(0)
    if exponent < -scale:
        raise Unfit(f"{_decimals(scale)} in field {field.name}")
    if len(kept) + exponent > precision - scale:
        raise Unfit(f"decimal out of range in field {field.name}")
    return Decimal((sign, tuple(map(int, kept)), exponent))


def _decimals(scale: int) -> str:
    return f"more than {scale} decimals"


def _wrong_type(field: Field) -> Unfit:
    return Unfit(f"wrong type in field {field.name}")


_READERS: dict[str, Callable[[Field, Any], Any]] = {
    "string": _string,
    "int64": _int64,
    "float64": _float64,
    "bool": _bool,
    "timestamp": _timestamp,
}
