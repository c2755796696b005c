"""The events that count: read at a pinned version, the needed days and columns alone, repeats left out.

**Repeats.** An event is a repeat when another one with its id precedes it in (known time, partition, offset) and lies within
`repeats_within` days of it, by the day it happened. So a pair of events decides it, whichever days a run covers, and
what arrives later never makes an earlier one a repeat: a past day stands.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from jobs import batches, lake
from jobs.errors import UsageError
from jobs.features.rows import stored
from jobs.interval import Interval
from jobs.reach import Reach, epoch
from pipelines.declare import Source

POSITION = ("known_time", "topic_epoch", "kafka_partition", "kafka_offset")
"""The order in which events count. It is total: no two events share a position."""
CLOCKS = ("event_time", "known_time", "event_day", "known_day")
"""Both clocks, and their days as whole numbers since 1970: `event_day` and `known_day`."""
FEW = 500_000
"""Up to so many events, all of them are sorted to find the repeats; of more, only those whose id is there more than once."""
IDS = 500_000
"""Up to so many ids that are there more than once, or repeats, every task holds them all."""


def read(spark: SparkSession, source: Source, version: int, reach: Reach, fields: Iterable[str]) -> DataFrame:
    """The good events of the days `reach.read`, with the given fields, their clocks and their positions."""
    return (
        stored(spark, batches.events_uri(source), version, "event_date", reach.read)
        .where("rejected_reason is null")
        .withColumn("event_day", fn.unix_date("event_date"))
        .withColumn("known_day", fn.unix_date(fn.to_date("known_time")))
        .select(*dict.fromkeys((source.event_id, *fields, *CLOCKS, *POSITION)))
    )


def rows(source: Source, version: int, days: Interval) -> int:
    """How many events the table has of some days, from its log alone."""
    table = lake.load(batches.events_uri(source), version)
    assert table is not None
    files = pa.table(table.get_add_actions(flatten=True))
    if not files.num_rows:
        return 0
    day = files.column("partition.event_date").cast(pa.date32())
    within = pc.and_(pc.greater_equal(day, pa.scalar(days.start)), pc.less(day, pa.scalar(days.end)))
    return int(pc.sum(files.filter(within).column("num_records")).as_py() or 0)


def without_repeats(
    frame: DataFrame, source: Source, kept: list[DataFrame], *, first: tuple[Column, ...] = (), rows: int = 0
) -> DataFrame:
    """The events that are no repeats. `first` goes before the position in the order that decides.

    Of many `rows`, few share their id with another: those few are found by counting the ids, once and at once, and only they
    are sorted. What that keeps in memory is appended to `kept`: who asks gives it back.
    """
    if rows <= FEW:
        return _judged(frame, source, first).where("not _repeat").drop("_repeat")
    # By hash, as that is all that has to travel: two ids that share one are looked at together, and told apart then.
    named = fn.xxhash64(source.event_id).alias("_hash")
    hashes = frame.select(named).groupBy("_hash").count().where("count > 1").select("_hash").persist()
    kept.append(hashes)
    several = hashes.count()
    if not several:
        return frame
    if several > IDS:
        return _judged(frame, source, first).where("not _repeat").drop("_repeat")
    shared = frame.withColumn("_hash", named).join(fn.broadcast(hashes), "_hash", "left_semi")
    repeats = _judged(shared, source, first).where("_repeat").select(*POSITION[1:]).persist()
    kept.append(repeats)
    # A single id may have very many repeats.
    few = repeats.count() <= IDS
    return frame.join(fn.broadcast(repeats) if few else repeats, [*POSITION[1:]], "left_anti")


def _judged(frame: DataFrame, source: Source, first: tuple[Column, ...]) -> DataFrame:
    """The events with `repeat`, whether each is one."""
    order = Window.partitionBy(source.event_id).orderBy(*first, *POSITION)
    # A set of days, not of events: an id with very many repeats stays cheap.
    earlier = fn.collect_set("event_day").over(order.rowsBetween(Window.unboundedPreceding, -1))
    repeat = fn.exists("_earlier", lambda day: fn.abs(day - fn.col("event_day")) <= source.repeats_within.days)
    return frame.withColumn("_earlier", earlier).withColumn("_repeat", repeat).drop("_earlier")


def on_days(frame: DataFrame, reach: Reach) -> DataFrame:
    """Only the events of the days that matter, once those around them have shown the repeats."""
    return frame.where(fn.col("event_day").between(epoch(reach.days.start), epoch(reach.days.last)))


def fields_in(source: Source, expressions: Iterable[str | None]) -> list[str]:
    """The source's fields that SQL expressions may name: those whose name stands in them as a word."""
    words = {word.lower() for text in expressions if text for word in re.findall(r"\w+", text)}
    return [field.name for field in source.fields if field.name.lower() in words]


def by_row(before: DataFrame, after: DataFrame, expressions: Mapping[str, str]) -> None:
    """Raise UsageError unless columns were made of each row alone: what looks at others, or draws, differs from run to run."""
    plan = after._jdf.queryExecution().analyzed()
    alone = plan.nodeName() == "Project" and plan.children().apply(0).fastEquals(before._jdf.queryExecution().analyzed())
    if not alone or not plan.deterministic() or _asks_the_clock(after):
        if len(expressions) > 1:
            for place, sql in expressions.items():
                by_row(before, before.select(fn.expr(sql)), {place: sql})
        ((place, sql), *_) = expressions.items()
        raise UsageError(
            f"{place}: {sql!r} looks at other rows, at the clock, or draws at random. An expression is made of one row's own "
            "fields: aggregates and windows are declared, as Aggregate(...) and windows=."
        )


def _asks_the_clock(frame: DataFrame) -> bool:
    """Whether a column is of the run and not of the rows: the time, the date, the user."""
    pattern = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return bool(frame._jdf.queryExecution().analyzed().containsPattern(pattern))


def reason(failure: AnalysisException) -> str:
    """What Spark found wrong with an expression, without the plan that it stands in."""
    return str(failure).splitlines()[0]


def shift(instant: str, by: timedelta) -> Column:
    """An instant, as SQL, moved by a fixed time."""
    return fn.expr(f"timestampadd(MICROSECOND, {by // timedelta(microseconds=1)}L, {instant})")
