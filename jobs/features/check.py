"""Whether declared expressions hold over their source's fields, before anything is computed."""

from collections.abc import Iterable

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from jobs.errors import UsageError
from jobs.features.events import reason
from pipelines.declare import FeatureSet, Label, Pipeline, Source

INTEGERS = ("tinyint", "smallint", "int", "bigint")


def label(fields: DataFrame, pipeline: Pipeline) -> None:
    """Raise UsageError where the label is no condition. `fields` has the columns of its source; its rows don't matter."""
    declared: Label = pipeline.label
    place = f"the label of {pipeline.name!r}"
    found = _types(fields, {place: declared.of})[place]
    if found != "boolean":
        raise UsageError(f"{place} is {declared.of!r}, which is {found}: write a condition, true or false.")


def sets(fields: DataFrame, feature_sets: Iterable[FeatureSet]) -> None:
    """Raise UsageError where an expression has not the type that its aggregate needs."""
    places = {(s, a): f"aggregate {a.name!r} of feature set {s.name!r}" for s in feature_sets for a in s.aggregates}
    types = _types(fields, {f"{place}, where=": a.where for (_, a), place in places.items() if a.where is not None})
    types |= _types(fields, {f"{place}, of": a.of for (_, a), place in places.items() if a.of})
    for (_, aggregate), place in places.items():
        if types.get(f"{place}, where=", "boolean") != "boolean":
            raise UsageError(f"{place}: where= is {aggregate.where!r}, which is no condition: write one that is true or false.")
        found = types.get(f"{place}, of", "")
        if aggregate.function == "rate" and found != "boolean":
            raise UsageError(f"{place}: {aggregate.of!r} is {found}, but a rate needs a condition that is true or false.")
        if aggregate.function in ("sum", "mean") and found not in INTEGERS:
            raise UsageError(
                f"{place}: {aggregate.of!r} is {found}, but only integers are added up: sums of floats depend on the order. "
                "Fix a scale, for example cast(round(price * 100) as bigint)."
            )


def fields_of(frame: DataFrame, source: Source) -> DataFrame:
    """An empty frame with the source's fields: expressions are checked over it without the plan behind `frame`."""
    named = [field for field in frame.schema.fields if field.name in {declared.name for declared in source.fields}]
    return frame.sparkSession.createDataFrame([], type(frame.schema)(named))


def _types(fields: DataFrame, expressions: dict[str, str]) -> dict[str, str]:
    """The type of each expression, by its place."""
    different = list(dict.fromkeys(expressions.values()))
    try:
        found = fields.select(*(fn.expr(sql).alias(f"c{number}") for number, sql in enumerate(different))).schema.fields
    except AnalysisException:
        for place, sql in expressions.items():
            try:
                fields.select(fn.expr(sql))
            except AnalysisException as failure:
                raise UsageError(
                    f"{place}: {sql!r} is no expression over the fields of its source: {reason(failure)}"
                ) from failure
        raise
    types = {sql: str(field.dataType.simpleString()) for sql, field in zip(different, found, strict=True)}
    return {place: types[sql] for place, sql in expressions.items()}
