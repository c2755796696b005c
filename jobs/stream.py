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
        "queued.max.messages.kbytes": 32 << 10,
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
            records = [message for message in came if message.error() is None]
            if len(records) < len(came):
                position = max(position, _noted(what, came))
            if records:
                position = max(position, records[-1].offset() + 1)
                if position > end:
                    records = [message for message in records if message.offset() < end]
                if records:
                    yield records
            if came:
                heard = time.monotonic()
            elif time.monotonic() - heard > STALLED:
                raise RetryError(f"{what}: nothing came from Kafka for {STALLED:.0f} s at offset {position}. Try again.")
    except KafkaException as failure:
        raise failed(failure) from failure


def _noted(what: str, came: list[Message]) -> int:
    """What the messages that are no records say: how far the partition is known to hold nothing more. Raises RetryError."""
    reached = 0
    for message in came:
        failure = message.error()
        if failure is None:
            continue
        if failure.code() == KafkaError._PARTITION_EOF:
            # The last offsets may hold no record at all; the partition's end says that nothing more comes before it.
            reached = max(reached, message.offset())
        elif failure.fatal() or failure.code() in _GONE:
            raise RetryError(f"{what} can't be read any more ({failure.str()}). Run the ingest again: it says what has changed.")
        elif failure.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise failed(KafkaException(failure))
        else:
            log.debug("%s: %s", what, failure.str())
    return reached
