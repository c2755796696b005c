"""Whether declared expressions hold over their source's fields, before anything is computed, and of which types they are."""

from collections.abc import Iterable, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import AtomicType, BooleanType, DataType, DecimalType, DoubleType, FloatType, NumericType

from jobs.errors import UsageError
from jobs.features.events import by_row, reason
from jobs.features.group import Types
from jobs.features.measures import WIDE
from pipelines.declare import Aggregate, FeatureSet, Pipeline

INTEGERS = ("tinyint", "smallint", "int", "bigint")


def label(fields: DataFrame, pipeline: Pipeline) -> Types:
    """The types of the label's aggregates, by the names "label" and theirs.

    Raises UsageError where the label is no condition. `fields` has the columns of its source; its rows don't matter.
    """
    declared, place = pipeline.label, f"the label of {pipeline.name!r}"
    types: Types = {}
    if declared.aggregates:
        found = _aggregates(fields, {("label", a.name): (f"aggregate {a.name!r} of {place}", a) for a in declared.aggregates})
        types, results = found, {a.name: _result(a, found.get(("label", a.name))) for a in declared.aggregates}
        schema = ", ".join(f"{name} {text}" for name, text in results.items())
        fields = fields.sparkSession.createDataFrame([], schema)
    made = _types(fields, {place: declared.of})[place]
    if not isinstance(made, BooleanType):
        raise UsageError(f"{place} is {declared.of!r}, which is {made.simpleString()}: write a condition, true or false.")
    return types


def sets(fields: DataFrame, feature_sets: Iterable[FeatureSet]) -> Types:
    """The type of each aggregate's expression, by the names of set and aggregate.

    Raises UsageError where an expression has not the type that its aggregate needs.
    """
    feature_sets = tuple(feature_sets)
    filters = {f"where of feature set {s.name!r}": s.where for s in feature_sets if s.where is not None}
    for place, found in _types(fields, filters).items():
        if not isinstance(found, BooleanType):
            raise UsageError(f"{place} is {filters[place]!r}, which is no condition: write one that is true or false.")
    return _aggregates(
        fields,
        {(s.name, a.name): (f"aggregate {a.name!r} of feature set {s.name!r}", a) for s in feature_sets for a in s.aggregates},
    )


def per_event(events: DataFrame, feature_set: FeatureSet) -> DataFrame:
    """The events with the set's own columns. Raises UsageError where one is no expression over those before it."""
    for one in feature_set.per_event:
        place = f"per_event column {one.name!r} of feature set {feature_set.name!r}"
        try:
            made = events.withColumn(one.name, fn.expr(one.sql))
        except AnalysisException as failure:
            raise UsageError(
                f"{place}: {one.sql!r} is no expression over the fields of its events: {reason(failure)}"
            ) from failure
        by_row(events, made, {place: one.sql})
        events = made
    return events


def fields_of(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """An empty frame with some columns of another: expressions are checked over it without the plan behind it."""
    named = [field for field in frame.schema.fields if field.name in names]
    return frame.sparkSession.createDataFrame([], type(frame.schema)(named))


def _aggregates(fields: DataFrame, places: dict[tuple[str, str], tuple[str, Aggregate]]) -> Types:
    types = _types(fields, {f"{place}, where=": a.where for place, a in places.values() if a.where is not None})
    types |= _types(fields, {f"{place}, of": a.of for place, a in places.values() if a.of})
    found: dict[tuple[str, str], DataType] = {}
    for name, (place, aggregate) in places.items():
        if not isinstance(types.get(f"{place}, where=", BooleanType()), BooleanType):
            raise UsageError(f"{place}: where= is {aggregate.where!r}, which is no condition: write one that is true or false.")
        if aggregate.of:
            found[name] = types[f"{place}, of"]
            _fits(place, aggregate, found[name])
    return found


def _fits(place: str, aggregate: Aggregate, type_: DataType) -> None:
    """Raise UsageError where an aggregate can't be made of values of a type."""
    text, what = type_.simpleString(), f"{place}: {aggregate.of!r} is {type_.simpleString()}"
    is_float = isinstance(type_, (DoubleType, FloatType))
    match aggregate.function:
        case "rate" if not isinstance(type_, BooleanType):
            raise UsageError(f"{what}, but a rate needs a condition that is true or false.")
        case "sum" | "mean" | "stddev":
            if is_float and aggregate.scale is None:
                raise UsageError(
                    f"{what}, but only integers and decimals are added up: sums of floats depend on the order. "
                    "Fix how many decimals count: scale=2."
                )
            if not is_float and aggregate.scale is not None:
                raise UsageError(f"{what}, which is exact as it is: leave scale={aggregate.scale} out.")
            if text not in INTEGERS and not is_float and not isinstance(type_, DecimalType):
                raise UsageError(f"{what}, but {aggregate.function} needs a number.")
            if aggregate.function == "stddev" and isinstance(type_, DecimalType) and type_.precision > WIDE:
                raise UsageError(f"{what}, but stddev takes decimals of at most {WIDE} digits: cast it to fewer.")
        case "min" | "max" if not isinstance(type_, NumericType):
            raise UsageError(f"{what}, but {aggregate.function} needs a number.")
        case "first" | "last" | "last_k":
            fits = isinstance(type_, AtomicType) if aggregate.type == "string" else isinstance(type_, (NumericType, BooleanType))
            if not fits:
                raise UsageError(f"{what}, which is no {aggregate.type}: cast it, or say type='string'.")
        case "distinct" | "approx_distinct" if is_float or not isinstance(type_, AtomicType):
            raise UsageError(
                f"{what}, but {aggregate.function} counts integers, decimals, strings, booleans, dates or timestamps."
            )
        case _:
            pass


def _result(aggregate: Aggregate, type_: DataType | None) -> str:
    """The type of an aggregate's figure."""
    match aggregate.function:
        case "mean" | "rate" | "stddev":
            return "double"
        case "min" | "max":
            assert type_ is not None
            return str(type_.simpleString())
        case "sum" if isinstance(type_, DecimalType):
            return f"decimal(38,{type_.scale})"
        case "sum" if aggregate.scale:
            return f"decimal(38,{aggregate.scale})"
        case _:
            return "bigint"


def _types(fields: DataFrame, expressions: dict[str, str]) -> dict[str, DataType]:
    """The type of each expression, by its place."""
    different = list(dict.fromkeys(expressions.values()))
    if not different:
        return {}
    try:
        frame = fields.select(*(fn.expr(sql).alias(f"c{number}") for number, sql in enumerate(different)))
        found = frame.schema.fields
    except AnalysisException:
        for place, sql in expressions.items():
            try:
                fields.select(fn.expr(sql))
            except AnalysisException as failure:
                raise UsageError(
                    f"{place}: {sql!r} is no expression over the fields of its source: {reason(failure)}"
                ) from failure
        raise
    by_row(fields, frame, expressions)
    types = {sql: field.dataType for sql, field in zip(different, found, strict=True)}
    return {place: types[sql] for place, sql in expressions.items()}
