"""The rows of a table at a version are the same whether Spark is told the files or looks into Delta's log."""

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobs import lake
from jobs.features.rows import stored
from jobs.interval import Interval

DAYS = Interval(date(2024, 3, 1), date(2024, 3, 3))


def _day(day: int, *names: str) -> pa.Table:
    at = [datetime(2024, 3, day, 23, 59, 59, 999999, tzinfo=UTC)] * len(names)
    return pa.table(
        {
            "event_date": pa.array([date(2024, 3, day)] * len(names)),
            "name": pa.array([name or None for name in names], pa.string()),
            "at": pa.array(at, lake.INSTANT),
        }
    )


@pytest.mark.spark
@pytest.mark.parametrize(("folder", "index"), [("plain", "InMemoryFileIndex"), ("a b", "InMemoryFileIndex"), ("a{b}", "Delta")])
def test_rows_are_those_of_the_version_and_the_days(spark: SparkSession, tmp_path: Path, folder: str, index: str) -> None:
    uri = str(tmp_path / folder / "t")
    for rows in (_day(1, "a", ""), _day(2, "b"), _day(3, "c"), _day(4, "d")):
        version = lake.append(uri, rows, partition_by=["event_date"])
    lake.append(uri, _day(2, "later").append_column("more", pa.array([1])), partition_by=["event_date"], widen=True)
    found = stored(spark, uri, version, "event_date", DAYS)
    assert sorted(found.columns) == ["at", "event_date", "name"]
    assert sorted((row["event_date"].day, row["name"] or "") for row in found.collect()) == [(1, ""), (1, "a"), (2, "b")]
    assert {row["micros"] for row in found.selectExpr("unix_micros(at) % 1000000 as micros").collect()} == {999999}
    assert index in found._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    # Files that lack a column that came later show nulls.
    widened = stored(spark, uri, version + 1, "event_date", DAYS)
    assert sorted((row["name"] or "", row["more"]) for row in widened.collect()) == [
        ("", None),
        ("a", None),
        ("b", None),
        ("later", 1),
    ]


@pytest.mark.spark
def test_days_without_files_have_no_rows_but_columns(spark: SparkSession, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    version = lake.append(uri, _day(9, "a"), partition_by=["event_date"])
    found = stored(spark, uri, version, "event_date", DAYS)
    assert found.collect() == []
    assert found.schema["at"].dataType.simpleString() == "timestamp"
