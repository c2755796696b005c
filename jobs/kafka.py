"""Kafka as the jobs see it: how to reach it, what topics it has, and which offsets they hold.

One client library, librdkafka through `confluent-kafka`: measured, it answers these questions in a quarter of the CPU time of
`kafka-python`, and one set of settings serves reading, producing and administration.

How it is reached, the environment says: see `jobs.kafka_settings`.
"""

import re
import socket
import ssl
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition  # noqa: TID253
from confluent_kafka.admin import (  # noqa: TID253
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from jobs.errors import JobError, RetryError, UsageError
from jobs.kafka_settings import client_settings as client_settings
from jobs.settings import endpoint

PATIENCE = 10.0
"""Seconds until a broker that does not answer counts as away."""

GRACE = 2.0
"""Seconds for another broker to answer after one has refused us: then the refusal stands."""

_REFUSED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError._AUTHENTICATION,
)

_DISTRUST = re.compile(r"certificate verify failed|alert .*(certificate|unknown ca|handshake failure|protocol version)")
"""librdkafka's words where one side does not take the other's certificate. Other failures of TLS may be a broker's that stops."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that exists."""

    name: str
    id: str
    """Kafka's own id: a topic that was deleted and created again has another."""
    partitions: tuple[int, ...]
    readable: bool = True
    """Whether we may read its records; also where the broker does not tell."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets that a partition holds, [earliest, end), as readers of committed records may read them."""

    earliest: int
    end: int
    undecided: bool
    """Whether a transaction is still open beyond `end`: what it may yet commit had reached Kafka earlier."""

    def __str__(self) -> str:
        return f"[{self.earliest}, {self.end})"


def failed(failure: BaseException, about: str = "") -> JobError:
    """A client's failure as the job's: no permission is for a person to mend, all else may pass. `about` says what was wanted."""
    where = f"Kafka at {endpoint('KAFKA_BOOTSTRAP_SERVERS')}"
    error = failure.args[0] if isinstance(failure, KafkaException) else None
    if error is not None and _is_refusal(error):
        wanted = f" {about}" if about else ""
        return UsageError(f"{where} refused{wanted} ({error.str()}): check the KAFKA_SECURITY_ variables and the user's rights.")
    said = error.str() if error is not None else str(failure)
    if "SSL_HANDSHAKE" in said and "PLAINTEXT" not in said:
        # Which of its two messages the client gives for a port without TLS depends on who closes first.
        said = f"{said}: connecting to a PLAINTEXT broker listener?"
    return RetryError(f"{where} did not answer ({said}). Is it up? Try again.")


def _is_refusal(error: KafkaError) -> bool:
    return error.code() in _REFUSED or bool(_DISTRUST.search(error.str()))


def _speaks_tls() -> bool:
    """Whether one of the brokers' addresses answers in TLS, to tell a client in plain text why nobody listens to it."""
    for address in endpoint("KAFKA_BOOTSTRAP_SERVERS").split(","):
        host, _, port = address.strip().rpartition(":")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=2) as plain, context.wrap_socket(plain):
                return True
        except (OSError, ValueError):
            continue
    return False


class Cluster:
    """Questions to a Kafka cluster. Each raises RetryError where the brokers don't answer within `PATIENCE` seconds."""

    def __init__(self) -> None:
        settings = client_settings()
        self._plain = "SSL" not in str(settings.get("security.protocol", "")).upper()
        self._heard: list[KafkaError] = []
        """What librdkafka says beside the answers: of wrong credentials it speaks nowhere else."""
        self._asked = False
        self._admin = AdminClient(settings | {"error_cb": self._heard.append})

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of the named topics that exist, by name."""
        self._begin()
        found = {}
        asked = self._admin.describe_topics(
            TopicCollection(list(names)), request_timeout=PATIENCE, include_authorized_operations=True
        )
        for name, future in asked.items():
            try:
                told = self._answer(future)
            except KafkaException as failure:
                if failure.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise self._failed(failure, f"to describe topic {name!r}") from failure
            rights = told.authorized_operations
            readable = not rights or AclOperation.READ in rights
            partitions = tuple(sorted(partition.id for partition in told.partitions))
            found[name] = Topic(name, str(told.topic_id), partitions, readable)
        return found

    def bounds(self, topics: Iterable[Topic]) -> dict[str, dict[int, Bounds]]:
        """The offsets that each partition of the topics holds, by topic and partition.

        Raises UsageError for a topic that we may not read: a reader would wait for records in vain.
        """
        topics = list(topics)
        if closed := [topic.name for topic in topics if not topic.readable]:
            raise UsageError(f"Kafka does not let this user read topic {closed[0]!r}: it needs the right READ on it. Grant it.")
        self._begin()
        # The order matters: a committed end, asked for last, that reaches what was written before has no open transaction below.
        earliest = self._offsets(topics, OffsetSpec.earliest())
        written = self._offsets(topics, OffsetSpec.latest())
        committed = self._offsets(topics, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        found: dict[str, dict[int, Bounds]] = {topic.name: {} for topic in topics}
        for at, end in committed.items():
            found[at.topic][at.partition] = Bounds(min(earliest[at], end), end, end < written[at])
        return found

    def until(self, topic: Topic, moment: datetime) -> dict[int, int]:
        """For each partition the offset up to which its records are older than the moment: the first at or after it, or the end.

        Where timestamps are not in order, older records may follow. Raises ValueError for a moment without a time zone.
        """
        if moment.tzinfo is None:
            raise ValueError(f"the moment {moment.isoformat()} has no time zone: give it one, for example UTC.")
        # Kafka counts whole milliseconds: the first that is not before the moment.
        return self.since(topic, -((_EPOCH - moment) // timedelta(milliseconds=1)))

    def since(self, topic: Topic, milliseconds: int) -> dict[int, int]:
        """The first offset with at least this timestamp (milliseconds since 1970) in each partition; its end where none has."""
        self._begin()
        # The order matters: an end asked for last could lie beyond records that came, with this timestamp, in between.
        ends = self._offsets([topic], OffsetSpec.latest())
        found = self._offsets([topic], OffsetSpec.for_timestamp(milliseconds))
        return {at.partition: offset if offset >= 0 else ends[at] for at, offset in found.items()}

    def newest(self, topic: Topic) -> dict[int, int]:
        """For each partition the greatest timestamp in it, in milliseconds since 1970; -1 where it is empty."""
        self._begin()
        answers = self._admin.list_offsets(_each([topic], OffsetSpec.max_timestamp()), request_timeout=PATIENCE)
        return {at.partition: self._told(future).timestamp for at, future in answers.items()}

    def configuration(self, topic: str) -> dict[str, str]:
        """The topic's settings, as Kafka names them."""
        self._begin()
        (future,) = self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)], request_timeout=PATIENCE).values()
        return {name: entry.value for name, entry in self._told(future, f"to tell the settings of topic {topic!r}").items()}

    def create(self, name: str, *, partitions: int, configuration: Mapping[str, str]) -> None:
        """Create a topic; one that exists already is left as it is."""
        self._begin()
        topic = NewTopic(name, num_partitions=partitions, config=dict(configuration))
        (future,) = self._admin.create_topics([topic], request_timeout=PATIENCE).values()
        try:
            self._answer(future)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._failed(failure, f"to create topic {name!r}") from failure

    def _begin(self) -> None:
        """A question begins: what was said before it is none of its answer, months ago in a service.

        Before the first nobody has listened, and librdkafka repeats itself only after half a minute.
        """
        if self._asked:
            self._admin.poll(0)
            self._heard.clear()
        self._asked = True

    def _offsets(
        self, topics: list[Topic], spec: Any, isolation: Any = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        answers = self._admin.list_offsets(_each(topics, spec), isolation_level=isolation, request_timeout=PATIENCE)
        return {at: self._told(future).offset for at, future in answers.items()}

    def _told(self, future: "Future[Any]", about: str = "") -> Any:
        """The answer; every failure is raised as the job's."""
        try:
            return self._answer(future)
        except KafkaException as failure:
            raise self._failed(failure, about) from failure

    def _answer(self, future: "Future[Any]") -> Any:
        """The answer, or KafkaException. Raises UsageError where the brokers refuse us."""
        began = monotonic()
        refused: float | None = None
        while True:
            try:
                return future.result(timeout=0.2)
            except TimeoutError as failure:
                # What librdkafka has to say is heard only when somebody listens.
                self._admin.poll(0)
                if refused is None and any(map(_is_refusal, self._heard)):
                    refused = monotonic()
                # librdkafka's own timeout comes first, so that the message is its.
                if monotonic() - began > PATIENCE + 5 or (refused is not None and monotonic() - refused > GRACE):
                    raise self._failed(failure) from failure

    def _failed(self, failure: BaseException, about: str = "") -> JobError:
        """The failure with its cause, where librdkafka told it: the call's own error is only that time is up."""
        self._admin.poll(0)
        timed_out = not isinstance(failure, KafkaException) or failure.args[0].code() == KafkaError._TIMED_OUT
        if not timed_out:
            return failed(failure, about)
        told = [error for error in self._heard if _is_refusal(error)]
        told = told or [error for error in self._heard if error.code() != KafkaError._ALL_BROKERS_DOWN]
        if told:
            return failed(KafkaException(told[-1]), about)
        if self._plain and self._heard and _speaks_tls():
            return UsageError(
                f"Kafka at {endpoint('KAFKA_BOOTSTRAP_SERVERS')} speaks TLS there, and we plain text: "
                "set KAFKA_SECURITY_PROTOCOL to SSL or SASL_SSL."
            )
        return failed(failure, about)


def _each(topics: list[Topic], spec: Any) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic.name, number): spec for topic in topics for number in topic.partitions}
