"""Labels: what became true of an example, once its horizon and the lateness of labels have passed."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from jobs.features.events import POSITION, shift
from jobs.features.group import Types
from jobs.features.measures import figure, parts
from jobs.features.spine import on_time
from jobs.interval import Interval
from jobs.reach import labels_as_of
from pipelines.declare import Label, Pipeline

COLUMNS = ("key", "as_of", "label", "weight", "mature_at", *POSITION[1:], "mature_date")
HASHES = 2**53
"""An example's hash is one of so many: as many as a double tells apart between 0 and 1."""


def outcomes(pipeline: Pipeline, spine: DataFrame, events: DataFrame, interval: Interval, types: Types) -> DataFrame:
    """One row for each example that matures in the interval; `label` is null where the outcome says nothing, or there is none.

    By key, the outcome is the first event, by its position, with the example's key; by entity, what its aggregates say of all
    events with the example's entity. An event counts when it happened in [as_of, as_of + horizon) and was known before the
    example matured. `found` says whether there is an outcome; the position is that of the outcome's event.
    """
    label = pipeline.label
    examples = on_time(spine, labels_as_of(pipeline, interval)).select(
        "key",
        "as_of",
        *(fn.col(name).alias(f"_{name}") for name in POSITION[1:]),
        *(fn.col(f"_{name}").alias(f"_of_{name}") for name in label.entity),
        shift("as_of", label.horizon).alias("_until"),
        shift("as_of", label.horizon + label.lateness).alias("mature_at"),
    )
    found = _by_key(label, examples, events) if label.key is not None else _by_entity(label, examples, events, types)
    return _weighed(label, found.withColumn("mature_date", fn.to_date("mature_at")))


def labels(matured: DataFrame) -> DataFrame:
    """The outcomes that say something."""
    return matured.where(fn.col("label").isNotNull()).select(*COLUMNS)


def _by_key(label: Label, examples: DataFrame, events: DataFrame) -> DataFrame:
    later = events.select(
        fn.col(str(label.key)).cast("string").alias("_key"),
        fn.col("event_time").alias("_event_time"),
        fn.col("known_time").alias("_known_time"),
        fn.struct(*POSITION, fn.expr(f"cast({label.of}\n as int)").alias("label")).alias("_outcome"),
    )
    return (
        examples.join(later, on=[fn.col("key") == fn.col("_key"), *_in_time()], how="left")
        .groupBy("key", "as_of", "mature_at", *(f"_{name}" for name in POSITION[1:]))
        .agg(fn.min("_outcome").alias("_outcome"))
        .select(
            "key",
            "as_of",
            "mature_at",
            fn.col("_outcome.label").alias("label"),
            *(fn.col(f"_outcome.{name}").alias(name) for name in POSITION[1:]),
            fn.col("_outcome").isNotNull().alias("found"),
        )
    )


def _by_entity(label: Label, examples: DataFrame, events: DataFrame, types: Types) -> DataFrame:
    found = {a.name: parts(a, types.get(("label", a.name))) for a in label.aggregates}
    sums = {number: f"m{place}" for place, number in enumerate(dict.fromkeys(n for each in found.values() for n in each.sums))}
    values = {name: each.state.sql for name, each in found.items() if each.state is not None}
    values |= {name: each.distinct for name, each in found.items() if each.distinct is not None}
    later = events.select(
        *(fn.col(name).alias(f"_its_{name}") for name in label.entity),
        fn.col("event_time").alias("_event_time"),
        fn.col("known_time").alias("_known_time"),
        *(fn.expr(number.sql).alias(stem) for number, stem in sums.items()),
        *(fn.expr(sql).alias(f"v_{name}") for name, sql in values.items()),
    )
    same = [fn.col(f"_of_{name}") == fn.col(f"_its_{name}") for name in label.entity]
    reduced = {"min": fn.min, "max": fn.max, "distinct": fn.count_distinct}
    summed = (
        examples.join(later, on=[*same, *_in_time()], how="left")
        .groupBy("key", "as_of", "mature_at", *(f"_{name}" for name in POSITION[1:]))
        .agg(
            *(fn.coalesce(fn.sum(stem), fn.lit(0)).alias(stem) for stem in sums.values()),
            *(reduced[a.function](f"v_{a.name}").alias(f"v_{a.name}") for a in label.aggregates if a.name in values),
        )
    )
    totals = {number: fn.col(stem) for number, stem in sums.items()}
    figures = {name: fn.col(f"v_{name}") if name in values else figure(each, totals, None, None) for name, each in found.items()}
    return summed.withColumns(figures).select(
        "key",
        "as_of",
        "mature_at",
        fn.expr(f"cast({label.of}\n as int)").alias("label"),
        *(fn.lit(None).cast("bigint" if name == "kafka_offset" else "int").alias(name) for name in POSITION[1:]),
        fn.lit(True).alias("found"),
    )


def _in_time() -> list[Column]:
    return [
        fn.col("_event_time") >= fn.col("as_of"),
        fn.col("_event_time") < fn.col("_until"),
        fn.col("_known_time") < fn.col("mature_at"),
    ]


def _weighed(label: Label, matured: DataFrame) -> DataFrame:
    """The outcomes with `weight`: how much each counts in training, 0 for the negatives that are left out.

    Which are kept goes by a hash of the example's name, so it is the same in each run, and those kept stand for all.
    """
    chance = fn.xxhash64("key", fn.unix_micros("as_of")).bitwiseAND(fn.lit(HASHES - 1))
    negative = fn.col("label") == 0
    if label.negatives is not None:
        kept = chance.cast("double") / fn.lit(float(HASHES)) < fn.lit(label.negatives)
        weight = fn.when(negative, fn.when(kept, fn.lit(1 / label.negatives)).otherwise(0.0)).otherwise(1.0)
        return matured.withColumn("weight", weight)
    if label.negatives_per_positive is None:
        return matured.withColumn("weight", fn.lit(1.0))
    day = Window.partitionBy("mature_date")
    positives = fn.count_if(fn.col("label") == 1).over(day)
    negatives = fn.count_if(negative).over(day)
    ranked = fn.row_number().over(Window.partitionBy("mature_date", "label").orderBy("_chance", "key", "as_of"))
    wanted = fn.least(negatives, fn.ceil(fn.lit(label.negatives_per_positive) * positives))
    weight = fn.when(negative, fn.when(ranked <= wanted, negatives / wanted).otherwise(0.0)).otherwise(1.0)
    return matured.withColumn("_chance", chance).withColumn("weight", weight.cast("double")).drop("_chance")
