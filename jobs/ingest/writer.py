"""The rows of one range: records decoded, with their positions, as Parquet files; dead letters beside them."""

from collections import Counter
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message  # noqa: TID253

from jobs import batches, record
from jobs.decode import HEADERS, INSTANT, decode, events_schema
from jobs.files import Folder, completed, count_days
from jobs.ingest.holes import Offsets
from jobs.ingest.ranges import Done, Range
from jobs.letters import IMPLAUSIBLE

_EARLIEST, _LATEST = record.EARLIEST // 1000, record.LATEST // 1000
"""In Kafka's unit, milliseconds: an implausible timestamp may be too large to be multiplied."""

FLUSH_BYTES = 24 << 20
"""Decoded rows are written out beyond this, so a range's length does not show in memory."""

_DEAD = {
    "known_time": INSTANT,
    "kafka_offset": pa.int64(),
    "rejected_reason": pa.string(),
    "raw_key": pa.binary(),
    "raw_value": pa.binary(),
    "headers": HEADERS,
}


class Writer:
    """Collects decoded rows of one range and writes them out when they weigh too much.

    A record whose Kafka timestamp is implausible is a dead letter. No day lies after the year 9999, so its known time is brought
    between 1970 and record.LATEST: the nearer of the two, which are implausible themselves, so that a replay leaves it dead.
    """

    def __init__(self, work: Range, done: Done) -> None:
        self._work = work
        self._done = done
        self._schema = events_schema(work.source)
        self._folder = Folder(batches.events_uri(work.source))
        self._good: list[pa.Table] = []
        self._dead: list[dict[str, Any]] = []
        self._weight = 0

    def add(self, messages: list[Message], offsets: Offsets) -> None:
        """Decode a block of records."""
        values = list(map(Message.value, messages))
        decoded = decode(self._work.source, values)
        stamps = np.fromiter(map(itemgetter(1), map(Message.timestamp, messages)), np.int64, len(messages))
        plausible = (stamps >= _EARLIEST) & (stamps < _LATEST)
        # Not EARLIEST: that is a plausible time, and a replay would take it for the record's own.
        known = np.clip(stamps, 0, _LATEST) * 1000
        index = decoded.index.to_numpy()
        good = decoded.good
        if not plausible.all():
            fits = plausible[index]
            decoded.rejected.update(dict.fromkeys(index[~fits].tolist(), IMPLAUSIBLE))
            good, index = good.filter(pa.array(fits)), index[fits]
        if len(good):
            good = good.append_column("known_time", pa.array(known[index]).cast(INSTANT))
            self._good.append(good.append_column("kafka_offset", pa.array(offsets[index])))
            self._weight += good.nbytes
        for number, reason in decoded.rejected.items():
            self._dead.append(_letter(messages[number], int(known[number]), reason))
            self._weight += len(messages[number]) + 200
        self._done.good += len(good)
        self._done.dead += len(decoded.rejected)
        self._done.bytes += sum(map(len, messages))
        if self._weight > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if self._good:
            rows = pa.concat_tables(self._good)
            event_time = rows.column(self._work.source.event_time)
            rows = rows.append_column("event_time", event_time).append_column("event_date", pc.cast(event_time, pa.date32()))
            self._done.counts += count_days(rows)
            self._write(rows)
        if self._dead:
            letters = pa.table({name: pa.array([one[name] for one in self._dead], kind) for name, kind in _DEAD.items()})
            self._done.dead_counts += Counter(
                zip(
                    letters.column("known_time").cast(pa.date32()).to_pylist(),
                    letters.column("rejected_reason").to_pylist(),
                    strict=True,
                )
            )
            self._write(letters)
        self._good, self._dead, self._weight = [], [], 0

    def _write(self, rows: pa.Table) -> None:
        work = self._work
        same = {"topic": work.source.topic, "topic_epoch": work.epoch, "kafka_partition": work.partition, "batch": work.batch}
        prefix = f"{work.batch}-{work.partition}-{work.start}"
        self._done.files.extend(self._folder.write(completed(rows, self._schema, same), prefix=prefix))


def _letter(message: Message, known: int, reason: str) -> dict[str, Any]:
    """A dead letter: the record as it came."""
    headers = [{"name": name, "value": value} for name, value in message.headers() or ()]
    return {
        "known_time": known,
        "kafka_offset": message.offset(),
        "rejected_reason": reason,
        "raw_key": message.key(),
        "raw_value": message.value(),
        "headers": headers or None,
    }
