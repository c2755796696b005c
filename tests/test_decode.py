"""Records become rows or reasons, whatever lies beside them."""

import json
import random
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from jobs import record
from jobs.decode import decode, events_schema
from pipelines.declare import Field, Source


def source(time_unit: str = "iso") -> Source:
    return Source(
        name="orders",
        topic="orders",
        event_time="at",
        event_id="id",
        fields=(
            Field("id", required=True),
            Field("at", "timestamp", required=True, time_unit=time_unit),  # type: ignore[arg-type]
            Field("count", "int64"),
            Field("price", "float64"),
            Field("paid", "bool"),
        ),
    )


def order(**changes: object) -> bytes:
    return json.dumps({"id": "a", "at": "2013-04-01T10:00:00Z", "count": 1, "price": 2.5, "paid": True} | changes).encode()


def outcome(value: bytes | None, of: Source | None = None) -> str | None:
    """The reason for which a record between two good ones is rejected; None where it is read. The good ones must stay."""
    decoded = decode(of or source(), [order(id="before"), value, order(id="after")] if of is None else [value])
    if of is None:
        names = decoded.good.column("id").to_pylist()
        assert (names[0], names[-1]) == ("before", "after")
        assert decoded.index.to_pylist() == ([0, 2] if decoded.rejected else [0, 1, 2])
    return next(iter(decoded.rejected.values()), None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "tombstone"),
        (b"", "tombstone"),
        (b" null ", "tombstone"),
        (b"\xff\xfe" + order(), "not UTF-8"),
        (b'{"id": "\xc3"}', "not UTF-8"),
        (order()[:-1], "not JSON"),
        (order() + order(), "not JSON"),
        (order() + b"\n" + order(), "not JSON"),
        (b"\xef\xbb\xbf" + order(), "not JSON"),
        (b'{"id": "a\n"}', "not JSON"),
        (b'{"x": 1},"y": {"x": 2}', "not JSON"),
        (b'{"a":1}}\n{"i":2,"v":{"id":"z"}', "not JSON"),
        (b'{"note": NaN, "id": "a", "at": "2013-04-01T10:00:00Z"}', "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"1", "not a JSON object"),
        (b'"NaN"', "not a JSON object"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"id": "\\ud800", "at": "2013-04-01T10:00:00Z"}', "not Unicode"),
        (b'{"id": "a", "id": "b", "at": "2013-04-01T10:00:00Z"}', "repeated field id"),
        (b'{"at": "2013-04-01T10:00:00Z"}', "missing required field id"),
        (order(id=None), "missing required field id"),
        (order(id=7), "wrong type in field id"),
        (order(id={"x": 1}), "wrong type in field id"),
        (order(count="1"), "wrong type in field count"),
        (order(count=1.0), "wrong type in field count"),
        (order(count=True), "wrong type in field count"),
        (order(count=2**63), "integer out of range in field count"),
        (order(count=327267367867168100000), "integer out of range in field count"),
        (order().replace(b'"count": 1', b'"count": ' + b"9" * 5000), "integer out of range in field count"),
        (order(price="2.5"), "wrong type in field price"),
        (order(price=float("nan")), "not a finite number in field price"),
        (order(price=float("-inf")), "not a finite number in field price"),
        (order().replace(b"2.5", b"1e999"), "not a finite number in field price"),
        (order(paid=1), "wrong type in field paid"),
        (order(at=None), "missing required field at"),
        (order(at=1364810400), "wrong type in field at"),
        (order(at="2013-04-01T10:00:00"), "not an instant in field at"),
        (order(at="2013-02-30T10:00:00Z"), "not an instant in field at"),
        (order(at="yesterday"), "not an instant in field at"),
        (order(at="1970-01-01T00:00:01Z"), "implausible time in field at"),
        (order(at="9999-12-31T00:00:00Z"), "implausible time in field at"),
    ],
)
def test_what_does_not_fit_has_its_reason_and_its_neighbours_stay(value: bytes | None, reason: str) -> None:
    assert outcome(value) == reason


@pytest.mark.parametrize(
    "value",
    [
        order(count=None, price=None, paid=None),
        b'{"id": "a", "at": "2013-04-01T10:00:00Z"}',
        order(price=3, note="NaN and {braces} and [more]", extra={"deep": [1, {"x": 2}]}),
        order(count=1).replace(b", ", b",\n  "),
        order(note="\u00e9\u4e2d\U0001f600", id="\U0001f600"),
        order(huge=1).replace(b'"huge": 1', b'"huge": ' + b"9" * 5000),
        b'{"x": 1, "x": 2, "id": "a", "at": "2013-04-01T10:00:00Z"}',
    ],
)
def test_what_fits_is_read(value: bytes) -> None:
    assert outcome(value) is None


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, -(2**63), 0, -1])
def test_integers_are_exact(number: int) -> None:
    # Once as most records are read, once with what isn't declared beside it.
    for value in (order(count=number), order(count=number, extra={})):
        assert decode(source(), [value]).good.column("count").to_pylist() == [number]


@pytest.mark.parametrize(
    ("unit", "at", "instant"),
    [
        ("iso", "2013-04-01T10:00:00Z", datetime(2013, 4, 1, 10, tzinfo=UTC)),
        ("iso", "2013-04-01T01:00:00+05:30", datetime(2013, 3, 31, 19, 30, tzinfo=UTC)),
        ("iso", "2013-04-01 01:00:00.25-0800", datetime(2013, 4, 1, 9, 0, 0, 250_000, tzinfo=UTC)),
        ("iso", "2013-04-01T10:00:00.123456789Z", datetime(2013, 4, 1, 10, 0, 0, 123_456, tzinfo=UTC)),
        ("s", 1364810400, datetime(2013, 4, 1, 10, tzinfo=UTC)),
        ("ms", 1364810400001, datetime(2013, 4, 1, 10, 0, 0, 1_000, tzinfo=UTC)),
        ("us", 1364810400000001, datetime(2013, 4, 1, 10, 0, 0, 1, tzinfo=UTC)),
        ("ns", 1364810400000001999, datetime(2013, 4, 1, 10, 0, 0, 1, tzinfo=UTC)),
        ("ms", 1364810400, None),
        ("s", 1364810400000, None),
        ("ns", 2**63 - 1, None),
        ("s", 2**63 - 1, None),
        ("s", -(2**63), None),
    ],
)
def test_each_time_has_one_declared_unit(unit: str, at: object, instant: datetime | None) -> None:
    for value in (order(at=at), order(at=at, extra={})):
        decoded = decode(source(unit), [value])
        assert decoded.good.column("at").to_pylist() == ([instant] if instant else [])
        assert list(decoded.rejected.values()) == ([] if instant else ["implausible time in field at"])


def test_any_bytes_are_read_as_one_by_one() -> None:
    """The fast way and the strict way agree on every record, in good company and in bad."""
    dice = random.Random(20130401)
    of = source()
    values: list[bytes | None] = [_mutated(dice) for _ in range(6_000)]
    expected: dict[int, object] = {}
    for number, value in enumerate(values):
        try:
            expected[number] = record.read(of, value)
        except record.Unfit as reason:
            expected[number] = str(reason)
    assert 1_000 < sum(isinstance(known, tuple) for known in expected.values()) < 5_000
    for size in (1, 7, 6_000):
        for start in range(0, len(values) if size > 1 else 500, size):
            decoded = decode(of, values[start : start + size])
            rows = decoded.good.set_column(1, "at", decoded.good.column("at").cast(pa.int64())).to_pylist()
            index = decoded.index.to_pylist()
            assert index == sorted(index)
            found: dict[int, object] = {start + i: tuple(row.values()) for i, row in zip(index, rows, strict=True)}
            found |= {start + i: reason for i, reason in decoded.rejected.items()}
            assert found == {i: expected[i] for i in range(start, min(start + size, len(values)))}
            decoded.good.validate(full=True)


def _mutated(dice: random.Random) -> bytes | None:
    value = order(
        id=dice.choice(["a", "\u00e9", "x" * 300, 'quote " and \\', "{", "}"]),
        count=dice.choice([1, -5, 2**53 + 1, 2**63 - 1, None]),
        price=dice.choice([0.1, -1e300, 7, None]),
        at=dice.choice(["2013-04-01T10:00:00Z", "2013-04-01T10:00:00.5+01:00", "2013-12-31T23:59:59.999999999-11:00"]),
    )
    kind = dice.randrange(8)
    if kind < 3:
        return value
    if kind == 3:
        return bytes(dice.randrange(256) for _ in range(dice.randrange(20)))
    pieces = [
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"\n",
        b"\x00",
        b"\xff",
        b"NaN",
        b"Inf",
        b"-",
        b"1",
        b"e",
        b".",
        b"null",
        b"\\u",
        b" ",
        b'"i":1',
        b'"v":{',
    ]
    for _ in range(dice.randrange(1, 3)):
        at = dice.randrange(len(value))
        value = value[:at] + dice.choice(pieces) + value[at + dice.randrange(3) :]
    return value


def nested() -> Source:
    return Source(
        name="orders",
        topic="orders",
        event_time="at",
        event_id="id",
        fields=(
            Field("id", required=True, path="order.id"),
            Field("at", "timestamp", required=True),
            Field("city", path="customer.address.city"),
            Field("customer", "int64", path=("customer", "id"), required=True),
        ),
    )


def placed(order: Any = None, customer: Any = None, **more: Any) -> bytes:
    return json.dumps(
        {
            "at": "2013-04-01T10:00:00Z",
            "order": {"id": "a"} if order is None else order,
            "customer": {"id": 7, "address": {"city": "Rome", "zip": 1}} if customer is None else customer,
            **more,
        }
    ).encode()


@pytest.mark.parametrize(
    ("value", "city"),
    [
        (placed(), "Rome"),
        (placed(id="x", items=[{"id": 1}, {"id": 2}], city="Paris"), "Rome"),
        (placed(customer={"id": 7}), None),
        (placed(customer={"id": 7, "address": None}), None),
        (placed(customer={"id": 7, "address": {}}), None),
        (placed(customer={"id": 7, "address": {"city": None}}), None),
    ],
)
def test_nested_values_are_found_by_their_path(value: bytes, city: str | None) -> None:
    decoded = decode(nested(), [placed(), value, placed()])
    assert not decoded.rejected
    assert decoded.good.column("city").to_pylist() == ["Rome", city, "Rome"]
    assert decoded.good.column("id").to_pylist() == ["a"] * 3 and decoded.good.column("customer").to_pylist() == [7] * 3


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (placed(order="a"), "wrong type in field id"),
        (placed(order=[{"id": "a"}]), "wrong type in field id"),
        (placed(order=False), "wrong type in field id"),
        (placed(order={}), "missing required field id"),
        (b'{"at": "2013-04-01T10:00:00Z", "order": null, "customer": {"id": 7}}', "missing required field id"),
        (placed(customer={"id": 7, "address": "Rome"}), "wrong type in field city"),
        (placed(customer={"id": 7, "address": {"city": {"name": "Rome"}}}), "wrong type in field city"),
        (placed(customer={"id": "7"}), "wrong type in field customer"),
        (placed().replace(b'"id": 7', b'"id": 7, "id": 8'), "repeated field customer"),
        (placed().replace(b'"city": "Rome"', b'"city": "Rome", "c\\u0069ty": "Oslo"'), "repeated field city"),
        (placed().replace(b'"order"', b'"customer": {"id": 7}, "order"'), "repeated field city"),
    ],
)
def test_what_does_not_fit_its_path_has_its_reason(value: bytes, reason: str) -> None:
    decoded = decode(nested(), [placed(), value, placed()])
    assert decoded.rejected == {1: reason}
    assert decoded.index.to_pylist() == [0, 2]


def priced(type_: str = "decimal(7,2)", **more: Any) -> Source:
    fields = (Field("id", required=True), Field("at", "timestamp", required=True), Field("price", type_, **more))
    return Source(name="orders", topic="orders", event_time="at", event_id="id", fields=fields)


def with_price(price: str) -> bytes:
    """A record with this text as its price."""
    return b'{"id":"a","at":"2013-04-01T10:00:00Z","price":%s}' % price.encode()


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        ("0.1", "decimal(7,2)", "0.1"),
        ("1.10", "decimal(7,2)", "1.1"),
        ("1.1000000", "decimal(7,2)", "1.1"),
        ("1." + "0" * 500, "decimal(7,2)", "1"),
        ("99999.99", "decimal(7,2)", "99999.99"),
        ("-99999.99", "decimal(7,2)", "-99999.99"),
        ("1e4", "decimal(7,2)", "10000"),
        ("12345e-2", "decimal(7,2)", "123.45"),
        ("1234500E-4", "decimal(7,2)", "123.45"),
        ("0e99999999999999999999", "decimal(7,2)", "0"),
        ("-0.00", "decimal(7,2)", "0"),
        ("12345678901234567890123456789012345678", "decimal(38,0)", "12345678901234567890123456789012345678"),
        ("0.12345678901234567890123456789012345678", "decimal(38,38)", "0.12345678901234567890123456789012345678"),
        ("1234567890123456789012345678.0123456789", "decimal(38,10)", "1234567890123456789012345678.0123456789"),
        ("5.0", "decimal(3,0)", "5"),
        ("0.25", "decimal(2,2)", "0.25"),
        ("null", "decimal(7,2)", None),
    ],
)
def test_decimals_are_exact(text: str, type_: str, value: str | None) -> None:
    for written in {text, text if text == "null" else f'"{text}"'}:
        decoded = decode(priced(type_), [with_price("0"), with_price(written), with_price("0.0")])
        assert not decoded.rejected
        assert decoded.good.column("price").to_pylist() == [0, None if value is None else Decimal(value), 0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0.001", "more than 2 decimals in field price"),
        ("1.10100", "more than 2 decimals in field price"),
        ("1e-3", "more than 2 decimals in field price"),
        ("1e-99999999999999999999", "more than 2 decimals in field price"),
        ("100000", "decimal out of range in field price"),
        ("-100000.00", "decimal out of range in field price"),
        ("1e5", "decimal out of range in field price"),
        ("1e999", "decimal out of range in field price"),
        ("1e99999999999999999999", "decimal out of range in field price"),
        ("9" * 5000, "decimal out of range in field price"),
        ("NaN", "not a finite number in field price"),
        ("true", "wrong type in field price"),
        ("[1]", "wrong type in field price"),
        ('"NaN"', "not a number in field price"),
        ('"1_000"', "not a number in field price"),
        ('" 1"', "not a number in field price"),
        ('"1."', "not a number in field price"),
        ('"007"', "not a number in field price"),
        ('"١"', "not a number in field price"),
        ('""', "not a number in field price"),
    ],
)
def test_decimals_that_do_not_fit_have_their_reason(text: str, reason: str) -> None:
    decoded = decode(priced(), [with_price("1"), with_price(text), with_price("2")])
    assert decoded.rejected == {1: reason}
    assert decoded.good.column("price").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("type_", "default", "held"),
    [
        ("string", "none", "none"),
        ("int64", -1, -1),
        ("float64", 1, 1.0),
        ("bool", False, False),
        ("decimal(7,2)", "0.50", Decimal("0.5")),
        ("timestamp", datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_default_stands_for_what_is_absent_or_null(type_: str, default: Any, held: Any) -> None:
    values = [b'{"id":"a","at":"2013-04-01T10:00:00Z"}', with_price("null"), with_price("null") + b"\x0c"]
    decoded = decode(priced(type_, default=default), values)
    assert decoded.good.column("price").to_pylist() == [held] * 2
    assert decoded.rejected == {2: "not JSON"}
    # A key written with an escape goes the strict way.
    strict = decode(priced(type_, default=default), [b'{"\\u0069d":"a","at":"2013-04-01T10:00:00Z"}'])
    assert strict.good.column("price").to_pylist() == [held]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda value: value[:-1],
        lambda value: value.replace(b'"count": 1', b'"count": "1"'),
        lambda value: value.replace(b"2013-04", b"2013-13"),
        lambda value: value.replace(b'"id"', b'"no"'),
        lambda value: value.replace(b'"count": 1', b'"count": 9223372036854775808'),
        lambda value: value.replace(b'"id"', b'"id": "b", "id"'),
    ],
)
def test_a_fault_in_a_hundred_costs_little(spoil: Any) -> None:
    """The bound is loose, for a busy machine; a block that fails as a whole would take five times as long."""
    clean = [order(id=f"{number:08d}") for number in range(20_000)]
    faulty = [spoil(value) if number % 100 == 0 else value for number, value in enumerate(clean)]
    assert len(decode(source(), faulty).rejected) == 200
    best = {"clean": 9.0, "faulty": 9.0}
    for _ in range(5):
        for name, values in (("clean", clean), ("faulty", faulty)):
            started = time.process_time()
            decode(source(), values)
            best[name] = min(best[name], time.process_time() - started)
    assert best["faulty"] < 1.6 * best["clean"]


def test_blocks_are_put_together_in_the_order_of_the_records() -> None:
    values = [order(count=number) if number % 7 else b"{}" for number in range(25_000)]
    decoded = decode(source(), values)
    assert decoded.index.to_pylist() == [number for number in range(25_000) if number % 7]
    assert decoded.good.column("count").to_pylist() == decoded.index.to_pylist()
    assert list(decoded.rejected) == list(range(0, 25_000, 7))


def test_usual_fields_that_are_not_declared_do_not_hide_a_repeated_key() -> None:
    beside = [order(items=[{"id": 1}, {"id": 2}], count=None)[:-1] + b', "note": "id"}' for _ in range(99)]
    twice = order(items=[{"id": 1}, {"id": 2}])[:-1] + b', "count": 2}'
    assert decode(source(), [*beside, twice]).rejected == {99: "repeated field count"}


def test_no_records_are_no_rows() -> None:
    decoded = decode(source(), [])
    assert decoded.good.schema == decode(source(), [order()]).good.schema
    assert (len(decoded.good), len(decoded.index), decoded.rejected) == (0, 0, {})


def test_decimals_are_decimals_in_the_table() -> None:
    assert events_schema(priced("decimal(12,3)")).field("price").type == pa.decimal128(12, 3)


def test_the_schema_has_the_declared_fields_first_and_the_partition_last() -> None:
    names = events_schema(source()).names
    assert names[:7] == ["id", "at", "count", "price", "paid", "event_time", "known_time"]
    assert names[-1] == "event_date"
