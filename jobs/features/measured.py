"""The figures that expectations go by, counted by day over a frame that is kept: no source is read again for them."""

from collections.abc import Iterable, Sequence
from datetime import date
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs.features.judged import NULL, OTHER, Figures, ks_bins
from jobs.features.profiles import DIGITS, Profile, Reference
from pipelines.declare import Expectation


def measure(
    frame: DataFrame, day: str, key: Sequence[str], expectations: Iterable[Expectation], reference: Reference
) -> dict[date, Figures]:
    """The figures of each day that has rows. `day` is the column to go by, `key` what `unique` means without a column."""
    expectations = list(expectations)
    found: dict[date, Figures] = {}
    _simple(frame, day, expectations, found)
    for column in {one.column for one in expectations if one.rule == "unique"}:
        names = list(key) if column is None else [column]
        for row in _repeats(frame, day, names).collect():
            found[row["day"]].repeats[column] = row["repeats"]
    _bins(frame, day, expectations, reference, found)
    return found


def _simple(frame: DataFrame, day: str, expectations: list[Expectation], found: dict[date, Figures]) -> None:
    nulls = list(dict.fromkeys(one.column for one in expectations if one.rule == "nulls"))
    ends = list(dict.fromkeys(one.column for one in expectations if one.rule == "between"))
    counted = frame.groupBy(fn.col(day).alias("day")).agg(
        fn.count("*").alias("rows"),
        *(fn.count_if(fn.col(str(name)).isNull()).alias(f"null_{place}") for place, name in enumerate(nulls)),
        *(fn.min(fn.col(str(name)).cast("double")).alias(f"least_{place}") for place, name in enumerate(ends)),
        *(fn.max(fn.col(str(name)).cast("double")).alias(f"greatest_{place}") for place, name in enumerate(ends)),
    )
    for row in counted.collect():
        found[row["day"]] = Figures(
            rows=row["rows"],
            nulls={str(name): row[f"null_{place}"] for place, name in enumerate(nulls)},
            least={str(name): row[f"least_{place}"] for place, name in enumerate(ends)},
            greatest={str(name): row[f"greatest_{place}"] for place, name in enumerate(ends)},
        )


def _repeats(frame: DataFrame, day: str, names: list[str]) -> DataFrame:
    known = reduce(Column.__and__, (fn.col(name).isNotNull() for name in names))
    by_value = frame.where(known).groupBy(fn.col(day).alias("day"), *names).agg(fn.count("*").alias("times"))
    return by_value.groupBy("day").agg(fn.sum(fn.col("times") - 1).alias("repeats"))


def _bins(frame: DataFrame, day: str, expectations: list[Expectation], reference: Reference, found: dict[date, Figures]) -> None:
    """Each row falls into one bin for each rule and column; what comes back is a count for each bin."""
    wanted = dict.fromkeys((one.rule, str(one.column)) for one in expectations if one.rule in ("psi", "ks"))
    checks = [(rule, column, reference.profiles[column]) for rule, column in wanted if column in reference.profiles]
    if not checks:
        return
    bins = fn.array(
        *(
            fn.struct(fn.lit(place).alias("check"), _bin(rule, column, profile).alias("bin"))
            for place, (rule, column, profile) in enumerate(checks)
        )
    )
    each = frame.select(fn.col(day).alias("day"), fn.explode(bins).alias("one"))
    for row in each.groupBy("day", "one.check", "one.bin").agg(fn.count("*").alias("rows")).collect():
        rule, column, _ = checks[row["check"]]
        found[row["day"]].bins.setdefault((rule, column), {})[row["bin"]] = row["rows"]


def _bin(rule: str, column: str, profile: Profile) -> Column:
    value = fn.col(column)
    if profile.kind == "string":
        digest = fn.substring(fn.sha2(value.cast("string").cast("binary"), 256), 1, DIGITS)
        named = fn.when(digest.isin(list(profile.values)), digest).otherwise(OTHER) if profile.values else fn.lit(OTHER)
        return fn.when(value.isNull(), NULL).otherwise(named)
    ends = ks_bins(profile.points) if rule == "ks" else [(str(place), edge, True) for place, edge in enumerate(profile.edges)]
    last = str(len(ends)) if rule == "psi" else str(2 * len(profile.points))
    return fn.expr(f"if(`{column}` is null, '{NULL}', {_search(f'cast(`{column}` as double)', ends, last)})")


def _search(value: str, ends: list[tuple[str, float, bool]], last: str) -> str:
    """A binary search written out: which of the bins a value lies in."""
    if not ends:
        return f"'{last}'"
    middle = len(ends) // 2
    name, end, holds = ends[middle]
    left = _search(value, ends[:middle], name)
    right = _search(value, ends[middle + 1 :], last)
    return f"if({value} {'<=' if holds else '<'} double('{end!r}'), {left}, {right})"
