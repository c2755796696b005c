"""Tiles kept in a table: each day's arrivals are added up once, and later runs read the sums instead of the events.

`tiles_<set>` is partitioned by `known_date`, the day on which its events were known to have happened: the later of the day they
happened and the day they were known. `kind` tells a day's rows apart: sums and states, the different values that are counted, as
an array, and one row that says at which version of the events the day was looked at (`_version`), by which `_code`, so that a day
without arrivals is there too.

A day's tiles hold at a version of the events when no commit between it and the version that they were made of has rows that would
change them: rows known by that day, of the days that its arrivals and their repeats can be of. What doesn't hold, or was made by
other code, is made again: that is work, never a result.
"""

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TypeAlias

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from jobs import batches, lake, ledger, reach, stale, versions
from jobs.errors import RetryError
from jobs.features import events, once, tables
from jobs.features.group import Group
from jobs.features.rows import stored
from jobs.features.tiles import tiles, values
from jobs.features.windows import remainders
from jobs.interval import DAY, Interval
from jobs.reach import Reach, epoch
from jobs.stale import Change
from pipelines.declare import FeatureSet, Pipeline, Source

log = logging.getLogger(__name__)

SUMS = 0
LOOKED = -1
"""The kinds of rows; a value's kind is 1 and more."""
TRIES = 3
Prepare: TypeAlias = Callable[[DataFrame], DataFrame]
PIECES = 4
"""The most pieces in which days are made: each reads the repeats around it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """The tiles of one set."""

    spark: SparkSession
    pipeline: Pipeline
    group: Group
    """Of this set alone."""
    version: int
    """The version of the events that the tiles shall show."""
    fields: tuple[str, ...]
    """What the set takes from an event."""
    kept: list[DataFrame]
    """What is kept in memory, for the planner to give back."""

    @property
    def declared(self) -> FeatureSet:
        """The set."""
        return self.group.sets[0]

    @property
    def source(self) -> Source:
        """Its source."""
        return self.declared.source

    def read(self, days: Interval, prepare: Prepare) -> tuple[DataFrame, dict[str, DataFrame]]:
        """The tiles and the values, by stem, that windows at the ends of the days see; what lacks is made and written first.

        `prepare` gives events the set's own columns. Raises RetryError where neighbours always wrote other tiles meanwhile.
        """
        wanted = Interval(reach.back(days, max(self.declared.windows)).start, days.end)
        for _ in range(TRIES):
            table = versions.load(self.pipeline, self._name)
            lacking = self._lacking(table, wanted)
            if not lacking:
                assert table is not None
                return self._split(table, wanted, days)
            pieces = stale.intervals(lacking)
            for piece in pieces if len(pieces) <= PIECES else [Interval(min(lacking), max(lacking) + DAY)]:
                self._make(piece, prepare)
        raise RetryError(f"{self._name} of {self.pipeline.name} was written by another run each time. Run this one again.")

    @property
    def _name(self) -> str:
        return f"tiles_{self.declared.name}"

    def _lacking(self, table: DeltaTable | None, wanted: Interval) -> list[date]:
        """The days whose tiles are not there, or don't hold at the wanted version."""
        if table is None:
            return list(wanted.days())
        looked = lake.query(
            table,
            f"select known_date, _version from t where kind = {LOOKED} and _code = '{ledger.fingerprint('features')}' "
            f"and known_date >= date '{wanted.start}' and known_date < date '{wanted.end}'",
        )
        here: dict[date, int] = {row["known_date"]: row["_version"] for row in looked.to_pylist()}
        changes = stale.changes(self.source, min((self.version, *here.values())))
        return [day for day in wanted.days() if day not in here or not self._holds(day, here[day], changes)]

    def _holds(self, day: date, made: int, changes: Iterable[Change]) -> bool:
        first, last = sorted((made, self.version))
        around = self.source.repeats_within
        span = Interval(self._earliest(day) - around, day + DAY + around)
        return not any(
            first < change.version <= last
            and any(known <= day and span.start <= event < span.end for event, known in change.rows)
            for change in changes
        )

    def _earliest(self, day: date) -> date:
        """The first day of events that a window can still hold when they arrive on a day."""
        return reach.back(Interval(day, day + DAY), max(self.declared.windows)).start

    def _make(self, days: Interval, prepare: Prepare) -> None:
        """Add the arrivals of some days up, and write them."""
        log.info("features: tiles of %s, %s", self.declared.name, days)
        seen = prepare(self._arrivals(days))
        kept = ("event_day", "part")
        named = fn.date_from_unix_date(fn.greatest("event_day", "known_day")).alias("known_date")
        entity = self.declared.entity
        keys = [*entity, *kept, named]
        rows = self._merged(tiles(self.group, seen).select(*keys, fn.lit(SUMS).alias("kind"), *self._stems))
        for number, (stem, frame) in enumerate(values(self.group, seen).items(), start=1):
            # A row for each value would be as many as events where an entity has many values.
            arrays = (
                frame.groupBy(*keys)
                .agg(fn.collect_set("value").alias(stem))
                .withColumns({"kind": fn.lit(number), "_size": fn.size(stem).cast("long")})
            )
            rows = rows.unionByName(arrays, allowMissingColumns=True)
        looked = self.spark.range(epoch(days.start), epoch(days.end)).select(
            fn.date_from_unix_date(fn.col("id").cast("int")).alias("known_date"),
            fn.lit(LOOKED).alias("kind"),
            fn.lit(self.version).cast("long").alias("_version"),
            fn.lit(ledger.fingerprint("features")).alias("_code"),
        )
        rows = rows.unionByName(looked, allowMissingColumns=True)
        output = tables.Output(table=self._name, frame=rows, partition="known_date", days=days, order=("kind", *entity))
        tables.write(output, self.pipeline, run_id=self._name, inputs={self.source.name: self.version})

    def _arrivals(self, days: Interval) -> DataFrame:
        """The events that were known to have happened on some days, without repeats.

        Only the days are read on which such events happened, as the files' ends tell, and those around them for the repeats.
        """
        around = self.source.repeats_within
        span = Interval(self._earliest(days.start), days.end)
        happened = self._happened(days, span)
        # The days themselves are always among them.
        needed = sorted({day + timedelta(days=shift) for day in happened for shift in range(-around.days, around.days + 1)})
        found = Reach(span, Interval(needed[0], needed[-1] + DAY))
        read = events.read(self.spark, self.source, self.version, found, self.fields)
        # As dates, so that only the needed partitions are opened.
        read = read.where(fn.date_from_unix_date("event_day").isin(needed))
        counted = events.without_repeats(read, self.source, self.kept, rows=self._rows(needed))
        arrived = fn.greatest("event_day", "known_day").between(epoch(days.start), epoch(days.last))
        return events.on_days(counted, found).where(arrived)

    def _happened(self, days: Interval, span: Interval) -> set[date]:
        """The days on which events happened that may have arrived on some days."""
        table = lake.load(batches.events_uri(self.source), self.version)
        assert table is not None
        found = set(days.days())
        files = pa.table(table.get_add_actions(flatten=True))
        if files.num_rows:
            for file in files.select(["partition.event_date", "min.known_time", "max.known_time"]).to_pylist():
                day, first, last = file.values()
                open_ended = first is None or last is None
                if (
                    day is not None
                    and span.start <= day < span.end
                    and (open_ended or (first.date() < days.end and last.date() >= days.start))
                ):
                    found.add(day)
        return found

    def _rows(self, needed: list[date]) -> int:
        return events.rows(self.source, self.version, Interval(needed[0], needed[-1] + DAY))

    def _merged(self, rows: DataFrame) -> DataFrame:
        """One row for each entity, event day, part and day of arrival: those known before they happened arrive together."""
        keys = [*self.declared.entity, "event_day", "part", "known_date", "kind"]
        sums = [fn.sum(stem).alias(stem) for stem in self.group.sums.values()]
        return rows.groupBy(*keys).agg(
            *sums, *(state.merge(stem, fn.lit(True)).alias(stem) for state, stem in self.group.states.items())
        )

    def _most(self, table: DeltaTable, wanted: Interval) -> float:
        """How many values an entity can have at most, as the ends of the files tell; infinite where they don't."""
        files = pa.table(table.get_add_actions(flatten=True))
        names = ("partition.known_date", "num_records", "null_count._size", "max._size", "min.event_day", "max.event_day")
        if not set(names) <= set(files.column_names):
            return math.inf
        found = 0
        for file in files.select(names).to_pylist():
            day, rows, nulls, size, first, last = file.values()
            if not wanted.start <= day < wanted.end or (nulls is not None and nulls == rows):
                continue
            if size is None or first is None or last is None:
                return math.inf
            # An entity has a row for each day on which its arrivals happened, and part of it.
            found += size * (last - first + 1) * (len(remainders(self.group.windows)) + 1)
        return found

    @property
    def _stems(self) -> list[str]:
        return [*self.group.sums.values(), *self.group.states.values()]

    def _split(self, table: DeltaTable, wanted: Interval, days: Interval) -> tuple[DataFrame, dict[str, DataFrame]]:
        """A version's tiles and values of some days, as `figures.of_tiles` takes them: for one day, values as arrays.

        Where no entity can have very many values, one day's tiles have them as columns, in rows of their own: each of a window's
        files costs more to open than to read.
        """
        rows = stored(self.spark, versions.uri(self.pipeline, self._name), table.version(), "known_date", wanted).withColumns(
            {"known_day": fn.unix_date("known_date"), "set": fn.lit(0)}
        )
        keys = ["set", *self.declared.entity, "event_day", "part", "known_day"]
        if len(days) == 1 and self._most(table, wanted) <= once.MANY:
            return rows.where(fn.col("kind") >= SUMS).select(*keys, *self._stems, *self.group.distincts.values()), {}
        found = {}
        for number, stem in enumerate(self.group.distincts.values(), start=1):
            arrays = rows.where(fn.col("kind") == number).select(*keys, "_size", fn.col(stem).alias("_array"))
            each = arrays.withColumn("value", fn.explode("_array")).drop("_array", "_size")
            found[stem] = arrays if len(days) == 1 else each
        return rows.where(fn.col("kind") == SUMS).select(*keys, *self._stems), found
