"""What the ingest promises, measured: `make bench-ingest`, or `python -m benchmarks.ingest [--quick] [--only GOAL]`.

It starts a broker of its own and runs whole processes in turns, each into a fresh lake. On two quiet cores all of it takes about
half an hour. It ends with 1 where a goal was missed; with `--quick` the sizes are tiny and prove only that everything runs.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.contest import Contender, Contest, median
from benchmarks.records import Load
from jobs.local import services
from jobs.local.ports import Ports


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How much is read, and how often."""

    large: int = 10_000_000
    usual: int = 2_000_000
    small: int = 50_000
    positions: int = 50_000_000
    rounds: int = 5
    memory_rounds: int = 3


QUICK = Sizes(large=30_000, usual=10_000, small=2_000, positions=1_000_000, rounds=1, memory_rounds=1)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure and what was promised of it."""

    says: str
    value: float
    goal: str
    met: bool | None
    """None for a figure that is only told."""

    def __str__(self) -> str:
        verdict = {True: "met", False: "MISSED", None: "told"}[self.met]
        return f"{verdict:<7} {self.value:8.3f}   {self.says} (goal: {self.goal})"


def throughput(contest: Contest, sizes: Sizes) -> list[Figure]:
    """Against a bare script, and Spark's source with its session's start left out: at this size, that would flatter us."""
    load = Load(records=sizes.usual)
    found = contest.rounds({way: Contender(way=way, load=load) for way in ("spark", "bare", "ours")}, sizes.rounds)
    ours = median(found["ours"])
    beside = median(found["bare"]) / ours
    without, whole = median(found["spark"], "work") / ours, median(found["spark"]) / ours
    return [
        Figure("records a second, ours, whole process", sizes.usual / ours, "none", None),
        Figure("times as fast as Spark's source, its session's start left out", without, "at least 4", without >= 4),
        Figure("times as fast as Spark's source, whole processes", whole, "none", None),
        Figure("times as fast as a bare script", beside, "at least 0.9", beside >= 0.9),
    ]


def small(contest: Contest, sizes: Sizes) -> list[Figure]:
    """A small backlog, as a schedule finds it: what a process costs before it reads."""
    load = Load(records=sizes.small)
    # The flags for short jobs are the better ones for Spark here.
    found = contest.rounds({way: Contender(way=way, load=load) for way in ("spark, short", "ours")}, sizes.rounds)
    share = median(found["ours"]) / median(found["spark, short"])
    return [
        Figure("seconds, ours", median(found["ours"]), "none", None),
        Figure("of the time of Spark's source, whole processes", share, "at most 0.2", share <= 0.2),
    ]


def broken(contest: Contest, sizes: Sizes) -> list[Figure]:
    """One record in a hundred is no JSON."""
    clean, bad = Load(records=sizes.usual), Load(records=sizes.usual, broken_every=100)
    found = contest.rounds({"clean": Contender(way="ours", load=clean), "broken": Contender(way="ours", load=bad)}, sizes.rounds)
    share = median(found["broken"]) / median(found["clean"])
    return [Figure("times the clean time with 1 in 100 undecodable", share, "at most 1.3", share <= 1.3)]


def days(contest: Contest, sizes: Sizes) -> list[Figure]:
    """Event times within one day, or spread over thirty."""
    loads = {"one day": Load(records=sizes.usual), "thirty days": Load(records=sizes.usual, days=30)}
    found = contest.rounds({name: Contender(way="ours", load=load) for name, load in loads.items()}, sizes.rounds)
    one, thirty = (median(found[name]) for name in loads)
    apart = max(one, thirty) / min(one, thirty)
    return [Figure("times apart, one day and thirty days", apart, "at most 1.3", apart <= 1.3)]


def memory(contest: Contest, sizes: Sizes) -> list[Figure]:
    """The peak of the process and all its workers does not grow with the backlog. The greatest of the rounds counts."""
    loads = {"usual": Load(records=sizes.usual), "large": Load(records=sizes.large)}
    contenders = {name: Contender(way="ours", load=load) for name, load in loads.items()}
    found = contest.rounds(contenders, sizes.memory_rounds, memory=True)
    usual, large = (max(outcome.peak for outcome in found[name]) for name in loads)
    return [
        Figure(
            f"times the memory for {sizes.large} records as for {sizes.usual}", large / usual, "at most 1.1", large <= 1.1 * usual
        ),
        Figure("GB at most", large, "under 3", large < 3),
    ]


def engine(contest: Contest, sizes: Sizes) -> list[Figure]:
    """The `spark` engine on the same two cores, once its session is up."""
    load = Load(records=sizes.usual)
    found = contest.rounds({way: Contender(way=way, load=load) for way in ("ours", "ours on spark")}, sizes.rounds)
    share = median(found["ours"], "work") / median(found["ours on spark"], "work")
    return [Figure("of local's rate by the engine `spark`, its session up", share, "at least 0.7", share >= 0.7)]


def audit(contest: Contest, sizes: Sizes) -> list[Figure]:
    """The audit of a table of many positions, as a process, without Kafka's few answers."""
    import benchmarks.audit

    with contest.lake() as lake:
        os.environ["PENSTOCK_LAKE"] = str(lake)
        load = benchmarks.audit.build(sizes.positions)
        contender = Contender(way="audit", load=load)
        found = [contest.run(contender, lake) for _ in range(sizes.rounds)]
    return [Figure(f"s for the audit of {sizes.positions} positions", median(found), "under 10", median(found) < 10)]


@dataclass(frozen=True, slots=True)
class Goal:
    """A promise, and what measures it."""

    measure: Callable[[Contest, Sizes], list[Figure]]
    needs: str | None = None
    """The module without which there is nothing to measure."""


GOALS = {
    "throughput": Goal(throughput),
    "small": Goal(small),
    "broken": Goal(broken),
    "days": Goal(days),
    "memory": Goal(memory),
    "engine": Goal(engine, needs="jobs.ingest.spark_engine"),
    "audit": Goal(audit, needs="jobs.audit"),
}


def main() -> int:
    """Measure, print, judge. Returns 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description="What the ingest promises, measured.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, which prove only that everything runs")
    parser.add_argument("--rounds", type=int, metavar="N", help="instead of five, for a first look")
    parser.add_argument("--only", choices=sorted(GOALS), help="one goal alone")
    options = parser.parse_args()
    sizes = QUICK if options.quick else Sizes()
    if options.rounds:
        sizes = replace(sizes, rounds=options.rounds, memory_rounds=options.rounds)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        state = Path(folder)
        endpoints = services.start(state, ["kafka"], Ports.free())
        os.environ["KAFKA_BOOTSTRAP_SERVERS"] = endpoints["KAFKA_BOOTSTRAP_SERVERS"]
        try:
            contest = Contest(state, endpoints)
            for name, goal in GOALS.items():
                if options.only not in (None, name):
                    continue
                print(f"{name}: {(goal.measure.__doc__ or '').splitlines()[0]}", flush=True)
                if goal.needs and importlib.util.find_spec(goal.needs) is None:
                    print(f"  left out: {goal.needs} is not there")
                    continue
                measured = goal.measure(contest, sizes)
                print(*(f"  {figure}" for figure in measured), sep="\n", flush=True)
                figures += measured
        finally:
            services.stop(state)
    missed = [figure for figure in figures if figure.met is False]
    print("", *figures, sep="\n")
    if options.quick:
        print("These sizes prove only that everything runs: nothing is judged.")
        return 0
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
