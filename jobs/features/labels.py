"""Labels: what became true of an example, once its horizon and the lateness of labels have passed."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from jobs.features.events import POSITION, shift
from jobs.features.spine import on_time
from jobs.interval import Interval
from jobs.reach import labels_as_of
from pipelines.declare import Pipeline

COLUMNS = ("key", "as_of", "label", "mature_at", *POSITION[1:], "mature_date")


def outcomes(pipeline: Pipeline, spine: DataFrame, events: DataFrame, interval: Interval) -> DataFrame:
    """One row for each example that matures in the interval; `label` is null where the outcome says nothing, or there is none.

    The outcome is the first event, by its position, with the example's key that happened in [as_of, as_of + horizon) and was
    known before the example matured. `found` says whether there is one; the position is the outcome's.
    """
    label = pipeline.label
    examples = on_time(spine, labels_as_of(pipeline, interval)).select(
        "key",
        "as_of",
        *(fn.col(name).alias(f"_{name}") for name in POSITION[1:]),
        shift("as_of", label.horizon).alias("_until"),
        shift("as_of", label.horizon + label.lateness).alias("mature_at"),
    )
    later = events.select(
        fn.col(label.key).cast("string").alias("_key"),
        fn.col("event_time").alias("_event_time"),
        fn.col("known_time").alias("_known_time"),
        fn.struct(*POSITION, fn.expr(f"cast({label.of} as int)").alias("label")).alias("_outcome"),
    )
    same = (
        (fn.col("key") == fn.col("_key"))
        & (fn.col("_event_time") >= fn.col("as_of"))
        & (fn.col("_event_time") < fn.col("_until"))
        & (fn.col("_known_time") < fn.col("mature_at"))
    )
    return (
        examples.join(later, on=same, how="left")
        .groupBy("key", "as_of", "mature_at", *(f"_{name}" for name in POSITION[1:]))
        .agg(fn.min("_outcome").alias("_outcome"))
        .select(
            "key",
            "as_of",
            fn.col("_outcome.label").alias("label"),
            "mature_at",
            *(fn.col(f"_outcome.{name}").alias(name) for name in POSITION[1:]),
            fn.to_date("mature_at").alias("mature_date"),
            fn.col("_outcome").isNotNull().alias("found"),
        )
    )


def labels(matured: DataFrame) -> DataFrame:
    """The outcomes that say something."""
    return matured.where(fn.col("label").isNotNull()).select(*COLUMNS)
