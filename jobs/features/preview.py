"""`penstock features PIPELINE --preview DAY --entity K`: an entity's values, and the events that they came from.

Computed as a run computes them, of this one entity: of its events, and of those that could make one of them a repeat. Nothing is
written. What stands in the table is shown beside, where the day was computed.
"""

import json
import logging
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from jobs import batches, lake, reach, versions
from jobs.command import Job
from jobs.errors import RetryError, UsageError
from jobs.features import check, events, figures, tiles
from jobs.features.group import Group
from jobs.features.plan import Planning
from jobs.features.windows import Span, leaves
from jobs.interval import Interval, parse_day
from jobs.spark import session
from pipelines.declare import FeatureSet, Pipeline

log = logging.getLogger(__name__)

EVENTS = 100
"""The most events that are shown of a set, the newest first."""
SHOWN = ("event_time", "known_time", "topic", "topic_epoch", "kafka_partition", "kafka_offset")


def run(job: Job) -> None:
    """Show the entity's row of each set that has such an entity. The report counts; only what is printed holds values.

    Raises UsageError where no set has the entity or other days are given, RetryError where nothing was ingested.
    """
    assert job.pipeline is not None and job.interval is not None
    if str(job.interval) != str(parse_day(job.options.preview)):
        raise UsageError(f"--preview is about one day, {job.options.preview}: leave --from and --to out.")
    chosen = named(job.pipeline, job.options.entity)
    inputs = batches.snapshot(job.pipeline)
    try:
        batches.require_closed(job.pipeline, job.interval)
    except RetryError as opened:
        log.warning("%s Until then these values are those of what has come so far.", opened)
    found = {}
    with session() as spark:
        for feature_set, entity in chosen:
            found[feature_set.name] = of_set(spark, job.pipeline, feature_set, entity, job.interval.start, inputs)
    job.report.update(inputs=inputs, events={name: one["events_in_all"] for name, one in found.items()})
    job.shown["preview"] = found
    if not job.options.json:
        for feature_set, entity in chosen:
            print(told(feature_set, entity, job.interval.start, found[feature_set.name]))


def named(pipeline: Pipeline, text: str | None) -> list[tuple[FeatureSet, dict[str, str]]]:
    """The sets that have such an entity: `K` names the only field of one, `user=ann,shop=3` each field by itself, as does a JSON
    object, which can hold any value."""
    daily = [one for one in pipeline.features if one.accuracy == "day"]
    entities = "; ".join(dict.fromkeys(",".join(f"{name}=..." for name in one.entity) for one in daily))
    if not text:
        raise UsageError(f"--preview needs an entity, as --entity K or --entity {entities or 'field=value'}.")
    values = _fields(text)
    if values is None:
        chosen = [(one, {one.entity[0]: text}) for one in daily if len(one.entity) == 1]
    else:
        chosen = [(one, values) for one in daily if set(one.entity) == set(values)]
    if not chosen:
        raise UsageError(
            f"no feature set of {pipeline.name!r} that keeps rows by day has the entity {text!r}; known: {entities or 'none'}."
        )
    return chosen


def _fields(text: str) -> dict[str, str] | None:
    """The values by field; None where the text is the value itself."""
    if text.startswith("{"):
        try:
            return {name: value if isinstance(value, str) else json.dumps(value) for name, value in json.loads(text).items()}
        except ValueError as failure:
            raise UsageError(f"--entity {text} is no JSON object ({failure}).") from None
    return dict(pair.partition("=")[::2] for pair in text.split(",")) if "=" in text else None


def of_set(
    spark: SparkSession, pipeline: Pipeline, feature_set: FeatureSet, entity: Mapping[str, str], day: date, inputs: dict[str, Any]
) -> dict[str, Any]:
    """The row, the row in the table, and the newest EVENTS events in its longest window."""
    days = Interval(day, day + timedelta(days=1))
    planning = Planning(spark, pipeline, days, inputs)
    try:
        return _found(planning, feature_set, entity, days)
    finally:
        planning.release()


def _found(planning: Planning, feature_set: FeatureSet, entity: Mapping[str, str], days: Interval) -> dict[str, Any]:
    pipeline, day = planning.pipeline, days.start
    seen, made = planning.enriched(feature_set, _of_entity(planning, feature_set, entity, days))
    types = check.sets(check.fields_of(seen, [*(one.name for one in feature_set.source.fields), *made]), (feature_set,))
    group = Group((feature_set,), types)
    rows = group.rows(figures.of_events(group, seen, days), feature_set, pipeline.lateness).select(*feature_set.columns).collect()
    inside = _in_windows(group, seen, days)
    first = inside.orderBy(fn.col("event_time").desc(), *(fn.col(name).desc() for name in events.POSITION)).limit(EVENTS)
    return {
        "row": rows[0].asDict() if rows else None,
        "stored": _stored(pipeline, feature_set, entity, day),
        "events_in_all": inside.count(),
        "events": [row.asDict() for row in first.collect()],
    }


def _of_entity(planning: Planning, feature_set: FeatureSet, entity: Mapping[str, str], days: Interval) -> DataFrame:
    """The entity's events that count, of the days of the longest window."""
    source = feature_set.source
    span = reach.back(days, max(feature_set.windows))
    around = source.repeats_within
    found = reach.Reach(span, Interval(span.start - around, span.end + around))
    read = planning.read(source, found)
    own = fn.lit(True)
    for name in feature_set.entity:
        own = own & (fn.col(name).cast("string") == entity[name])
    # A repeat may say another entity: all events with an id of the entity's decide.
    ids = read.where(own).select(source.event_id).distinct()
    near = read.join(ids, source.event_id, "left_semi")
    return events.on_days(events.without_repeats(near, source, planning.kept), found).where(own)


def _in_windows(group: Group, seen: DataFrame, days: Interval) -> DataFrame:
    """The events in the longest window, with their position and `windows`, the names of those that hold them."""
    feature_set, span = group.sets[0], Span.of(days)
    placed = tiles.placed(group, tiles.events(group, seen), span)
    names = {window: feature_set.column(feature_set.aggregates[0], window).rpartition("_")[2] for window in group.windows}
    held = fn.array_compact(
        fn.array(*(fn.when(fn.col(leaves(window)) > span.first, fn.lit(names[window])) for window in group.windows))
    )
    fields = [one for one in feature_set.source.fields if one.name in seen.columns]
    # As text, instants stay in UTC whatever this machine's zone is.
    instants = ("event_time", "known_time", *(one.name for one in fields if one.type == "timestamp"))
    return (
        placed.withColumn("topic", fn.lit(feature_set.source.topic))
        .select(*SHOWN, held.alias("windows"), *(one.name for one in fields))
        .withColumns({name: fn.col(name).cast("string") for name in instants})
    )


def _stored(pipeline: Pipeline, feature_set: FeatureSet, entity: Mapping[str, str], day: date) -> dict[str, Any] | None:
    """The entity's row as the table has it."""
    table = versions.load(pipeline, f"features_{feature_set.name}")
    if table is None:
        return None
    quoted = {name: entity[name].replace("'", "''") for name in feature_set.entity}
    own = " and ".join(f"cast(\"{name}\" as string) = '{value}'" for name, value in quoted.items())
    rows = lake.query(table, f"select * from t where event_date = date '{day}' and {own}").to_pylist()
    return rows[0] if rows else None


def told(feature_set: FeatureSet, entity: Mapping[str, str], day: date, found: Mapping[str, Any]) -> str:
    """What was found, for people."""
    who = ", ".join(f"{name} {entity[name]}" for name in feature_set.entity)
    lines = [f"{feature_set.name}: {who} at the end of {day}"]
    row, stored = found["row"], found["stored"]
    if row is None:
        lines.append("  no event in the longest window, so no row")
    for name in feature_set.columns if row is not None else ():
        differs = stored is not None and stored.get(name) != row[name] and not _both_missing(stored.get(name), row[name])
        lines.append(f"  {name:<40} {row[name]!s:>20}{f'   in the table: {stored[name]}' if differs else ''}")
    if stored is None:
        lines.append("  (the table has no such row)")
    more = found["events_in_all"] - len(found["events"])
    for event in found["events"]:
        position = f"{event['topic']} {event['kafka_partition']}:{event['kafka_offset']}"
        values = ", ".join(f"{name}={value}" for name, value in event.items() if name not in (*SHOWN, "windows"))
        lines.append(
            f"  {event['event_time']}  known {event['known_time']}  {position}  in {','.join(event['windows'])}  {values}"
        )
    return "\n".join([*lines, f"  and {more} older events" if more > 0 else ""]).rstrip()


def _both_missing(one: Any, other: Any) -> bool:
    return (one is None or one != one) and (other is None or other != other)
