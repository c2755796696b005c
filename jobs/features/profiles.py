"""What a day is compared with for drift: how the columns lay on the champion's training days.

The examples are read at the version that the champion was trained on, column by column through Parquet, and never by Spark.
A profile is kept in `<p>/profiles`, so it is made once for each model version. Of strings it holds digests, since a value may
name a person, whom `penstock erase` could not take out of it.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from jobs import champion, lake, store
from jobs.champion import Decision
from jobs.interval import DAY, Interval
from jobs.parts import embargo
from pipelines.declare import Pipeline

BINS = 10
"""Bins of a number for PSI, of nearly equal size on the training days; nulls are one more."""
POINTS = 100
"""Quantiles at which KS compares: a larger distance between two of them can hide at most 1 % of the training days' rows."""
VALUES = 1000
"""The most frequent values of a string that are told apart; what is left is "other"."""
DIGITS = 16
"""Hexadecimal digits of a value's SHA-256."""

SCHEMA = pa.schema(
    [
        ("model", pa.int64()),
        ("column", pa.string()),
        ("basis", pa.string()),
        ("profile", pa.string()),
        ("recorded_at", lake.INSTANT),
    ]
)
"""`basis` says which table, version and days the profile was made from."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """How one column lay."""

    kind: Literal["number", "string"]
    rows: int
    nulls: int
    edges: tuple[float, ...] = ()
    """Of a number, the inner ends of the bins; a bin holds its upper end."""
    values: tuple[str, ...] = ()
    """Of a string, the digests of the values that are told apart."""
    counts: tuple[int, ...] = ()
    """Rows in each bin, or of each value and of all others."""
    points: tuple[float, ...] = ()
    """Of a number, its quantiles, each once."""
    below: tuple[int, ...] = ()
    """Rows below each point."""
    up_to: tuple[int, ...] = ()
    """Rows below or at each point."""

    @classmethod
    def of_numbers(cls, values: npt.NDArray[np.float64], nulls: int) -> Self:
        """From all values that are known."""
        ordered = np.sort(values)
        rows = len(ordered) + nulls
        if not len(ordered):
            return cls(kind="number", rows=rows, nulls=nulls, counts=(0,))
        edges = _quantiles(ordered, BINS)
        points = np.unique(np.concatenate([ordered[:1], _quantiles(ordered, POINTS), ordered[-1:]]))
        ends = np.concatenate([[0], np.searchsorted(ordered, edges, side="right"), [len(ordered)]])
        return cls(
            kind="number",
            rows=rows,
            nulls=nulls,
            edges=tuple(map(float, edges)),
            counts=tuple(map(int, np.diff(ends))),
            points=tuple(map(float, points)),
            below=tuple(map(int, np.searchsorted(ordered, points, side="left"))),
            up_to=tuple(map(int, np.searchsorted(ordered, points, side="right"))),
        )

    @classmethod
    def of_strings(cls, counts: Iterable[tuple[str, int]], nulls: int) -> Self:
        """From the rows of each value."""
        by_rows = sorted(counts, key=lambda pair: (-pair[1], pair[0]))
        kept, rest = by_rows[:VALUES], sum(rows for _, rows in by_rows[VALUES:])
        return cls(
            kind="string",
            rows=nulls + rest + sum(rows for _, rows in kept),
            nulls=nulls,
            values=tuple(digest(value) for value, _ in kept),
            counts=(*(rows for _, rows in kept), rest),
        )

    @classmethod
    def read(cls, text: str) -> Self:
        """From its JSON."""
        said: dict[str, Any] = json.loads(text)
        plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
        return cls(**plain)

    def write(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def digest(value: str) -> str:
    """What a profile knows of a string's value."""
    return hashlib.sha256(value.encode()).hexdigest()[:DIGITS]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """The champion and the profiles of its training days."""

    model: int | None
    """None before the first champion."""
    profiles: dict[str, Profile]
    """By column; one that can't be had is not there."""


def reference(pipeline: Pipeline, columns: Iterable[str]) -> Reference:
    """The profiles of some of the examples' columns. Raises RetryError where the lake is away."""
    wanted = list(dict.fromkeys(columns))
    pinned = champion.history(pipeline).champion if wanted else None
    if pinned is None:
        return Reference(model=None, profiles={})
    name = pinned.snapshot.get("examples_table", "examples")
    version, days = int(pinned.snapshot["examples_version"]), training_days(pipeline, pinned)
    basis = f"{name}, version {version}, {days}"
    known = _kept(pipeline, pinned.candidate, basis)
    made: dict[str, Profile] = {}
    if any(column not in known for column in wanted):
        place = lake.uri(pipeline.name, name)
        try:
            table = lake.load(place, version)
            if table is not None:
                made = dict(_make(place, table, days, [column for column in wanted if column not in known]))
        except (DeltaError, FileNotFoundError) as failure:
            log.warning("version %d of %s can't be read, so drift against it can't be told: %s", version, place, failure)
        _keep(pipeline, pinned.candidate, basis, made)
    return Reference(model=pinned.candidate, profiles=known | made)


def training_days(pipeline: Pipeline, decision: Decision) -> Interval:
    """The days (`as_of_date`) of a model's training part. A version that doesn't say where it ended goes by the declaration."""
    tags = decision.snapshot
    start = date.fromisoformat(tags["trained_from"])
    if "training_to" in tags:
        return Interval.inclusive(start, date.fromisoformat(tags["training_to"]))
    end = decision.trained_through + DAY - pipeline.training.validation - embargo(pipeline)
    return Interval(start, max(end, start + DAY))


def _make(place: str, table: DeltaTable, days: Interval, columns: list[str]) -> Iterator[tuple[str, Profile]]:
    """One column after another: the memory of a profile is that of one column of the training days."""
    actions = pa.table(table.get_add_actions(flatten=True))
    day = actions["partition.as_of_date"].cast(pa.date32())
    paths = actions.filter(pc.and_(pc.greater_equal(day, days.start), pc.less(day, days.end)))["path"].to_pylist()
    there = {field.name for field in table.schema().fields}
    filesystem, base = store.place(place)
    for column in columns:
        if column not in there:
            continue
        with store.asked(f"the files of {place} could not be read"):
            parts = [pq.read_table(f"{base}/{path}", columns=[column], filesystem=filesystem)[column] for path in paths]
        yield (
            column,
            _profile(pa.chunked_array([chunk for part in parts for chunk in part.chunks] or [pa.nulls(0, pa.float64())])),
        )


def _profile(values: pa.ChunkedArray) -> Profile:
    known = values.drop_null()
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        counts = pc.value_counts(known)
        pairs = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
        return Profile.of_strings(pairs, values.null_count)
    return Profile.of_numbers(known.cast(pa.float64()).to_numpy(), values.null_count)


def _quantiles(ordered: npt.NDArray[np.float64], parts: int) -> npt.NDArray[np.float64]:
    """The values at the ends of so many parts of nearly equal size, without the outer ends, each once."""
    places = np.ceil(np.arange(1, parts) * len(ordered) / parts).astype(np.int64) - 1
    return np.unique(ordered[np.maximum(places, 0)])


def _uri(pipeline: Pipeline) -> str:
    return lake.uri(pipeline.name, "profiles")


def _kept(pipeline: Pipeline, model: int, basis: str) -> dict[str, Profile]:
    table = lake.load(_uri(pipeline))
    if table is None:
        return {}
    found = lake.query(table, f"select \"column\", profile from t where model = {model} and basis = '{basis}'")
    return {row["column"]: Profile.read(row["profile"]) for row in found.to_pylist()}


def _keep(pipeline: Pipeline, model: int, basis: str, made: dict[str, Profile]) -> None:
    """A neighbour may keep the same at once: equal rows do no harm."""
    now = datetime.now(UTC)
    rows = [
        {"model": model, "column": column, "basis": basis, "profile": profile.write(), "recorded_at": now}
        for column, profile in made.items()
    ]
    if rows:
        lake.append(_uri(pipeline), pa.Table.from_pylist(rows, schema=SCHEMA))
