"""What an expectation says of a day's figures. Pure arithmetic: `measured.py` has Spark bring the figures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from jobs.features.profiles import Profile, Reference
from jobs.verdict import FAILS, HOLDS, NOT_MEASURED, WARNS
from pipelines.declare import Expectation

EPSILON = 1e-4
"""The least share of a bin for PSI: an empty one would make it infinite."""
NULL = "null"
"""The bin of nulls."""
OTHER = "other"
"""The bin of a string's values that the training days didn't have often."""


@dataclass(kw_only=True, slots=True)
class Figures:
    """What was counted of one table on one day."""

    rows: int = 0
    nulls: dict[str, int] = field(default_factory=dict)
    least: dict[str, float | None] = field(default_factory=dict)
    greatest: dict[str, float | None] = field(default_factory=dict)
    repeats: dict[str | None, int] = field(default_factory=dict)
    """By column, and None for the key, how many rows have a value that another row has before them."""
    bins: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    """By rule and column, the rows of each bin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """An expectation's verdict."""

    value: float | None
    verdict: str
    message: str


def judge(expectation: Expectation, figures: Figures, before: Mapping[date, int], reference: Reference) -> Judged:
    """`before` are the rows of the days before that `volume` looks at."""
    if expectation.rule == "volume":
        return _volume(expectation, figures.rows, before)
    if expectation.rule in ("psi", "ks"):
        return _drift(expectation, figures, reference)
    column = expectation.column
    if expectation.rule == "unique":
        repeats = figures.repeats.get(column, 0)
        what = "the key" if column is None else "it"
        return _judged(expectation, float(repeats), not repeats, f"{repeats:,} rows repeat a value, and {what} must be unique")
    if not figures.rows:
        return Judged(value=None, verdict=HOLDS, message="no rows")
    assert column is not None
    if expectation.nulls is not None:
        share = figures.nulls.get(column, 0) / figures.rows
        return _judged(
            expectation, share, share <= expectation.nulls, f"{share:.2%} are null, at most {expectation.nulls:.2%} may be"
        )
    assert expectation.between is not None
    low, high = expectation.between
    least, greatest = figures.least.get(column), figures.greatest.get(column)
    if least is None or greatest is None:
        return Judged(value=None, verdict=HOLDS, message="all are null")
    # NaN comes after all numbers, in Spark as here.
    holds = low <= least and greatest <= high
    value = least if least < low else greatest
    return _judged(expectation, value, holds, f"{least:g} to {greatest:g} were seen, {low:g} to {high:g} are expected")


def _volume(expectation: Expectation, rows: int, before: Mapping[date, int]) -> Judged:
    assert expectation.volume is not None
    low, high = expectation.volume
    seen = [count for count in before.values() if count]
    if not seen:
        return Judged(value=None, verdict=HOLDS, message=f"{rows:,} rows, and none of the {expectation.days} days before has any")
    mean = sum(seen) / len(seen)
    ratio = rows / mean
    return _judged(
        expectation,
        ratio,
        low <= ratio <= high,
        f"{rows:,} rows are {ratio:.3g} times the mean of {len(seen)} of the {expectation.days} days before ({mean:,.1f}), "
        f"{low:g} to {high:g} times are expected",
    )


def _drift(expectation: Expectation, figures: Figures, reference: Reference) -> Judged:
    column, rule = expectation.column, expectation.rule
    assert column is not None
    if reference.model is None:
        return Judged(value=None, verdict=HOLDS, message="no champion yet")
    profile = reference.profiles.get(column)
    if profile is None or not profile.rows:
        message = f"the training days of champion {reference.model} don't have it"
        return Judged(value=None, verdict=NOT_MEASURED, message=message)
    bins = figures.bins.get((rule, column), {})
    value = psi(profile, bins) if rule == "psi" else ks(profile, bins)
    if value is None:
        return Judged(value=None, verdict=NOT_MEASURED, message="no value to compare")
    most = expectation.psi if rule == "psi" else expectation.ks
    assert most is not None
    name = "PSI" if rule == "psi" else "KS"
    return _judged(
        expectation,
        value,
        value <= most,
        f"{name} is {value:.4g} against the training days of champion {reference.model}, at most {most:g} is allowed",
    )


def psi(profile: Profile, bins: Mapping[str, int]) -> float | None:
    """The population stability index over the profile's bins and nulls, or values, others and nulls; None without rows."""
    names = [*profile.values, OTHER] if profile.kind == "string" else [str(number) for number in range(len(profile.counts))]
    total = sum(bins.values())
    if not total:
        return None
    expected = [*profile.counts, profile.nulls]
    found = [bins.get(name, 0) for name in (*names, NULL)]
    pairs = [
        (max(seen / total, EPSILON), max(there / profile.rows, EPSILON)) for seen, there in zip(found, expected, strict=True)
    ]
    return math.fsum((seen - there) * math.log(seen / there) for seen, there in pairs)


def ks(profile: Profile, bins: Mapping[str, int]) -> float | None:
    """The greatest distance between the two distributions, at the profile's points and right below each; nulls are left out.
    None where one of them has no value."""
    total = sum(rows for name, rows in bins.items() if name != NULL)
    known = profile.rows - profile.nulls
    if not total or not known:
        return None
    distance, passed = 0.0, 0
    for place in range(len(profile.points)):
        for offset, there in ((0, profile.below), (1, profile.up_to)):
            passed += bins.get(str(2 * place + offset), 0)
            distance = max(distance, abs(passed / total - there[place] / known))
    return distance


def ks_bins(points: Sequence[float]) -> list[tuple[str, float, bool]]:
    """The bins of KS, in order: name, upper end, and whether the bin holds the end; what is above all is one more."""
    return [(str(2 * place + at), point, bool(at)) for place, point in enumerate(points) for at in (0, 1)]


def _judged(expectation: Expectation, value: float, holds: bool, message: str) -> Judged:
    breach = FAILS if expectation.breach == "fail" else WARNS
    return Judged(value=value, verdict=HOLDS if holds else breach, message=message)
