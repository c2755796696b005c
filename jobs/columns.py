"""One declared field of many records, as an Arrow column and a mask of the values that fit the contract.

A value that does not fit costs its neighbours nothing: it is masked before Arrow converts the column, so no conversion fails.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jobs import record
from jobs.lake import INSTANT
from pipelines.declare import Field

_TYPES = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_(), "timestamp": INSTANT}

_STRICT = (
    r"^(?:(?:199\d|20\d\d)-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    r"|02-(?:0[1-9]|1\d|2[0-8]))|(?:199[26]|20(?:[02468][048]|[13579][26]))-02-29)"
    r"[T ](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):?[0-5]\d)$"
)
"""The texts of `jobs.record.INSTANT` of the years 1990 to 2099 whose day and time exist, so that Arrow reads each of them."""


def arrow_type(declared: Field) -> pa.DataType:
    """The field's type in tables."""
    return _TYPES[declared.type] if declared.digits is None else pa.decimal128(*declared.digits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A field's values, and what is known of them. Where a mask says no, the value is arbitrary."""

    values: pa.Array
    fits: pa.Array | None
    """Which values fit; None: all. The others are for `jobs.record` to judge: some of them may fit after all."""
    present: pa.Array
    """1 where the record has a value, else 0."""
    quoted: pa.Array | None
    """1 where the record has it in quotes, else 0; None: nowhere."""


def column_of(declared: Field, found: list[Any]) -> Column:
    """The column of what msgspec found for the field in each record, None where it found nothing."""
    fits = quoted = None
    if declared.digits is not None:
        # What is no UTF-8 matches no pattern, and its record is read strictly anyhow.
        texts = pa.array([None if value is None else bytes(value) for value in found], pa.binary()).cast(pa.string(), safe=False)
        present, quoted = texts.is_valid(), pc.fill_null(pc.starts_with(texts, '"'), False)
        values, fits = _decimals(declared.digits, texts)
    elif declared.type != "timestamp":
        values = pa.array(found, _TYPES[declared.type])
        present = values.is_valid()
        quoted = present if declared.type == "string" else None
    elif declared.time_unit == "iso":
        texts = pa.array(found, pa.string())
        present = quoted = texts.is_valid()
        values, fits = _instants(texts)
    else:
        numbers = pa.array(found, pa.int64())
        present = numbers.is_valid()
        values, fits = _from_numbers(numbers, record.PER_SECOND[declared.time_unit])
    if declared.required and values.null_count:
        fits = values.is_valid() if fits is None else pc.and_(fits, values.is_valid())
    if declared.default is not None:
        values = pc.fill_null(values, pa.scalar(record.default(declared, declared.default), values.type))
    return Column(values=values, fits=fits, present=_ones(present), quoted=None if quoted is None else _ones(quoted))


def _ones(mask: pa.Array) -> pa.Array:
    return mask.cast(pa.int32())


_MOST = 38
"""Digits of the largest decimal that Arrow reads from text."""


def _decimals(digits: tuple[int, int], texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Decimals from JSON values as they stand, numbers and texts; an exponent is for `jobs.record`."""
    precision, scale = digits
    before = precision - scale
    whole = f"(?:0|[1-9][0-9]{{0,{before - 1}}})" if before else "0"
    zeros = f"0{{0,{_MOST - precision}}}" if precision < _MOST else ""
    fraction = f"(?:\\.[0-9]{{1,{scale}}}{zeros})?" if scale else ""
    plain = pc.match_substring_regex(texts, f'^"?-?{whole}{fraction}"?$')
    nothing = pc.equal(texts, "null")
    numbers = pc.replace_substring(_where(plain, texts), '"', "")
    return numbers.cast(pa.decimal128(precision, scale)), pc.fill_null(pc.or_(plain, nothing), True)


def _instants(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Instants from text."""
    strict = pc.fill_null(pc.match_substring_regex(texts, _STRICT), True)
    if strict.false_count:
        texts = _where(strict, texts)
    # Nanoseconds hold all years of the pattern; their fraction of a microsecond is cut off.
    instants = pc.cast(texts.cast(pa.timestamp("ns", tz="UTC")), INSTANT, safe=False)
    return instants, pc.and_(strict, _between(instants.cast(pa.int64()), record.EARLIEST, record.LATEST))


def _from_numbers(numbers: pa.Array, scale: int) -> tuple[pa.Array, pa.Array]:
    """Instants from whole numbers, `scale` of them a second."""
    second = 1_000_000
    fits = _between(numbers, record.EARLIEST // second * scale, record.LATEST // second * scale)
    # An implausible number may be too large to be multiplied.
    numbers = _where(fits, numbers)
    if scale > second:
        numbers = pc.divide(numbers, pa.scalar(scale // second, pa.int64()))
    elif scale < second:
        numbers = pc.multiply(numbers, pa.scalar(second // scale, pa.int64()))
    return numbers.cast(INSTANT), fits


def _between(numbers: pa.Array, first: int, last: int) -> pa.Array:
    """Which numbers lie in [first, last), or are null."""
    inside = pc.and_(pc.greater_equal(numbers, pa.scalar(first, pa.int64())), pc.less(numbers, pa.scalar(last, pa.int64())))
    return pc.fill_null(inside, True)


def _where(mask: pa.Array, values: pa.Array) -> pa.Array:
    """The values where the mask says so, null elsewhere."""
    return pc.if_else(mask, values, pa.scalar(None, values.type))
