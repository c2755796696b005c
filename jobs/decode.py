"""A source's contract as Arrow sees it, and its records as Arrow tables.

JSON records are decoded each by itself, by msgspec into a struct of the declared fields, and become columns together, so no
record can shift or spoil its neighbour. What msgspec or a column's rules refuse, and what they might take for good wrongly,
is read by `jobs.record`, which alone knows the reasons.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from jobs import record
from jobs.columns import arrow_type, column_of
from jobs.lake import INSTANT as INSTANT
from jobs.repeated import Key, Seen, keys, suspects
from pipelines.declare import Field, Source

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


def fields_schema(source: Source) -> pa.Schema:
    """The declared fields alone."""
    return pa.schema([pa.field(declared.name, arrow_type(declared)) for declared in source.fields])


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
    """Read records. Every index comes out once, in `index` or in `rejected`.

    Raises RetryError where a schema registry is needed and away, UsageError where it can't be used.
    """
    read = _read_alone if source.format == "avro" else _read
    blocks = [read(source, values[start : start + BLOCK]) for start in range(0, len(values), BLOCK)]
    if len(blocks) == 1:
        return blocks[0]
    whole = Decoded(good=fields_schema(source).empty_table(), index=pa.array([], pa.int64()))
    if blocks:
        whole.good = pa.concat_tables([block.good for block in blocks])
        whole.index = pa.concat_arrays([pc.add(block.index, number * BLOCK) for number, block in enumerate(blocks)])
    for number, block in enumerate(blocks):
        whole.rejected.update({number * BLOCK + index: reason for index, reason in block.rejected.items()})
    return whole


BLOCK = 10_000
"""Records that are Python's objects at once: measured, ten thousand stay in the processor's caches, fifty do not."""


def _read_alone(source: Source, values: Sequence[bytes | None]) -> Decoded:
    """Read records one by one."""
    return _gathered(source, values, fields_schema(source).empty_table(), pa.array([], pa.int64()), range(len(values)))


def _read(source: Source, values: Sequence[bytes | None]) -> Decoded:
    """Read JSON records together, and one by one what may not fit."""
    tree, struct = _shape(source.fields)
    rows, failed = _structs(struct, values)
    index = pa.arange(0, len(values))
    if failed:
        index = index.filter(_all_but(failed, len(values)))
    decoded = _without(failed, values)
    raw = pa.array(decoded, pa.binary())
    odd = {*_not_utf8(raw, decoded), *_perhaps_deep(raw, decoded)}
    seen: list[Seen] = []
    columns: dict[str, pa.Array] = {}
    for key, found in _levels(tree, rows, whole=True):
        if key.field is None:
            seen.append(Seen(key, pa.array([value is not None for value in found]).cast(pa.int32()), None))
            continue
        column = column_of(key.field, found)
        columns[key.field.name] = column.values
        seen.append(Seen(key, column.present, column.quoted))
        if column.fits is not None and column.fits.false_count:
            odd.update(pc.indices_nonzero(pc.invert(column.fits)).to_pylist())
    odd |= suspects(decoded, tree, seen)
    table = pa.table([columns[declared.name] for declared in source.fields], schema=fields_schema(source))
    single = failed
    if odd:
        single = sorted([*failed, *index.take(pa.array(odd, pa.int64())).to_pylist()])
        fits = _all_but(odd, len(decoded))
        table, index = table.filter(fits), index.filter(fits)
    return _gathered(source, values, table, index, single)


def _all_but(some: Collection[int], count: int) -> pa.Array:
    """A mask of so many, false for some."""
    keep = bytearray(b"\1") * count
    for number in some:
        keep[number] = 0
    return pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(keep)]).cast(pa.bool_())


def _without(failed: list[int], values: Sequence[bytes | None]) -> list[bytes]:
    """The values but those at the ascending indexes of `failed`."""
    kept: list[Any] = []
    start = 0
    for number in failed:
        kept += values[start:number]
        start = number + 1
    kept += values[start:]
    return kept


@lru_cache(maxsize=64)
def _shape(fields: tuple[Field, ...]) -> tuple[tuple[Key, ...], type[msgspec.Struct]]:
    """The keys of a source's records, and a struct of them."""
    tree = keys(fields)
    return tree, _struct(tree)


def _struct(tree: tuple[Key, ...]) -> type[msgspec.Struct]:
    kinds: list[Any] = []
    for key in tree:
        kind = _kind(key.field) if key.field else _struct(key.below)
        if key.required:
            kinds.append((key.attribute, kind))
        else:
            kinds.append((key.attribute, kind if kind is msgspec.Raw else kind | None, None))
    rename = {key.attribute: key.name for key in tree}
    return msgspec.defstruct("Record", kinds, rename=rename, gc=False, kw_only=True)


_INT64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


def _kind(declared: Field) -> Any:
    """The JSON value that msgspec takes for the field; a decimal stays text."""
    if declared.digits is not None:
        return msgspec.Raw
    if declared.type == "string" or (declared.type == "timestamp" and declared.time_unit == "iso"):
        return str
    return {"bool": bool, "float64": float}.get(declared.type, _INT64)  # type: ignore[call-overload]


def _structs(struct: type[msgspec.Struct], values: Sequence[bytes | None]) -> tuple[list[Any], list[int]]:
    """The structs of the records that msgspec takes, and the indexes of the others."""
    decode = msgspec.json.Decoder(struct).decode
    rows: list[Any] = []
    failed: list[int] = []
    rest = iter(values)
    while True:
        try:
            # What came before a failure stays in the list, and `rest` goes on behind it.
            rows.extend(map(decode, rest))  # type: ignore[arg-type]
        except (msgspec.DecodeError, TypeError, RecursionError):
            failed.append(len(rows) + len(failed))
        else:
            return rows, failed


def _levels(tree: tuple[Key, ...], objects: list[Any], *, whole: bool) -> Iterator[tuple[Key, list[Any]]]:
    """What the objects hold for each key, at every depth; `whole`: none of them is None."""
    for key in tree:
        get = attrgetter(key.attribute)
        values = list(map(get, objects)) if whole else [None if one is None else get(one) for one in objects]
        yield key, values
        yield from _levels(key.below, values, whole=False)


def _not_utf8(raw: pa.Array, values: Sequence[bytes]) -> list[int]:
    """The indexes of records that are no UTF-8: msgspec does not look into what it passes over."""
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        plain = pc.string_is_ascii(raw.cast(pa.string(), safe=False))
        return [number for number in pc.indices_nonzero(pc.invert(plain)).to_pylist() if not _is_utf8(values[number])]
    return []


def _is_utf8(value: bytes) -> bool:
    try:
        str(value, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _perhaps_deep(raw: pa.Array, values: Sequence[bytes]) -> list[int]:
    """The indexes of records with so many brackets that they may be nested too deeply."""
    long = pc.indices_nonzero(pc.greater(pc.binary_length(raw), record.DEPTH)).to_pylist()
    return [n for n in long if values[n].count(b"{") + values[n].count(b"[") > record.DEPTH]


def _gathered(source: Source, values: Sequence[bytes | None], table: pa.Table, index: pa.Array, single: Sequence[int]) -> Decoded:
    """All good rows in the order of the records: those of the table at `index`, and the `single` ones, read one by one."""
    rejected: dict[int, str] = {}
    rows: list[tuple[Any, ...]] = []
    fit: list[int] = []
    for number in single:
        try:
            rows.append(record.read(source, values[number]))
            fit.append(number)
        except record.Unfit as reason:
            rejected[number] = str(reason)
    if rows:
        columns = [pa.array(column, arrow_type(f)) for f, column in zip(source.fields, zip(*rows, strict=True), strict=True)]
        table = pa.concat_tables([table, pa.table(columns, schema=fields_schema(source))])
        index = pa.concat_arrays([index, pa.array(fit, pa.int64())])
        order = pc.sort_indices(index)
        table, index = table.take(order), index.take(order)
    return Decoded(good=table, index=index, rejected=rejected)
