"""Avro records by a declared schema and by a registry's, which is a small server that speaks the documented interface."""

import io
import json
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import avro, record, schema_registry
from jobs.decode import decode
from jobs.errors import RetryError, UsageError
from pipelines.declare import Field, Source

AT = datetime(2013, 4, 1, 10, 0, 0, 123_000, tzinfo=UTC)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}, {"name": "zip", "type": "int"}]}


def schema(**types: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": [{"name": name, "type": type_} for name, type_ in types.items()]}


ORDER = schema(
    id="string",
    at=MILLIS,
    count=["null", "long"],
    price="double",
    paid="boolean",
    total=["null", MONEY],
    address=["null", ADDRESS],
    tags={"type": "array", "items": "string"},
)


def source(writer: dict[str, Any] | None = ORDER, **types: str) -> Source:
    fields = (
        Field("id", required=True),
        Field("at", "timestamp", required=True),
        Field("count", "int64", default=0),
        Field("price", "float64"),
        Field("paid", "bool"),
        Field("total", "decimal(8,2)"),
        Field("city", path="address.city"),
    )
    if types:
        fields = (*fields[:2], *(Field(name, type_) for name, type_ in types.items()))
    return Source(
        name="orders",
        topic="orders",
        event_time="at",
        event_id="id",
        format="avro",
        avro_schema=None if writer is None else json.dumps(writer),
        fields=fields,
    )


def order(writer: dict[str, Any] = ORDER, **changes: Any) -> bytes:
    values = {"id": "a", "at": AT, "count": 3, "price": 2.5, "paid": True, "total": Decimal("1.5"), "tags": ["x", "y"]}
    out = io.BytesIO()
    address = {"address": {"city": "Rome", "zip": 1}}
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), values | address | changes)
    return out.getvalue()


def framed(number: int, value: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + value


def test_a_record_is_read_by_the_declared_schema() -> None:
    decoded = decode(source(), [order(), order(count=None, total=None, address=None)])
    full = {"id": "a", "at": AT, "count": 3, "price": 2.5, "paid": True, "total": Decimal("1.5"), "city": "Rome"}
    assert decoded.good.to_pylist() == [full, full | {"count": 0, "total": None, "city": None}]
    assert decoded.index.to_pylist() == [0, 1] and not decoded.rejected
    decoded.good.validate(full=True)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "tombstone"),
        (b"", "tombstone"),
        (b"null", "not Avro"),
        (b'{"id": "a"}', "not Avro"),
        (order()[:-1], "not Avro"),
        (order()[:3], "not Avro"),
        (b"\xff" * 40, "not Avro"),
        (order().replace(b"Rome", b"Ro\xffe"), "not Avro"),
        (order() + b"\0", "bytes left after the record"),
        (order() + order(), "bytes left after the record"),
        (order(price=float("nan")), "not a finite number in field price"),
        (order(price=float("-inf")), "not a finite number in field price"),
        (order(total=Decimal("0.001")), "more than 2 decimals in field total"),
        (order(total=Decimal("1000000")), "decimal out of range in field total"),
        (order(at=datetime(1970, 1, 1, tzinfo=UTC)), "implausible time in field at"),
        (order(at=2**62), "implausible time in field at"),
    ],
)
def test_what_does_not_fit_has_its_reason_and_its_neighbours_stay(value: bytes | None, reason: str) -> None:
    decoded = decode(source(), [order(id="before"), value, order(id="after")])
    assert decoded.rejected == {1: reason}
    assert decoded.good.column("id").to_pylist() == ["before", "after"]


LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
UUID_ = {"type": "string", "logicalType": "uuid"}


@pytest.mark.parametrize(
    ("type_", "value", "declared", "held"),
    [
        ("int", 5, "int64", 5),
        ("long", 2**63 - 1, "int64", 2**63 - 1),
        ("long", 2**53 + 1, "decimal(20,2)", Decimal(2**53 + 1)),
        ("string", "12.50", "decimal(20,2)", Decimal("12.5")),
        ("int", 5, "float64", 5.0),
        ("float", 0.5, "float64", 0.5),
        (UUID_, UUID(int=7), "string", "00000000-0000-0000-0000-000000000007"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "string", "B"),
        ({"type": "long", "logicalType": "timestamp-micros"}, AT, "timestamp", AT),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 1364810400123456789, "timestamp", AT.replace(microsecond=123_456)),
        ("string", "2013-04-01T10:00:00.123Z", "timestamp", AT),
        ({"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-7.25"),
         "decimal(9,2)", Decimal("-7.25")),
        ("double", 1.0, "int64", "wrong type in field x"),
        ("boolean", True, "int64", "wrong type in field x"),
        ("int", 1, "bool", "wrong type in field x"),
        ("double", 1.5, "decimal(20,2)", "wrong type in field x"),
        ("bytes", b"a", "string", "wrong type in field x"),
        ("int", 1, "string", "wrong type in field x"),
        (MONEY, Decimal("1.5"), "float64", "wrong type in field x"),
        (MILLIS, AT, "int64", "wrong type in field x"),
        ("long", 1364810400123, "timestamp", "wrong type in field x"),
        ({"type": "int", "logicalType": "date"}, date(2013, 4, 1), "timestamp", "wrong type in field x"),
        (LOCAL, datetime(2013, 4, 1), "timestamp", "not an instant in field x"),
        (ADDRESS, {"city": "Rome", "zip": 1}, "string", "wrong type in field x"),
        ({"type": "array", "items": "long"}, [1], "int64", "wrong type in field x"),
    ],
)  # fmt: skip
def test_each_avro_type_has_its_fields(type_: Any, value: Any, declared: str, held: Any) -> None:
    writer = schema(id="string", at=MILLIS, x=type_)
    decoded = decode(source(writer, x=declared), [order(writer, x=value)])
    if isinstance(held, str) and "field" in held:
        assert decoded.rejected == {0: held}
    else:
        assert decoded.good.column("x").to_pylist() == [held]


def test_whole_numbers_are_instants_in_the_declared_unit() -> None:
    writer = schema(id="string", at="long")
    fields = (Field("id", required=True), Field("at", "timestamp", required=True, time_unit="ms"))
    plain = Source(
        name="o", topic="o", event_time="at", event_id="id", format="avro", avro_schema=json.dumps(writer), fields=fields
    )
    assert decode(plain, [order(writer, at=1364810400123)]).good.column("at").to_pylist() == [AT]


def test_a_path_leads_through_maps_and_through_nothing_else() -> None:
    writer = schema(id="string", at=MILLIS, address={"type": "map", "values": "string"})
    fields = (*source().fields[:2], Field("city", path="address.city"))
    mapped = Source(
        name="o", topic="o", event_time="at", event_id="id", format="avro", avro_schema=json.dumps(writer), fields=fields
    )
    values = [order(writer, address={"city": "Rome"}), order(writer, address={})]
    assert decode(mapped, values).good.column("city").to_pylist() == ["Rome", None]
    writer = schema(id="string", at=MILLIS, address="string")
    plain = Source(
        name="o", topic="o", event_time="at", event_id="id", format="avro", avro_schema=json.dumps(writer), fields=fields
    )
    assert decode(plain, [order(writer, address="Rome")]).rejected == {0: "wrong type in field city"}


def test_a_decimal_beyond_its_own_schema_is_not_rounded() -> None:
    """The reader's library cuts such a number to the schema's precision."""
    writer = schema(id="string", at=MILLIS, x={"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})
    record_ = order(writer, x=Decimal("12.34"))
    assert record_.endswith(b"\x04\x04\xd2")
    decoded = decode(
        source(writer, x="decimal(12,2)"), [record_[:-3] + b"\x08\x12\x34\x56\x78", record_[:-3] + b"\x90\x03" + b"\x7f" * 200]
    )
    assert decoded.good.column("x").to_pylist() == [Decimal(0x12345678).scaleb(-2)]
    assert decoded.rejected == {1: "decimal out of range in field x"}


def test_a_recursive_schema_does_not_end_the_process() -> None:
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "below", "type": ["null", "Tree"]}]}
    writer = schema(id="string", at=MILLIS, tree=tree)
    shallow = order(writer, tree={"below": None})
    decoded = decode(source(writer, note="string"), [shallow, shallow[:-1] + b"\x02" * 100_000 + b"\0"])
    assert decoded.good.column("id").to_pylist() == ["a"] and decoded.rejected == {1: "nested too deeply"}


def test_a_declared_schema_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"avro_schema of source .orders. is no Avro schema.*strnig"):
        decode(source(schema(id="strnig")), [order()])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=60) | st.tuples(st.integers(0, 50), st.binary(min_size=1, max_size=3)), max_size=5))
def test_any_bytes_are_read_and_their_neighbours_stay(changes: list[bytes | tuple[int, bytes]]) -> None:
    good = order()
    values = [one if isinstance(one, bytes) else good[: one[0]] + one[1] + good[one[0] + 1 :] for one in changes]
    among = [good, *(part for value in values for part in (value, good))]
    decoded = decode(source(), among)
    index = decoded.index.to_pylist()
    assert sorted([*index, *decoded.rejected]) == list(range(len(among)))
    assert set(range(0, len(among), 2)) <= set(index)
    for number, reason in decoded.rejected.items():
        with pytest.raises(record.Unfit, match=f"^{reason}$"):
            record.read(source(), among[number])


class Registry:
    """The part of a schema registry that readers use (docs.confluent.io/platform/current/schema-registry/develop/api.html)."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.failures = 0
        """How many of the next answers are failures of its own."""
        self.login: str | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                status, told = outer.answer(self.path, self.headers.get("Authorization"))
                body = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str, login: str | None) -> tuple[int, dict[str, Any]]:
        if self.failures:
            self.failures -= 1
            return 500, {"error_code": 50001, "message": "Error in the backend data store"}
        if self.login is not None and login != self.login:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        start, _, number = path.rpartition("/")
        if start != "/schemas/ids":
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        if int(number) not in self.schemas:
            return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
        return 200, self.schemas[int(number)]

    def put(self, number: int, writer: Any, **more: Any) -> None:
        self.schemas[number] = {"schema": json.dumps(writer)} | more


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(schema_registry, "_asked_for", schema_registry._Asked())
    avro._registered.cache_clear()
    monkeypatch.setattr(schema_registry, "PAUSES", (0.01, 0.01))
    served = Registry()
    monkeypatch.setenv("KAFKA_SCHEMA_REGISTRY_URL", served.url + "/")
    yield served
    served.server.shutdown()
    served.server.server_close()


OLD = schema(id="string", at=MILLIS, price="double")


def test_each_record_is_read_by_the_schema_that_it_names(registry: Registry) -> None:
    registry.put(7, OLD)
    registry.put(70_000, ORDER)
    values = [framed(7, order(OLD, id="old")), framed(70_000, order(id="new"))] * 50
    decoded = decode(source(None), values)
    assert decoded.good.column("id").to_pylist() == ["old", "new"] * 50
    assert decoded.good.column("count").to_pylist() == [0, 3] * 50, "what the old schema lacks has its default"
    assert decoded.good.column("city").to_pylist() == [None, "Rome"] * 50
    assert registry.asked == ["/schemas/ids/7", "/schemas/ids/70000"], "each is asked for once"


def test_what_is_not_framed_or_unknown_has_its_reason(registry: Registry) -> None:
    registry.put(7, OLD)
    registry.put(8, "string")
    good = framed(7, order(OLD))
    reasons = {
        framed(9, order(OLD)): "unknown schema",
        framed(2**32 - 1, order(OLD)): "unknown schema",
        framed(8, b"\x02a"): "the schema is no Avro record",
        b'{"id": "a"}': "no schema number before the record",
        b"\0\0\0": "no schema number before the record",
        framed(7, b""): "not Avro",
        good[:-1]: "not Avro",
        good + b"x": "bytes left after the record",
        b"": "tombstone",
    }
    decoded = decode(source(None), [good, *reasons, *reasons, good])
    assert list(decoded.rejected.values()) == [*reasons.values()] * 2
    assert decoded.index.to_pylist() == [0, 2 * len(reasons) + 1]
    assert len(registry.asked) == 3, "an unknown number is asked for once, and none that no registry gives"


def test_a_registry_that_is_away_is_no_dead_letter(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.put(7, OLD)
    registry.failures = 2
    assert len(decode(source(None), [framed(7, order(OLD))]).good) == 1
    registry.put(8, OLD)
    registry.failures = 3
    with pytest.raises(RetryError, match=r"does not answer \(status 500"):
        decode(source(None), [framed(8, order(OLD))])
    assert len(decode(source(None), [framed(8, order(OLD))]).good) == 1, "a failure is not remembered"
    monkeypatch.setenv("KAFKA_SCHEMA_REGISTRY_URL", "http://127.0.0.1:1")
    with pytest.raises(RetryError, match=r"127\.0\.0\.1:1 does not answer"):
        decode(source(None), [framed(7, order(OLD))])


def test_who_asks_is_said_and_not_shown(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.put(7, OLD)
    registry.login = "Basic cmVhZGVyOmgzcnJpbmc="  # reader:h3rring
    value = framed(7, order(OLD))
    with pytest.raises(UsageError, match=r"refused \(401\): check KAFKA_SCHEMA_REGISTRY_USERNAME"):
        decode(source(None), [value])
    monkeypatch.setenv("KAFKA_SCHEMA_REGISTRY_USERNAME", "reader")
    monkeypatch.setenv("KAFKA_SCHEMA_REGISTRY_PASSWORD", "h4rring")
    with pytest.raises(UsageError) as refused:
        decode(source(None), [value])
    assert "h4rring" not in str(refused.value)
    monkeypatch.setenv("KAFKA_SCHEMA_REGISTRY_PASSWORD", "h3rring")
    assert len(decode(source(None), [value]).good) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (None, "KAFKA_SCHEMA_REGISTRY_URL is not set"),
        ("registry:8081", "it begins with http:// or https://"),
        ("http://reader:h3rring@registry:8081", "only the address here"),
    ],
)
def test_a_wrong_address_is_refused(url: str | None, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_SCHEMA_REGISTRY_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("KAFKA_SCHEMA_REGISTRY_URL", url)
    with pytest.raises(UsageError, match=words) as refused:
        decode(source(None), [framed(7, order(OLD))])
    assert "h3rring" not in str(refused.value)


def test_an_address_without_a_registry_makes_no_dead_letters(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SCHEMA_REGISTRY_URL", registry.url + "/apis")
    with pytest.raises(UsageError, match="answers 404 and no schema: it must be the address"):
        decode(source(None), [framed(7, order(OLD))])


def test_garbage_makes_neither_many_reasons_nor_many_requests(registry: Registry) -> None:
    registry.put(7, OLD)
    good = framed(7, order(OLD))
    garbage = [framed(1000 + number, order(OLD)) for number in range(500)]
    decoded = decode(source(None), [good, *garbage, good])
    assert decoded.index.to_pylist() == [0, 501]
    assert set(decoded.rejected.values()) == {schema_registry.UNKNOWN, schema_registry.NOT_ASKED}
    assert len(registry.asked) == 1 + schema_registry.MOST_UNKNOWN


def test_a_schema_that_is_registered_later_is_found(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    early = [framed(number, order(OLD)) for number in range(200)]
    assert len(decode(source(None), early).rejected) == 200
    for number in range(200):
        registry.put(number, OLD)
    assert len(decode(source(None), early).rejected) == 200, "it is not asked for with each record"
    monkeypatch.setattr(schema_registry, "FORGET", 0.0)
    assert len(decode(source(None), early).good) == 200


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"schemaType": "PROTOBUF", "schema": "message A {}"}, "the schema is no Avro"),
        ({"schemaType": "JSON", "schema": "{}"}, "the schema is no Avro"),
        ({"references": [{"name": "Address", "subject": "address", "version": 1}]}, "the schema is split over references"),
        ({"schema": json.dumps(schema(id="Unheard"))}, "the schema is no Avro"),
        ({"schema": "not JSON"}, "the schema is no Avro"),
    ],
)
def test_one_record_with_a_schema_that_can_not_be_used_does_not_stop_the_others(
    registry: Registry, more: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry.put(7, OLD)
    registry.put(8, OLD, **more)
    good, other = framed(7, order(OLD)), framed(8, order(OLD))
    decoded = decode(source(None), [good, other, other, good])
    assert decoded.index.to_pylist() == [0, 3] and decoded.rejected == {1: reason, 2: reason}
    assert registry.asked == ["/schemas/ids/7", "/schemas/ids/8"]
    assert [one.getMessage()[:8] for one in caplog.records if one.levelname == "WARNING"] == ["schema 8"], "told once"
