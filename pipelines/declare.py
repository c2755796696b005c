"""The language in which a pipeline says what it wants: sources, features, label, training, promotion.

Declarations are frozen values without behaviour: the stages in `jobs/` read them. A wrong one fails when its file is
imported, with the value, the rule and what is near. Expressions (`of`, `where`, `sql`) are Spark SQL over the fields of
one event. Only the standard library is imported here.
"""

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from dataclasses import field as dataclass_field
from datetime import date, datetime, timedelta
from typing import Literal

FIELD_TYPES = ("string", "int64", "float64", "bool", "timestamp", "decimal(P,S)")
"""P digits in all, at most 38, S of them decimals."""
FORMATS = ("json", "avro")
TIME_UNITS = ("iso", "s", "ms", "us", "ns")
FUNCTIONS = ("count", "sum", "mean", "rate")
METRICS = ("log_loss", "average_precision")
RESERVED = (
    *("event_time", "known_time", "event_date", "batch", "rejected_reason", "raw_key", "raw_value", "headers"),
    *("topic", "topic_epoch", "kafka_partition", "kafka_offset"),
)
"""Columns that ingest adds to each event; a field can't have one of these names."""
OWN = (
    *("key", "as_of", "as_of_date", "feature_date", "label", "mature_at", "mature_date"),
    *("topic_epoch", "kafka_partition", "kafka_offset"),
)
"""Columns that features, examples and labels have themselves; an input can't have one of these names."""


Value = str | int | float | bool | datetime
"""A default, as Python writes it: a timestamp as an aware datetime, a decimal as text."""

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
"""A number as JSON writes it."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a source's records."""

    name: str
    type: str = "string"
    """One of FIELD_TYPES, as `int64` or `decimal(12,2)`."""
    _: KW_ONLY
    required: bool = False
    """A record without it, or with null, is a dead letter."""
    time_unit: Literal["iso", "s", "ms", "us", "ns"] = "iso"
    """For timestamps, how the record writes them: ISO 8601 text, or a whole number since 1970 in this unit."""
    path: tuple[str, ...] | str | None = None
    """Where the value lies in nested objects, as `customer.address.city`; None: at the top, under the field's own name."""
    default: Value | None = None
    """What a record without it, or with null, gets; None leaves it null. It applies to records read from then on."""
    keys: tuple[str, ...] = dataclass_field(init=False, repr=False, compare=False)
    """The path, key by key."""

    def __post_init__(self) -> None:
        _name("field", self.name)
        if not re.fullmatch(r"decimal\([0-9]+,[0-9]+\)", self.type):
            _one_of(f"type of field {self.name!r}", self.type, FIELD_TYPES)
        self._check_decimal()
        _one_of(f"time_unit of field {self.name!r}", self.time_unit, TIME_UNITS)
        if self.name in RESERVED:
            raise ValueError(f"field {self.name!r} is a column that ingest adds; rename it. Reserved: {', '.join(RESERVED)}.")
        path = self.name if self.path is None else self.path
        object.__setattr__(self, "keys", tuple(path.split(".")) if isinstance(path, str) else tuple(path))
        if not self.keys or not all(re.fullmatch(r"[A-Za-z0-9_$@-]+", key) for key in self.keys):
            raise ValueError(
                f"path of field {self.name!r} is {self.path!r}: it takes keys of letters, digits, _, -, $ and @ with dots "
                "between them, for example 'customer.address.city'."
            )
        if self.default is not None:
            self._check_default(self.default)

    @property
    def digits(self) -> tuple[int, int] | None:
        """Of a decimal: all its digits, and how many of them are decimals. None for the other types."""
        if not self.type.startswith("decimal"):
            return None
        precision, scale = self.type[len("decimal(") : -1].split(",")
        return int(precision), int(scale)

    def _check_decimal(self) -> None:
        if self.type == FIELD_TYPES[-1]:
            raise ValueError(f"type of field {self.name!r} is {self.type!r}: P and S are numbers, for example 'decimal(12,2)'.")
        if self.digits is not None and not (1 <= self.digits[0] <= 38 and self.digits[1] <= self.digits[0]):
            raise ValueError(
                f"type of field {self.name!r} is {self.type!r}: a decimal has 1 to 38 digits, and no more decimals than digits, "
                "for example 'decimal(12,2)'."
            )

    def _check_default(self, value: Value) -> None:
        what = f"default of field {self.name!r} is {value!r}"
        if self.required:
            raise ValueError(f"{what}, but the field is required, so it has no effect: leave one of them out.")
        if self.type == "timestamp":
            fits, rule = isinstance(value, datetime) and value.tzinfo is not None, "an aware datetime"
        elif self.type == "string":
            fits, rule = isinstance(value, str), "a str"
        elif self.type == "bool":
            fits, rule = isinstance(value, bool), "True or False"
        elif self.type == "int64":
            fits, rule = type(value) is int and -(2**63) <= value < 2**63, "an int of at most 64 bits"
        elif self.type == "float64":
            fits, rule = type(value) in (int, float) and math.isfinite(value), "a finite number"  # type: ignore[arg-type]
        else:
            assert self.digits is not None
            precision, scale = self.digits
            plain = rf"-?[0-9]{{1,{max(1, precision - scale)}}}(\.[0-9]{{1,{scale}}})?" if scale else rf"-?[0-9]{{1,{precision}}}"
            fits = isinstance(value, str) and bool(re.fullmatch(plain, value)) and bool(NUMBER.fullmatch(value))
            fits = fits and (precision > scale or str(value).lstrip("-").startswith("0"))
            rule = f"the number as a str, with at most {precision - scale} digits before the point and {scale} behind it"
        if not fits:
            raise ValueError(f"{what}: a field of type {self.type} takes {rule}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A Kafka topic with its contract: one JSON object or Avro record in each record."""

    name: str
    topic: str
    fields: tuple[Field, ...]
    event_time: str
    """The timestamp field that says when it happened."""
    event_id: str
    """The field that names the event: of records that repeat it, the first by (known time, partition, offset) counts."""
    format: Literal["json", "avro"] = "json"
    """What a record's value is."""
    avro_schema: str | None = None
    """The schema that Avro records were written with, as JSON text. None: each begins with byte 0 and the number of its schema
    in a schema registry, as Confluent's serializers write it."""
    known_time: Literal["create", "append"] = "create"
    """Whose clock the record's timestamp is: the producer's (`create`) or the broker's (`append`), as the topic is set."""
    repeats_within: timedelta = timedelta(days=7)
    """How far apart in event time repeats of an event id can lie. Whole days; no run looks further back for them."""
    dead_letter_limit: float = 0.05
    """The largest share of dead letters, tombstones left out, that a known day may have before its features are refused;
    1 turns it off."""
    retention: timedelta = timedelta(days=7)
    """How long files that no version needs any more are kept, for runs that still read them: whole days."""
    subject: str | None = None
    """The field that names the person a record is about; `penstock erase` takes records away by it. None: about nobody."""
    exact: bool = dataclass_field(init=False, repr=False, compare=False)
    """Whether a field is a decimal, whose text counts."""

    def __post_init__(self) -> None:
        _name("source", self.name)
        names = [field.name for field in self.fields]
        _unique(f"fields of source {self.name!r}", names)
        self._check_paths()
        timestamps = [field.name for field in self.fields if field.type == "timestamp" and field.required]
        _one_of(f"event_time of source {self.name!r} (a required timestamp)", self.event_time, timestamps)
        _one_of(
            f"event_id of source {self.name!r} (a required field)", self.event_id, [f.name for f in self.fields if f.required]
        )
        _one_of(f"format of source {self.name!r}", self.format, FORMATS)
        self._check_avro_schema()
        _one_of(f"known_time of source {self.name!r}", self.known_time, ("create", "append"))
        _whole_days(f"repeats_within of source {self.name!r}", self.repeats_within)
        if not 0 < self.dead_letter_limit <= 1:
            raise ValueError(
                f"dead_letter_limit of source {self.name!r} is {self.dead_letter_limit}: it is a share, greater than 0 and at "
                "most 1, for example 0.05; 1 turns it off."
            )
        _whole_days(f"retention of source {self.name!r}", self.retention)
        if self.subject is not None:
            _one_of(f"subject of source {self.name!r}", self.subject, names)
        object.__setattr__(self, "exact", any(field.digits is not None for field in self.fields))

    def _check_paths(self) -> None:
        for field in self.fields:
            for other in self.fields:
                if other is not field and other.keys[: len(field.keys)] == field.keys:
                    raise ValueError(
                        f"field {other.name!r} of source {self.name!r} lies at {'.'.join(other.keys)!r}, "
                        f"where field {field.name!r} is: a value is read once, so leave one of them out."
                    )

    def _check_avro_schema(self) -> None:
        if self.avro_schema is None:
            return
        what = f"avro_schema of source {self.name!r}"
        if self.format != "avro":
            raise ValueError(f"{what} has no effect with format={self.format!r}: declare format='avro', or leave it out.")
        try:
            schema = json.loads(self.avro_schema)
        except ValueError as failure:
            raise ValueError(f"{what} is not JSON ({failure}): give the writer's schema as its JSON text.") from None
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise ValueError(f"{what} is no record: its JSON text is an object with 'type': 'record', 'name' and 'fields'.")

    def field(self, name: str) -> Field:
        """The field called `name`. Raises ValueError where there is none."""
        _one_of(f"field of source {self.name!r}", name, [field.name for field in self.fields])
        return next(field for field in self.fields if field.name == name)


@dataclass(frozen=True, slots=True)
class Column:
    """An input that the spine's own event carries: a field as it is, or an expression over the fields."""

    name: str
    _: KW_ONLY
    sql: str | None = None
    """Spark SQL over the fields of the spine's event; None takes the field called `name`."""
    type: Literal["string", "float64"] | None = None
    """A string is a category for the model, a float64 a number. None follows the field's own type."""

    def __post_init__(self) -> None:
        _name("column", self.name)
        if self.sql is not None and self.type is None:
            raise ValueError(f"column {self.name!r} is an expression, so its type must be said: 'string' or 'float64'.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spine:
    """What one example is: an event of a source, predicted `before` its time comes."""

    source: Source
    key: str
    """The field that names the example. Labels and predictions carry it."""
    at: str
    """The timestamp field that `before` counts back from. It is the source's event time, so that days prune."""
    before: timedelta
    """`as_of` = the field `at` minus this: what the example may know ends there."""
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        self.source.field(self.key)
        if self.at != self.source.event_time:
            raise ValueError(
                f"the spine counts from {self.at!r}: use the event time of {self.source.name!r}, {self.source.event_time!r}."
            )
        _unique("columns of the spine", [column.name for column in self.columns])
        _not_own("column of the spine", [column.name for column in self.columns])
        for column in self.columns:
            if column.sql is None:
                self.source.field(column.name)

    def type_of(self, column: Column) -> Literal["string", "float64"]:
        """`string` for a category, `float64` for a number."""
        if column.type is not None:
            return column.type
        return "string" if self.source.field(column.name).type == "string" else "float64"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One figure over a window of events.

    `count` counts the events, `sum` and `mean` take an integer expression, `rate` is the share of events for which a
    condition holds. Events for which the expression is null are left out of `mean` and `rate`, above and below the line.
    """

    name: str
    function: Literal["count", "sum", "mean", "rate"]
    of: str = ""
    """Spark SQL over the fields of one event: an integer for sum and mean, a boolean for rate, empty for count."""
    _: KW_ONLY
    where: str | None = None
    """Only events for which this condition holds; None takes all."""

    def __post_init__(self) -> None:
        _name("aggregate", self.name)
        _one_of(f"function of aggregate {self.name!r}", self.function, FUNCTIONS)
        if (self.function == "count") != (self.of == ""):
            raise ValueError(f"aggregate {self.name!r}: count takes no expression (use where=), the others need one in `of`.")


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureSet:
    """Aggregates of one source's events by an entity, over windows that end with the day."""

    name: str
    source: Source
    entity: tuple[str, ...]
    """The fields that name the entity. The spine's source has the same fields: an example takes its entity's row."""
    windows: tuple[timedelta, ...]
    """Whole days: [T - w, T) at the end T of the day."""
    aggregates: tuple[Aggregate, ...]

    def __post_init__(self) -> None:
        _name("feature set", self.name)
        _some(f"entity of feature set {self.name!r}", self.entity, "('carrier',)")
        _some(f"windows of feature set {self.name!r}", self.windows, "(days(7),)")
        _some(f"aggregates of feature set {self.name!r}", self.aggregates, "(Aggregate('events', 'count'),)")
        for name in self.entity:
            self.source.field(name)
        for window in self.windows:
            _whole_days(f"window of feature set {self.name!r}", window)
        _unique(f"windows of feature set {self.name!r}", [str(window.days) for window in self.windows])
        _unique(f"aggregates of feature set {self.name!r}", [aggregate.name for aggregate in self.aggregates])

    @property
    def columns(self) -> tuple[str, ...]:
        """The feature columns, in order: window by window, aggregate by aggregate."""
        return tuple(self.column(aggregate, window) for window in self.windows for aggregate in self.aggregates)

    def column(self, aggregate: Aggregate, window: timedelta) -> str:
        """The column of one aggregate over one window, as `carrier_late_rate_7d`."""
        return f"{self.name}_{aggregate.name}_{window.days}d"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimension:
    """Slowly changing facts about an entity: the newest event of a source that was visible at the end of the day."""

    name: str
    source: Source
    entity: tuple[str, ...]
    """The fields that name the entity, in this source and in the spine's."""
    fields: tuple[str, ...]
    """Numeric fields that become inputs, as `weather_wind_speed`."""
    within: timedelta
    """How old the newest event may be; an older one counts as unknown. Whole days."""

    def __post_init__(self) -> None:
        _name("dimension", self.name)
        _whole_days(f"within of dimension {self.name!r}", self.within)
        for name in self.entity:
            self.source.field(name)
        for name in self.fields:
            type_ = self.source.field(name).type
            if type_ not in ("int64", "float64"):
                raise ValueError(
                    f"dimension {self.name!r} takes {name!r}, which is {type_}: only int64 and float64 become inputs."
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns, in the order of `fields`."""
        return tuple(f"{self.name}_{field}" for field in self.fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """What became true of an example: a condition on a later event with the same key."""

    source: Source
    key: str
    """The field that holds the example's key."""
    of: str
    """Spark SQL condition over the later event's fields. Where it is null the example has no label and is not trained on."""
    horizon: timedelta
    """The event must happen before `as_of` plus this. Whole days: the embargo between the parts of training."""
    lateness: timedelta = timedelta(0)
    """How long after the horizon a late event may still arrive. The label matures at `as_of` + horizon + lateness."""

    def __post_init__(self) -> None:
        self.source.field(self.key)
        _whole_days("horizon of the label", self.horizon)
        if self.lateness < timedelta(0):
            raise ValueError(f"lateness of the label is {self.lateness}: it can't be negative.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """When a candidate is trained, on which days, and by which network."""

    every: timedelta
    """A run trains when what it would be trained through lies at least this long after the newest version's. Whole days."""
    days: timedelta
    """The most days that the training part takes, back from the validation part. Whole days."""
    validation: timedelta
    """The days on which training stops early. Whole days."""
    holdout: timedelta
    """The last days with mature labels, which only the promotion sees. Whole days."""
    hidden: tuple[int, ...] = (64,)
    """The widths of the hidden layers of the perceptron that stands beside the linear part."""
    embedding: int = 8
    """The width of each category's embedding."""
    min_count: int = 20
    """A category seen less often in the training days shares the embedding of the unknown."""
    dropout: float = 0.5
    """The share of hidden units left out at each step; 0 turns it off."""
    day_discount: float = 0.5
    """How far inputs that are alike for a whole day are held back, see `jobs.train.weights`; 0 turns it off, 1 is most."""
    batch_size: int = 2048
    """Examples in one step of all ranks together."""
    epochs: int = 20
    """The most passes over the training part."""
    patience: int = 6
    """Passes without a better validation loss before training stops."""
    learning_rate: float = 2e-4
    """AdamW's, for the embeddings and the perceptron."""
    linear_learning_rate: float = 0.3
    """Gradient descent's with momentum, for the linear part."""
    weight_decay: float = 0.1
    """AdamW's, for the embeddings and the perceptron; 0 turns it off."""
    averaging: float = 0.98
    """The share of the average that each step keeps of the weights before it: the average is the model. 0 turns it off."""
    ranks: int = 2
    """Processes that train together; they divide `shards`."""
    shards: int = 64
    """Virtual shards of the training part: the order of examples is the same for each number of ranks that divides it."""
    seed: int = 7
    """Of the first weights, of the order of the examples and of what is dropped out."""

    def __post_init__(self) -> None:
        for name in ("every", "days", "validation", "holdout"):
            _whole_days(f"{name} of training", getattr(self, name))
        if not 0 <= self.day_discount <= 1:
            raise ValueError(f"day_discount of training is {self.day_discount}: it lies between 0 and 1; 0 turns it off.")
        for name in ("dropout", "averaging"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} of training is {getattr(self, name)}: it is a share, at least 0 and less than 1.")
        for name in ("embedding", "min_count", "batch_size", "epochs", "patience", "ranks", "shards"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of training is {getattr(self, name)}: it must be at least 1.")
        for name in ("learning_rate", "linear_learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} of training is {getattr(self, name)}: it must be greater than 0.")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay of training is {self.weight_decay}: it can't be negative; 0 turns it off.")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(
                f"hidden of training is {self.hidden}: it takes the width of each layer, at least one, for example (64,)."
            )
        if self.shards % self.ranks or self.batch_size % self.shards:
            raise ValueError(
                f"training has {self.ranks} ranks, {self.shards} shards and a batch of {self.batch_size}: "
                "the ranks must divide the shards, and the shards the batch."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Promotion:
    """The rule by which a candidate becomes the champion, as data."""

    metric: Literal["log_loss", "average_precision"] = "log_loss"
    min_gain: float = 0.0
    """The gain over the champion (for the first model, over the base rate of the training days) must be greater."""
    confidence: float = 0.95
    """The two-sided confidence of the bootstrap by holdout day whose interval must lie above `min_gain`."""
    resamples: int = 1000
    """Resamples of the bootstrap."""
    min_rows: int = 1000
    """The fewest labelled holdout examples that a decision may rest on."""

    def __post_init__(self) -> None:
        _one_of("metric of the promotion", self.metric, METRICS)
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence of the promotion is {self.confidence}: it lies between 0 and 1, for example 0.95.")
        for name in ("resamples", "min_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of the promotion is {getattr(self, name)}: it must be at least 1.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """From events to predictions: what one DAG runs each day."""

    name: str
    description: str
    first_day: date
    """The first day of the schedule."""
    last_day: date | None = None
    """The last scheduled day, for histories that end; None goes on for ever. Manual runs and backfills may go beyond."""
    lateness: timedelta
    """How long after a day's end its run waits for late events. Less than a day."""
    spine: Spine
    features: tuple[FeatureSet, ...]
    dimensions: tuple[Dimension, ...] = ()
    label: Label
    training: Training
    promotion: Promotion = dataclass_field(default_factory=Promotion)
    owner: str = "penstock"
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _name("pipeline", self.name)
        if not timedelta(0) <= self.lateness < timedelta(days=1):
            raise ValueError(f"lateness of pipeline {self.name!r} is {self.lateness}: it must be at least 0 and less than a day.")
        if self.last_day is not None and self.last_day < self.first_day:
            raise ValueError(f"pipeline {self.name!r} ends on {self.last_day}, before it begins on {self.first_day}.")
        _unique(f"feature sets of pipeline {self.name!r}", [feature_set.name for feature_set in self.features])
        _unique(f"inputs of pipeline {self.name!r}", [*self.numbers, *self.categories])
        _not_own(f"input of pipeline {self.name!r}", [*self.numbers, *self.categories])
        for feature_set in self.features:
            for name in feature_set.entity:
                self.spine.source.field(name)
        for dimension in self.dimensions:
            for name in dimension.entity:
                self.spine.source.field(name)
        _ = self.sources

    @property
    def sources(self) -> tuple[Source, ...]:
        """Each source once: the spine's, then those of features, dimensions and label."""
        used = [self.spine.source, *(s.source for s in self.features), *(d.source for d in self.dimensions), self.label.source]
        unique: dict[str, Source] = {}
        for source in used:
            if unique.setdefault(source.name, source) != source:
                raise ValueError(f"pipeline {self.name!r} has two sources called {source.name!r}: give each its own name.")
        return tuple(unique.values())

    @property
    def categories(self) -> tuple[str, ...]:
        """The model's inputs that are strings, in the order of the example's columns."""
        return tuple(column.name for column in self.spine.columns if self.spine.type_of(column) == "string")

    @property
    def numbers(self) -> tuple[str, ...]:
        """The model's inputs that are floats, in the order of the example's columns."""
        own = [column.name for column in self.spine.columns if self.spine.type_of(column) == "float64"]
        windows = [name for feature_set in self.features for name in feature_set.columns]
        return (*own, *windows, *(name for dimension in self.dimensions for name in dimension.columns))


def days(number: int) -> timedelta:
    """So many whole days."""
    return timedelta(days=number)


def hours(number: float) -> timedelta:
    """So many hours."""
    return timedelta(hours=number)


def _name(kind: str, value: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", value):
        raise ValueError(f"{kind} {value!r} has no valid name: small letters, digits and underscores, a letter first.")


def _one_of(kind: str, value: str, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        close = difflib.get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {close[0]!r}" if close else ""
        raise ValueError(f"{kind} is {value!r}{hint}; known: {', '.join(known) or 'none'}.")


def _unique(kind: str, names: list[str]) -> None:
    seen: Mapping[str, int] = {name: names.count(name) for name in names}
    twice = [name for name, count in seen.items() if count > 1]
    if twice:
        raise ValueError(f"{kind} have {twice[0]!r} twice: each needs its own name.")


def _not_own(kind: str, names: list[str]) -> None:
    for name in names:
        if name in OWN:
            raise ValueError(
                f"{kind} {name!r} is a column that the examples have themselves; rename it. Taken: {', '.join(OWN)}."
            )


def _some(kind: str, values: tuple[object, ...], example: str) -> None:
    if not values:
        raise ValueError(f"{kind} is empty: it takes at least one, for example {example}.")


def _whole_days(kind: str, value: timedelta) -> None:
    if value <= timedelta(0) or value % timedelta(days=1):
        raise ValueError(f"{kind} is {value}: it must be whole days, at least one, for example days(7).")
