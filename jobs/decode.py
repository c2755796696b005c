"""A source's contract as Arrow sees it, and its records as Arrow tables.

Records that are one flat JSON object, as nearly all are, go through Arrow's JSON reader by the block. Joined texts can hide
each other's faults (a record that holds two objects beside an empty one gives the right count and shifted rows; one bad
integer fails its whole block), so each record is wrapped with its own number, all numbers are compared, a block that fails
is tried in small ones, and what fails again is read one by one by `jobs.record`, which alone knows the reasons.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from jobs import record
from pipelines.declare import Field, Source

INSTANT = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))

POSITION = [
    pa.field("event_time", INSTANT),
    pa.field("known_time", INSTANT),
    pa.field("topic", pa.string()),
    pa.field("topic_epoch", pa.int32()),
    pa.field("kafka_partition", pa.int32()),
    pa.field("kafka_offset", pa.int64()),
    pa.field("batch", pa.string()),
    pa.field("rejected_reason", pa.string()),
    pa.field("raw_key", pa.binary()),
    pa.field("raw_value", pa.binary()),
    pa.field("headers", HEADERS),
]
"""What ingest adds to the declared fields; `event_date`, the partition, comes last."""

_TYPES = {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_(), "timestamp": INSTANT}

_SMALL = 200
"""Records in the small blocks of a failed one."""

_PLAIN = r"^[ \t]*\{[^{}\[\n\r]*\}[ \t]*$"
"""A flat JSON object on one line, if it is JSON at all: without a second brace nothing can break out of its wrapping."""


def fields_schema(source: Source) -> pa.Schema:
    """The declared fields alone."""
    return pa.schema([pa.field(declared.name, _TYPES[declared.type]) for declared in source.fields])


def events_schema(source: Source) -> pa.Schema:
    """The columns of `events/<source>`: declared fields, position, and the partition column at the end."""
    return pa.schema([*fields_schema(source), *POSITION, pa.field("event_date", pa.date32())])


@dataclass(kw_only=True, slots=True)
class Decoded:
    """What became of a list of records, each named by its index in the list."""

    good: pa.Table
    """The declared fields of the records that fit, in their order."""
    index: pa.Array
    """The index of each row of `good`, ascending, as int64."""
    rejected: dict[int, str] = field(default_factory=dict)
    """The reason for each of the others."""


def decode(source: Source, values: Sequence[bytes | None]) -> Decoded:
    """Read records. Every index comes out once, in `index` or in `rejected`."""
    raw = pa.array(values, pa.binary())
    plain = _plain(raw)
    blocks: list[tuple[pa.Table, pa.Array]] = []
    single: list[int] = []
    _read(source, raw, plain, blocks, single, small=False)
    if len(plain) < len(values):
        odd = pc.invert(pc.is_in(pa.array(range(len(values)), pa.int64()), plain))
        single.extend(pc.indices_nonzero(odd).to_pylist())
    return _gathered(source, values, blocks, single)


def _plain(raw: pa.Array) -> pa.Array:
    """The indexes of the records that Arrow may read joined."""
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        readable = pa.array([value is not None and _is_utf8(value) for value in raw.to_pylist()])
    else:
        readable = raw.is_valid()
    one_object = pc.fill_null(pc.match_substring_regex(raw, _PLAIN), False)
    # Arrow takes these for numbers; whether they stand in a number is for `jobs.record` to say.
    infinite = pc.fill_null(pc.match_substring_regex(raw, "NaN|Inf"), False)
    good = pc.and_(readable, pc.and_(one_object, pc.invert(infinite)))
    return pc.cast(pc.indices_nonzero(good), pa.int64())


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read(
    source: Source, raw: pa.Array, index: pa.Array, blocks: list[tuple[pa.Table, pa.Array]], single: list[int], *, small: bool
) -> None:
    """Read the plain records at `index` into `blocks`; the indexes of what did not fit go to `single`."""
    if not len(index):
        return
    parsed = _parsed(source, raw.take(index) if len(index) < len(raw) else raw)
    if parsed is None and small:
        single.extend(index.to_pylist())
    elif parsed is None:
        for start in range(0, len(index), _SMALL):
            _read(source, raw, index.slice(start, _SMALL), blocks, single, small=True)
    else:
        table, fits = parsed
        if fits is not None:
            single.extend(index.filter(pc.invert(fits)).to_pylist())
            table, index = table.filter(fits), index.filter(fits)
        blocks.append((table, index))


def _parsed(source: Source, raw: pa.Array) -> tuple[pa.Table, pa.Array | None] | None:
    """The fields of records, and which rows fit (None: all). None where Arrow could not read them all."""
    count = len(raw)
    joined = pc.binary_join_element_wise(_prefixes(count), raw, _SUFFIX, _NOTHING)
    buffer = joined.buffers()[2]
    longest = pc.max(pc.binary_length(joined)).as_py()
    wrapped = pa.schema([("i", pa.int64()), ("v", pa.struct([pa.field(f.name, _json_type(f)) for f in source.fields]))])
    try:
        table = pj.read_json(
            pa.BufferReader(buffer),
            # A record must not straddle two blocks and their border.
            read_options=pj.ReadOptions(block_size=max(1 << 22, 2 * longest + 64)),
            parse_options=pj.ParseOptions(explicit_schema=wrapped, unexpected_field_behavior="ignore"),
        )
        if len(table) != count or not table.column("i").combine_chunks().equals(pa.array(range(count), pa.int64())):
            return None
        struct = table.column("v").combine_chunks()
        columns = [_column(declared, struct.field(declared.name)) for declared in source.fields]
    except (pa.ArrowInvalid, OverflowError):
        return None
    masks = [mask for _, mask in columns if mask is not None]
    all_fit = masks[0] if masks else None
    for mask in masks[1:]:
        all_fit = pc.and_(all_fit, mask)
    if all_fit is not None and pc.all(all_fit).as_py():
        all_fit = None
    return pa.table([column for column, _ in columns], schema=fields_schema(source)), all_fit


def _json_type(declared: Field) -> pa.DataType:
    if declared.type != "timestamp":
        return _TYPES[declared.type]
    return pa.string() if declared.time_unit == "iso" else pa.int64()


def _column(declared: Field, values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """The field's column in its own type, and which rows fit, or None where all do."""
    fits = None
    if declared.type == "float64":
        fits = pc.is_finite(values)
    elif declared.type == "timestamp":
        values, fits = _instants(declared, values)
    if fits is not None:
        fits = pc.or_(pc.fill_null(fits, False), values.is_null())
    if declared.required:
        fits = values.is_valid() if fits is None else pc.and_(fits, values.is_valid())
    return values, fits


def _instants(declared: Field, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Instants from text or whole numbers, and which of them are plausible. What is no instant raises ArrowInvalid."""
    if declared.time_unit == "iso":
        if not pc.all(pc.match_substring_regex(values, record.INSTANT), min_count=0).as_py():
            raise pa.ArrowInvalid("not an instant")
        try:
            instants = values.cast(INSTANT)
        except pa.ArrowInvalid:
            # More digits than microseconds: they are cut off.
            instants = pc.replace_substring_regex(values, r"(\.\d{6})\d+", r"\1").cast(INSTANT)
        numbers, scale = instants.cast(pa.int64()), record.PER_SECOND["us"]
    else:
        numbers, scale = values, record.PER_SECOND[declared.time_unit]
    second = 1_000_000
    fits = pc.and_(
        pc.greater_equal(numbers, pa.scalar(record.EARLIEST // second * scale, pa.int64())),
        pc.less(numbers, pa.scalar(record.LATEST // second * scale, pa.int64())),
    )
    if declared.time_unit == "iso":
        return instants, fits
    # An implausible number may be too large to be multiplied; its row goes elsewhere anyhow.
    numbers = pc.if_else(fits, numbers, pa.scalar(0, pa.int64()))
    if scale > second:
        numbers = pc.divide(numbers, pa.scalar(scale // second, pa.int64()))
    elif scale < second:
        numbers = pc.multiply(numbers, pa.scalar(second // scale, pa.int64()))
    return pc.if_else(values.is_valid(), numbers, pa.scalar(None, pa.int64())).cast(INSTANT), fits


def _gathered(
    source: Source, values: Sequence[bytes | None], blocks: list[tuple[pa.Table, pa.Array]], single: list[int]
) -> Decoded:
    """All good rows in the order of the records, those of blocks and those read one by one."""
    rejected: dict[int, str] = {}
    rows: list[tuple[Any, ...]] = []
    index: list[int] = []
    for number in sorted(single):
        try:
            rows.append(record.read(source, values[number]))
            index.append(number)
        except record.Unfit as reason:
            rejected[number] = str(reason)
    if rows:
        columns = [pa.array(column, _TYPES[f.type]) for f, column in zip(source.fields, zip(*rows, strict=True), strict=True)]
        blocks.append((pa.table(columns, schema=fields_schema(source)), pa.array(index, pa.int64())))
    if not blocks:
        return Decoded(good=fields_schema(source).empty_table(), index=pa.array([], pa.int64()), rejected=rejected)
    table = pa.concat_tables([block for block, _ in blocks])
    order = pa.concat_arrays([block for _, block in blocks])
    if len(blocks) > 1:
        sorting = pc.sort_indices(order)
        table, order = table.take(sorting), order.take(sorting)
    return Decoded(good=table, index=order, rejected=rejected)


_SUFFIX = pa.scalar(b"}\n", pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())
_made = pa.array([], pa.binary())


def _prefixes(count: int) -> pa.Array:
    """The opening of each record's wrapping, with its number."""
    global _made
    if len(_made) < count:
        _made = pa.array([b'{"i":%d,"v":' % number for number in range(count)], pa.binary())
    return _made.slice(0, count)
