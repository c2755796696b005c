"""The records of a span of offsets, as they come from Kafka."""

import logging
import time
from collections.abc import Iterator
from typing import Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition  # noqa: TID253

from jobs.errors import RetryError
from jobs.kafka import client_settings, failed

log = logging.getLogger(__name__)

STALLED = 60.0
"""Seconds without a record or an end after which the broker counts as away."""

_GONE = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)

"""What was asked for is not there, and reading on would not bring it."""

_PASSING = (
    *(KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT),
    *(KafkaError._TIMED_OUT_QUEUE, KafkaError._RETRY, KafkaError._WAIT_COORD, KafkaError._DESTROY_BROKER),
    *(KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.REPLICA_NOT_AVAILABLE),
    *(KafkaError.BROKER_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION, KafkaError.REQUEST_TIMED_OUT),
    *(KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE),
    *(KafkaError.KAFKA_STORAGE_ERROR, KafkaError.FETCH_SESSION_ID_NOT_FOUND, KafkaError.INVALID_FETCH_SESSION_EPOCH),
    *(KafkaError._OUTDATED, KafkaError._NODE_UPDATE),
)
"""A connection that is lost, a leader that moves: the client asks again by itself, and no offset is passed over."""


def consumer(isolation: Literal["read_committed", "read_uncommitted"]) -> Consumer:
    """A consumer that says where a partition ends, and never jumps. It commits to no group: the tables keep the progress."""
    settings = {
        "group.id": "penstock-ingest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": isolation,
        "fetch.wait.max.ms": 50,
        # After its queue was full, a client would by default wait a second before it asks for more.
        "fetch.queue.backoff.ms": 5,
        "queued.max.messages.kbytes": 16 << 10,
    }
    return Consumer(settings | client_settings())


def messages(reader: Consumer, topic: str, partition: int, start: int, end: int) -> Iterator[list[Message]]:
    """The records of the offsets [start, end), as they come. Offsets without one are passed over; the span ends all the same.

    Raises RetryError where the broker is away, or no longer has what was asked for.
    """
    if start >= end:
        return
    what = f"{topic}/{partition} [{start}, {end})"
    try:
        reader.assign([TopicPartition(topic, partition, start)])
        position, heard = start, time.monotonic()
        while position < end:
            came = reader.consume(10_000, timeout=0.2)
            records = [message for message in came if message.error() is None] if any(map(Message.error, came)) else came
            ended = _ended(what, came, (topic, partition)) if len(records) < len(came) else None
            if ended is not None:
                position = max(position, ended)
            if records:
                # Were there any of an earlier assignment, they would come first.
                for edge in (records[0], records[-1]):
                    assert (edge.topic(), edge.partition()) == (topic, partition), f"{what}: records of another partition came"
                position = max(position, records[-1].offset() + 1)
                if position > end:
                    records = [message for message in records if message.offset() < end]
                if records:
                    yield records
            if records or ended is not None:
                heard = time.monotonic()
            elif time.monotonic() - heard > STALLED:
                raise RetryError(f"{what}: nothing came from Kafka for {STALLED:.0f} s at offset {position}. Try again.")
    except KafkaException as failure:
        raise failed(failure) from failure


def _ended(what: str, came: list[Message], where: tuple[str, int]) -> int | None:
    """The offset up to which the partition is known to hold nothing more, where one of the messages says so.

    Raises RetryError for an error that may mean that a record is passed over: its offset must not count as one without a record.
    """
    reached = None
    for message in came:
        failure = message.error()
        if failure is None:
            continue
        if failure.code() == KafkaError._PARTITION_EOF:
            assert (message.topic(), message.partition()) == where, f"{what}: the end of another partition came"
            # The last offsets may hold no record at all; the partition's end says that nothing more comes before it.
            reached = max(reached or 0, message.offset())
        elif failure.fatal() or failure.code() in _GONE:
            raise RetryError(f"{what} can't be read any more ({failure.str()}). Run the ingest again: it says what has changed.")
        elif failure.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise failed(KafkaException(failure))
        elif message.topic() is None or failure.code() in _PASSING:
            # Of a broker, or of the group, which the reading doesn't need: it waits until STALLED.
            log.debug("%s: %s", what, failure.str())
        else:
            raise RetryError(
                f"{what}: Kafka's client can't read a record ({failure.str()}). Nothing of this batch was committed; try again."
            )
    return reached
