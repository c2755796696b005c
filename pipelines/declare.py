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
from dataclasses import KW_ONLY, dataclass, replace
from dataclasses import field as dataclass_field
from dataclasses import fields as dataclass_fields
from datetime import date, datetime, timedelta
from typing import Literal

from pipelines._typed import check

FIELD_TYPES = ("string", "int64", "float64", "bool", "timestamp", "decimal(P,S)")
"""P digits in all, at most 38, S of them decimals."""
FORMATS = ("json", "avro")
TIME_UNITS = ("iso", "s", "ms", "us", "ns")
FUNCTIONS = (
    *("count", "sum", "mean", "rate", "stddev"),
    *("min", "max", "first", "last", "last_k"),
    *("distinct", "approx_distinct"),
)
TYPES = ("string", "float64")
METRICS = ("log_loss", "average_precision")
MODELS = ("wide_and_deep", "cross")
"""A linear part beside a perceptron, and the same with a cross network."""
OPTIMIZERS = ("adamw", "sgd")
SCHEDULES = ("constant", "linear", "cosine")
RESERVED = (
    *("event_time", "known_time", "event_date", "batch", "rejected_reason", "raw_key", "raw_value", "headers"),
    *("topic", "topic_epoch", "kafka_partition", "kafka_offset"),
    *("event_day", "known_day", "set"),
)
"""Columns that ingest or the features add to each event; a field can't have one of these names."""
OWN = (
    *("key", "as_of", "as_of_date", "feature_date", "label", "mature_at", "mature_date"),
    *("topic_epoch", "kafka_partition", "kafka_offset", "available_at", "event_date", "weight"),
    *("late", "feature_day"),
)
"""Columns that features, examples and labels have themselves; an input can't have one of these names."""
INNER = ("set", "day", "part", "value", "enters", "leaves", "kind", "point", "until", "newest")
"""Columns that features go by on the way; a field that names an entity can't have one of these names."""
LONGEST = timedelta(days=365)
"""The longest window."""
FURTHEST = timedelta(days=3650)
"""The longest of all other spans: dates end with the year 9999."""


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
        check(self, but=("default",))
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
        check(self)
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
        check(self)
        _name("column", self.name)
        if self.sql is not None and self.type is None:
            raise ValueError(f"column {self.name!r} is an expression, so its type must be said: 'string' or 'float64'.")
        _sql(f"sql of column {self.name!r}", self.sql)


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
        check(self)
        self.source.field(self.key)
        for name in ("as_of", "late"):
            if any(field.name == name for field in self.source.fields):
                raise ValueError(
                    f"the spine's source {self.source.name!r} has a field {name!r}, as each example does: rename it."
                )
        if self.at != self.source.event_time:
            raise ValueError(
                f"the spine counts from {self.at!r}: use the event time of {self.source.name!r}, {self.source.event_time!r}."
            )
        if abs(self.before) > FURTHEST:
            raise ValueError(f"before of the spine is {self.before}: it is at most {FURTHEST.days} days.")
        _unique("columns of the spine", [column.name for column in self.columns])
        _not_own("column of the spine", [column.name for column in self.columns])
        for column in self.columns:
            if column.sql is None:
                self.source.field(column.name)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields by which an example can find the rows of its entities."""
        return tuple(field.name for field in self.source.fields)

    def type_of(self, column: Column) -> Literal["string", "float64"]:
        """`string` for a category, `float64` for a number."""
        return _type_of(self.source, column)


@dataclass(frozen=True, kw_only=True, slots=True)
class DailySpine:
    """What one example is: an entity on a day, as of the moment at which the day closes.

    Each entity with an event that was visible at the day's end and happened in the days `within` before it is one. Its `key` is
    the entity's field as text, or a JSON array of all of them; with `as_of` it names the example.
    """

    source: Source
    entity: tuple[str, ...]
    """The fields that name the entity."""
    within: timedelta
    """How long an entity without events stays an example. Whole days."""
    where: str | None = None
    """Only events for which this condition, in Spark SQL over their fields, holds; None takes all."""
    columns: tuple[Column, ...] = ()
    """Inputs out of the entity's own fields."""

    def __post_init__(self) -> None:
        check(self)
        _some("entity of the spine", self.entity, "('user',)")
        _not_inner("entity of the spine", self.entity)
        for name in self.entity:
            self.source.field(name)
        _unique("entity of the spine", list(self.entity))
        _sql("where of the spine", self.where)
        _whole_days("within of the spine", self.within)
        if self.within > LONGEST:
            raise ValueError(f"within of the spine is {self.within}: it is at most {LONGEST.days} days.")
        _unique("columns of the spine", [column.name for column in self.columns])
        _not_own("column of the spine", [column.name for column in self.columns])
        for column in self.columns:
            if column.sql is None:
                _one_of("column of the spine (a field of its entity)", column.name, self.entity)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields by which an example can find the rows of its entities."""
        return self.entity

    def type_of(self, column: Column) -> Literal["string", "float64"]:
        """`string` for a category, `float64` for a number."""
        return _type_of(self.source, column)


@dataclass(frozen=True, slots=True)
class Expression:
    """A column derived from others of the same row."""

    name: str
    sql: str
    """Spark SQL. A division by zero fails the run: use `try_divide`."""
    type: Literal["string", "float64"] = "float64"
    """Where it is an input of the model: a category or a number."""

    def __post_init__(self) -> None:
        check(self)
        _name("expression", self.name)
        _one_of(f"type of expression {self.name!r}", self.type, TYPES)
        _sql(f"expression {self.name!r}", self.sql)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A snapshot table that others write: facts about an entity, each row with the day or instant from which it holds."""

    name: str
    path: str
    """An absolute path, an `s3://` URI, or a path under the lake's root."""
    fields: tuple[Field, ...]
    valid_from: str
    """The required timestamp field that says from when a row holds: it is visible after that instant, on both clocks."""
    format: Literal["delta", "parquet"] = "delta"

    def __post_init__(self) -> None:
        check(self)
        _name("table", self.name)
        _one_of(f"format of table {self.name!r}", self.format, ("delta", "parquet"))
        _unique(f"fields of table {self.name!r}", [field.name for field in self.fields])
        timestamps = [field.name for field in self.fields if field.type == "timestamp"]
        _one_of(f"valid_from of table {self.name!r} (a timestamp)", self.valid_from, timestamps)
        if not self.path:
            raise ValueError(
                f"path of table {self.name!r} is empty: it says where the table lies, for example 'reference/items'."
            )

    def field(self, name: str) -> Field:
        """The field called `name`. Raises ValueError where there is none."""
        _one_of(f"field of table {self.name!r}", name, [field.name for field in self.fields])
        return next(field for field in self.fields if field.name == name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimension:
    """Slowly changing facts about an entity: the newest version that was visible.

    In `Pipeline.dimensions` each example gets the version of the end of its day; in `FeatureSet.lookups` each event gets the
    version of the moment at which it was known itself. Of versions of one instant the last by position counts.
    """

    name: str
    source: Source | Table
    """A source as its history, or a snapshot table."""
    entity: tuple[str, ...]
    """The fields that name the entity, in this source and in the spine's or the events'."""
    fields: tuple[str, ...]
    """Fields that become columns, as `weather_wind_speed`: numbers, or strings as categories."""
    within: timedelta | None
    """How old the newest version may be; an older one counts as unknown. Whole days; None, for a table: any age."""

    def __post_init__(self) -> None:
        check(self)
        _name("dimension", self.name)
        _some(f"entity of dimension {self.name!r}", self.entity, "('item',)")
        _not_inner(f"entity of dimension {self.name!r}", self.entity, ("day",))
        _unique(f"entity of dimension {self.name!r}", list(self.entity))
        _some(f"fields of dimension {self.name!r}", self.fields, "('price',)")
        _unique(f"fields of dimension {self.name!r}", list(self.fields))
        if self.within is not None:
            _whole_days(f"within of dimension {self.name!r}", self.within)
        elif isinstance(self.source, Source):
            raise ValueError(
                f"within of dimension {self.name!r} is None, which is for tables: say how old the newest event may be, "
                "for example days(365), so that a run knows how far back to read."
            )
        for name in self.entity:
            self.source.field(name)
        for name in self.fields:
            type_ = self.source.field(name).type
            if type_ not in ("int64", "float64", "string"):
                raise ValueError(
                    f"dimension {self.name!r} takes {name!r}, which is {type_}: only int64, float64 and string become inputs."
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, in the order of `fields`."""
        return tuple(f"{self.name}_{field}" for field in self.fields)

    @property
    def categories(self) -> tuple[str, ...]:
        """Those that are strings."""
        pairs = zip(self.fields, self.columns, strict=True)
        return tuple(column for field, column in pairs if self.source.field(field).type == "string")

    @property
    def personal(self) -> tuple[str, ...]:
        """Those that name a person who is not the entity."""
        subject = self.source.subject if isinstance(self.source, Source) else None
        pairs = zip(self.fields, self.columns, strict=True)
        return tuple(column for field, column in pairs if field == subject and field not in self.entity)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One figure over a window of events.

    | function | figure | `of` |
    | --- | --- | --- |
    | count | the events | empty |
    | sum, mean, stddev | of an integer, a decimal, or a float with a `scale`; stddev is the sample's | a number |
    | rate | the share of events for which a condition holds | a condition |
    | min, max | the least, the greatest | a number |
    | first, last | the value of the first or last to happen, by event time and then by position | a number or string |
    | last_k | the last `k` values, the newest first | a number or string |
    | distinct | how many different values, exactly | an integer, string, boolean or timestamp |
    | approx_distinct | the same by a HyperLogLog sketch, within about 2 % | as distinct |

    Events for which the expression is null are left out, above and below the line.
    """

    name: str
    function: Literal[
        "count", "sum", "mean", "rate", "stddev", "min", "max", "first", "last", "last_k", "distinct", "approx_distinct"
    ]
    of: str = ""
    """Spark SQL over the fields of one event, its lookups' columns and the set's `per_event` expressions."""
    _: KW_ONLY
    where: str | None = None
    """Only events for which this condition holds; None takes all."""
    scale: int | None = None
    """For sum, mean and stddev of floats: how many decimals each value is rounded to, so that no result depends on the order."""
    k: int | None = None
    """For last_k, how many values: 1 to 100."""
    type: Literal["string", "float64"] = "float64"
    """For first, last and last_k: a category or a number."""

    def __post_init__(self) -> None:
        check(self)
        _name("aggregate", self.name)
        _one_of(f"function of aggregate {self.name!r}", self.function, FUNCTIONS)
        _one_of(f"type of aggregate {self.name!r}", self.type, TYPES)
        what = f"aggregate {self.name!r}"
        if (self.function == "count") != (self.of == ""):
            raise ValueError(f"{what}: count takes no expression (use where=), the others need one in `of`.")
        _sql(f"of of {what}", self.of or None)
        _sql(f"where of {what}", self.where)
        if self.scale is not None and (self.function not in ("sum", "mean", "stddev") or not 0 <= self.scale <= 9):
            raise ValueError(f"{what} has scale={self.scale}: sum, mean and stddev take one, 0 to 9 decimals.")
        if (self.k is not None) != (self.function == "last_k") or (self.k is not None and not 1 <= self.k <= 100):
            raise ValueError(f"{what} has k={self.k}: last_k takes one, 1 to 100, and the others none.")
        if self.type == "string" and self.function not in ("first", "last", "last_k"):
            raise ValueError(f"{what} is {self.function} with type='string': only first, last and last_k give values back.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What is expected of the rows of each day; exactly one rule. See `Pipeline.expectations` and `FeatureSet.expectations`."""

    column: str | None = None
    """The column that it is about; None for `volume`, and for `unique`, where it means the key."""
    nulls: float | None = None
    """The largest share of nulls, 0 to 1."""
    between: tuple[float, float] | None = None
    """The least and the greatest value, both allowed; nulls are left out."""
    unique: bool = False
    """No value twice on a day."""
    volume: tuple[float, float] | None = None
    """The day's rows against the mean of the `days` before it that have any: the least and greatest ratio."""
    days: int = 7
    """For `volume`, how many days to look back."""
    psi: float | None = None
    """The largest population stability index against the champion's training days; 0.2 is a common limit."""
    ks: float | None = None
    """The largest Kolmogorov-Smirnov distance against the champion's training days, 0 to 1."""
    breach: Literal["fail", "warn"] = "fail"
    """Whether a breach ends the run with 65, and later stages refuse the day, or is only told."""

    def __post_init__(self) -> None:
        check(self)
        _one_of("breach of an expectation", self.breach, ("fail", "warn"))
        rules = [name for name in ("nulls", "between", "volume", "psi", "ks") if getattr(self, name) is not None]
        rules += ["unique"] if self.unique else []
        if len(rules) != 1:
            raise ValueError(
                f"the expectation of {self.column!r} has {len(rules)} rules ({', '.join(rules) or 'none'}): write one for each "
                "of nulls, between, unique, volume, psi, ks."
            )
        if (self.column is None) != (rules[0] in ("volume",)) and rules != ["unique"]:
            raise ValueError(f"an expectation of {rules[0]} has column={self.column!r}: volume takes none, the others need one.")
        for name in ("nulls", "ks"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} of the expectation of {self.column!r} is {value}: it lies between 0 and 1.")
        if self.psi is not None and not self.psi >= 0:
            raise ValueError(f"psi of the expectation of {self.column!r} is {self.psi}: it is at least 0.")
        for name in ("between", "volume"):
            ends = getattr(self, name)
            if ends is not None and not ends[0] <= ends[1]:
                raise ValueError(f"{name} of the expectation of {self.column!r} is {ends}: the first is the smaller one.")
        if self.days < 1:
            raise ValueError(f"days of the expectation of {self.column!r} is {self.days}: it must be at least 1.")

    @property
    def rule(self) -> str:
        """Which rule it is: `nulls`, `between`, `unique`, `volume`, `psi` or `ks`."""
        names = ("nulls", "between", "volume", "psi", "ks")
        return next((name for name in names if getattr(self, name) is not None), "unique")


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureSet:
    """Aggregates of one source's events by an entity, over windows that end with the day, or with the example's own moment."""

    name: str
    source: Source
    entity: tuple[str, ...]
    """The fields that name the entity."""
    windows: tuple[timedelta, ...]
    """Whole hours, at most 365 days: [T - w, T) at the end T of the day, or at the example's `as_of`."""
    aggregates: tuple[Aggregate, ...]
    where: str | None = None
    """Only events for which this condition, in Spark SQL over their fields, holds; None takes all."""
    lookups: tuple[Dimension, ...] = ()
    """Facts that each event gets, as columns for the expressions, before it is counted."""
    per_event: tuple[Expression, ...] = ()
    """Columns of each event for the aggregates' expressions; each may use the ones before it."""
    derived: tuple[Expression, ...] = ()
    """Features made of the set's other columns (`user_spent_7d`), in the set's own row; inputs of the model too."""
    spine_entity: tuple[str, ...] | None = None
    """The fields of the spine that name the entity there, in the order of `entity`; None: the same names."""
    accuracy: Literal["day", "event"] = "day"
    """`day`: one row an entity and day, for all examples that may know it. `event`: what was visible at each example's own
    `as_of`; such a set has no table of its own, and the run over a day makes the examples whose `as_of` lies in the day."""
    closed: bool = False
    """With accuracy `event`: the windows hold both of their ends, [T - w, T], and what became known at T itself."""
    own_event: bool = True
    """With `closed`, whether the event that the example is counts."""
    tiles: bool = False
    """Whether each day's arrivals are kept aggregated, in a table of their own. It pays where entities have many events a day or
    windows are long, and costs where they have a few; results are the same."""
    parquet: bool = False
    """Whether the set is also written as plain Parquet, one file a day, for readers without Delta."""
    expectations: tuple[Expectation, ...] = ()
    """What is expected of each day's rows."""

    def __post_init__(self) -> None:
        check(self)
        _name("feature set", self.name)
        what = f"of feature set {self.name!r}"
        _some(f"entity {what}", self.entity, "('carrier',)")
        _not_inner(f"entity {what}", self.entity)
        _unique(f"entity {what}", list(self.entity))
        _sql(f"where {what}", self.where)
        _some(f"windows {what}", self.windows, "(days(7),)")
        _some(f"aggregates {what}", self.aggregates, "(Aggregate('events', 'count'),)")
        for name in self.entity:
            self.source.field(name)
        for window in self.windows:
            if not timedelta(0) < window <= LONGEST or window % timedelta(hours=1):
                raise ValueError(
                    f"window {what} is {window}: it must be whole hours, at most {LONGEST.days} days, for example days(7)."
                )
        _unique(f"windows {what}", [str(window) for window in self.windows])
        _one_of(f"accuracy {what}", self.accuracy, ("day", "event"))
        if self.closed and self.accuracy == "day":
            raise ValueError(f"closed {what} has no effect with accuracy='day': its windows end where the day does.")
        if not self.own_event and not self.closed:
            raise ValueError(f"own_event {what} has no effect: without closed=True an event is never in its own window.")
        if self.accuracy == "event" and (self.tiles or self.parquet or self.expectations):
            raise ValueError(
                f"feature set {self.name!r} has accuracy='event', so no table: leave tiles, parquet, expectations out."
            )
        if self.tiles and self.lookups:
            raise ValueError(f"feature set {self.name!r} keeps tiles, which lookups could change: leave one of them out.")
        if self.spine_entity is not None and len(self.spine_entity) != len(self.entity):
            raise ValueError(
                f"spine_entity {what} is {self.spine_entity}: it names one field of the spine for each of {self.entity}."
            )
        for lookup in self.lookups:
            for name in lookup.entity:
                self.source.field(name)
        made = [*(column for lookup in self.lookups for column in lookup.columns), *(one.name for one in self.per_event)]
        _unique(f"columns that events get {what}", [*(field.name for field in self.source.fields), *made])
        for name in made:
            if name in RESERVED:
                raise ValueError(f"column {name!r} {what} is one that ingest adds; rename it.")
        _unique(f"columns {what}", list(self.columns))
        self._check_subject()
        for expectation in self.expectations:
            if expectation.column is not None:
                _one_of(f"column of an expectation {what}", expectation.column, (*self.entity, *self.columns))

    def _check_subject(self) -> None:
        """What names a person must not be kept where `penstock erase`, which goes by entities, can't find it."""
        subject = self.source.subject
        named = {subject} if subject is not None and subject not in self.entity else set()
        named |= {column for lookup in self.lookups for column in lookup.personal}
        for one in self.per_event:
            named |= {one.name} if any(_mentions(one.sql, name) for name in named) else set()
        keeping = ("first", "last", "last_k", "min", "max", *(("distinct",) if self.tiles else ()))
        for aggregate in self.aggregates:
            kept = sorted(name for name in named if aggregate.function in keeping and _mentions(aggregate.of, name))
            if kept:
                raise ValueError(
                    f"aggregate {aggregate.name!r} of feature set {self.name!r} keeps values of {kept[0]!r}, which names a "
                    f"person, under another entity {self.entity}: `penstock erase` would not find them. Count them, for example "
                    "by distinct."
                )

    @property
    def columns(self) -> tuple[str, ...]:
        """The feature columns, in order: window by window, aggregate by aggregate, then those derived from them."""
        return (
            *(self.column(aggregate, window) for window in self.windows for aggregate in self.aggregates),
            *(f"{self.name}_{one.name}" for one in self.derived),
        )

    @property
    def categories(self) -> tuple[str, ...]:
        """Those that are strings."""
        values = [a for a in self.aggregates if a.type == "string" and a.function != "last_k"]
        derived = [f"{self.name}_{one.name}" for one in self.derived if one.type == "string"]
        return (*(self.column(aggregate, window) for window in self.windows for aggregate in values), *derived)

    @property
    def sequences(self) -> tuple[str, ...]:
        """Those that are lists."""
        return tuple(self.column(a, window) for window in self.windows for a in self.aggregates if a.function == "last_k")

    @property
    def on_spine(self) -> tuple[str, ...]:
        """The fields of the spine that name the entity, in its order."""
        return self.entity if self.spine_entity is None else self.spine_entity

    def column(self, aggregate: Aggregate, window: timedelta) -> str:
        """The column of one aggregate over one window, as `carrier_late_rate_7d` or `carrier_late_rate_6h`."""
        whole = window % timedelta(days=1) == timedelta(0)
        return f"{self.name}_{aggregate.name}_{f'{window.days}d' if whole else f'{window // timedelta(hours=1)}h'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """What became true of an example: a condition on a later event with the same key, or on an aggregate over the horizon."""

    source: Source
    key: str | None = None
    """The field that holds the example's key: the label is a condition on the first such event. Else `entity` is given."""
    entity: tuple[str, ...] = ()
    """The fields that name the example's entity, as the spine calls them: the label is a condition on `aggregates`."""
    aggregates: tuple[Aggregate, ...] = ()
    """With `entity`: count, sum, mean, rate, min, max or distinct over the events in [as_of, as_of + horizon)."""
    of: str
    """Spark SQL condition over the later event's fields, or over the aggregates' names. Where it is null the example has no label
    and is not trained on."""
    horizon: timedelta
    """The event must happen before `as_of` plus this. Whole days: the embargo between the parts of training."""
    lateness: timedelta = timedelta(0)
    """How long after the horizon a late event may still arrive. The label matures at `as_of` + horizon + lateness."""
    negatives: float | None = None
    """The share of the negatives to train on. The others get weight 0, those kept 1 / share, by a hash of key and `as_of`."""
    negatives_per_positive: float | None = None
    """Instead of a share: how many negatives to train on for each positive that matures on the same day."""

    def __post_init__(self) -> None:
        check(self)
        if (self.key is None) == (not self.entity) or bool(self.entity) != bool(self.aggregates):
            raise ValueError(
                "the label takes either a key, for a condition on one later event, or an entity with aggregates, for a condition "
                f"on them; it has key={self.key!r}, entity={self.entity!r} and {len(self.aggregates)} aggregates."
            )
        for name in (*self.entity, *((self.key,) if self.key else ())):
            self.source.field(name)
        for aggregate in self.aggregates:
            _one_of(
                f"function of the label's aggregate {aggregate.name!r}",
                aggregate.function,
                ("count", "sum", "mean", "rate", "min", "max", "distinct"),
            )
        _sql("of of the label", self.of)
        _unique("entity of the label", list(self.entity))
        _unique("aggregates of the label", [aggregate.name for aggregate in self.aggregates])
        _not_own("aggregate of the label", [aggregate.name for aggregate in self.aggregates])
        _whole_days("horizon of the label", self.horizon)
        if not timedelta(0) <= self.lateness <= FURTHEST:
            raise ValueError(f"lateness of the label is {self.lateness}: it can't be negative, nor over {FURTHEST.days} days.")
        if self.negatives is not None and self.negatives_per_positive is not None:
            raise ValueError("the label has negatives and negatives_per_positive: leave one of them out.")
        if self.negatives is not None and not 0 < self.negatives <= 1:
            raise ValueError(f"negatives of the label is {self.negatives}: it is a share, greater than 0 and at most 1.")
        if self.negatives_per_positive is not None and not 0 < self.negatives_per_positive < math.inf:
            raise ValueError(
                f"negatives_per_positive of the label is {self.negatives_per_positive}: it is a finite number greater than 0; "
                "None keeps all negatives."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One setting of a search: what it says stands instead of the training's own; None leaves that as it is."""

    name: str
    model: str | None = None
    cross_layers: int | None = None
    hidden: tuple[int, ...] | None = None
    embedding: int | None = None
    dropout: float | None = None
    day_discount: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    linear_learning_rate: float | None = None
    weight_decay: float | None = None
    averaging: float | None = None
    optimizer: Literal["adamw", "sgd"] | None = None
    schedule: Literal["constant", "linear", "cosine"] | None = None
    warmup_steps: int | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        check(self)
        _name("trial", self.name)
        if not self.settings:
            raise ValueError(f"trial {self.name!r} changes nothing: say what it tries, for example learning_rate=1e-3.")

    @property
    def settings(self) -> dict[str, object]:
        """What it says, by the training's option."""
        return {
            one.name: value
            for one in dataclass_fields(self)
            if one.name != "name" and (value := getattr(self, one.name)) is not None
        }


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
    model: str = "wide_and_deep"
    """One of MODELS, or a network of your own, as `package.module:Class`, see `jobs.train.network`."""
    cross_layers: int = 2
    """With `cross`, how many layers multiply the inputs by each other."""
    hidden: tuple[int, ...] = (64,)
    """The widths of the hidden layers of the perceptron that stands beside the linear part."""
    embedding: int = 8
    """The width of each category's embedding."""
    min_count: int = 20
    """A category seen less often in the training days shares the embedding of the unknown."""
    hashed: tuple[str, ...] = ()
    """Categories without a vocabulary: each value has the embedding of its hash, those never seen in training too."""
    hash_buckets: int = 4096
    """How many embeddings a hashed category has."""
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
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """For all but the linear part; `sgd` has Nesterov's momentum of 0.9."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the rates fall after the warm-up, to 0 at the last step of the last epoch."""
    warmup_steps: int = 0
    """Steps over which the rates rise to what is declared."""
    rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the rates grow with the batch, counted in `reference_batch` (Goyal et al. 2017, arXiv:1706.02677; Krizhevsky 2014,
    arXiv:1404.5997)."""
    reference_batch: int = 2048
    """The batch for which the rates are declared."""
    clip: float | None = None
    """The largest norm of a step's gradient; a larger one is scaled down to it. None turns it off."""
    class_weights: Literal["balanced"] | tuple[float, float] | None = None
    """What negatives and positives weigh in the loss; `balanced`: half each. Scores are no rates then. None: as they are."""
    accumulate: int = 1
    """Pieces in which a step's batch is computed, one after the other, where it does not fit the memory."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What the network computes in; weights and losses stay fp32, and fp16 has its gradients scaled."""
    compress: bool = False
    """Whether ranks exchange gradients as fp16."""
    compile: bool = False
    """Whether the network is compiled by `torch.compile`; it needs a C++ compiler where there is no GPU."""
    averaging: float = 0.98
    """The share of the average that each step keeps of the weights before it: the average is the model. 0 turns it off."""
    ranks: int = 2
    """Processes that train together; they divide `shards`."""
    shards: int = 64
    """Virtual shards of the training part: the order of examples is the same for each number of ranks that divides it."""
    seed: int = 7
    """Of the first weights, of the order of the examples and of what is dropped out."""
    checkpoint_every: int = 200
    """Steps between two checkpoints, from which a run that was ended goes on."""
    checkpoints_kept: int = 2
    """How many of the newest checkpoints are kept. Each has the best network so far."""
    trials: tuple[Trial, ...] = ()
    """Settings that are tried one after the other; the one with the lowest validation loss becomes the candidate."""

    def __post_init__(self) -> None:
        check(self)
        for name in ("every", "days", "validation", "holdout"):
            _whole_days(f"{name} of training", getattr(self, name))
        if not 0 <= self.day_discount <= 1:
            raise ValueError(f"day_discount of training is {self.day_discount}: it lies between 0 and 1; 0 turns it off.")
        for name in ("dropout", "averaging"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} of training is {getattr(self, name)}: it is a share, at least 0 and less than 1.")
        counts = ("embedding", "min_count", "hash_buckets", "batch_size", "epochs", "patience", "ranks", "shards")
        for name in (*counts, "reference_batch", "accumulate", "cross_layers", "checkpoint_every", "checkpoints_kept"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of training is {getattr(self, name)}: it must be at least 1.")
        for name in ("learning_rate", "linear_learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} of training is {getattr(self, name)}: it is a finite number greater than 0.")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay of training is {self.weight_decay}: it is finite and not negative; 0 turns it off.")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(
                f"hidden of training is {self.hidden}: it takes the width of each layer, at least one, for example (64,)."
            )
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps of training is {self.warmup_steps}: it can't be negative; 0 turns it off.")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip of training is {self.clip}: it is a finite number greater than 0; None turns it off.")
        for name, known in (
            *(("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("rate_scaling", ("none", "linear", "sqrt"))),
            ("precision", ("fp32", "bf16", "fp16")),
        ):
            _one_of(f"{name} of training", getattr(self, name), known)
        if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", self.model):
            _one_of("model of training (or package.module:Class)", self.model, MODELS)
        if isinstance(self.class_weights, str):
            _one_of("class_weights of training (or two numbers)", self.class_weights, ("balanced",))
        elif self.class_weights is not None and not all(0 < one < math.inf for one in self.class_weights):
            raise ValueError(f"class_weights of training is {self.class_weights}: both are finite numbers greater than 0.")
        _unique("hashed of training", list(self.hashed))
        if self.shards % self.ranks or self.batch_size % self.shards:
            raise ValueError(
                f"training has {self.ranks} ranks, {self.shards} shards and a batch of {self.batch_size}: "
                "the ranks must divide the shards, and the shards the batch."
            )
        _unique("trials of training", [trial.name for trial in self.trials])
        for trial in self.trials:
            try:
                replace(self, trials=(), **trial.settings)  # type: ignore[arg-type]
            except ValueError as wrong:
                raise ValueError(f"trial {trial.name!r}: {wrong}") from None


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
        check(self)
        _one_of("metric of the promotion", self.metric, METRICS)
        if not math.isfinite(self.min_gain):
            raise ValueError(f"min_gain of the promotion is {self.min_gain}: it is a finite number.")
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
    spine: Spine | DailySpine
    features: tuple[FeatureSet, ...]
    dimensions: tuple[Dimension, ...] = ()
    label: Label
    training: Training
    promotion: Promotion = dataclass_field(default_factory=Promotion)
    expectations: tuple[Expectation, ...] = ()
    """What is expected of each day's examples."""
    owner: str = "penstock"
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self)
        _name("pipeline", self.name)
        if not timedelta(0) <= self.lateness < timedelta(days=1):
            raise ValueError(f"lateness of pipeline {self.name!r} is {self.lateness}: it must be at least 0 and less than a day.")
        if self.last_day is not None and self.last_day < self.first_day:
            raise ValueError(f"pipeline {self.name!r} ends on {self.last_day}, before it begins on {self.first_day}.")
        _unique(f"feature sets of pipeline {self.name!r}", [feature_set.name for feature_set in self.features])
        _unique(f"inputs of pipeline {self.name!r}", [*self.numbers, *self.categories, *self.sequences])
        _not_own(f"input of pipeline {self.name!r}", [*self.numbers, *self.categories, *self.sequences])
        self._check_entities()
        for column in (column for dimension in self.dimensions for column in dimension.personal):
            raise ValueError(
                f"dimension column {column!r} of pipeline {self.name!r} names a person, under another entity: `penstock erase` "
                "would not find them. Leave the field out."
            )
        for expectation in self.expectations:
            if expectation.column is not None:
                _one_of(
                    f"column of an expectation of pipeline {self.name!r}", expectation.column, (*self.categories, *self.numbers)
                )
        for name in self.training.hashed:
            _one_of(f"hashed of the training of pipeline {self.name!r} (a category)", name, self.categories)
        twice = {source.name for source in self.sources} & {table.name for table in self.tables}
        if twice:
            raise ValueError(f"pipeline {self.name!r} has a source and a table called {min(twice)!r}: give each its own name.")

    def _check_entities(self) -> None:
        known = self.spine.fields
        joins: list[tuple[str, tuple[str, str], Source | Table]] = [
            (s.name, pair, s.source) for s in self.features for pair in zip(s.on_spine, s.entity, strict=True)
        ]
        joins += [(d.name, (name, name), d.source) for d in self.dimensions for name in d.entity]
        joins += [("label", (name, name), self.label.source) for name in self.label.entity]
        for what, (name, other), source in joins:
            _one_of(f"entity of {what!r} (a field of the spine)", name, known)
            mine, theirs = self.spine.source.field(name).type, source.field(other).type
            if mine != theirs:
                raise ValueError(
                    f"entity of {what!r}: the spine's {name!r} is {mine}, but {other!r} of {source.name!r} is {theirs}: "
                    "declare both with one type."
                )
        for feature_set in self.features:
            if not feature_set.own_event and not (
                isinstance(self.spine, Spine)
                and self.spine.source == feature_set.source
                and self.spine.key == self.spine.source.event_id
            ):
                raise ValueError(
                    f"own_event of feature set {feature_set.name!r} is False, but its events are not the examples: the spine "
                    "takes another source, or is not named by the event id."
                )
            if feature_set.accuracy == "event" and isinstance(self.spine, DailySpine):
                raise ValueError(
                    f"feature set {feature_set.name!r} has accuracy='event', but each example is as of its day's close: "
                    "use accuracy='day', or a Spine."
                )
        if self.label.key is not None and isinstance(self.spine, DailySpine):
            raise ValueError("the label goes by a key, but an entity on a day has none: give it an entity and aggregates.")

    @property
    def exact(self) -> bool:
        """Whether features go by each example's own `as_of`: then the run over a day makes the examples of that day."""
        return any(feature_set.accuracy == "event" for feature_set in self.features)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Each source once: the spine's, then those of features, dimensions and label."""
        dimensions = [d.source for d in self._dimensions if isinstance(d.source, Source)]
        used = [self.spine.source, *(s.source for s in self.features), *dimensions, self.label.source]
        unique: dict[str, Source] = {}
        for source in used:
            if unique.setdefault(source.name, source) != source:
                raise ValueError(f"pipeline {self.name!r} has two sources called {source.name!r}: give each its own name.")
        return tuple(unique.values())

    @property
    def tables(self) -> tuple[Table, ...]:
        """Each snapshot table once."""
        unique: dict[str, Table] = {}
        for dimension in self._dimensions:
            table = dimension.source
            if isinstance(table, Table) and unique.setdefault(table.name, table) != table:
                raise ValueError(f"pipeline {self.name!r} has two tables called {table.name!r}: give each its own name.")
        return tuple(unique.values())

    @property
    def _dimensions(self) -> tuple[Dimension, ...]:
        return (*self.dimensions, *(lookup for feature_set in self.features for lookup in feature_set.lookups))

    @property
    def categories(self) -> tuple[str, ...]:
        """The model's inputs that are strings, in the order of the example's columns."""
        own = [column.name for column in self.spine.columns if self.spine.type_of(column) == "string"]
        windows = [name for feature_set in self.features for name in feature_set.categories]
        return (*own, *windows, *(name for dimension in self.dimensions for name in dimension.categories))

    @property
    def numbers(self) -> tuple[str, ...]:
        """The model's inputs that are floats, in the order of the example's columns."""
        own = [column.name for column in self.spine.columns if self.spine.type_of(column) == "float64"]
        windows = [
            name
            for feature_set in self.features
            for name in feature_set.columns
            if name not in (*feature_set.categories, *feature_set.sequences)
        ]
        dimensions = [name for dimension in self.dimensions for name in dimension.columns if name not in dimension.categories]
        return (*own, *windows, *dimensions)

    @property
    def sequences(self) -> tuple[str, ...]:
        """The examples' columns that are lists, in order; no model takes them yet."""
        return tuple(name for feature_set in self.features for name in feature_set.sequences)


def days(number: int) -> timedelta:
    """So many whole days."""
    return timedelta(days=number)


def hours(number: float) -> timedelta:
    """So many hours."""
    return timedelta(hours=number)


def _type_of(source: Source, column: Column) -> Literal["string", "float64"]:
    if column.type is not None:
        return column.type
    return "string" if source.field(column.name).type == "string" else "float64"


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


def _mentions(sql: str, name: str) -> bool:
    return name.lower() in re.findall(r"\w+", sql.lower())


def _not_inner(kind: str, names: tuple[str, ...], inner: tuple[str, ...] = INNER) -> None:
    for name in names:
        if name in inner:
            raise ValueError(
                f"{kind} {name!r} is a column that features go by on the way; rename the field. Taken: {', '.join(inner)}."
            )


def _some(kind: str, values: tuple[object, ...], example: str) -> None:
    if not values:
        raise ValueError(f"{kind} is empty: it takes at least one, for example {example}.")


def _whole_days(kind: str, value: timedelta) -> None:
    if not timedelta(0) < value <= FURTHEST or value % timedelta(days=1):
        raise ValueError(
            f"{kind} is {value}: it must be whole days, at least one and at most {FURTHEST.days}, for example days(7)."
        )


def _sql(kind: str, text: str | None) -> None:
    if text is not None and not text.strip():
        raise ValueError(f"{kind} is empty: write Spark SQL, for example 'quantity * price > 0', or leave it out.")
