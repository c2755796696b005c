"""Expectations: what is measured, what a breach does, what later stages are told, and drift against the champion's days."""

import math
import random
import shutil
from argparse import Namespace
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import small_history
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from scipy.stats import ks_2samp
from small_history import PIPELINE, write_all

from jobs import champion, lake, ledger, reach, verdict, versions
from jobs.champion import Decision
from jobs.command import Job
from jobs.errors import DataError, UsageError
from jobs.features import judged, measured, profiles, stage, tables
from jobs.features.judged import Figures, judge
from jobs.features.profiles import Profile, Reference
from jobs.features.quality import Checks
from jobs.features.tables import Output
from jobs.interval import DAY, Interval
from jobs.quality import stage as quality
from pipelines.declare import Expectation, Pipeline

FIRST, LAST = date(2020, 1, 14), date(2020, 1, 16)
NOBODY = Reference(model=None, profiles={})


def said(one: Expectation, figures: Figures, before: dict[date, int] | None = None, reference: Reference = NOBODY) -> str:
    return judge(one, figures, before or {}, reference).verdict


def test_rules_at_their_edges() -> None:
    day = Figures(rows=10, nulls={"x": 2}, least={"x": 1.0}, greatest={"x": 3.0}, repeats={"x": 0, None: 1})
    assert said(Expectation(column="x", nulls=0.2), day) == "holds"
    assert said(Expectation(column="x", nulls=0.19), day) == "fails"
    assert said(Expectation(column="x", nulls=0.19, breach="warn"), day) == "warns"
    assert said(Expectation(column="x", between=(1, 3)), day) == "holds"
    below = judge(Expectation(column="x", between=(1.5, 9)), day, {}, NOBODY)
    above = judge(Expectation(column="x", between=(0, 2.5)), day, {}, NOBODY)
    assert (below.verdict, below.value, above.verdict, above.value) == ("fails", 1.0, "fails", 3.0)
    assert said(Expectation(column="x", between=(0, math.inf)), replace_greatest(day, math.nan)) == "fails"
    assert (said(Expectation(column="x", unique=True), day), said(Expectation(unique=True), day)) == ("holds", "fails")
    empty = Figures()
    for one in (Expectation(column="x", nulls=0.0), Expectation(column="x", between=(0, 1)), Expectation(unique=True)):
        assert said(one, empty) == "holds"
    before = {FIRST: 10, FIRST + DAY: 0, LAST: 30}
    volume = judge(Expectation(volume=(0.5, 1.5)), day, before, NOBODY)
    assert (volume.value, volume.verdict) == (0.5, "holds") and "mean of 2 of the 7 days before (20.0)" in volume.message
    assert said(Expectation(volume=(0.6, 1.5)), day, before) == "fails" == said(Expectation(volume=(0.6, 1.5)), empty, before)
    first = judge(Expectation(volume=(0.6, 1.5)), day, {FIRST: 0}, NOBODY)
    assert (first.verdict, first.value) == ("holds", None) and "none of the 7 days before has any" in first.message
    drift = Expectation(column="x", psi=0.2)
    assert judge(drift, day, {}, NOBODY).message == "no champion yet" and said(drift, day) == "holds"
    assert said(drift, day, reference=Reference(model=3, profiles={})) == "not measured"


def replace_greatest(day: Figures, value: float) -> Figures:
    return Figures(rows=day.rows, least=day.least, greatest={"x": value})


def binned(profile: Profile, values: list[float | None], rule: str) -> dict[str, int]:
    """The rows of each bin, value by value, in plain Python."""
    found: dict[str, int] = {}
    for value in values:
        if value is None:
            name = "null"
        elif rule == "psi":
            name = str(sum(edge < value for edge in profile.edges))
        else:
            name = str(2 * sum(point < value for point in profile.points) + (value in profile.points))
        found[name] = found.get(name, 0) + 1
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=60), st.lists(st.integers(-7, 7), min_size=1, max_size=60))
def test_ks_is_scipys(reference: list[int], day: list[int]) -> None:
    """Exactly, where the reference has no more values than points: ties, gaps and values outside it are all there."""
    profile = Profile.of_numbers(np.array(reference, dtype=float), nulls=3)
    found = judged.ks(profile, binned(profile, [*map(float, day), None], "ks"))
    assert found == pytest.approx(ks_2samp(reference, day).statistic, abs=1e-12)


def test_ks_of_many_values_hides_at_most_a_hundredth() -> None:
    draw = np.random.default_rng(1)
    reference, day = draw.normal(size=20_000), draw.normal(0.3, 1.2, size=5_000)
    profile = Profile.of_numbers(reference, nulls=0)
    found = judged.ks(profile, binned(profile, list(day), "ks"))
    exact = ks_2samp(reference, day).statistic
    assert found is not None and exact - 0.01 <= found <= exact


def test_psi_by_hand() -> None:
    values = [float(number) for number in range(100)]
    profile = Profile.of_numbers(np.array(values), nulls=0)
    assert profile.edges == tuple(float(edge) for edge in range(9, 99, 10)) and profile.counts == (10,) * 10
    same = judged.psi(profile, binned(profile, values, "psi"))
    assert same == pytest.approx(0, abs=1e-12)
    # Half of the day is null, which was 0 there and counts as 0.0001; the rest lies as before.
    shifted = judged.psi(profile, binned(profile, [*values, *[None] * 100], "psi"))
    assert shifted == pytest.approx(10 * (0.05 - 0.1) * math.log(0.05 / 0.1) + (0.5 - 1e-4) * math.log(0.5 / 1e-4))
    words = Profile.of_strings([("a", 3), ("b", 1)], nulls=0)
    assert words.values == (profiles.digest("a"), profiles.digest("b")) and words.counts == (3, 1, 0)
    moved = judged.psi(words, {profiles.digest("a"): 1, "other": 1})
    parts = [(0.5, 0.75), (1e-4, 0.25), (0.5, 1e-4), (1e-4, 1e-4)]
    assert moved == pytest.approx(sum((seen - there) * math.log(seen / there) for seen, there in parts))
    assert "a" not in words.write() or '"a"' not in words.write()
    assert Profile.read(words.write()) == words and Profile.read(profile.write()) == profile


@pytest.mark.spark
def test_spark_counts_what_plain_python_counts(spark: SparkSession) -> None:
    """All figures of two days of random rows: nulls, ends, repeats, and the bins of both rules and kinds of column."""
    draw = random.Random(5)
    edges = [draw.gauss(0, 1) for _ in range(300)]
    number = Profile.of_numbers(np.array(edges), nulls=5)
    word = Profile.of_strings([("ann", 5), ("bob's", 3), ("é", 1)], nulls=0)
    rows = [
        (
            draw.choice([FIRST, LAST]),
            f"k{draw.randrange(80)}",
            draw.choice([None, draw.gauss(0, 2), draw.choice(edges)]),
            draw.choice([None, "ann", "bob's", "é", "new"]),
        )
        for _ in range(200)
    ]
    frame = spark.createDataFrame(rows, "day date, key string, x double, w string")
    wanted = [
        *(Expectation(column="x", **{rule: 0.1}) for rule in ("nulls", "psi", "ks")),
        *(Expectation(column="x", between=(0, 1)), Expectation(column="w", psi=0.1), Expectation(unique=True)),
        Expectation(column="w", unique=True),
    ]
    found = measured.measure(frame, "day", ["key"], wanted, Reference(model=1, profiles={"x": number, "w": word}))
    assert set(found) == {FIRST, LAST}
    for day, figures in found.items():
        mine = [row for row in rows if row[0] == day]
        numbers, words = [row[2] for row in mine], [row[3] for row in mine]
        known = [one for one in numbers if one is not None]
        assert (figures.rows, figures.nulls["x"]) == (len(mine), numbers.count(None))
        assert (figures.least["x"], figures.greatest["x"]) == (min(known), max(known))
        assert figures.repeats[None] == len(mine) - len({row[1] for row in mine})
        there = [one for one in words if one is not None]
        assert figures.repeats["w"] == len(there) - len(set(there))
        assert figures.bins["psi", "x"] == binned(number, numbers, "psi")
        assert figures.bins["ks", "x"] == binned(number, numbers, "ks")
        names = ["null" if one is None else "other" if one == "new" else profiles.digest(one) for one in words]
        assert figures.bins["psi", "w"] == {name: names.count(name) for name in set(names)}


@pytest.mark.spark
def test_measuring_reads_no_source_again(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is measured after its source is gone; and a day that the frame doesn't have is measured too."""
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    source = tmp_path / "source"
    spark.createDataFrame([(LAST, "a", None), (LAST, "b", 1.5)], "as_of_date date, key string, size double").write.parquet(
        str(source)
    )
    pipeline = expecting(Expectation(column="size", nulls=0.4), Expectation(volume=(0.5, 2), days=3))
    checks = Checks(pipeline)
    days = Interval(LAST, LAST + 2 * DAY)
    frame = spark.read.parquet(str(source))
    kept = checks.keep(Output(table="examples", frame=frame, partition="as_of_date", days=days, order=("key",)))
    tables.write(kept, pipeline, run_id="r", inputs={})
    shutil.rmtree(source)
    checks.measure(kept, Interval(LAST - DAY, LAST + DAY))
    checks.release()
    told = checks.record(Interval(LAST - DAY, LAST + DAY), inputs={"visits": 3}, run_id="r")["quality"]
    assert [line.partition(":")[0] for line in told["fails"]] == [f"{LAST - DAY}, examples.size", f"{LAST}, examples"]
    rows = verdict.rows(pipeline, days)
    assert [(row.rule, row.value, row.inputs) for row in rows] == [
        ("volume", 0.0, '{"visits": 3}'),
        ("nulls", None, '{"visits": 3}'),
    ]


def expecting(*examples: Expectation, user: tuple[Expectation, ...] = (), name: str = "shop") -> Pipeline:
    features = (replace(PIPELINE.features[0], expectations=user),)
    return replace(PIPELINE, name=name, features=features, dimensions=(), expectations=examples)


def compute(pipeline: Pipeline, first: date, last: date, *, force: bool = False) -> dict[str, Any]:
    options = Namespace(json=True, force=force, chunk_days=30, preview=None, entity=None)
    days = Interval.inclusive(first, last)
    job = Job(command="features", options=options, run_id="test", pipeline=pipeline, interval=days)
    try:
        stage.run(job)
    except DataError as failure:
        job.report["failure"] = str(failure)
    return job.report


def told(pipeline: Pipeline, rule: str, first: date = FIRST, last: date = LAST) -> list[tuple[date, str, float | None]]:
    found = verdict.rows(pipeline, Interval.inclusive(first, last))
    return [(row.day, row.verdict, row.value) for row in found if row.rule == rule]


def promote(pipeline: Pipeline, version: int, first: date, last: date) -> None:
    """A champion that was trained on these days of the examples as they stood in a version; no registry knows of it."""
    tags = {"trained_from": str(first), "training_to": str(last), "trained_through": str(last + 9 * DAY)}
    tags |= {"examples_version": str(version), "examples_table": versions.name_of(versions.load(pipeline, "examples"))}
    made = Decision(
        decision="promoted", candidate=7, champion=None, rule={}, figures={}, reasons=[], snapshot=tags, run_id="p", by="test"
    )
    assert champion.commit(pipeline, champion.history(pipeline), [made], run_id="p")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_from_breach_to_a_day_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One history: the breach, what later stages are told, an acceptance, mended data, drift and volume."""
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    write_all(small_history.random_history(3, date(2020, 1, 1), date(2020, 1, 22)))
    user = (
        *(Expectation(column="user_orders_7d", between=(0, 3), breach="warn"), Expectation(unique=True)),
        *(Expectation(column="user_mean_1d", nulls=0.0, breach="warn"), Expectation(volume=(0.01, 100), days=1)),
    )
    strict = expecting(Expectation(column="size", nulls=0.01), Expectation(unique=True), user=user)
    report = compute(strict, FIRST, LAST)
    days = Interval.inclusive(FIRST, LAST)
    # All is written before the run ends with the breach: data, verdicts, ledger.
    rows = verdict.rows(strict, days)
    assert {row.day for row in rows} == set(days.days()) and len(rows) == 3 * 6
    assert ledger.computed(strict, "features/examples", days) == set(days.days())
    breaches = verdict.breaches(strict, days)
    assert breaches and {(row.table, row.column, row.rule) for row in breaches} == {("examples", "size", "nulls")}
    assert f"{breaches[0].day}, examples.size: " in report["failure"] and "at most 1.00% may be" in report["failure"]
    assert f"--from {breaches[0].day}" in report["failure"] and "--force" in report["failure"]
    assert len(report["quality"]["fails"]) == len(breaches) and report["quality"]["warns"]
    # Against the table itself, day by day: the verdict's day is the run's, the examples' the day after.
    table = versions.load(strict, "examples")
    assert table is not None
    found = lake.query(
        table, "select as_of_date, avg(cast(size is null as double)) as share from t group by as_of_date"
    ).to_pylist()
    shares = {row["as_of_date"] - DAY: row["share"] for row in found}
    by_day = {row.day: row.value for row in rows if row.table == "examples" and row.rule == "nulls" and row.value is not None}
    assert by_day == pytest.approx(shares)
    # A range is its days: the volume of each day goes by the day before, within the range too.
    counts = ledger.entries(strict, "features/features_user", days)
    by_ledger = {day: entry.rows for _, day, entry in counts}
    assert told(strict, "volume")[0][2] is None
    assert told(strict, "volume")[1][2] == pytest.approx(by_ledger[FIRST + DAY] / by_ledger[FIRST])
    assert told(strict, "volume")[2][2] == pytest.approx(by_ledger[LAST] / by_ledger[FIRST + DAY])
    # A run that finds all days done says so again.
    again = compute(strict, FIRST, LAST)
    assert again["days"]["computed"] == {} and again["failure"] == report["failure"]
    _accept(strict, days, capsys)
    _clears(strict, days)
    _drifts(strict)


def _accept(strict: Pipeline, days: Interval, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="breaks what it declares to expect"):
        verdict.require_passed(strict, verdict.behind(strict, reach.as_of_days(strict, days)))
    verdict.require_passed(expecting(Expectation(column="size", nulls=0.9)), days)
    options = Namespace(json=False, by=" ann ", reason="sizes are optional")
    job = Job(command="quality accept", options=options, run_id="a", pipeline=strict, interval=days)
    quality.accept(job)
    assert job.report["accepted"] and "accepted by ann" in capsys.readouterr().out
    verdict.require_passed(strict, days)
    assert "failure" not in compute(strict, FIRST, LAST)
    job = Job(command="quality show", options=options, run_id="s", pipeline=strict, interval=days)
    quality.show(job)
    out = capsys.readouterr().out
    assert "accepted by ann: sizes are optional" in out and "fails" in out and job.report["breaches"] == []
    with pytest.raises(UsageError, match="--reason is empty"):
        quality.accept(replace_options(job, Namespace(json=True, by="ann", reason=" ")))


def replace_options(job: Job, options: Namespace) -> Job:
    return Job(command=job.command, options=options, run_id=job.run_id, pipeline=job.pipeline, interval=job.interval)


def _clears(strict: Pipeline, days: Interval) -> None:
    """A day that is computed again is judged anew: an acceptance was about what lay there; mended data clears the breach."""
    accepted = verdict.rows(strict, days)
    later = [replace(row, run_id="later") for row in accepted if row.verdict != verdict.ACCEPTED]
    verdict.replace(strict, days, [*later, *(row for row in accepted if row.verdict == verdict.ACCEPTED)])
    assert len(verdict.breaches(strict, days)) == len(accepted) - len(later)
    history = small_history.random_history(3, date(2020, 1, 1), date(2020, 1, 22))
    for row in history["visits"]:
        row["size"] = row["size"] or 1.0
    write_all(history)
    report = compute(strict, FIRST, LAST, force=True)
    assert "failure" not in report and verdict.breaches(strict, days) == []
    assert {row.verdict for row in verdict.rows(strict, days) if row.table == "examples"} == {"holds"}


def _drifts(strict: Pipeline) -> None:
    """Against the champion's training days, read where they were when it was trained."""
    table = versions.load(strict, "examples")
    assert table is not None
    version = table.version()
    drifting = expecting(
        Expectation(column="size", psi=0.5, breach="warn"),
        Expectation(column="user", psi=1.5, breach="warn"),
        user=(Expectation(column="user_spent_7d", ks=0.9, breach="warn"), Expectation(volume=(0.01, 100), days=1)),
    )
    promote(drifting, version, FIRST + DAY, LAST + DAY)
    report = compute(drifting, LAST, LAST, force=True)
    assert report["quality"]["champion"] == 7
    sizes = lake.query(lake.load(versions.uri(drifting, "examples"), version), "select size, user_spent_7d from t").to_pylist()  # type: ignore[arg-type]
    own = lake.query(versions.load(drifting, "examples"), f"select size from t where as_of_date = date '{LAST + DAY}'")  # type: ignore[arg-type]
    reference = Profile.of_numbers(np.array([row["size"] for row in sizes]), 0)
    expected = judged.psi(reference, binned(reference, own["size"].to_pylist(), "psi"))
    assert expected == pytest.approx(
        next(row.value for row in verdict.rows(drifting, Interval.inclusive(LAST, LAST)) if row.column == "size")
    )
    users = lake.query(versions.load(drifting, "features_user"), f"select user_spent_7d from t where event_date = date '{LAST}'")  # type: ignore[arg-type]
    exact = ks_2samp([row["user_spent_7d"] for row in sizes], users["user_spent_7d"].to_pylist()).statistic
    assert told(drifting, "ks", LAST)[0][2] == pytest.approx(exact, abs=1e-9)
    # The day before is not in this run: its rows come from the ledger.
    before = lake.query(versions.load(drifting, "features_user"), f"select user from t where event_date = date '{LAST - DAY}'")  # type: ignore[arg-type]
    assert told(drifting, "volume", LAST)[0][2] == pytest.approx(len(users) / len(before))
    # The profile is kept: the version it was made from is not needed any more.
    kept = lake.load(lake.uri(drifting.name, "profiles"))
    assert kept is not None and kept.version() == 0
    names = lake.query(kept, 'select "column", model from t order by 1').to_pylist()
    assert names == [{"column": name, "model": 7} for name in ("size", "user", "user_spent_7d")]
    again = profiles.reference(drifting, ["size", "user"])
    assert (again.model, set(again.profiles)) == (7, {"size", "user", "user_spent_7d"})
    after = lake.load(kept.table_uri)
    assert after is not None and after.version() == 0


def test_what_can_not_be_measured_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    with pytest.raises(UsageError, match=r"between of examples.shop_name: the column is no number"):
        Checks(expecting(Expectation(column="shop_name", between=(0, 1))))
    with pytest.raises(UsageError, match=r"ks of features_user.user: the column is no number"):
        Checks(expecting(user=(Expectation(column="user", ks=0.1),)))
    pair = replace(PIPELINE.features[1], expectations=(Expectation(column="shop", psi=0.1),))
    with pytest.raises(UsageError, match=r"psi of features_pair.shop: drift is told against the champion's examples"):
        Checks(replace(PIPELINE, features=(PIPELINE.features[0], pair)))


def test_a_champion_without_its_training_end_goes_by_the_declaration() -> None:
    tags = {"trained_from": "2020-01-01", "trained_through": "2020-03-01"}
    made = Decision(
        decision="promoted", candidate=1, champion=None, rule={}, figures={}, reasons=[], snapshot=tags, run_id="p", by="t",
        decided_at=datetime.now(UTC),
    )  # fmt: skip
    # Seven days of validation end with the day it was trained through; three days of embargo come before.
    assert profiles.training_days(PIPELINE, made) == Interval(date(2020, 1, 1), date(2020, 3, 2) - timedelta(days=10))
    assert pa.types.is_date32(verdict.SCHEMA.field("day").type)
