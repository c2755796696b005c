"""A real shop's transactions, from a Parquet file with the columns of Online Retail (doi:10.1057/dbm.2012.17).

Each line of an invoice is a purchase, named by its number in the file: equal lines are sales of their own. Cancellations keep
their negative quantity, and lines without a customer are sent without a user. A line is known when it happens, as the file has
no other clock. The catalogue is what the lines tell: an item is listed one minute before it is first sold, under the words
and the price of that line; its category is the last of the words, and it never changes.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.errors import UsageError
from jobs.interval import DAY, Interval
from jobs.replay.damage import damaged
from jobs.replay.history import History, history, known_within, milliseconds
from jobs.replay.purchases import PARTITIONS
from pipelines.declare import Source
from pipelines.purchases import ITEMS, PURCHASES

COLUMNS = {
    "stock_code": pa.string(),
    "description": pa.string(),
    "quantity": pa.int64(),
    "invoice_time": pa.timestamp("s", tz="UTC"),
    "unit_price": pa.float64(),
    "customer_id": pa.int64(),
    "country": pa.string(),
}
MINUTE = timedelta(minutes=1)
"""The resolution of the file's times."""
PIECE = 30
"""Days that are sent at once."""


def records(path: Path) -> list[tuple[Source, pa.Table, int]]:
    """What the file holds for each of the two topics, and the partitions of that.

    Raises UsageError for a file that is not there, or has other columns.
    """
    try:
        lines = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as failure:
        raise UsageError(f"--file {path} can't be read as Parquet ({failure}): name a file of transactions.") from failure
    missing = [name for name in COLUMNS if name not in lines.column_names]
    if missing or not len(lines):
        raise UsageError(
            f"--file {path} has no {', '.join(missing) or 'lines'}: it takes lines with the columns {', '.join(COLUMNS)}."
        )
    try:
        lines = lines.select(list(COLUMNS)).cast(pa.schema(COLUMNS))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as failure:
        raise UsageError(f"--file {path} has a column of another type ({failure}): they are {pa.schema(COLUMNS)}.") from failure
    return [(PURCHASES, _purchases(lines), PARTITIONS), (ITEMS, _items(lines), 1)]


def covered(found: list[tuple[Source, pa.Table, int]]) -> Interval:
    """The days on which anything becomes known."""
    ends = [pc.min_max(table.column("known_time")) for _, table, _ in found if len(table)]
    return Interval.inclusive(min(end["min"].as_py() for end in ends).date(), max(end["max"].as_py() for end in ends).date())


def pieces(
    found: list[tuple[Source, pa.Table, int]], interval: Interval, broken_every: int
) -> Iterator[tuple[Interval, list[tuple[History, int]]]]:
    """What the topics are to be sent for days of known time, some days at a time, with how many of it are damaged."""
    day = interval.start
    while day < interval.end:
        days = Interval(day, min(day + PIECE * DAY, interval.end))
        each = []
        for source, table, partitions in found:
            made = history(source, known_within(table, days), partitions=partitions)
            each.append(damaged(made, broken_every, after=_before(table, days)))
        yield days, each
        day = days.end


def _before(table: pa.Table, days: Interval) -> int:
    """How many records are known before the days."""
    known = table.column("known_time").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    return int(pc.sum(pc.less(known, milliseconds(days)[0])).as_py() or 0)


def _purchases(lines: pa.Table) -> pa.Table:
    numbers = pc.utf8_lpad(pa.array(np.arange(1, len(lines) + 1)).cast(pa.string()), 8, "0")
    return pa.table(
        {
            "purchase_id": pc.binary_join_element_wise("line", numbers, "-"),
            "user_id": lines["customer_id"].cast(pa.string()),
            "item_id": lines["stock_code"],
            "quantity": lines["quantity"],
            "price": lines["unit_price"].cast(pa.decimal128(12, 3)),
            "country": lines["country"],
            "purchased_at": lines["invoice_time"],
            "known_time": lines["invoice_time"],
        }
    )


def _items(lines: pa.Table) -> pa.Table:
    """Each item once, by the first line that sells it."""
    sold = pc.and_(pc.greater(lines["quantity"], 0), pc.greater(lines["unit_price"], 0))
    told = pc.and_(pc.is_valid(lines["description"]), pc.is_valid(lines["stock_code"]))
    numbered = lines.append_column("line", pa.array(np.arange(len(lines))))
    sales = numbered.filter(pc.and_(sold, told)).sort_by([("invoice_time", "ascending"), ("line", "ascending")])
    first = sales.group_by("stock_code", use_threads=False).aggregate([("line", "first")]).column("line_first")
    own = lines.take(first)
    listed = pc.subtract(own["invoice_time"], pa.scalar(MINUTE, pa.duration("s")))
    name = pc.utf8_trim_whitespace(own["description"])
    return pa.table(
        {
            "change_id": own["stock_code"],
            "item_id": own["stock_code"],
            "name": name,
            "category": pc.replace_substring_regex(name, r"^(?s:.*)\s", ""),
            "list_price": own["unit_price"],
            "changed_at": listed,
            "known_time": listed,
        }
    )
