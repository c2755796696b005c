"""The frames of a run: each source is read once, and what several tables need is kept."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from jobs import reach
from jobs.features import check, events, figures, lookups, spine
from jobs.features.examples import Known, examples
from jobs.features.group import Group, grouped
from jobs.features.labels import labels, outcomes
from jobs.features.moments import Moments
from jobs.features.stored import Stored
from jobs.features.tables import Output
from jobs.interval import Interval
from pipelines.declare import DailySpine, Dimension, FeatureSet, Pipeline, Source, Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run writes."""

    sets: tuple[Output, ...]
    labels: Output
    examples: Output
    """It reads what the sets keep."""
    spine: DataFrame
    """The spine's rows of the interval and of the labels that mature in it, late ones included."""
    outcomes: DataFrame
    kept: tuple[DataFrame, ...]

    @property
    def outputs(self) -> tuple[Output, ...]:
        """All of them."""
        return (*self.sets, self.labels, self.examples)

    def release(self) -> None:
        """Give the memory back."""
        release(self.kept)


def plan(spark: SparkSession, pipeline: Pipeline, interval: Interval, versions: dict[str, Any]) -> Plan:
    """Declare the frames, from the `versions` of the events tables and snapshot tables.

    Little is computed before the first write. Raises UsageError for expressions that don't hold.
    """
    planning = Planning(spark, pipeline, interval, versions)
    try:
        return planning.plan()
    except BaseException:
        planning.release()
        raise


@dataclass(slots=True)
class Planning:
    """How the frames of a run are declared."""

    spark: SparkSession
    pipeline: Pipeline
    interval: Interval
    versions: dict[str, Any]
    histories: dict[str, DataFrame] = field(default_factory=dict)
    """The events of each source that count, of the days that matter."""
    small: list[str] = field(default_factory=list)
    """The sources of which so few events are read that they are kept in memory: of many, reading them again costs less."""
    kept: list[DataFrame] = field(default_factory=list)

    def plan(self) -> Plan:
        """All of them."""
        pipeline, interval = self.pipeline, self.interval
        found = {source.name: reach.history(pipeline, source, interval, tiled=False) for source in pipeline.sources}
        self.histories = {
            source.name: self._history(source, reached)
            for source in pipeline.sources
            if (reached := found[source.name]) is not None
        }
        own = self._spine()
        # Each looks into its table's log, which is waiting more than work.
        with ThreadPoolExecutor() as pool:
            self.kept += pool.map(DataFrame.persist, (*(self.histories[name] for name in self.small), own))
        known: dict[str, Known] = {}
        for together in grouped(pipeline.features):
            known |= self._sets(together)
        facts = [lookups.at_day_ends(self._facts(d), d, reach.feature_days(pipeline, interval)) for d in pipeline.dimensions]
        fields = check.fields_of(self.histories[pipeline.label.source.name], _names(pipeline.label.source))
        types = check.label(fields, pipeline)
        matured = outcomes(pipeline, own, self.histories[pipeline.label.source.name], interval, types).persist()
        self.kept.append(matured)
        return Plan(
            sets=tuple(self._outputs(known)),
            labels=Output(table="labels", frame=labels(matured), partition="mature_date", days=interval, order=("as_of", "key")),
            examples=Output(
                table="examples",
                frame=examples(pipeline, own, known, facts, interval),
                partition="as_of_date",
                days=reach.as_of_days(pipeline, interval),
                order=("as_of", "key"),
            ),
            spine=own,
            outcomes=matured,
            kept=tuple(self.kept),
        )

    def release(self) -> None:
        """Give back what is kept in memory."""
        release(self.kept)

    def _history(self, source: Source, found: reach.Reach) -> DataFrame:
        """The events of a source that count."""
        rows = events.rows(source, self.versions[source.name], found.read)
        if rows <= events.FEW:
            self.small.append(source.name)
        return events.on_days(events.without_repeats(self.read(source, found), source, self.kept, rows=rows), found)

    def read(self, source: Source, found: reach.Reach) -> DataFrame:
        """A source's events, repeats too, with the fields that features, dimensions and labels take from it."""
        return events.read(self.spark, source, self.versions[source.name], found, _fields(self.pipeline, source))

    def enriched(self, s: FeatureSet, seen: DataFrame) -> tuple[DataFrame, list[str]]:
        """A set's events with the columns that it gives them, and the names of these."""
        for lookup in s.lookups:
            seen = lookups.looked_up(seen, self._facts(lookup), lookup, small=self._small(lookup))
        if s.lookups:
            self.kept.append(seen.persist())
        made = [*(column for lookup in s.lookups for column in lookup.columns), *(one.name for one in s.per_event)]
        return check.per_event(seen, s), made

    def _spine(self) -> DataFrame:
        declared = self.pipeline.spine
        if isinstance(declared, DailySpine):
            days = reach.spine_days(self.pipeline, self.interval)
            check.sets(self._checked(declared.source), [spine.active(declared)])
            return spine.of_days(self.pipeline, self.histories[declared.source.name], days)
        reached = reach.spine(self.pipeline, self.interval)
        return spine.of_events(self.spark, self.pipeline, self.versions[declared.source.name], reached, self.kept)

    def _sets(self, together: tuple[FeatureSet, ...]) -> dict[str, Known]:
        """What is known by sets that share a pass."""
        first = together[0]
        if first.tiles:
            return {first.name: self._of_tiles(first)}
        seen, made = self.enriched(first, self.histories[first.source.name])
        types = check.sets(check.fields_of(seen, [*_names(first.source), *made]), together)
        known: dict[str, Known] = {}
        daily = tuple(s for s in together if s.accuracy == "day")
        if daily:
            group, days = Group(daily, types), reach.feature_days(self.pipeline, self.interval)
            found = figures.of_events(group, seen, days).persist()
            self.kept.append(found)
            known |= {s.name: group.rows(found, s, self.pipeline.lateness) for s in daily}
        start, end = reach.examples_as_of(self.pipeline, self.interval)
        for feature_set in together:
            if feature_set.accuracy == "event":
                known[feature_set.name] = _joining(Moments(Group((feature_set,), types), start, end), seen)
        return known

    def _of_tiles(self, s: FeatureSet) -> DataFrame:
        """The rows of a set that keeps tiles."""
        version, fields = self.versions[s.source.name], tuple(_of_set(s))
        days = reach.feature_days(self.pipeline, self.interval)
        reached = reach.Reach(days, days)
        schema = check.per_event(events.read(self.spark, s.source, version, reached, fields), s)
        types = check.sets(check.fields_of(schema, [*_names(s.source), *(one.name for one in s.per_event)]), (s,))
        group = Group((s,), types)
        stored = Stored(spark=self.spark, pipeline=self.pipeline, group=group, version=version, fields=fields, kept=self.kept)
        added, values = stored.read(days, lambda seen: check.per_event(seen, s))
        found = figures.of_tiles(group, added, values, days).persist()
        self.kept.append(found)
        return group.rows(found, s, self.pipeline.lateness)

    def _outputs(self, known: dict[str, Known]) -> Iterable[Output]:
        """The tables of the sets that have one."""
        for s in self.pipeline.features:
            frame = known[s.name]
            if isinstance(frame, DataFrame):
                own = frame.where(f"event_date between date '{self.interval.start}' and date '{self.interval.last}'")
                yield Output(table=f"features_{s.name}", frame=own, partition="event_date", days=self.interval, order=s.entity)

    def _facts(self, dimension: Dimension) -> DataFrame:
        """The versions of a dimension."""
        if isinstance(dimension.source, Table):
            return lookups.table(self.spark, dimension.source, self.versions[dimension.source.name])
        name = dimension.source.name
        if name not in self.histories:
            reached = reach.history(self.pipeline, dimension.source, self.interval)
            assert reached is not None
            self.histories[name] = self._history(dimension.source, reached)
        return self.histories[name]

    def _small(self, lookup: Dimension) -> bool:
        """Whether every task can hold all versions. Of a table Spark decides by its size."""
        if isinstance(lookup.source, Table):
            return False
        reached = reach.history(self.pipeline, lookup.source, self.interval)
        assert reached is not None
        return events.rows(lookup.source, self.versions[lookup.source.name], reached.read) <= lookups.SMALL

    def _checked(self, source: Source) -> DataFrame:
        return check.fields_of(self.histories[source.name], _names(source))


def release(kept: Iterable[DataFrame]) -> None:
    """Give frames back, the last first: Spark plans those anew that are made of one that goes."""
    for frame in reversed([*kept]):
        frame.unpersist()


def _joining(moments: Moments, seen: DataFrame) -> Known:
    return lambda rows: moments.joined(rows, seen)


def _names(source: Source) -> list[str]:
    return [one.name for one in source.fields]


def _fields(pipeline: Pipeline, source: Source) -> list[str]:
    """The fields that features, dimensions, labels and a daily spine take from a source."""
    fields: list[str] = []
    for s in pipeline.features:
        if s.source == source:
            fields += _of_set(s)
    for dimension in (*pipeline.dimensions, *(lookup for s in pipeline.features for lookup in s.lookups)):
        if dimension.source == source:
            fields += [*dimension.entity, *dimension.fields]
    label = pipeline.label
    if label.source == source:
        texts = [label.of, *(text for a in label.aggregates for text in (a.of, a.where))]
        fields += [*((label.key,) if label.key else label.entity), *events.fields_in(source, texts)]
    if isinstance(pipeline.spine, DailySpine) and pipeline.spine.source == source:
        fields += [*pipeline.spine.entity, *events.fields_in(source, [pipeline.spine.where])]
    return fields


def _of_set(s: FeatureSet) -> list[str]:
    """The fields that a set takes from its events."""
    texts = [s.where, *(one.sql for one in s.per_event), *(text for a in s.aggregates for text in (a.of, a.where))]
    return [*s.entity, *(name for lookup in s.lookups for name in lookup.entity), *events.fields_in(s.source, texts)]
