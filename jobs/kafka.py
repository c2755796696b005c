"""Kafka as the jobs see it: how to reach it, what topics it has, and which offsets they hold.

One client library, librdkafka through `confluent-kafka`: measured, it answers these questions in a quarter of the CPU time of
`kafka-python`, and one set of settings serves reading, producing and administration.

The address is KAFKA_BOOTSTRAP_SERVERS; the variables of `_SECURITY` say how to identify oneself there.
"""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition  # noqa: TID253
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType  # noqa: TID253

from jobs.errors import JobError, RetryError, UsageError
from jobs.settings import endpoint

PATIENCE = 10.0
"""Seconds until a broker that does not answer counts as away."""

_SECURITY = {
    "KAFKA_SECURITY_PROTOCOL": "security.protocol",
    "KAFKA_SECURITY_CA_FILE": "ssl.ca.location",
    "KAFKA_SECURITY_CERTIFICATE_FILE": "ssl.certificate.location",
    "KAFKA_SECURITY_KEY_FILE": "ssl.key.location",
    "KAFKA_SECURITY_MECHANISM": "sasl.mechanism",
    "KAFKA_SECURITY_USERNAME": "sasl.username",
    "KAFKA_SECURITY_PASSWORD": "sasl.password",
}
"""Environment variables, and librdkafka's names for them."""

_NO_PERMISSION = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists."""

    name: str
    id: str
    """Kafka's own id: a topic that was deleted and created again has another."""
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets that a partition holds, [earliest, end), as readers of committed records may read them."""

    earliest: int
    end: int
    undecided: bool
    """Whether a transaction is still open beyond `end`: what it may yet commit had reached Kafka earlier."""

    def __str__(self) -> str:
        return f"[{self.earliest}, {self.end})"


def client_settings() -> dict[str, Any]:
    """What every client is made with. Raises UsageError for a KAFKA_SECURITY_ variable that nobody reads."""
    unknown = sorted(name for name in os.environ if name.startswith("KAFKA_SECURITY_") and name not in _SECURITY)
    if unknown:
        raise UsageError(f"{unknown[0]} is set, but nothing reads it: known are {', '.join(_SECURITY)}. Unset or rename it.")
    security = {setting: os.environ[name] for name, setting in _SECURITY.items() if os.environ.get(name)}
    # Failures are raised with our own words, so librdkafka's log keeps to what is critical.
    return {"bootstrap.servers": endpoint("KAFKA_BOOTSTRAP_SERVERS"), "log_level": 2, **security}


def failed(failure: BaseException) -> JobError:
    """A client's failure as the job's: no permission is for a person to mend, all else may pass."""
    if isinstance(failure, KafkaException) and failure.args[0].code() in _NO_PERMISSION:
        return UsageError(f"Kafka refused ({failure.args[0].str()}): check the KAFKA_SECURITY_ variables and the user's rights.")
    return RetryError(f"Kafka at {endpoint('KAFKA_BOOTSTRAP_SERVERS')} did not answer ({failure}). Is it up? Try again.")


class Cluster:
    """Questions to a Kafka cluster. Each raises RetryError where the brokers don't answer within `PATIENCE` seconds."""

    def __init__(self) -> None:
        self._admin = AdminClient(client_settings())

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the named topics that exist, by name."""
        found = {}
        for name, future in self._admin.describe_topics(TopicCollection(list(names)), request_timeout=PATIENCE).items():
            try:
                told = _answer(future)
            except KafkaException as failure:
                if failure.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise failed(failure) from failure
            found[name] = Topic(name, str(told.topic_id), tuple(sorted(partition.id for partition in told.partitions)))
        return found

    def bounds(self, topics: Iterable[Topic]) -> dict[str, dict[int, Bounds]]:
        """The offsets that each partition of the topics holds, by topic and partition."""
        topics = list(topics)
        # The order matters: a committed end, asked for last, that reaches what was written before has no open transaction below.
        earliest = self._offsets(topics, OffsetSpec.earliest())
        written = self._offsets(topics, OffsetSpec.latest())
        committed = self._offsets(topics, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        found: dict[str, dict[int, Bounds]] = {topic.name: {} for topic in topics}
        for at, end in committed.items():
            found[at.topic][at.partition] = Bounds(min(earliest[at], end), end, end < written[at])
        return found

    def since(self, topic: Topic, milliseconds: int) -> dict[int, int]:
        """The first offset with at least this timestamp (milliseconds since 1970) in each partition; its end where none has."""
        found = self._offsets([topic], OffsetSpec.for_timestamp(milliseconds))
        ends = self._offsets([topic], OffsetSpec.latest())
        return {at.partition: offset if offset >= 0 else ends[at] for at, offset in found.items()}

    def newest(self, topic: Topic) -> dict[int, int]:
        """For each partition the greatest timestamp in it, in milliseconds since 1970; -1 where it is empty."""
        answers = self._admin.list_offsets(_each([topic], OffsetSpec.max_timestamp()), request_timeout=PATIENCE)
        return {at.partition: _told(future).timestamp for at, future in answers.items()}

    def configuration(self, topic: str) -> dict[str, str]:
        """The topic's settings, as Kafka names them."""
        (future,) = self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)], request_timeout=PATIENCE).values()
        return {name: entry.value for name, entry in _told(future).items()}

    def create(self, name: str, *, partitions: int, configuration: Mapping[str, str]) -> None:
        """Create a topic; one that exists already is left as it is."""
        topic = NewTopic(name, num_partitions=partitions, config=dict(configuration))
        (future,) = self._admin.create_topics([topic], request_timeout=PATIENCE).values()
        try:
            _answer(future)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise failed(failure) from failure

    def _offsets(
        self, topics: list[Topic], spec: Any, isolation: Any = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        answers = self._admin.list_offsets(_each(topics, spec), isolation_level=isolation, request_timeout=PATIENCE)
        return {at: _told(future).offset for at, future in answers.items()}


def _each(topics: list[Topic], spec: Any) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic.name, number): spec for topic in topics for number in topic.partitions}


def _told(future: "Future[Any]") -> Any:
    """The answer; every failure counts as a broker that is away."""
    try:
        return _answer(future)
    except KafkaException as failure:
        raise failed(failure) from failure


def _answer(future: "Future[Any]") -> Any:
    """The answer, or KafkaException; a broker that can't be reached at all is a RetryError."""
    try:
        # librdkafka's own timeout comes first, so that the message is its.
        return future.result(timeout=PATIENCE + 5)
    except TimeoutError as failure:
        raise failed(failure) from failure
