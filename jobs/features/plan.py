"""The frames of a run: each source is read once, and what several tables need is kept."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from jobs import reach
from jobs.features import check, dimensions, events, spine, windows
from jobs.features.examples import examples
from jobs.features.labels import labels, outcomes
from jobs.features.tables import Output
from jobs.interval import DAY, Interval
from pipelines.declare import Pipeline, Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a run writes. Nothing is computed before the first write."""

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
        for frame in self.kept:
            frame.unpersist()


def plan(spark: SparkSession, pipeline: Pipeline, interval: Interval, versions: dict[str, Any]) -> Plan:
    """Declare the frames, from the events tables' `versions`. Raises UsageError for expressions that don't hold."""
    histories = {
        source.name: _history(spark, pipeline, source, found, versions[source.name])
        for source in pipeline.sources
        if (found := reach.history(pipeline, source, interval)) is not None
    }
    own = spine.rows(spark, pipeline, versions[pipeline.spine.source.name], reach.spine(pipeline, interval))
    # Each looks into its table's log, which is waiting more than work.
    with ThreadPoolExecutor() as pool:
        list(pool.map(DataFrame.persist, (*histories.values(), own)))
    check.label(check.fields_of(histories[pipeline.label.source.name], pipeline.label.source), pipeline)
    sets: dict[str, DataFrame] = {}
    sums: list[DataFrame] = []
    for source in dict.fromkeys(s.source for s in pipeline.features):
        together = windows.Sums(tuple(s for s in pipeline.features if s.source == source))
        check.sets(check.fields_of(histories[source.name], source), together.sets)
        kept = together.of(histories[source.name], interval).persist()
        sums.append(kept)
        sets |= {s.name: together.rows(kept, s, pipeline.lateness) for s in together.sets}
    facts = [dimensions.newest(histories[d.source.name], d, interval) for d in pipeline.dimensions]
    matured = outcomes(pipeline, own, histories[pipeline.label.source.name], interval).persist()
    return Plan(
        sets=tuple(
            Output(table=f"features_{s.name}", frame=sets[s.name], partition="event_date", days=interval, order=s.entity)
            for s in pipeline.features
        ),
        labels=Output(table="labels", frame=labels(matured), partition="mature_date", days=interval, order=("as_of", "key")),
        examples=Output(
            table="examples",
            frame=examples(pipeline, own, [sets[s.name] for s in pipeline.features], facts, interval),
            partition="as_of_date",
            # The features of day D serve the examples of the day after.
            days=Interval(interval.start + DAY, interval.end + DAY),
            order=("as_of", "key"),
        ),
        spine=own,
        outcomes=matured,
        kept=(*histories.values(), own, *sums, matured),
    )


def _history(spark: SparkSession, pipeline: Pipeline, source: Source, found: reach.Reach, version: int) -> DataFrame:
    """The events of a source that count, with the fields that features, dimensions and labels take from it."""
    fields: list[str] = []
    for feature_set in pipeline.features:
        if feature_set.source == source:
            fields += [
                *feature_set.entity,
                *events.fields_in(source, [text for a in feature_set.aggregates for text in (a.of, a.where)]),
            ]
    for dimension in pipeline.dimensions:
        if dimension.source == source:
            fields += [*dimension.entity, *dimension.fields]
    if pipeline.label.source == source:
        fields += [pipeline.label.key, *events.fields_in(source, [pipeline.label.of])]
    return events.on_days(events.without_repeats(events.read(spark, source, version, found, fields), source), found)
