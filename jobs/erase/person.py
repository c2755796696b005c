"""Whose records they are: the tests for it, none of which writes the person's key anywhere."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.declare import Source

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Person:
    """A person as a source names them."""

    source: Source
    key: str = field(repr=False)

    @property
    def subject(self) -> str:
        """The field that names them."""
        assert self.source.subject is not None
        return self.source.subject

    @cached_property
    def _token(self) -> re.Pattern[str]:
        return re.compile(rf"(?<!\w){re.escape(self.key)}(?!\w)")

    @cached_property
    def _bytes(self) -> bytes:
        return self.key.encode()

    @cached_property
    def _as_avro(self) -> bytes:
        """The key as an Avro string: its length comes before it, which may look like a letter."""
        length, out = len(self._bytes) * 2, bytearray()
        while length > 0x7F:
            out.append(length & 0x7F | 0x80)
            length >>= 7
        return bytes([*out, length]) + self._bytes

    def events(self, rows: pa.Table) -> Mask:
        """Which rows of events are about them: good ones by the subject, dead letters by what was kept of the record."""
        dead = rows.column("rejected_reason").is_valid().to_numpy()
        found: Mask = equal(rows, self.subject, {self.key}) & ~dead
        at = np.flatnonzero(dead)
        if len(at):
            letters = rows.select(["raw_key", "raw_value", "headers"]).take(pa.array(at)).to_pylist()
            found[at] = [self.letter(**letter) for letter in letters]
        return found

    def letter(self, raw_key: bytes | None, raw_value: bytes | None, headers: list[dict[str, Any]] | None) -> bool:
        """Whether a dead letter is about them, or names them."""
        if raw_key == self._bytes:
            return True
        texts = [raw_key, raw_value, *(each["value"] for each in headers or ())]
        return any(text is not None and (self._named_in(text) or self._named_within(text)) for text in texts)

    def _named_in(self, raw: bytes) -> bool:
        if self.source.format == "avro" and self._as_avro in raw:
            return True
        return self._token.search(raw.decode("utf-8", "replace")) is not None

    def _named_within(self, raw: bytes) -> bool:
        """In JSON the key may be written with escapes, and its value may be no text."""
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            return False
        if any(self._token.search(text) for text in _texts(value)):
            return True
        for name in self.source.field(self.subject).keys:
            value = value.get(name) if isinstance(value, dict) else None
        return value is not None and str(value) == self.key


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names too."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            waiting += one


def equal(rows: pa.Table, column: str, texts: set[str]) -> Mask:
    """Which rows have one of the texts in a column, whatever its type; none where the file has no such column."""
    if column not in rows.column_names or not texts:
        return np.zeros(len(rows), dtype=bool)
    values = as_text(rows.column(column))
    found: Mask = pc.is_in(values, pa.array(sorted(texts), pa.string())).to_numpy(zero_copy_only=False)
    return found


def as_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values as Spark's cast to a string writes them."""
    return values if pa.types.is_string(values.type) else values.cast(pa.string())
