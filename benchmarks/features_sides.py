"""The ways to compute the features of a day that the benchmark compares: ours, the seed example's plan, DuckDB's query."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.features_data import SALES, VISITS
from jobs import batches, lake
from jobs.interval import DAY, Interval
from pipelines.declare import Aggregate, DailySpine, FeatureSet, Label, Pipeline, Spine, Training, days, hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AGGREGATES = (
    Aggregate("sales", "count"),
    Aggregate("spent", "sum", "amount"),
    Aggregate("mean", "mean", "amount"),
    Aggregate("items", "distinct", "item"),
)
WINDOWS = (days(1), days(7), days(30))
SLOW = 120.0
"""CPU seconds from which on a contender runs once in a contest, not in every round."""
WARM, WARMING = 12, 80.0
"""How often a contender runs beforehand, and the CPU seconds after which that is enough: until then the JVM still compiles."""


SAMPLE = 50
"""One example in so many is compared where each is looked at beside all events of its user."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took."""

    cpu: float
    """Seconds of all processors in this process and its descendants, the JVM above all."""
    wall: float


def declared(
    name: str, *, windows: tuple[timedelta, ...] = WINDOWS, tiles: bool = False, visits: bool = False, exact: bool = False
) -> Pipeline:
    """A pipeline of one feature set. With `visits` its examples are visits, else each user on a day is one."""
    accuracy: Any = "event" if exact else "day"
    per_user = FeatureSet(
        name="user", source=SALES, entity=("user",), windows=windows, aggregates=AGGREGATES, tiles=tiles, accuracy=accuracy
    )
    spine: Spine | DailySpine = DailySpine(source=SALES, entity=("user",), within=days(1))
    if visits:
        spine = Spine(source=VISITS, key="visit_id", at="starts_at", before=hours(1), columns=())
    return Pipeline(
        name=name,
        description="Of a benchmark.",
        first_day=date(2020, 1, 1),
        lateness=hours(3),
        spine=spine,
        features=(per_user,),
        label=Label(source=SALES, entity=("user",), aggregates=(AGGREGATES[0],), of="sales > 0", horizon=days(1)),
        training=Training(every=days(7), days=days(30), validation=days(7), holdout=days(7)),
    )


def ours(spark: "SparkSession", pipeline: Pipeline, interval: Interval, *, examples: bool = False) -> None:
    """Plan the interval and write the set and its tiles, or the set and the examples, as the stage does."""
    from jobs.features.plan import plan
    from jobs.features.tables import write

    inputs = batches.snapshot(pipeline)
    planned = plan(spark, pipeline, interval, inputs)
    wanted = [output for output in planned.outputs if output.table not in ("labels", *(() if examples else ("examples",)))]
    try:
        for output in wanted:
            write(output, pipeline, run_id="bench", inputs=inputs)
    finally:
        planned.release()


def forget_tiles(pipeline: Pipeline, interval: Interval) -> None:
    """Take the tiles of some days away, so that the next run has to make them, as the first of a day does."""
    from jobs import versions

    for name in versions.tiles(pipeline):
        table = versions.load(pipeline, name)
        if table is not None:
            table.delete(f"known_date >= '{interval.start}' and known_date < '{interval.end}'")


def rows(pipeline: Pipeline, day: date) -> pa.Table:
    """What the set's table holds of a day, in order."""
    from jobs import versions

    table = lake.load(versions.uri(pipeline, "features_user"))
    assert table is not None
    names = ", ".join(('"user"', *pipeline.features[0].columns))
    return lake.query(table, f"select {names} from t where event_date = date '{day}' order by \"user\"")


def seed_plan(spark: "SparkSession", day: date, out: Path, *, limit: float = 300.0) -> bool:
    """The seed example's plan: for each event of the day, windows by range over the raw events of the days before.

    Spark adds each row's window up again, so users with many events take their square. It is stopped after `limit` seconds: then
    it took at least the CPU until there. Returns whether it ended by itself.
    """
    windows = ", ".join(
        f"count(*) over w{w} as sales_{w}, sum(amount) over w{w} as spent_{w}, avg(amount) over w{w} as mean_{w}"
        for w in (1, 7, 30)
    )
    frames = ", ".join(
        f"w{w} as (partition by user order by unix_seconds(event_time) range between {w * 86400} preceding and current row)"
        for w in (1, 7, 30)
    )
    spark.read.format("delta").load(batches.events_uri(SALES)).createOrReplaceTempView("sales")
    found = spark.sql(
        f"with reach as (select * from sales where event_date between date '{day - 30 * DAY}' and date '{day}'), "
        f"every as (select user, event_date, {windows} from reach window {frames}) "
        f"select * from every where event_date = date '{day}'"
    )
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        spark.sparkContext.cancelAllJobs()

    timer = threading.Timer(limit, stop)
    timer.start()
    try:
        found.write.format("delta").mode("overwrite").partitionBy("event_date").save(str(out))
    except Exception:
        if not stopped.is_set():
            raise
    finally:
        timer.cancel()
    return not stopped.is_set()


def duckdb_rows(windows: tuple[timedelta, ...], day: date, out: Path) -> pa.Table:
    """DuckDB's rows of a day, written to a Parquet file and read back from memory."""
    import duckdb

    end = day + DAY
    longest, repeats = max(windows), SALES.repeats_within
    table = lake.load(batches.events_uri(SALES))
    assert table is not None
    first, last = end - longest - repeats, day + repeats
    files = table.file_uris([("event_date", ">=", str(first)), ("event_date", "<=", str(last))])
    figures = []
    for w in windows:
        of = f"filter (where event_time >= {_at(end - w)})"
        figures += [
            f"count(*) {of} as user_sales_{w.days}d",
            f"cast(coalesce(sum(amount) {of}, 0) as bigint) as user_spent_{w.days}d",
        ]
        figures += [f"cast(sum(amount) {of} as double) / nullif(count(amount) {of}, 0) as user_mean_{w.days}d"]
        figures += [f"count(distinct item) {of} as user_items_{w.days}d"]
    sql = (
        "with counted as (select * from read_parquet($files) where rejected_reason is null "
        f"and known_time < {_at(end)} and event_time < {_at(end)} "
        "qualify row_number() over (partition by sale_id order by known_time, topic_epoch, kafka_partition, kafka_offset) = 1) "
        f'select "user", {", ".join(figures)} from counted '
        f'where event_time >= {_at(end - longest)} and "user" is not null group by all'
    )
    with duckdb.connect() as db:
        db.execute("set threads = 2")
        found = db.execute(f"create table found as {sql}", {"files": files})
        found = db.execute(f"copy (select * from found) to '{out}' (format parquet)")
        found = db.sql('select * from found order by "user"').to_arrow_table()
    return pa.table(found)


def example_rows(pipeline: Pipeline) -> pa.Table:
    """The key and the set's columns of one example in SAMPLE, in order."""
    from jobs import versions

    table = lake.load(versions.uri(pipeline, "examples"))
    assert table is not None
    names = ", ".join(("key", *pipeline.features[0].columns))
    return lake.query(table, f"select {names} from t where cast(substr(key, 2) as bigint) % {SAMPLE} = 0 order by key")


def duckdb_examples(keys: pa.Table) -> pa.Table:
    """DuckDB's figures of visits by their own `as_of`, an hour before they start: each visit beside each event of its user.

    `keys` has the column `key`.
    """
    import duckdb

    sales, visits = (lake.load(batches.events_uri(source)) for source in (SALES, VISITS))
    assert sales is not None and visits is not None
    figures = []
    for w in WINDOWS:
        of = f"filter (where s.event_time >= as_of - interval {w.days} day)"
        total = f"coalesce(sum(amount) {of}, 0)"
        figures += [
            f"count(sale_id) {of} as user_sales_{w.days}d",
            f"cast({total} as bigint) as user_spent_{w.days}d",
            f"cast(sum(amount) {of} as double) / nullif(count(amount) {of}, 0) as user_mean_{w.days}d",
            f"count(distinct item) {of} as user_items_{w.days}d",
        ]
    sql = (
        "with asked as (select visit_id as key, v.user, v.event_time - interval 1 hour as as_of from read_parquet($visits) v "
        "where visit_id in (select key from keys)), "
        "counted as (select * from read_parquet($sales) where rejected_reason is null "
        "qualify row_number() over (partition by sale_id order by known_time, topic_epoch, kafka_partition, kafka_offset) = 1) "
        f"select key, {', '.join(figures)} from asked left join counted s on s.user = asked.user and s.event_time < as_of "
        f"and s.known_time < as_of and s.event_time >= as_of - interval {max(WINDOWS).days} day group by all order by key"
    )
    with duckdb.connect() as db:
        db.execute("set threads = 2")
        db.register("keys", keys)
        found = db.execute(sql, {"sales": sales.file_uris(), "visits": visits.file_uris()})
        return pa.table(found.to_arrow_table())


def same(mine: pa.Table, theirs: pa.Table) -> None:
    """Every cell of two tables is the same, or the benchmark ends here."""
    theirs = theirs.select(mine.column_names).cast(mine.schema)
    if mine.num_rows != theirs.num_rows:
        raise SystemExit(f"benchmarks: ours has {mine.num_rows} rows, DuckDB's {theirs.num_rows}.")
    for name in mine.column_names:
        if not mine.column(name).combine_chunks().equals(theirs.column(name).combine_chunks()):
            raise SystemExit(f"benchmarks: column {name} differs from DuckDB's.")


def contest(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Each contender until it is warm, then in turns. Returns each one's median of CPU seconds."""
    found: dict[str, list[Cost]] = {}
    for name, run in contenders.items():
        runs = [measured(run)]
        # One that takes minutes is not repeated: no warming up changes the verdict on it.
        while rounds > 1 and len(runs) < WARM and sum(cost.cpu for cost in runs) < WARMING:
            runs.append(measured(run))
        print(f"  warming up, {name}: {' '.join(f'{cost.cpu:.1f}' for cost in runs)} CPU s", flush=True)
        found[name] = runs if runs[0].cpu > SLOW else []
    again = {name: run for name, run in contenders.items() if not found[name]}
    for number in range(rounds):
        for name, run in again.items():
            cost = measured(run)
            found[name].append(cost)
            print(f"  round {number + 1}, {name}: {cost.cpu:.2f} CPU s, {cost.wall:.2f} s", flush=True)
    return {name: statistics.median(cost.cpu for cost in costs) for name, costs in found.items()}


def measured(run: Callable[[], object]) -> Cost:
    """What one call takes."""
    clock, cpu = time.monotonic(), cpu_seconds()
    run()
    return Cost(cpu_seconds() - cpu, time.monotonic() - clock)


def cpu_seconds() -> float:
    """CPU seconds so far of this process and its descendants, ended ones included."""
    import psutil

    own = psutil.Process()
    family = [own, *own.children(recursive=True)]
    times = [process.cpu_times() for process in family if process.is_running()]
    return float(sum(t.user + t.system + t.children_user + t.children_system for t in times))


def _at(day: date) -> str:
    return f"timestamptz '{day} 00:00:00+00'"
