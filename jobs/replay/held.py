"""What a partition holds of a history already, read back: a count alone can't tell these records from others of the same days."""

from collections.abc import Generator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from time import monotonic

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition  # noqa: TID253

from jobs.errors import DataError, RetryError
from jobs.interval import Interval
from jobs.kafka import client_settings, failed
from jobs.replay.history import History

STALLED = 60.0
"""Seconds without a record or an end after which the broker counts as away."""

_GONE = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)


def prefix(history: History, share: Sequence[int], partition: int, start: int, end: int, interval: Interval) -> int:
    """How many of the share's first records the partition holds at the offsets [start, end), which are those of `interval`.

    Records beyond the share's length are not looked at. Raises DataError at the first that is not the share's.
    """
    if start >= end or not share:
        return 0
    count = 0
    with closing(_records(history.source.topic, partition, start, end)) as records:
        for message in records:
            at = share[count]
            key, value, known = message.key(), message.value(), message.timestamp()[1]
            if key != history.keys[at] or known != history.times[at] or value != history.values[at]:
                held, wanted = _shown(key, known), _shown(history.keys[at], history.times[at])
                raise DataError(
                    f"{history.source.topic}, partition {partition}, holds other records of {interval} than this replay sends: "
                    f"at offset {message.offset()} {held}, where this replay has {wanted}"
                    f"{' with another value' if held == wanted else ''}. Only what this replay begins with may be there already. "
                    "Give the days and the --broken-every of the earlier replay, delete the topic, or send them all with --again."
                )
            count += 1
            if count == len(share):
                break
    return count


def _shown(key: object, milliseconds: int) -> str:
    """A record in words; its time may be none that a date can hold."""
    name = key.decode(errors="backslashreplace") if isinstance(key, bytes) else str(key)
    try:
        return f"{name} known at {datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds):%Y-%m-%dT%H:%M:%SZ}"
    except OverflowError:
        return f"{name} known at {milliseconds} ms"


def _records(topic: str, partition: int, start: int, end: int) -> Generator[Message]:
    """The records at these offsets. An offset without one is passed over."""
    reader = Consumer(
        client_settings()
        | {
            "group.id": "penstock-replay",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # The offsets were asked for so, and what is undecided stands before what would be sent.
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 32 << 10,
        }
    )
    try:
        reader.assign([TopicPartition(topic, partition, start)])
        position, heard = start, monotonic()
        while position < end:
            for message in reader.consume(min(10_000, end - position), timeout=0.2):
                heard = monotonic()
                failure = message.error()
                if failure is None:
                    offset = message.offset()
                    assert offset is not None
                    position = offset + 1
                    if offset < end:
                        yield message
                elif failure.code() == KafkaError._PARTITION_EOF:
                    position = end
                elif failure.fatal() or failure.code() in _GONE:
                    raise RetryError(
                        f"{topic}, partition {partition}, can't be read at offset {position} ({failure.str()}). Try again."
                    )
            if monotonic() - heard > STALLED:
                raise RetryError(
                    f"{topic}, partition {partition}: nothing came from Kafka for {STALLED:.0f} s at {position}. Try again."
                )
    except KafkaException as failure:
        raise failed(failure) from failure
    finally:
        reader.close()
