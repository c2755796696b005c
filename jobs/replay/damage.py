"""Damaged copies of records, so that a demonstration has dead letters.

Nothing is left to chance: the same history is damaged in the same places.
"""

import re
from dataclasses import replace

from jobs.replay.history import History
from pipelines.declare import Source


def damaged(history: History, every: int, *, after: int = 0) -> tuple[History, int]:
    """The history with a damaged copy after every so many records, known at the same time, and how many those are.

    0 damages nothing. `after` is how many records of the topic come before these, so that a part of a history is damaged in its
    own places.
    """
    if not every:
        return history, 0
    keys, values, times = [], [], []
    broken = 0
    for number, (key, value, time) in enumerate(zip(history.keys, history.values, history.times, strict=True), start=after + 1):
        keys.append(key)
        values.append(value)
        times.append(time)
        if number % every == 0:
            keys.append(key)
            values.append(_damage(history.source, value, number // every - 1))
            times.append(time)
            broken += 1
    return replace(history, keys=keys, values=values, times=times), broken


def _damage(source: Source, value: bytes, turn: int) -> bytes:
    """One of five kinds of damage, in turn."""
    text = value.decode()
    number = next((field.name for field in source.fields if field.type in ("int64", "float64")), source.event_id)
    match turn % 5:
        case 0:
            return value[: len(value) // 2]
        case 1:
            return _with(text, source.event_id, "null")
        case 2:
            return _with(text, source.event_time, "true")
        case 3:
            return _with(text, number, "NaN")
        case _:
            return value.replace(b'"', b'"\xff', 1)


def _with(text: str, name: str, value: str) -> bytes:
    """The JSON object with another value for a field."""
    changed, count = re.subn(rf'"{name}":("[^"]*"|[^,}}]*)', f'"{name}":{value}', text, count=1)
    assert count == 1
    return changed.encode()
