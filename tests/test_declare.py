"""A wrong declaration fails when it is made, with the value, the rule and what is near."""

import dataclasses
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import pipelines
from pipelines.declare import (
    Aggregate,
    Column,
    DailySpine,
    Dimension,
    Expectation,
    Expression,
    FeatureSet,
    Field,
    Pipeline,
    Source,
    Table,
    Training,
    days,
    hours,
)

PIPELINE = pipelines.load("flight_delays")


@pytest.mark.parametrize("name", pipelines.names())
def test_each_pipeline_loads_and_its_inputs_are_distinct(name: str) -> None:
    pipeline = pipelines.load(name)
    inputs = [*pipeline.categories, *pipeline.numbers]
    assert len(inputs) == len(set(inputs)) > 0
    assert pipeline.sources[0] == pipeline.spine.source


def test_inputs_follow_the_columns_of_the_examples() -> None:
    assert PIPELINE.categories == ("carrier", "origin", "destination", "aircraft", "departure_hour", "weekday")
    assert PIPELINE.numbers[:5] == ("departure_minute", "duration_minutes", "distance_miles", "seats", "aircraft_year")
    assert PIPELINE.numbers[5:9] == (
        "origin_flights_1d",
        "origin_late_rate_1d",
        "origin_mean_delay_1d",
        "origin_cancelled_rate_1d",
    )
    assert PIPELINE.numbers[-1] == "weather_visibility_miles"


def changed(part: str, **values: Any) -> Pipeline:
    """The pipeline with other values in one of its parts."""
    return dataclasses.replace(PIPELINE, **{part: dataclasses.replace(getattr(PIPELINE, part), **values)})


def named_as_of() -> Pipeline:
    """The pipeline with a dimension whose one input gets the name `as_of` out of two harmless ones."""
    facts = PIPELINE.dimensions[0]
    source = dataclasses.replace(facts.source, fields=(*facts.source.fields, Field("of", "float64")))
    return dataclasses.replace(PIPELINE, dimensions=(dataclasses.replace(facts, name="as", source=source, fields=("of",)),))


def facts_of_people() -> Dimension:
    """Who stands at an airport, by a source that says that this is a person."""
    facts = PIPELINE.dimensions[0]
    source = dataclasses.replace(facts.source, fields=(*facts.source.fields, Field("who")), subject="who")
    return dataclasses.replace(facts, name="facts", source=source, fields=("who",))


def names_a_person() -> Pipeline:
    """The pipeline with that as inputs."""
    return dataclasses.replace(PIPELINE, dimensions=(facts_of_people(),))


SINCE = Field("since", "timestamp", required=True)


def of_set(**values: Any) -> FeatureSet:
    """The first feature set with other values."""
    return dataclasses.replace(PIPELINE.features[0], **values)


def with_set(**values: Any) -> Pipeline:
    """The pipeline with this set alone."""
    return dataclasses.replace(PIPELINE, features=(of_set(**values),))


def daily(**values: Any) -> DailySpine:
    """A daily spine over the spine's source."""
    return DailySpine(**{"source": PIPELINE.spine.source, "entity": ("origin",), "within": days(7)} | values)


def with_table_called(name: str) -> Pipeline:
    """The pipeline with a snapshot table of some name."""
    table = Table(name=name, path="x", fields=(SINCE, Field("origin"), Field("size", "int64")), valid_from="since")
    facts = Dimension(name="place", source=table, entity=("origin",), fields=("size",), within=None)
    return dataclasses.replace(PIPELINE, dimensions=(facts,))


def about_people() -> Source:
    """The first set's source, as if its aircraft named people."""
    return dataclasses.replace(PIPELINE.features[0].source, subject="aircraft")


def sourced(*fields: Field, **values: Any) -> Source:
    """The spine's source with more fields, or other values."""
    source = PIPELINE.spine.source
    return dataclasses.replace(source, fields=(*source.fields, *fields), **values)


def test_declared_fields_know_where_they_lie_and_what_they_hold() -> None:
    assert Field("city").keys == ("city",)
    assert Field("city", path="customer.address.city").keys == Field("city", path=("customer", "address", "city")).keys
    assert Field("n", "decimal(12,2)", default="-0.5").digits == (12, 2) and Field("n").digits is None
    assert Field("n", "decimal(2,2)", default="0.25").default == "0.25"
    assert Field("n", "timestamp", default=datetime(2013, 1, 1, tzinfo=UTC)).keys == ("n",)
    source = sourced(Field("price", "decimal(12,2)"), subject="aircraft", retention=days(3), dead_letter_limit=1)
    assert source.exact and not PIPELINE.spine.source.exact
    assert (PIPELINE.spine.source.dead_letter_limit, PIPELINE.spine.source.retention) == (0.05, days(7))
    assert pickle.loads(pickle.dumps(source)) == source and hash(source) == hash(dataclasses.replace(source))


def test_a_decimal_is_no_input_of_a_dimension() -> None:
    facts = PIPELINE.dimensions[0]
    source = dataclasses.replace(facts.source, fields=(*facts.source.fields, Field("price", "decimal(12,2)")))
    with pytest.raises(ValueError, match=r"is decimal\(12,2\): only int64, float64 and string"):
        dataclasses.replace(facts, source=source, fields=("price",))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Field("Name"), "small letters"),
        (lambda: Field("n", "int"), "did you mean 'int64'"),
        (lambda: Field("kafka_offset"), "a column that ingest adds"),
        (lambda: Field("n", "timestamp", time_unit="minutes"), "known: iso, s, ms, us, ns"),
        (lambda: Field("n", "decimal"), r"did you mean 'decimal\(P,S\)'"),
        (lambda: Field("n", "decimal(P,S)"), "P and S are numbers"),
        (lambda: Field("n", "decimal(39,2)"), "1 to 38 digits"),
        (lambda: Field("n", "decimal(0,0)"), "1 to 38 digits"),
        (lambda: Field("n", "decimal(2,3)"), "no more decimals than digits"),
        (lambda: Field("n", "decimal(5, 2)"), r"known: string, .*decimal\(P,S\)"),
        (lambda: Field("n", path="a..b"), "it takes keys of letters"),
        (lambda: Field("n", path=""), "it takes keys of letters"),
        (lambda: Field("n", path=()), "it takes keys of letters"),
        (lambda: Field("n", path=("a.b",)), "it takes keys of letters"),
        (lambda: Field("n", path='a"b'), "it takes keys of letters"),
        (lambda: Field("n", required=True, default="x"), "so it has no effect"),
        (lambda: Field("n", default=1), "a field of type string takes a str"),
        (lambda: Field("n", "int64", default=True), "takes an int"),
        (lambda: Field("n", "int64", default=1.0), "takes an int"),
        (lambda: Field("n", "int64", default=2**63), "at most 64 bits"),
        (lambda: Field("n", "float64", default=float("nan")), "takes a finite number"),
        (lambda: Field("n", "float64", default=False), "takes a finite number"),
        (lambda: Field("n", "bool", default=0), "takes True or False"),
        (lambda: Field("n", "timestamp", default=datetime(2013, 1, 1)), "takes an aware datetime"),
        (lambda: Field("n", "timestamp", default="2013-01-01T00:00:00Z"), "takes an aware datetime"),
        (lambda: Field("n", "decimal(4,2)", default=1.5), "the number as a str"),
        (lambda: Field("n", "decimal(4,2)", default="1.555"), "at most 2 digits before the point and 2 behind"),
        (lambda: Field("n", "decimal(4,2)", default="100"), "at most 2 digits before the point"),
        (lambda: Field("n", "decimal(2,2)", default="1.5"), "at most 0 digits before the point"),
        (lambda: Field("n", "decimal(4,0)", default="1.5"), "0 behind"),
        (lambda: sourced(Field("a", path="x"), Field("b", path="x.y")), "where field 'a' is"),
        (lambda: sourced(Field("a", path="x.y"), Field("b", path="x.y")), "a value is read once"),
        (lambda: sourced(format="protobuf"), "known: json, avro"),
        (lambda: sourced(avro_schema="{}"), "has no effect with format='json'"),
        (lambda: sourced(format="avro", avro_schema="record"), "is not JSON"),
        (lambda: sourced(format="avro", avro_schema='"string"'), "is no record"),
        (lambda: sourced(dead_letter_limit=0), "1 turns it off"),
        (lambda: sourced(dead_letter_limit=1.1), "at most 1"),
        (
            lambda: sourced(dead_letter_limit=float("nan")),
            "dead_letter_limit of Source 'flights_scheduled' is nan: it takes a number",
        ),
        (lambda: sourced(retention=hours(1)), "whole days"),
        (lambda: sourced(subject="aircaft"), "did you mean 'aircraft'"),
        (lambda: Column("hour", sql="hour(x)"), "its type must be said"),
        (lambda: Aggregate("n", "median", "x"), "known: count, sum, mean, rate"),
        (lambda: Aggregate("n", "count", "x"), "count takes no expression"),
        (lambda: Aggregate("n", "mean"), "the others need one"),
        (lambda: dataclasses.replace(PIPELINE.spine.source, event_time="flight_id"), "a required timestamp"),
        (lambda: dataclasses.replace(PIPELINE.spine.source, event_id="aircraft"), "a required field"),
        (lambda: dataclasses.replace(PIPELINE.spine.source, event_id="flihgt_id"), "did you mean 'flight_id'"),
        (lambda: changed("spine", key="fligth_id"), "did you mean 'flight_id'"),
        (lambda: changed("spine", at="scheduled_arrival"), "use the event time"),
        (lambda: changed("label", horizon=hours(30)), "whole days"),
        (lambda: changed("label", lateness=hours(-1)), "can't be negative"),
        (lambda: changed("promotion", metric="auc"), "known: log_loss, average_precision"),
        (lambda: changed("promotion", confidence=95), "between 0 and 1"),
        (lambda: changed("promotion", resamples=0), "resamples of the promotion is 0: it must be at least 1"),
        (lambda: changed("promotion", min_rows=0), "min_rows of the promotion is 0: it must be at least 1"),
        (lambda: changed("spine", columns=(Column("as_of", sql="carrier", type="string"),)), "the examples have themselves"),
        (lambda: changed("spine", columns=(Column("label", sql="seats", type="float64"),)), "column of the spine 'label'"),
        (lambda: named_as_of(), "input of pipeline 'flight_delays' 'as_of' is a column that the examples have"),
        (lambda: changed("training", ranks=3), "the ranks must divide the shards"),
        (lambda: changed("training", epochs=0), "at least 1"),
        (lambda: changed("training", dropout=1.0), "less than 1"),
        (lambda: dataclasses.replace(PIPELINE.features[0], windows=()), "windows of feature set 'origin' is empty"),
        (lambda: dataclasses.replace(PIPELINE.features[0], aggregates=()), "aggregates of feature set 'origin' is empty"),
        (lambda: dataclasses.replace(PIPELINE.features[0], entity=()), "entity of feature set 'origin' is empty"),
        (lambda: of_set(windows=(hours(1.5),)), "whole hours"),
        (lambda: of_set(windows=(days(366),)), "at most 365 days"),
        (lambda: of_set(accuracy="hour"), "known: day, event"),
        (lambda: of_set(closed=True), "no effect with accuracy='day'"),
        (lambda: of_set(own_event=False), "never in its own window"),
        (lambda: of_set(accuracy="event", tiles=True), "accuracy='event', so no table"),
        (lambda: of_set(tiles=True, lookups=(PIPELINE.dimensions[0],)), "which lookups could change"),
        (lambda: of_set(spine_entity=("origin", "carrier")), "one field of the spine for each of"),
        (lambda: of_set(per_event=(Expression("carrier", "1"),)), "columns that events get .* have 'carrier' twice"),
        (lambda: of_set(per_event=(Expression("batch", "1"),)), "one that ingest adds"),
        (lambda: of_set(derived=(Expression("flights_1d", "1"),)), "have 'origin_flights_1d' twice"),
        (lambda: of_set(expectations=(Expectation(column="origin_flihgts_1d", nulls=0),)), "did you mean 'origin_flights_1d'"),
        (lambda: of_set(lookups=(dataclasses.replace(PIPELINE.dimensions[0], entity=("flight",)),)), "known: .*observed_at"),
        (lambda: of_set(source=about_people(), aggregates=(Aggregate("x", "last", "aircraft"),)), "`penstock erase` would not"),
        (
            lambda: of_set(
                source=about_people(), per_event=(Expression("who", "aircraft"),), aggregates=(Aggregate("x", "last", "who"),)
            ),
            "`penstock erase` would not",
        ),
        (lambda: with_set(spine_entity=("orign",)), "did you mean 'origin'"),
        (lambda: with_set(spine_entity=("seats",)), "'seats' is int64, but 'origin' of 'flights_landed' is string"),
        (lambda: of_set(per_event=(Expression("known_day", "1"),)), "one that ingest adds"),
        (lambda: Field("event_day"), "is a column that ingest adds"),
        (lambda: of_set(source=sourced(Field("day")), entity=("day",)), "a column that features go by on the way"),
        (lambda: changed("spine", source=sourced(Field("late", "bool"))), "has a field 'late', as each example does"),
        (lambda: with_table_called(PIPELINE.label.source.name), "a source and a table called 'flights_landed'"),
        (lambda: with_set(accuracy="event", closed=True, own_event=False), "its events are not the examples"),
        (lambda: Aggregate("n", "sum", "x", k=3), "last_k takes one"),
        (lambda: Aggregate("n", "last_k", "x"), "last_k takes one, 1 to 100"),
        (lambda: Aggregate("n", "last_k", "x", k=101), "k=101"),
        (lambda: Aggregate("n", "last_k", "x", k=0), "k=0"),
        (lambda: Aggregate("n", "last_k", "x", k=2.5), "k of Aggregate 'n' is 2.5: it takes a whole number or None"),
        (lambda: Aggregate("n", "mean", "x", scale=True), "scale of Aggregate 'n' is True: it takes a whole number or None"),
        (lambda: Aggregate("n", "mean", " "), "of of aggregate 'n' is empty"),
        (lambda: Aggregate("n", "count", where=""), "where of aggregate 'n' is empty"),
        (lambda: Column("n", sql=" ", type="string"), "sql of column 'n' is empty"),
        (lambda: of_set(where=" "), "where of feature set 'origin' is empty"),
        (lambda: daily(where="\n"), "where of the spine is empty"),
        (lambda: changed("label", of=" "), "of of the label is empty"),
        (
            lambda: of_set(windows=days(1)),
            r"windows of FeatureSet 'origin' is .*: it takes a tuple, each of it a timedelta.*\(VALUE,\)",
        ),
        (lambda: of_set(windows=[days(1)]), "round brackets"),
        (lambda: of_set(windows=(1,)), "each of it a timedelta, for example days"),
        (lambda: of_set(aggregates=Aggregate("n", "count")), "it takes a tuple, each of it an Aggregate; write"),
        (lambda: of_set(entity="origin"), "entity of FeatureSet 'origin' is 'origin': it takes a tuple, each of it text; write"),
        (lambda: of_set(entity=("origin", "origin")), "entity of feature set 'origin' have 'origin' twice"),
        (lambda: of_set(tiles="yes"), "tiles of FeatureSet 'origin' is 'yes': it takes True or False"),
        (lambda: dataclasses.replace(PIPELINE.dimensions[0], fields=("wind_speed", "wind_speed")), "have 'wind_speed' twice"),
        (lambda: dataclasses.replace(PIPELINE, lateness=3), "lateness of Pipeline 'flight_delays' is 3: it takes a timedelta"),
        (lambda: dataclasses.replace(PIPELINE, first_day="2013-01-01"), "first_day of Pipeline .*: it takes a date, for example"),
        (lambda: dataclasses.replace(PIPELINE, first_day=datetime(2013, 1, 1)), "it takes a date, for example"),
        (lambda: dataclasses.replace(PIPELINE, spine=PIPELINE.label), "it takes a Spine or a DailySpine"),
        (lambda: dataclasses.replace(PIPELINE, name=3), "name of Pipeline is 3: it takes text"),
        (lambda: Expectation(volume=(0.5,)), "volume of Expectation is .*: it takes a tuple of 2, each of it a number or None"),
        (lambda: changed("label", negatives_per_positive=float("inf")), "None keeps all negatives"),
        (lambda: changed("label", horizon=days(10**6)), "at most 3650"),
        (lambda: changed("label", lateness=days(10**6)), "nor over 3650 days"),
        (lambda: changed("spine", before=days(10**6)), "at most 3650 days"),
        (lambda: sourced(repeats_within=days(10**6)), "at most 3650"),
        (lambda: changed("training", learning_rate=float("inf")), "a finite number greater than 0"),
        (lambda: changed("training", weight_decay=float("inf")), "finite and not negative"),
        (lambda: changed("promotion", min_gain=float("-inf")), "a finite number"),
        (lambda: names_a_person(), "dimension column 'facts_who' of pipeline .* names a person"),
        (
            lambda: of_set(lookups=(facts_of_people(),), aggregates=(Aggregate("x", "last", "upper(facts_who)"),)),
            "'facts_who', which names a person",
        ),
        (lambda: Aggregate("n", "max", "x", scale=2), "sum, mean and stddev take one"),
        (lambda: Aggregate("n", "sum", "x", scale=-1), "0 to 9 decimals"),
        (lambda: Aggregate("n", "max", "x", type="string"), "only first, last and last_k"),
        (lambda: Aggregate("n", "last", "x", type="text"), "known: string, float64"),
        (lambda: Expression("n", " "), "is empty: write Spark SQL"),
        (lambda: Expectation(column="x"), "has 0 rules"),
        (lambda: Expectation(column="x", nulls=0.1, ks=0.1), r"has 2 rules \(nulls, ks\)"),
        (lambda: Expectation(nulls=0.1), "the others need one"),
        (lambda: Expectation(column="x", volume=(1, 2)), "volume takes none"),
        (lambda: Expectation(column="x", nulls=2), "between 0 and 1"),
        (lambda: Expectation(column="x", between=(2, 1)), "the first is the smaller one"),
        (lambda: Expectation(column="x", psi=-1), "at least 0"),
        (lambda: Expectation(volume=(1, 2), breach="ignore"), "known: fail, warn"),
        (lambda: Table(name="t", path="", fields=(SINCE,), valid_from="since"), "path of table 't' is empty"),
        (lambda: Table(name="t", path="x", fields=(SINCE,), valid_from="sinc"), "did you mean 'since'"),
        (lambda: dataclasses.replace(PIPELINE.dimensions[0], within=None), "which is for tables"),
        (lambda: daily(entity=()), "entity of the spine is empty"),
        (lambda: daily(within=hours(30)), "whole days"),
        (lambda: daily(columns=(Column("distance_miles"),)), r"a field of its entity\) is 'distance_miles'"),
        (lambda: dataclasses.replace(PIPELINE, spine=daily()), "known: origin"),
        (lambda: dataclasses.replace(PIPELINE, spine=daily(), features=(), dimensions=()), "an entity on a day has none"),
        (lambda: changed("label", key=None), "either a key, .* or an entity with aggregates"),
        (lambda: changed("label", entity=("carrier",), aggregates=(Aggregate("n", "count"),)), "either a key"),
        (
            lambda: changed("label", key=None, entity=("carrier",), aggregates=(Aggregate("n", "last", "x"),)),
            "function of the label",
        ),
        (
            lambda: changed("label", key=None, entity=("carrier",), aggregates=(Aggregate("key", "count"),)),
            "aggregate of the label",
        ),
        (lambda: changed("label", negatives=0), "greater than 0 and at most 1"),
        (lambda: changed("label", negatives=0.5, negatives_per_positive=2), "leave one of them out"),
        (lambda: changed("label", negatives_per_positive=-1), "greater than 0"),
        (lambda: dataclasses.replace(PIPELINE.features[0], windows=(days(7), days(7))), "twice"),
        (lambda: dataclasses.replace(PIPELINE.features[0], entity=("carier",)), "did you mean 'carrier'"),
        (lambda: dataclasses.replace(PIPELINE.dimensions[0], fields=("observed_at",)), "only int64, float64 and string"),
        (lambda: dataclasses.replace(PIPELINE, lateness=days(1)), "less than a day"),
        (lambda: dataclasses.replace(PIPELINE, last_day=PIPELINE.first_day - days(1)), "before it begins"),
        (lambda: dataclasses.replace(PIPELINE, features=(PIPELINE.features[0], PIPELINE.features[0])), "twice"),
    ],
)
def test_wrong_declarations_say_what_is_wrong(wrong: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wrong()


def test_two_sources_of_one_name_are_refused() -> None:
    other = dataclasses.replace(PIPELINE.label.source, topic="elsewhere")
    with pytest.raises(ValueError, match="two sources called 'flights_landed'"):
        changed("label", source=other)


def test_unknown_pipelines_are_refused_with_what_is_near() -> None:
    with pytest.raises(ValueError, match="did you mean 'flight_delays'"):
        pipelines.load("flight_delay")


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files are pipelines too, beside the real one; nothing of it stays imported."""
    monkeypatch.setattr(pipelines, "names", lambda: sorted(["flight_delays", *(path.stem for path in tmp_path.glob("*.py"))]))
    monkeypatch.setattr(pipelines, "__path__", [*pipelines.__path__, str(tmp_path)])
    return tmp_path


BROKEN = [
    ("from pipelines.declare import Field\nField('Name')\n", "field 'Name' has no valid name"),
    ("x = 1\n", "it has no PIPELINE"),
    ("def\n", "can't be imported \\(SyntaxError: "),
    ("import no_such_module\n", "can't be imported \\(ModuleNotFoundError: No module named 'no_such_module'\\)"),
    ("PIPELINE = 3\n", "PIPELINE is of type int"),
    ("from pipelines.flight_delays import PIPELINE\n", "declares the name 'flight_delays'"),
]


@pytest.mark.parametrize(("text", "words"), BROKEN)
def test_a_broken_file_is_named_and_leaves_the_others_usable(text: str, words: str, declared: Path) -> None:
    name = f"broken_{BROKEN.index((text, words))}"
    (declared / f"{name}.py").write_text(text)
    with pytest.raises(ValueError, match=rf"^pipelines/{name}\.py.*{words}"):
        pipelines.load(name)
    good, broken = pipelines.load_all()
    assert list(good) == ["flight_delays"] and list(broken) == [name]
    assert "flights_landed" in pipelines.sources()
    assert f"not looked into: pipelines/{name}.py" in pipelines.near("flights_lost", list(pipelines.sources()))


def test_a_day_is_a_day() -> None:
    assert days(2) == timedelta(days=2) and hours(3) == timedelta(hours=3)
    assert Training(every=days(1), days=days(1), validation=days(1), holdout=days(1)).ranks == 2
