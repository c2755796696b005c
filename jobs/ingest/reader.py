"""One offset range: read from Kafka, decoded, written as Parquet files. It commits nothing.

The same function serves every engine, so all that it takes and returns can travel between processes: a Range in, the description
of files out, never rows.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition  # noqa: TID253

from jobs import batches, record
from jobs.decode import HEADERS, INSTANT, decode, events_schema
from jobs.errors import RetryError
from jobs.ingest.files import Folder, Written
from jobs.ingest.plan import Range
from jobs.kafka import client_settings, failed

log = logging.getLogger(__name__)

BLOCK_RECORDS = 50_000
BLOCK_BYTES = 16 << 20
"""Records are decoded in blocks of at most so many, or so many bytes of values."""

FLUSH_BYTES = 96 << 20
"""Decoded rows are written out beyond this, so a range's length does not show in memory."""

STALLED = 60.0
"""Seconds without a record or an end after which the broker counts as away."""


@dataclass(kw_only=True, slots=True)
class Done:
    """What a range held, and the files it lies in."""

    range: Range
    good: int = 0
    dead: int = 0
    bytes: int = 0
    seconds: float = 0.0
    counts: Counter[tuple[date, date]] = field(default_factory=Counter)
    """Good rows by event day and known day."""
    reasons: Counter[str] = field(default_factory=Counter)
    files: list[Written] = field(default_factory=list)


def consumer() -> Consumer:
    """A reader of committed records that says where a partition ends and never jumps.

    It commits to no group: the table keeps the progress.
    """
    settings = {
        "group.id": "penstock-ingest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 50,
        "queued.max.messages.kbytes": 32 << 10,
    }
    return Consumer(client_settings() | settings)


def read_range(reader: Consumer, work: Range) -> Done:
    """Read, decode and write one range. Raises RetryError where the broker is away, or no longer has what was planned."""
    started = time.monotonic()
    done = Done(range=work)
    out = _Writer(work, done)
    for messages in _blocks(reader, work):
        out.add(messages)
    out.flush()
    done.seconds = time.monotonic() - started
    log.info("%s: %d good, %d dead, in %.1f s", work, done.good, done.dead, done.seconds)
    return done


def _blocks(reader: Consumer, work: Range) -> Iterator[list[Message]]:
    """The range's records, in blocks."""
    block: list[Message] = []
    size = 0
    for message in _messages(reader, work):
        block.append(message)
        size += len(message)
        if len(block) >= BLOCK_RECORDS or size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _messages(reader: Consumer, work: Range) -> Iterator[Message]:
    """The range's records. Offsets without one (aborted, control, compacted) are passed over; the range ends all the same."""
    try:
        reader.assign([TopicPartition(work.source.topic, work.partition, work.start)])
        position, heard = work.start, time.monotonic()
        while position < work.end:
            for message in reader.consume(min(10_000, work.end - position), timeout=0.2):
                heard = time.monotonic()
                failure = message.error()
                if failure is None:
                    offset = message.offset()
                    assert offset >= position and message.partition() == work.partition
                    position = offset + 1
                    if offset < work.end:
                        yield message
                elif failure.code() == KafkaError._PARTITION_EOF:
                    # The last offsets may hold no record at all; the partition's end says that nothing more comes before it.
                    position = max(position, message.offset())
                elif failure.fatal() or failure.code() in _GONE:
                    raise RetryError(
                        f"{work} can't be read any more ({failure.str()}). Run the ingest again: it says what has changed."
                    )
                else:
                    log.debug("%s: %s", work, failure.str())
            if time.monotonic() - heard > STALLED:
                raise RetryError(f"{work}: nothing came from Kafka for {STALLED:.0f} s at offset {position}. Try again.")
    except KafkaException as failure:
        raise failed(failure) from failure


_GONE = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)


class _Writer:
    """Collects decoded rows of one range and writes them out when they weigh too much."""

    def __init__(self, work: Range, done: Done) -> None:
        self._work = work
        self._done = done
        self._schema = events_schema(work.source)
        self._folder = Folder(batches.events_uri(work.source))
        self._good: list[pa.Table] = []
        self._dead: list[dict[str, Any]] = []
        self._weight = 0

    def add(self, messages: list[Message]) -> None:
        """Decode a block of records."""
        decoded = decode(self._work.source, [message.value() for message in messages])
        good = decoded.good
        for name, values in (("known_time", map(_known, messages)), ("kafka_offset", (message.offset() for message in messages))):
            column = pa.array(list(values), pa.int64())
            good = good.append_column(name, column.take(decoded.index) if decoded.rejected else column)
        plausible = _plausible(good.column("known_time"))
        if not pc.all(plausible, min_count=0).as_py():
            odd = decoded.index.filter(pc.invert(plausible).combine_chunks())
            decoded.rejected.update(dict.fromkeys(odd.to_pylist(), "implausible known time"))
            good = good.filter(plausible)
        if len(good):
            self._good.append(good)
            self._weight += good.nbytes
        for index, reason in decoded.rejected.items():
            self._dead.append(_letter(messages[index], reason))
            self._weight += len(messages[index]) + 200
        self._done.good += len(good)
        self._done.dead += len(decoded.rejected)
        self._done.reasons.update(decoded.rejected.values())
        self._done.bytes += sum(len(message) for message in messages)
        if self._weight > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if self._good:
            rows = pa.concat_tables(self._good).combine_chunks()
            event_time = rows.column(self._work.source.event_time)
            rows = rows.set_column(rows.column_names.index("known_time"), "known_time", rows.column("known_time").cast(INSTANT))
            rows = rows.append_column("event_time", event_time).append_column("event_date", pc.cast(event_time, pa.date32()))
            self._count(rows)
            self._write(rows)
        if self._dead:
            types = {
                "known_time": INSTANT,
                "headers": HEADERS,
                "rejected_reason": pa.string(),
                "raw_key": pa.binary(),
                "raw_value": pa.binary(),
            }
            columns = {name: pa.array([letter[name] for letter in self._dead], kind) for name, kind in types.items()}
            self._write(
                pa.table(columns | {"kafka_offset": pa.array([letter["kafka_offset"] for letter in self._dead], pa.int64())})
            )
        self._good, self._dead, self._weight = [], [], 0

    def _count(self, rows: pa.Table) -> None:
        days = pa.table({"event": rows.column("event_date"), "known": pc.cast(rows.column("known_time"), pa.date32())})
        for row in days.group_by(["event", "known"]).aggregate([([], "count_all")]).to_pylist():
            self._done.counts[row["event"], row["known"]] += row["count_all"]

    def _write(self, rows: pa.Table) -> None:
        """Write rows, with what is the same in all of them, and null for the columns that they lack."""
        work = self._work
        same = {"topic": work.source.topic, "topic_epoch": work.epoch, "kafka_partition": work.partition, "batch": work.batch}
        columns = [
            rows.column(column.name)
            if column.name in rows.column_names
            else pa.repeat(pa.scalar(same.get(column.name), column.type), len(rows))
            for column in self._schema
        ]
        prefix = f"{work.batch}-{work.partition}-{work.start}"
        self._done.files.extend(self._folder.write(pa.table(columns, schema=self._schema), prefix=prefix))


def _plausible(known: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which known times are plausible: a producer without a clock would make its records visible to all of history."""
    return pc.and_(pc.greater_equal(known, record.EARLIEST), pc.less(known, record.LATEST))


def _known(message: Message) -> int:
    """The record's timestamp in microseconds since 1970; Kafka's are milliseconds."""
    return int(message.timestamp()[1]) * 1000


def _letter(message: Message, reason: str) -> dict[str, Any]:
    """A dead letter: the record as it came."""
    headers = [{"name": name, "value": value} for name, value in message.headers() or ()]
    return {
        "known_time": _known(message),
        "kafka_offset": message.offset(),
        "rejected_reason": reason,
        "raw_key": message.key(),
        "raw_value": message.value(),
        "headers": headers or None,
    }
