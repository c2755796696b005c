"""Kafka as companies run it: TLS, passwords, client certificates, rights. What goes wrong is told in words, without a secret."""

import ast
import base64
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType
from fixtures_secure import Secure

from jobs import kafka_settings
from jobs.errors import Exit, RetryError, UsageError
from jobs.kafka import Cluster, client_settings
from jobs.settings import PROJECT
from pipelines.declare import Field, Source

TOPIC = "orders"
MORNING = datetime(2013, 4, 1, 10, tzinfo=UTC)

INGEST = """
import base64, pickle, sys
from jobs import cli
import pipelines

source = pickle.loads(base64.b64decode(sys.argv[1]))
pipelines.sources = lambda: {source.name: source}
sys.exit(cli.main(["ingest", source.name, "--json"]))
"""
"""`penstock ingest` of a source that no pipeline declares."""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith(("KAFKA_SECURITY_", "KAFKA_CLIENT_"))]:
        monkeypatch.delenv(name)


def source(topic: str = TOPIC) -> Source:
    fields = (Field("id", required=True), Field("at", "timestamp", required=True))
    return Source(name="orders", topic=topic, event_time="at", event_id="id", fields=fields)


@pytest.fixture(scope="module")
def filled(secure: Secure) -> Secure:
    """The broker with a topic of 20 records, and the rights of each user: all but `peter` may read it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KAFKA_BOOTSTRAP_SERVERS", secure.internal)
        Cluster().create(TOPIC, partitions=2, configuration={"retention.ms": "-1"})
        producer = Producer(client_settings())
        for number in range(20):
            at = MORNING + timedelta(hours=number)
            value = f'{{"id": "o{number}", "at": "{at.isoformat()}"}}'
            producer.produce(TOPIC, value, partition=number % 2, timestamp=int(at.timestamp() * 1000))
        assert producer.flush(30) == 0
        allow(secure, dict.fromkeys(("paul", "sarah", "mia"), ("READ", "DESCRIBE_CONFIGS")))
    return secure


def allow(secure: Secure, rights: dict[str, tuple[str, ...]]) -> None:
    admin = AdminClient({"bootstrap.servers": secure.internal})
    topic = (ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL)
    wanted = [
        AclBinding(*topic, f"User:{name}", "*", AclOperation[right], AclPermissionType.ALLOW)
        for name, names in rights.items()
        for right in names
    ]
    for done in admin.create_acls(wanted).values():
        done.result(10)


def sasl(secure: Secure, name: str, mechanism: str = "PLAIN") -> dict[str, str]:
    return {
        "KAFKA_BOOTSTRAP_SERVERS": secure.sasl,
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_SECURITY_CA_FILE": str(secure.authority),
        "KAFKA_SECURITY_MECHANISM": mechanism,
        "KAFKA_SECURITY_USERNAME": name,
        "KAFKA_SECURITY_PASSWORD": secure.password,
    }


def mtls(secure: Secure) -> dict[str, str]:
    return {
        "KAFKA_BOOTSTRAP_SERVERS": secure.mtls,
        "KAFKA_SECURITY_PROTOCOL": "SSL",
        "KAFKA_SECURITY_CA_FILE": str(secure.authority),
        "KAFKA_SECURITY_CERTIFICATE_FILE": str(secure.certificate),
        "KAFKA_SECURITY_KEY_FILE": str(secure.locked_key),
        "KAFKA_SECURITY_KEY_PASSWORD": secure.password,
    }


def as_text(secure: Secure) -> dict[str, str]:
    """A secret store gives the certificates as text, not as files."""
    return {
        "KAFKA_BOOTSTRAP_SERVERS": secure.mtls,
        "KAFKA_SECURITY_PROTOCOL": "SSL",
        "KAFKA_CLIENT_SSL_CA_PEM": secure.authority.read_text(),
        "KAFKA_CLIENT_SSL_CERTIFICATE_PEM": secure.certificate.read_text(),
        "KAFKA_CLIENT_SSL_KEY_PEM": secure.key.read_text(),
    }


WAYS = {
    "PLAIN": lambda secure: sasl(secure, "paul"),
    "SCRAM": lambda secure: sasl(secure, "sarah", "SCRAM-SHA-512"),
    "mTLS": mtls,
    "mTLS as text": as_text,
}


def ingest(environment: dict[str, str], lake: Path, topic: str = TOPIC) -> tuple["subprocess.CompletedProcess[str]", float]:
    """The command as a process of its own, and its seconds."""
    began = time.monotonic()
    base = {"PENSTOCK_LAKE": str(lake), "PENSTOCK_STATE": str(lake / "state"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", INGEST, base64.b64encode(pickle.dumps(source(topic))).decode()]
    ended = subprocess.run(command, env=base | environment, capture_output=True, text=True, check=False, timeout=60, cwd=PROJECT)
    return ended, time.monotonic() - began


@pytest.mark.kafka
@pytest.mark.parametrize("way", WAYS)
def test_an_ingest_reads_over_every_way_in(way: str, filled: Secure, tmp_path: Path) -> None:
    ended, _ = ingest(WAYS[way](filled), tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r'"good": 20\b', ended.stdout), ended.stdout
    assert filled.password not in ended.stdout + ended.stderr


FAILURES = {
    "a wrong password": (
        lambda secure: sasl(secure, "paul") | {"KAFKA_SECURITY_PASSWORD": "wrong-" + secure.password[:9]},
        Exit.USAGE,
        "Invalid username or password",
    ),
    "a wrong SCRAM password": (
        lambda secure: sasl(secure, "sarah", "SCRAM-SHA-512") | {"KAFKA_SECURITY_PASSWORD": "wrong-" + secure.password[:9]},
        Exit.USAGE,
        "invalid credentials with SASL mechanism SCRAM-SHA-512",
    ),
    "a mechanism that the broker has not": (
        lambda secure: sasl(secure, "sarah", "SCRAM-SHA-256"),
        Exit.USAGE,
        "supported mechanisms: PLAIN,SCRAM-SHA-512",
    ),
    "an unknown authority": (
        lambda secure: sasl(secure, "paul") | {"KAFKA_SECURITY_CA_FILE": str(secure.stranger)},
        Exit.USAGE,
        "certificate verify failed",
    ),
    "another host's certificate": (
        lambda secure: sasl(secure, "paul") | {"KAFKA_BOOTSTRAP_SERVERS": secure.sasl.replace("127.0.0.1", "localhost")},
        Exit.USAGE,
        "certificate verify failed",
    ),
    "no client certificate": (
        lambda secure: {name: value for name, value in mtls(secure).items() if "KEY" not in name and "CERTIFICATE" not in name},
        Exit.USAGE,
        "bad certificate",
    ),
    "a wrong password of the key": (
        lambda secure: mtls(secure) | {"KAFKA_SECURITY_KEY_PASSWORD": "wrong-" + secure.password[:9]},
        Exit.USAGE,
        "KAFKA_SECURITY_KEY_FILE names what librdkafka can't read",
    ),
    "plain text to a TLS port": (
        lambda secure: {"KAFKA_BOOTSTRAP_SERVERS": secure.mtls},
        Exit.USAGE,
        "speaks TLS there, and we plain text: set KAFKA_SECURITY_PROTOCOL",
    ),
    "TLS to a plain port": (
        lambda secure: sasl(secure, "paul") | {"KAFKA_BOOTSTRAP_SERVERS": secure.internal},
        Exit.RETRY,
        "connecting to a PLAINTEXT broker listener?",
    ),
    "no right to see the topic": (
        lambda secure: sasl(secure, "peter"),
        Exit.USAGE,
        "refused to describe topic 'orders' (Broker: Topic authorization failed)",
    ),
    "nobody there": (
        lambda secure: sasl(secure, "paul") | {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"},
        Exit.RETRY,
        "Connection refused",
    ),
}


@pytest.mark.kafka
def test_each_failure_ends_soon_with_its_words_and_its_code(filled: Secure, tmp_path: Path) -> None:
    # Side by side, since most of them wait for librdkafka to give up.
    base = {"PENSTOCK_LAKE": str(tmp_path), "PENSTOCK_STATE": str(tmp_path / "state"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", INGEST, base64.b64encode(pickle.dumps(source())).decode()]
    environments = {name: make(filled) for name, (make, _, _) in FAILURES.items()}
    began = time.monotonic()
    running = {
        name: subprocess.Popen(command, env=base | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT)
        for name, more in environments.items()
    }
    for name, process in running.items():
        _, code, words = FAILURES[name]
        out, err = process.communicate(timeout=60)
        assert (process.returncode, words in err) == (code, True), f"{name}: {process.returncode}, {err}"
        assert words in out, f"{name}: the report lacks the message"
        assert "Traceback" not in err
        secrets = [environments[name].get(f"KAFKA_SECURITY_{kind}") for kind in ("PASSWORD", "KEY_PASSWORD")]
        assert all(secret not in out + err for secret in secrets if secret), f"{name}: a secret is shown"
    assert time.monotonic() - began < 55


@pytest.fixture
def there(filled: Secure, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secure]:
    """The broker as `paul` reaches it from this process."""
    for name, value in sasl(filled, "paul").items():
        monkeypatch.setenv(name, value)
    return filled


@pytest.mark.kafka
@pytest.mark.usefixtures("there")
def test_a_refusal_is_told_sooner_than_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SECURITY_PASSWORD", "wrong")
    began = time.monotonic()
    with pytest.raises(UsageError, match="Invalid username or password"):
        Cluster().topics([TOPIC])
    assert time.monotonic() - began < 6


@pytest.mark.kafka
def test_a_topic_that_may_be_seen_but_not_read_is_refused_before_anybody_waits(
    there: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(there, {"peter": ("DESCRIBE", "DESCRIBE_CONFIGS")})
    monkeypatch.setenv("KAFKA_SECURITY_USERNAME", "peter")
    cluster = Cluster()
    topics = cluster.topics([TOPIC])
    with pytest.raises(UsageError, match="does not let this user read topic 'orders': it needs the right READ"):
        cluster.bounds(topics.values())


@pytest.mark.kafka
@pytest.mark.usefixtures("there")
def test_any_property_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_CLIENT_FETCH_MESSAGE_MAX_BYTES", "123456")
    monkeypatch.setenv("KAFKA_CLIENT_LOG_LEVEL", "3")
    monkeypatch.setenv("KAFKA_CLIENT_CLIENT_RACK", "")
    settings = client_settings()
    assert (settings["fetch.message.max.bytes"], settings["log_level"]) == ("123456", "3")
    assert "client.rack" not in settings
    assert TOPIC in Cluster().topics([TOPIC])


@pytest.mark.kafka
@pytest.mark.usefixtures("there")
def test_until_is_the_first_offset_at_or_after_the_moment_or_the_end() -> None:
    cluster = Cluster()
    topic = cluster.topics([TOPIC])[TOPIC]
    # Partition 0 holds the even hours, partition 1 the odd ones, ten each.
    assert cluster.until(topic, MORNING) == {0: 0, 1: 0}
    assert cluster.until(topic, MORNING + timedelta(hours=4)) == {0: 2, 1: 2}
    assert cluster.until(topic, MORNING + timedelta(hours=4, microseconds=1)) == {0: 3, 1: 2}
    assert cluster.until(topic, MORNING + timedelta(hours=4, microseconds=-1)) == {0: 2, 1: 2}
    east = timezone(timedelta(hours=5))
    assert cluster.until(topic, (MORNING + timedelta(hours=19)).astimezone(east)) == {0: 10, 1: 9}
    assert cluster.until(topic, MORNING + timedelta(days=9)) == {0: 10, 1: 10}
    with pytest.raises(ValueError, match="no time zone"):
        cluster.until(topic, datetime(2013, 4, 1))


@pytest.mark.kafka
def test_librdkafka_shows_no_password_even_when_it_says_all(there: Secure, tmp_path: Path) -> None:
    more = sasl(there, "paul") | {"KAFKA_CLIENT_DEBUG": "all", "KAFKA_SECURITY_PASSWORD": there.password}
    ended, _ = ingest(more, tmp_path)
    assert ended.returncode == 0 and "Client configuration" in ended.stderr
    assert there.password not in ended.stderr
    assert base64.b64encode(f"\0paul\0{there.password}".encode()).decode() not in ended.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"KAFKA_CLIENT_GROUP_ID": "swordfish"}, "KAFKA_CLIENT_GROUP_ID is set, but group.id is Penstock's own to set"),
        ({"KAFKA_CLIENT_BOOTSTRAP_SERVERS": "swordfish"}, "set KAFKA_BOOTSTRAP_SERVERS instead"),
        ({"KAFKA_CLIENT_AUTO_OFFSET_RESET": "swordfish"}, "auto.offset.reset is Penstock's own"),
        ({"KAFKA_CLIENT_PLUGIN_LIBRARY_PATHS": "/tmp/swordfish"}, "plugin.library.paths is Penstock's own"),
        ({"KAFKA_CLIENT_FETCH_MAX_BITES": "swordfish"}, "librdkafka knows no property 'fetch.max.bites'"),
        ({"KAFKA_CLIENT_ERROR_CB": "swordfish"}, "librdkafka knows no property 'error.cb'"),
        ({"KAFKA_CLIENT_OPAQUE": "swordfish"}, "KAFKA_CLIENT_OPAQUE"),
        (
            {"KAFKA_CLIENT_FETCH_MAX_BYTES": "swordfish"},
            "KAFKA_CLIENT_FETCH_MAX_BYTES has a value that fetch.max.bytes",
        ),
        ({"KAFKA_CLIENT_SOCKET_TIMEOUT_MS": "1"}, "allowed range"),
        ({"KAFKA_SECURITY_PROTOCOL": "swordfish"}, "KAFKA_SECURITY_PROTOCOL has a value that security.protocol can't take"),
        ({"KAFKA_SECURITY_PASSWROD": "swordfish"}, "KAFKA_SECURITY_PASSWROD is set, but nothing reads it"),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "KAFKA_SECURITY_PASSWORD": "a", "KAFKA_CLIENT_SASL_PASSWORD": "swordfish"},
            "KAFKA_SECURITY_PASSWORD and KAFKA_CLIENT_SASL_PASSWORD both set sasl.password",
        ),
        (
            {"KAFKA_SECURITY_PROTOCOL": "SSL", "KAFKA_SECURITY_KEY_FILE": "/a", "KAFKA_CLIENT_SSL_KEY_PEM": "swordfish"},
            "both set ssl.key.location",
        ),
        ({"KAFKA_SECURITY_MECHANISM": "PLAIN", "KAFKA_CLIENT_SASL_MECHANISMS": "PLAIN"}, "KAFKA_SECURITY_PROTOCOL"),
        ({"KAFKA_SECURITY_PASSWORD": "swordfish"}, "without KAFKA_SECURITY_PROTOCOL=SASL_SSL or SASL_PLAINTEXT it has no effect"),
        ({"KAFKA_SECURITY_CA_FILE": "/a", "KAFKA_SECURITY_PROTOCOL": "PLAINTEXT"}, "KAFKA_SECURITY_CA_FILE is set, but without"),
        (
            {"KAFKA_SECURITY_CA_FILE": "/nowhere/ca.pem", "KAFKA_SECURITY_PROTOCOL": "ssl"},
            "KAFKA_SECURITY_CA_FILE names what librdkafka can't read",
        ),
    ],
)
def test_a_wrong_variable_is_named_and_its_value_is_not(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as refused:
        client_settings()
    assert words in str(refused.value) and "swordfish" not in str(refused.value)


def test_what_penstock_sets_for_its_promises_is_refused_from_outside() -> None:
    """The settings in our own code, against the list that guards them: a new one must be thought about."""
    tuning = {"fetch.wait.max.ms", "fetch.queue.backoff.ms", "queued.max.messages.kbytes", "bootstrap.servers"}
    clients = set()
    for path in (PROJECT / "jobs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict):
                names = {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
                if "group.id" in names or "acks" in names:
                    assert names <= kafka_settings.OURS | tuning, path.name
                    clients.add(path.name)
    assert clients >= {"stream.py", "send.py"}, "this test no longer sees who makes clients"


def test_a_port_that_takes_calls_and_answers_nothing_is_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr("jobs.kafka.PATIENCE", 2.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(RetryError, match="did not answer"):
            Cluster().topics(["any"])
