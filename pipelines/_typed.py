"""Whether the options of a declaration hold what they are annotated with: a wrong one is told by its name, not by what breaks."""

import math
import types
from collections.abc import Callable
from dataclasses import Field, fields
from datetime import date, timedelta
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_WORDS = {
    str: "text",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    timedelta: "a timedelta, for example days(7)",
    date: "a date, for example date(2026, 1, 31)",
    type(None): "None",
}


def check(declared: Any, *, but: tuple[str, ...] = ()) -> None:
    """Raise ValueError where an option of a declaration, a data class, holds a value of another type than it is annotated with.

    Options in `but` are left to the declaration itself.
    """
    kind: Any = type(declared)
    for option, hint in _options(kind):
        value = getattr(declared, option.name)
        if option.name not in but and not _fits(value, hint):
            named = getattr(declared, "name", None)
            whose = f"{kind.__name__} {named!r}" if isinstance(named, str) and option.name != "name" else kind.__name__
            raise ValueError(f"{option.name} of {whose} is {value!r}: it takes {_word(hint)}{_remedy(value, hint)}.")


@cache
def _options(kind: type) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(kind)
    return [(option, hints[option.name]) for option in fields(kind) if option.init]


def _fits(value: Any, hint: Any) -> bool:
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if kind is Literal:
        # Whether it is one of those known is told with what is near.
        return type(value) in {type(one) for one in inner}
    if kind is tuple:
        if not isinstance(value, tuple):
            return False
        if inner[-1] is Ellipsis:
            return all(_fits(one, inner[0]) for one in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    special: dict[Any, Callable[[], bool]] = {
        float: lambda: type(value) in (int, float) and not math.isnan(value),
        # Of a bool and a datetime, Python says that they are numbers and dates.
        int: lambda: type(value) is int,
        date: lambda: type(value) is date,
    }
    return special[hint]() if hint in special else isinstance(value, hint)


def _word(hint: Any) -> str:
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_word(one) for one in inner))
    if kind is Literal:
        return ", ".join(repr(one) for one in inner)
    if kind is tuple:
        if inner[-1] is Ellipsis:
            return f"a tuple, each of it {_word(inner[0])}"
        return f"a tuple of {len(inner)}, each of it {_word(inner[0])}"
    name = getattr(hint, "__name__", str(hint))
    return str(_WORDS.get(hint) or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


def _remedy(value: Any, hint: Any) -> str:
    """For the commonest slip: one value, or a list, where a tuple belongs."""
    if not any(get_origin(one) is tuple for one in (hint, *get_args(hint))):
        return ""
    if isinstance(value, list):
        return "; write round brackets, with a comma behind a single value"
    if isinstance(value, tuple):
        return ""
    return "; write (VALUE,), with the comma"
