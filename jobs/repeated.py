"""Which JSON records may hold a declared key twice, seen by the block.

A key that comes twice leaves open which value is meant, and decoders silently take the last. `jobs.record` refuses such
records, but asking it about all would cost ten times the decoding. So quotes are counted: a record that decoded well holds
two for each key and each text that came out of it, and where it holds no more, nothing comes twice. In the others the key's
own occurrences are counted, and at last the record's parts are compared one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import reduce
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.declare import Field


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the records: a declared field's, or that of an object which holds declared fields."""

    name: str
    attribute: str
    """What it is called in the struct that records are decoded into."""
    field: Field | None
    below: tuple["Key", ...] = ()
    required: bool = dataclass_field(init=False)
    quoted: bytes = dataclass_field(init=False)

    def __post_init__(self) -> None:
        required = self.field.required if self.field else any(key.required for key in self.below)
        object.__setattr__(self, "required", required)
        object.__setattr__(self, "quoted", b'"%s"' % self.name.encode())


def keys(fields: Sequence[Field], depth: int = 0) -> tuple[Key, ...]:
    """The keys of the objects at this depth, each once."""
    found: dict[str, list[Field]] = {}
    for field in fields:
        found.setdefault(field.keys[depth], []).append(field)
    return tuple(
        Key(name, f"f{number}", inside[0])
        if len(inside[0].keys) == depth + 1
        else Key(name, f"f{number}", None, keys(inside, depth + 1))
        for number, (name, inside) in enumerate(found.items())
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """What came out of records for one key, as 0 or 1 for each: whether it stands there (not null), whether in quotes."""

    key: Key
    present: pa.Array
    quoted: pa.Array | None


_ESCAPED = r"\\u00(?:24|2[dD]|3[0-9]|4[0-9a-fA-F]|5[0-9aAfF]|6[0-9a-fA-F]|7[0-9aA])"
"""A character that a key may hold, written as an escape."""

_TWENTIETH = 20
"""Where more records than one in so many hold more quotes than expected, fields that aren't declared are usual there."""

_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])


def suspects(raw: Sequence[bytes], tree: tuple[Key, ...], seen: Sequence[Seen]) -> set[int]:
    """The indexes of records that may hold a key of `tree` twice; all of them decoded."""
    whole = b"".join(raw)
    found: set[int] = set()
    if b"\\" in whole:
        found.update(pc.indices_nonzero(pc.match_substring_regex(pa.array(raw, pa.binary()), _ESCAPED)).to_pylist())
    quotes = pc.multiply(_sum([part for one in seen for part in (one.present, one.quoted) if part is not None]), _two)
    # Each record holds at least its own: where the totals are the same, so is each. Nearly always they are.
    if whole.count(b'"') == (pc.sum(quotes).as_py() or 0):
        return found
    odd = pc.not_equal(_counts(raw, b'"'), quotes)
    if odd.true_count > len(raw) // _TWENTIETH:
        odd = pc.and_(odd, _doubtful(raw, whole, seen))
    found.update(number for number in pc.indices_nonzero(odd).to_pylist() if number not in found and not _once(tree, raw[number]))
    return found


def _doubtful(raw: Sequence[bytes], whole: bytes, seen: Sequence[Seen]) -> pa.Array:
    """In which records a name stands in quotes more often than it came out as a key."""
    names: dict[bytes, list[pa.Array]] = {}
    for one in seen:
        names.setdefault(one.key.quoted, []).append(one.present)
    doubtful = pa.repeat(False, len(raw))
    for quoted, present in names.items():
        expected = _sum(present)
        # Here too.
        if whole.count(quoted) != (pc.sum(expected).as_py() or 0):
            doubtful = pc.or_(doubtful, pc.greater(_counts(raw, quoted), pc.max_element_wise(expected, _one)))
    return doubtful


def _once(tree: tuple[Key, ...], raw: Any) -> bool:
    """Whether no key of the tree stands twice in its object, where no key is written with escapes."""
    try:
        parts = _parts.decode(raw)
    except msgspec.DecodeError:
        return False
    # Of a key that comes twice only the last value is among the parts, so more of the whole lies outside of them.
    inside, raw = b",".join(parts.values()), bytes(raw)  # type: ignore[arg-type]
    for key in tree:
        if raw.count(key.quoted) > 1 and raw.count(key.quoted) - inside.count(key.quoted) > 1:
            return False
        if key.below and (part := parts.get(key.name, _null)) != _null and not _once(key.below, part):
            return False
    return True


def _sum(parts: Sequence[pa.Array]) -> pa.Array:
    return reduce(pc.add, parts)


def _counts(raw: Sequence[bytes], what: bytes) -> pa.Array:
    return pa.array(list(map(bytes.count, raw, repeat(what))), pa.int32())


_one, _two = pa.scalar(1, pa.int32()), pa.scalar(2, pa.int32())
_null = msgspec.Raw(b"null")
