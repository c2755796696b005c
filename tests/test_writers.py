"""Row 11 of the cases: writers at once on one table of features, by Spark: the same day, and different days."""

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from threading import Barrier

import pytest
from pyspark.sql import SparkSession
from small_history import PIPELINE

from jobs import lake, versions
from jobs.errors import RetryError
from jobs.features.tables import Output, write
from jobs.interval import Interval

pytestmark = pytest.mark.spark


def test_writers_of_one_day_and_of_several(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No day has rows of two writers, whoever loses is told to try again, and different days all stand."""
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))

    def output(writer: int, day: int) -> Output:
        rows = f"select concat('u', id) as user, {writer} as writer, date '2020-01-0{day}' as event_date from range(3)"
        days = Interval.inclusive(date(2020, 1, day), date(2020, 1, day))
        return Output(table="features_user", frame=spark.sql(rows), partition="event_date", days=days, order=("user",))

    write(output(0, 9), PIPELINE, run_id="first", inputs={})
    together = Barrier(4)

    def run(writer: int, day: int) -> bool:
        together.wait()
        try:
            return sum(write(output(writer, day), PIPELINE, run_id=str(writer), inputs={}).rows.values()) == 3
        except RetryError:
            return False

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(run, (1, 2, 3, 4), (1, 1, 2, 3)))
    assert done[2] and done[3]
    assert done[0] or done[1]
    table = lake.load(versions.uri(PIPELINE, "features_user"))
    assert table is not None
    sql = "select event_date, count(*) as rows, count(distinct writer) as writers from t group by event_date order by event_date"
    found = [tuple(row.values()) for row in lake.query(table, sql).to_pylist()]
    assert found == [(date(2020, 1, day), 3, 1) for day in (1, 2, 3, 9)]
