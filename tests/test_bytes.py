"""Whatever bytes come, the fast way of decoding gives what strict reading gives, and no record touches its neighbours."""

import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs import record
from jobs.decode import decode
from pipelines.declare import Field, Source

SOURCE = Source(
    name="orders",
    topic="orders",
    event_time="at",
    event_id="id",
    fields=(
        Field("id", required=True),
        Field("at", "timestamp", required=True),
        Field("sent", "timestamp", time_unit="ms"),
        Field("count", "int64", default=-1),
        Field("price", "float64"),
        Field("paid", "bool"),
        Field("total", "decimal(6,2)"),
        Field("city", path="customer.address.city", default="nowhere"),
        Field("customer_id", "int64", path="customer.id"),
    ),
)
ONE_LEVEL = Source(name="orders", topic="orders", event_time="at", event_id="id", fields=SOURCE.fields[:6])
GOOD = b'{"id": "%s", "at": "2013-04-01T10:00:00Z", "count": 1, "price": 2.5, "total": 9.99, "customer": {"id": 5}}'
MODEST = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def alone(source: Source, value: bytes | None) -> tuple[Any, ...] | str:
    """What strict reading makes of one record."""
    try:
        return record.read(source, value)
    except record.Unfit as reason:
        return str(reason)


def together(source: Source, values: list[bytes | None]) -> list[tuple[Any, ...] | str]:
    """What decoding makes of all; each index comes out exactly once."""
    decoded = decode(source, values)
    decoded.good.validate(full=True)
    index = decoded.index.to_pylist()
    assert index == sorted(index)
    assert sorted([*index, *decoded.rejected]) == list(range(len(values)))
    columns = [
        column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()
        for column in decoded.good.columns
    ]
    found: dict[int, tuple[Any, ...] | str] = dict(zip(index, zip(*columns, strict=True), strict=True))
    return [(found | decoded.rejected)[number] for number in range(len(values))]


def same(one: tuple[Any, ...] | str, other: tuple[Any, ...] | str) -> bool:
    """Whether both are the same to the type and the sign of zero."""
    return one == other and all(
        type(a) is type(b) and (not isinstance(a, float) or str(a) == str(b)) for a, b in zip(one, other, strict=True)
    )


def check(source: Source, values: list[bytes | None]) -> None:
    """Between good neighbours each value comes out as it does alone, and the neighbours stay."""
    among: list[bytes | None] = [GOOD % b"first"]
    for value in values:
        among += [value, GOOD % b"next"]
    found = together(source, among)
    for number, value in enumerate(among):
        expected = alone(source, value)
        assert same(found[number], expected), (value, found[number], expected)
        if number % 2 == 0:
            assert isinstance(expected, tuple)


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-20, 20).map(str),
    st.floats().map(str),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-100_000, max_value=100_000, places=3).map(str),
    st.from_regex(r"\A-?[0-9]{1,5}(\.[0-9]{1,4})?([eE][+-]?[0-9]{1,3})?\Z"),
    st.sampled_from(["NaN", "-Infinity", "1e999", "-0", "-0.0", "1.0", "1.", "01", "9" * 400, "0." + "0" * 400 + "1", "1E+2"]),
    st.sampled_from([str(2**63), str(2**63 - 1), str(-(2**63)), str(-(2**63) - 1), str(2**64), "9" * 5000, "9007199254740993"]),
)
TIMES = st.one_of(
    st.datetimes(datetime(1985, 1, 1), datetime(2105, 1, 1)).map(lambda at: f'"{at.isoformat()}Z"'),
    st.from_regex(
        r"\A\"(1989|1990|2000|2013|2099|2100|2101)-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-6][0-9]:[0-6][0-9]"
        r"(\.[0-9]{1,10})?(Z|[+-][0-2][0-9]:?[0-6][0-9])\"\Z"
    ),
    st.sampled_from(
        [
            '"2013-02-29T00:00:00Z"',
            '"2012-02-29T00:00:00Z"',
            '"2100-02-29T00:00:00Z"',
            '"2013-04-01T10:00Z"',
            '"2013-04-01"',
            '"1990-01-01T00:00:00+00:01"',
            '"1989-12-31T23:59:59-00:01"',
            '"2013-04-01T24:00:00Z"',
            '"2013-04-01T10:00:60Z"',
            '"2013-04-01T10:00:00Z\\n"',
            '"2013-04-01T10:00:00.1234567Z"',
            "1364810400001",
        ]
    ),
)
TEXTS = st.one_of(
    st.text(max_size=8).map(json.dumps),
    st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(
        [
            '"id"',
            '"\\"id\\":"',
            '"\\u0069d"',
            '"\\ud800"',
            '"\\ud83d\\ude00"',
            '"\\udc00\\ud800"',
            '"NaN"',
            '"12.5"',
            '"1e2"',
            '" 1"',
            '"1_0"',
            '"\\u0661"',
            '"\\/"',
            '"\\x"',
            '"a\nb"',
            '"\\\\ud800"',
            '"\\ud83d"',
            '"\x7f"',
            '"\\u0000"',
        ]
    ),
)
KEYS = st.sampled_from(
    [
        "id",
        "at",
        "sent",
        "count",
        "price",
        "paid",
        "total",
        "customer",
        "address",
        "city",
        "note",
        "\\u0069d",
        "c\\u006funt",
        "\\u00e9",
    ]
)


def json_object(members: list[tuple[str, str]], space: str = "") -> str:
    """An object's text, keys as they are given, twice where they are."""
    return "{" + ",".join(f'{space}"{key}"{space}:{space}{value}' for key, value in members) + space + "}"


SCALARS = st.one_of(NUMBERS, TIMES, TEXTS, st.sampled_from(["true", "false", "null", "{}", "[]", "[[1]]"]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(st.tuples(KEYS, inner), max_size=4).map(json_object),
        st.lists(inner, max_size=3).map(lambda of: f"[{','.join(of)}]"),
    ),
    max_leaves=6,
)
WELL = st.fixed_dictionaries(
    {"id": TEXTS | st.just('"a"'), "at": st.just('"2013-04-01T10:00:00Z"') | TIMES},
    optional={
        "sent": st.integers(0, 5_000_000_000_000).map(str) | VALUES,
        "count": NUMBERS | VALUES,
        "price": NUMBERS | VALUES,
        "paid": st.sampled_from(["true", "false", "null", "1"]),
        "total": NUMBERS | NUMBERS.map(lambda text: f'"{text}"') | VALUES,
        "customer": st.lists(
            st.tuples(st.sampled_from(["id", "address", "x"]), st.just('{"city":"Rome"}') | VALUES), max_size=3
        ).map(json_object),
        "note": VALUES,
    },
).map(lambda members: list(members.items()))
OBJECTS = st.builds(
    lambda members, more, space: json_object([*members, *more], space),
    WELL,
    st.lists(st.tuples(KEYS, VALUES), max_size=2),
    st.sampled_from(["", " ", "\n", "\t\r"]),
).map(lambda text: text.encode("utf-8", "surrogatepass"))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A record of the right kind with some bytes changed."""
    value = draw(OBJECTS)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(value)))
        piece = draw(
            st.binary(max_size=3)
            | st.sampled_from([b'"', b"{", b"}", b"[", b",", b":", b"\\", b"\\u", b"NaN", b"\xff", b"\n", b"-"])
        )
        value = value[:at] + piece + value[at + draw(st.integers(0, 3)) :]
    return value


@MODEST
@example([GOOD % b"a" + b" " * 300, (GOOD % b"b").replace(b"9.99", b"1e2"), (GOOD % b"c").replace(b"9.99", b'"12.50"')])
@given(st.lists(OBJECTS, max_size=6))
def test_objects_are_read_as_one_by_one(values: list[bytes]) -> None:
    for source in (SOURCE, ONE_LEVEL):
        check(source, list(values))


@MODEST
@example([GOOD[:-1] % b"a" + b',"total":{"\xff":1}}'])
@given(st.lists(st.none() | st.binary(max_size=40) | mutated(), max_size=6))
def test_any_bytes_are_read_as_one_by_one(values: list[bytes | None]) -> None:
    for source in (SOURCE, ONE_LEVEL):
        check(source, values)


def test_the_examples_hold_both_good_and_bad() -> None:
    """Were all examples refused, their agreement would say little."""
    good = bad = 0

    @settings(MODEST, max_examples=200, database=None)
    @given(OBJECTS)
    def count(value: bytes) -> None:
        nonlocal good, bad
        if isinstance(alone(ONE_LEVEL, value), tuple):
            good += 1
        else:
            bad += 1

    count()
    assert good > 10 and bad > 10, (good, bad)


def test_deep_nesting_ends_at_one_depth_for_both_ways() -> None:
    for depth in (record.DEPTH - 1, record.DEPTH, record.DEPTH + 1, 5_000):
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            value = GOOD[:-1] % b"deep" + b',"x":' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"
            check(SOURCE, [value])
            assert (alone(SOURCE, value) == "nested too deeply") is (depth > record.DEPTH)
    brackets = GOOD[:-1] % b"wide" + b',"x":[' + b"[]," * 500 + b'"' + b"[" * 500 + b'"]}'
    check(SOURCE, [brackets])
    assert isinstance(alone(SOURCE, brackets), tuple)


def test_decimals_of_both_ways_are_decimals() -> None:
    assert alone(SOURCE, GOOD % b"a")[6] == Decimal("9.99")
