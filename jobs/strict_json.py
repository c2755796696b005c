"""The text of a record as a JSON object, strictly, or the reason why it is none.

Python's reader takes more than JSON and forgets what counts here: that a key came twice, and how a number was written.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

TOMBSTONE = "tombstone"

DEPTH = 200
"""Objects and lists within each other, at most; beyond it lies a fault, or an attack on the reader's stack."""

_surrogate = re.compile(r"\\u[dD][89a-fA-F]")
_text = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_bracket = re.compile(r"[\[\]{}]")


class Unfit(Exception):  # noqa: N818
    """The record does not fit; the message is the reason, a few fixed words and the field's name."""


class Pairs(list[tuple[str, Any]]):
    """A JSON object as it stands, so that a key that comes twice is seen."""


class Float(float):
    """A number with decimals that remembers its text, for fields that want it exact."""

    text: str

    def __new__(cls, text: str) -> "Float":
        number = super().__new__(cls, text)
        number.text = text
        return number


def text_of(raw: bytes | None) -> str:
    """The record's text. Raises Unfit for a tombstone and for what is no UTF-8."""
    if raw is None or raw.strip() in (b"", b"null"):
        raise Unfit(TOMBSTONE)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Unfit("not UTF-8") from None


def object_of(text: str, *, exact: bool) -> Pairs:
    """The record as a JSON object; `exact`: numbers with decimals are Float. NaN and Infinity are let through."""
    if len(text) > DEPTH and _too_deep(text):
        raise Unfit("nested too deeply")
    text = text.strip(" \t\n\r")
    try:
        value, end = (_JSON if not exact and len(text) < MOST_DIGITS else _EXACT_JSON)(text, 0)
    except (json.JSONDecodeError, StopIteration):
        raise Unfit("not JSON") from None
    except RecursionError:
        raise Unfit("nested too deeply") from None
    if end != len(text):
        raise Unfit("not JSON")
    if not isinstance(value, Pairs):
        raise Unfit("not a JSON object")
    if _surrogate.search(text):
        try:
            _as_text(value).encode()
        except UnicodeEncodeError:
            raise Unfit("not Unicode") from None
    return value


def _too_deep(text: str) -> bool:
    if text.count("{") + text.count("[") <= DEPTH:
        return False
    depth = 0
    for bracket in _bracket.finditer(_text.sub("", text)):
        depth += 1 if bracket[0] in "{[" else -1
        if depth > DEPTH:
            return True
    return False


MOST_DIGITS = 4000
"""Python refuses to read integers of more digits; they fit no field, but may stand in one that isn't declared."""


def _parse_int(digits: str) -> float:
    return int(digits) if len(digits) < MOST_DIGITS else math.copysign(math.inf, -1 if digits[0] == "-" else 1)


_Scan = Callable[[str, int], tuple[Any, int]]
_JSON: _Scan = json.JSONDecoder(object_pairs_hook=Pairs).scan_once  # type: ignore[attr-defined]
_EXACT_JSON: _Scan = json.JSONDecoder(  # type: ignore[attr-defined]
    object_pairs_hook=Pairs, parse_int=_parse_int, parse_float=Float
).scan_once
_as_text: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False).encode


def has_constant(text: str) -> bool:
    """Whether NaN or Infinity stands in the text, which is JSON otherwise, as a value."""
    try:
        json.loads(text, parse_constant=_refuse, parse_int=float)
    except _ConstantError:
        return True
    return False


class _ConstantError(Exception):
    pass


def _refuse(_name: str) -> NoReturn:
    raise _ConstantError
