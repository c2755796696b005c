"""How Kafka's clients are set up, from the environment.

KAFKA_BOOTSTRAP_SERVERS is the address; the variables of `_SECURITY` say how to identify oneself there, and KAFKA_CLIENT_<NAME>
sets any other property of librdkafka. What would have no effect, or would break what Penstock promises, is refused.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException  # noqa: TID253
from confluent_kafka.admin import AdminClient  # noqa: TID253

from jobs.errors import UsageError
from jobs.secrets import mask
from jobs.settings import endpoint

_SECURITY = {
    "KAFKA_SECURITY_PROTOCOL": "security.protocol",
    "KAFKA_SECURITY_CA_FILE": "ssl.ca.location",
    "KAFKA_SECURITY_CERTIFICATE_FILE": "ssl.certificate.location",
    "KAFKA_SECURITY_KEY_FILE": "ssl.key.location",
    "KAFKA_SECURITY_KEY_PASSWORD": "ssl.key.password",
    "KAFKA_SECURITY_MECHANISM": "sasl.mechanism",
    "KAFKA_SECURITY_USERNAME": "sasl.username",
    "KAFKA_SECURITY_PASSWORD": "sasl.password",
}
"""Environment variables, and librdkafka's names for them."""

_ANY = "KAFKA_CLIENT_"
"""How the variables begin that set any other property: KAFKA_CLIENT_FETCH_MAX_BYTES sets fetch.max.bytes."""

_UNDERSCORED = {"log.level": "log_level"}
"""The properties that librdkafka writes with an underscore, and that a text can set."""

OURS = frozenset(
    (
        *("bootstrap.servers", "metadata.broker.list", "group.id", "group.instance.id", "group.protocol", "isolation.level"),
        *("enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof"),
        *("allow.auto.create.topics", "transactional.id", "acks"),
        *("request.required.acks", "enable.idempotence", "enable.gapless.guarantee", "linger.ms", "queue.buffering.max.ms"),
        *("batch.size", "compression.type", "compression.codec", "message.timeout.ms", "delivery.timeout.ms"),
        *("delivery.report.only.error", "plugin.library.paths", "test.mock.num.brokers", "logger"),
    )
)
"""What Penstock sets itself, under each of its names, since its promises rest on them; and what would run foreign code."""


def client_settings() -> dict[str, Any]:
    """What every client is made with. Raises UsageError for a variable that nobody reads, that is ours to set, or wrong."""
    unknown = sorted(name for name in os.environ if name.startswith("KAFKA_SECURITY_") and name not in _SECURITY)
    if unknown:
        raise UsageError(f"{unknown[0]} is set, but nothing reads it: known are {', '.join(_SECURITY)}. Unset or rename it.")
    variables = {name: setting for name, setting in _SECURITY.items() if os.environ.get(name)}
    for name in sorted(name for name in os.environ if name.startswith(_ANY) and os.environ[name]):
        setting = name.removeprefix(_ANY).lower().replace("_", ".")
        variables[name] = _UNDERSCORED.get(setting, setting)
    _check(variables)
    chosen = {setting: os.environ[name] for name, setting in variables.items()}
    # Failures are raised with our own words, so librdkafka's log keeps to what is critical.
    return {"bootstrap.servers": endpoint("KAFKA_BOOTSTRAP_SERVERS"), "log_level": 2, **chosen}


def _check(variables: Mapping[str, str]) -> None:
    """Raises UsageError for settings that are not for the environment, contradict each other, or that librdkafka can't use."""
    by_meaning: dict[str, str] = {}
    protocol = next((os.environ[name].upper() for name, setting in variables.items() if setting == "security.protocol"), "")
    for name, setting in variables.items():
        if setting in OURS:
            remedy = (
                "set KAFKA_BOOTSTRAP_SERVERS instead" if setting in ("bootstrap.servers", "metadata.broker.list") else "unset it"
            )
            raise UsageError(f"{name} is set, but {setting} is Penstock's own to set, since its promises rest on it: {remedy}.")
        # A file or its text, and two spellings.
        meaning = re.sub(r"\.pem$", ".location", setting.replace("sasl.mechanisms", "sasl.mechanism"))
        if meaning in by_meaning:
            raise UsageError(f"{by_meaning[meaning]} and {name} both set {meaning}: one of them would have no effect. Unset one.")
        by_meaning[meaning] = name
        for family, protocols in (("sasl.", ("SASL_SSL", "SASL_PLAINTEXT")), ("ssl.", ("SSL", "SASL_SSL"))):
            if setting.startswith(family) and protocol not in protocols:
                raise UsageError(
                    f"{name} is set, but without KAFKA_SECURITY_PROTOCOL={' or '.join(protocols)} it has no effect: "
                    "set the protocol, or unset it."
                )
    if variables:
        try:
            # Nobody is called without a broker's address.
            AdminClient({"log_level": 0} | {setting: os.environ[name] for name, setting in variables.items()})
        except KafkaException as failure:
            raise _unusable(variables, failure.args[0].str()) from None


def _unusable(variables: Mapping[str, str], words: str) -> UsageError:
    """librdkafka's complaint about a property as ours, which never shows the value."""
    name = next(
        (name for name, setting in variables.items() if re.search(rf"(?<![\w.]){re.escape(setting)}(?![\w.])", words)), None
    )
    if name is None:
        return UsageError(f"librdkafka can't use the KAFKA_SECURITY_ and KAFKA_CLIENT_ variables ({mask(words)}): correct them.")
    if "No such" in words:
        return UsageError(f"{name} is set, but librdkafka knows no property {variables[name]!r}: correct the name, or unset it.")
    if " failed: " in words:
        reason = words.split(" failed: ")[-1]
        return UsageError(
            f"{name} names what librdkafka can't read ({reason}): check that it is there, is PEM, and its password."
        )
    allowed = re.search(r"allowed range \S+", words)
    rule = f" ({allowed.group()})" if allowed else ""
    return UsageError(
        f"{name} has a value that {variables[name]} can't take{rule}: see librdkafka's CONFIGURATION.md, and correct it."
    )
