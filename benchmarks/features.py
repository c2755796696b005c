"""What the features promise, measured: `make bench-features`, or `python -m benchmarks.features [--quick] [--only GOAL]`.

One warm Spark session computes days of generated histories, in turns with the seed example's plan and with DuckDB; every result
is compared with DuckDB's cell by cell. Figures are CPU seconds of the whole process tree, once runs no longer get cheaper: the
session has the JVM's own compilers, as on a cluster, where `jobs.spark` takes the first alone for a laptop's short runs. The
histories are made once (minutes) and kept under `.penstock/bench`. It ends with 1 where a goal was missed; `--quick` proves only
that everything runs.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import features_sides as sides
from benchmarks.features_data import LAST, History
from benchmarks.ingest import Figure
from jobs.interval import DAY, Interval
from jobs.spark import session
from pipelines.declare import Pipeline, days

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEASURED = LAST - 2 * DAY
"""The day that is computed. Whatever was known of it by its end is in the history."""
MONTH = Interval(MEASURED - 29 * DAY, MEASURED + DAY)
LONG = (days(1), days(7), days(30), days(365))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """The histories, and how often each run is repeated."""

    sparse: History
    dense: History
    long: History
    """For windows of a year, which the dense history is too short for."""
    rounds: int

    @property
    def doubled(self) -> History:
        """Twice the history of `sparse`, at the same rate, up to the same day."""
        return replace(self.sparse, events=2 * self.sparse.events, days=2 * self.sparse.days, top=2 * self.sparse.top)

    @property
    def even(self) -> History:
        """`sparse` spread evenly over its users."""
        return replace(self.sparse, top=0)


FULL = Sizes(
    sparse=History(events=5_000_000, days=180, users=50_000, top=400_000, visits=28_000),
    dense=History(events=20_000_000, days=40, users=1_000),
    long=History(events=20_000_000, days=400, users=1_000),
    rounds=5,
)
QUICK = Sizes(
    sparse=History(events=50_000, days=180, users=500, top=4_000, visits=280),
    dense=History(events=40_000, days=40, users=10),
    long=History(events=40_000, days=400, users=10),
    rounds=1,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """The warm session, the sizes, and a folder for what the others write."""

    spark: "SparkSession"
    sizes: Sizes
    scratch: Path

    def ours(
        self, history: History, pipeline: Pipeline, interval: Interval, *, examples: bool = False, arrivals: bool = False
    ) -> Callable[[], None]:
        """A contender that computes the interval by our engine. With `arrivals` its tiles of the interval are made each time."""

        def run() -> None:
            with history.lake():
                if arrivals:
                    sides.forget_tiles(pipeline, interval)
                sides.ours(self.spark, pipeline, interval, examples=examples)

        return run

    def duckdb(
        self, history: History, windows: tuple[timedelta, ...] = sides.WINDOWS, day: date = MEASURED
    ) -> Callable[[], object]:
        """A contender that computes one day by DuckDB."""

        def run() -> object:
            with history.lake():
                return sides.duckdb_rows(windows, day, self.scratch / "duckdb.parquet")

        return run

    def check(self, history: History, pipeline: Pipeline, *on: date) -> None:
        """Compare our rows of each day with DuckDB's."""
        with history.lake():
            for day in on or (MEASURED,):
                theirs = sides.duckdb_rows(pipeline.features[0].windows, day, self.scratch / "duckdb.parquet")
                sides.same(sides.rows(pipeline, day), theirs)
        print(f"  {pipeline.name}: {max(1, len(on))} days equal DuckDB's cell by cell", flush=True)

    def contest(self, contenders: dict[str, Callable[[], object]]) -> dict[str, float]:
        """Medians of CPU seconds."""
        return sides.contest(contenders, self.sizes.rounds)


def day(bench: Bench) -> list[Figure]:
    """One day of sums, counts, means and exact distinct over 1, 7 and 30 days, against the seed example's plan and DuckDB."""
    history, pipeline, one = bench.sizes.sparse, sides.declared("day"), Interval(MEASURED, MEASURED + DAY)

    def seed(of: History) -> Callable[[], None]:
        def run() -> None:
            with of.lake():
                if not sides.seed_plan(bench.spark, MEASURED, bench.scratch / "seed"):
                    print("  The seed's plan did not end: it was stopped, and counts with what it had taken by then.", flush=True)

        return run

    print("  The seed's side has no distinct: a window's collected set would take the square of the users' events in memory too.")
    found = bench.contest(
        {
            "ours": bench.ours(history, pipeline, one),
            "seed": seed(history),
            "seed, even": seed(bench.sizes.even),
            "DuckDB": bench.duckdb(history),
        }
    )
    bench.check(history, pipeline)
    of_seed, of_duckdb = found["ours"] / found["seed"], found["ours"] / found["DuckDB"]
    return [
        Figure("CPU seconds for one day", found["ours"], "none", None),
        Figure("of the seed example's plan", of_seed, "at most 0.5", of_seed <= 0.5),
        Figure("of the seed example's plan on the same events spread evenly", found["ours"] / found["seed, even"], "none", None),
        Figure("times DuckDB's CPU", of_duckdb, "at most 6", of_duckdb <= 6),
    ]


def month(bench: Bench) -> list[Figure]:
    """Thirty days in one range against one day."""
    history, one, many = bench.sizes.sparse, sides.declared("one"), sides.declared("month")
    found = bench.contest(
        {"one day": bench.ours(history, one, Interval(MEASURED, MEASURED + DAY)), "month": bench.ours(history, many, MONTH)}
    )
    bench.check(history, many, *MONTH.days())
    times = found["month"] / found["one day"]
    return [Figure("times one day, for thirty in one range", times, "at most 8", times <= 8)]


def tiles(bench: Bench) -> list[Figure]:
    """Many events of few users: a daily run with tiles against one without."""
    history = bench.sizes.dense
    plain, tiled = sides.declared("plain"), sides.declared("tiled", tiles=True)
    yesterday = Interval(MEASURED - DAY, MEASURED)
    # The runs of the days before have left their tiles.
    bench.ours(history, tiled, Interval(yesterday.start - 34 * DAY, yesterday.end))()
    one = Interval(MEASURED, MEASURED + DAY)
    found = bench.contest({"without": bench.ours(history, plain, one), "with": bench.ours(history, tiled, one, arrivals=True)})
    bench.check(history, plain)
    bench.check(history, tiled)
    share = found["with"] / found["without"]
    return [
        Figure("CPU seconds for one dense day without tiles", found["without"], "none", None),
        Figure("of a daily run without tiles", share, "at most 0.3", share <= 0.3),
    ]


def year(bench: Bench) -> list[Figure]:
    """Windows of a year with tiles against windows of thirty days with tiles, over a history of 400 days."""
    history = bench.sizes.long
    short, long = sides.declared("short", tiles=True), sides.declared("long", windows=LONG, tiles=True)
    one = Interval(MEASURED, MEASURED + DAY)
    with history.lake() as folder:
        shutil.rmtree(folder / "long", ignore_errors=True)
    bench.ours(history, long, Interval(MEASURED - 380 * DAY, MEASURED))()
    bench.ours(history, short, Interval(MEASURED - 40 * DAY, MEASURED))()
    found = bench.contest(
        {
            "30 days": bench.ours(history, short, one, arrivals=True),
            "365 days": bench.ours(history, long, one, arrivals=True),
        }
    )
    bench.check(history, short)
    bench.check(history, long)
    times = found["365 days"] / found["30 days"]
    return [Figure("times a window of 30 days, one of 365 with tiles", times, "at most 1.5", times <= 1.5)]


def growth(bench: Bench) -> list[Figure]:
    """The same day with twice the history behind it."""
    return _apart(bench, "doubled", bench.sizes.doubled, "times the CPU with twice the history", 1.1)


def skew(bench: Bench) -> list[Figure]:
    """A top user with a twelfth of all events, against the same events spread evenly."""
    pipeline, one = sides.declared("skew"), Interval(MEASURED, MEASURED + DAY)
    histories = {"even": bench.sizes.even, "skewed": bench.sizes.sparse}
    found = bench.contest({name: bench.ours(history, pipeline, one) for name, history in histories.items()})
    for history in histories.values():
        bench.check(history, pipeline)
    times = found["skewed"] / found["even"]
    return [Figure("times the CPU with a top user", times, "at most 1.2", times <= 1.2)]


def exact(bench: Bench) -> list[Figure]:
    """The examples of a day by each one's own moment, against those by the day's end."""
    history, one = bench.sizes.sparse, Interval(MEASURED, MEASURED + DAY)
    daily, by_event = sides.declared("daily", visits=True), sides.declared("exact", visits=True, exact=True)
    found = bench.contest(
        {
            "day": bench.ours(history, daily, one, examples=True),
            "event": bench.ours(history, by_event, one, examples=True),
        }
    )
    bench.check(history, daily)
    with history.lake():
        mine = sides.example_rows(by_event)
        sides.same(mine, sides.duckdb_examples(mine.select(["key"])))
    print(f"  {by_event.name}: {mine.num_rows} examples equal DuckDB's cell by cell", flush=True)
    times = found["event"] / found["day"]
    return [Figure("times accuracy `day`, by accuracy `event`", times, "at most 3", times <= 3)]


def _apart(bench: Bench, name: str, other: History, says: str, limit: float) -> list[Figure]:
    pipeline, one = sides.declared(name), Interval(MEASURED, MEASURED + DAY)
    histories = {"usual": bench.sizes.sparse, name: other}
    found = bench.contest({which: bench.ours(history, pipeline, one) for which, history in histories.items()})
    for history in histories.values():
        bench.check(history, pipeline)
    times = found[name] / found["usual"]
    return [Figure(says, times, f"at most {limit}", times <= limit)]


GOALS = {"day": day, "month": month, "tiles": tiles, "year": year, "growth": growth, "skew": skew, "exact": exact}


def main() -> int:
    """Measure, print, judge. Returns 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description="What the features promise, measured.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, which prove only that everything runs")
    parser.add_argument("--rounds", type=int, metavar="N", help="instead of five, for a first look")
    parser.add_argument("--only", choices=sorted(GOALS), action="append", help="one goal alone; may be repeated")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    sizes = replace(sizes, rounds=options.rounds) if options.rounds else sizes
    os.environ.setdefault("SPARK_MASTER", "local[2]")
    figures: list[Figure] = []
    before = sides.cpu_seconds()
    # Later flags win.
    warm = session("penstock-bench", jvm=("-XX:TieredStopAtLevel=4",))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, warm as spark:
        spark.range(10).count()
        print(f"The session's start took {sides.cpu_seconds() - before:.1f} CPU s; no figure below has it.", flush=True)
        bench = Bench(spark, sizes, Path(folder))
        for name, measure in GOALS.items():
            if options.only and name not in options.only:
                continue
            print(f"{name}: {(measure.__doc__ or '').splitlines()[0]}", flush=True)
            measured = measure(bench)
            print(*(f"  {figure}" for figure in measured), sep="\n", flush=True)
            figures += measured
    missed = [figure for figure in figures if figure.met is False]
    print("", *figures, sep="\n")
    if options.quick:
        print("These sizes prove only that everything runs: nothing is judged.")
        return 0
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
