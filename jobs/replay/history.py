"""A topic's history, ready to be sent: keys, values and known times, in order of known time."""

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs.interval import Interval, midnight
from pipelines.declare import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """What one topic is to be sent. The three columns have one entry for each record."""

    source: Source
    partitions: int
    """How many partitions the topic has when this command makes it."""
    keys: list[bytes]
    """The event ids."""
    values: list[bytes]
    """JSON objects of the source's fields."""
    times: list[int]
    """When each was known, in milliseconds since 1970, ascending."""

    def __len__(self) -> int:
        return len(self.times)


def milliseconds(interval: Interval) -> tuple[int, int]:
    """The interval's ends, in milliseconds since 1970."""
    start, end = (int(midnight(day).timestamp()) * 1000 for day in (interval.start, interval.end))
    return start, end


def known_within(records: pa.Table, interval: Interval) -> pa.Table:
    """Those of the records whose `known_time` lies in the interval."""
    known = records.column("known_time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    start, end = milliseconds(interval)
    return records.filter(pc.and_(pc.greater_equal(known, start), pc.less(known, end)))


def history(source: Source, records: pa.Table, *, partitions: int) -> History:
    """Records as they go to Kafka. `records` has the source's fields, timestamps as Arrow's, and `known_time`."""
    order = pc.sort_indices(records, [("known_time", "ascending"), (source.event_id, "ascending")])
    records = records.take(order).combine_chunks()
    known = records.column("known_time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    return History(
        source=source,
        partitions=partitions,
        keys=records.column(source.event_id).cast(pa.binary()).to_pylist(),
        values=json_objects(records.select([field.name for field in source.fields])),
        times=np.asarray(known).tolist(),
    )


def json_objects(rows: pa.Table) -> list[bytes]:
    """Each row as a JSON object, column by column, since Python would take longer for it than Kafka."""
    pieces: list[pa.Array | pa.Scalar] = []
    for number, name in enumerate(rows.column_names):
        pieces += [pa.scalar(f'{"," if number else "{"}"{name}":'), _json(rows.column(name))]
    joined = pc.binary_join_element_wise(*pieces, pa.scalar("}"), "")
    return joined.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]


def _json(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        text = pc.strftime(column.cast(pa.timestamp("s", tz="UTC")), "%Y-%m-%dT%H:%M:%SZ")
        text = pc.binary_join_element_wise('"', text, '"', "")
    elif pa.types.is_string(column.type):
        if pc.any(pc.match_substring_regex(column, r'["\\\x00-\x1f]')).as_py():
            texts = (None if value is None else json.dumps(value, ensure_ascii=False) for value in column.to_pylist())
            text = pa.chunked_array([pa.array(texts, pa.string())])
        else:
            text = pc.binary_join_element_wise('"', column, '"', "")
    else:
        text = column.cast(pa.string())
    return pc.fill_null(text, "null")
