"""Tables without Spark: idempotent replacement of a day, and the ledger beside it."""

import json
import subprocess
import sys
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

import pipelines
from jobs import lake, ledger
from jobs.errors import UsageError

DAY_1, DAY_2 = date(2013, 4, 1), date(2013, 4, 2)


@pytest.fixture(autouse=True)
def lake_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    return tmp_path / "lake"


def rows(day: date, *values: int) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.int64()), "day": pa.array([day] * len(values), pa.date32())})


def content(table_uri: str) -> list[tuple[date, int]]:
    table = lake.load(table_uri)
    assert table is not None
    found = lake.query(table, "select day, value from t").to_pylist()
    return sorted((row["day"], row["value"]) for row in found)


def test_replacing_a_day_leaves_its_neighbour_and_an_empty_day_is_empty() -> None:
    where = "day = '{}'".format
    table = lake.uri("t")
    lake.replace(table, rows(DAY_1, 1, 2), where=where(DAY_1), partition_by=["day"])
    lake.replace(table, rows(DAY_2, 3), where=where(DAY_2), partition_by=["day"])
    lake.replace(table, rows(DAY_1, 5), where=where(DAY_1), partition_by=["day"])
    assert content(table) == [(DAY_1, 5), (DAY_2, 3)]
    lake.replace(table, rows(DAY_1), where=where(DAY_1), partition_by=["day"])
    assert content(table) == [(DAY_2, 3)]


@pytest.mark.parametrize("place", ["/proc/nolake", "/dev/full"])
def test_a_lake_that_is_no_place_to_write_to_is_a_wrong_setting(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE", place)
    with pytest.raises(UsageError, match=rf"table {place}/t could not be created \(.*Correct PENSTOCK_LAKE"):
        lake.create(lake.uri("t"), rows(DAY_1).schema)


def test_rows_outside_the_condition_are_refused() -> None:
    table = lake.uri("t")
    lake.replace(table, rows(DAY_1, 1), where=f"day = '{DAY_1}'", partition_by=["day"])
    with pytest.raises(Exception, match=r"(?i)invalid data|predicate|violat"):
        lake.replace(table, rows(DAY_2, 9), where=f"day = '{DAY_1}'", partition_by=["day"])
    assert content(table) == [(DAY_1, 1)]


RACER = """
import sys, time
from datetime import date
import pyarrow as pa
from jobs import lake
from jobs.errors import RetryError
table, who, day = sys.argv[1], int(sys.argv[2]), date.fromisoformat(sys.argv[3])
rows = pa.table({"value": pa.array([who] * 3, pa.int64()), "day": pa.array([day] * 3, pa.date32())})
done = 0
while done < 5:
    try:
        lake.replace(table, rows, where=f"day = '{day}'", partition_by=["day"])
        done += 1
    except RetryError:
        time.sleep(0.01 * who)
"""


@pytest.mark.parametrize("days", [(DAY_1, DAY_1), (DAY_1, DAY_2)])
def test_two_processes_never_double_a_day(days: tuple[date, date]) -> None:
    table = lake.uri("t")
    lake.replace(table, rows(DAY_1), where=f"day = '{DAY_1}'", partition_by=["day"])
    racers = [subprocess.Popen([sys.executable, "-c", RACER, table, str(who), str(day)]) for who, day in enumerate(days, start=1)]
    assert [racer.wait(timeout=120) for racer in racers] == [0, 0]
    for day in set(days):
        values = [value for row_day, value in content(table) if row_day == day]
        assert len(values) == 3 and len(set(values)) == 1


def test_a_version_can_be_read_again_after_the_table_moved_on() -> None:
    table = lake.uri("t")
    first = lake.append(table, rows(DAY_1, 1), partition_by=["day"])
    lake.append(table, rows(DAY_1, 2), partition_by=["day"])
    old = lake.load(table, first)
    assert old is not None and lake.query(old, "select count(*) as n from t").column("n").to_pylist() == [1]
    assert lake.load(lake.uri("nowhere")) is None


def test_the_ledger_keeps_what_was_computed_from_what() -> None:
    pipeline = pipelines.load("flight_delays")
    entries = [
        ledger.Entry(stage="features", day=day, inputs={"flights_landed": 3}, output_version=7, rows=10, run_id="r1")
        for day in (DAY_1, DAY_2)
    ]
    ledger.record(pipeline, entries)
    ledger.record(pipeline, [])
    table = lake.load(lake.uri("flight_delays", "ledger"))
    assert table is not None and table.version() == 0
    found = lake.query(table, "select * from t order by day").to_pylist()
    assert [row["day"] for row in found] == [DAY_1, DAY_2]
    assert json.loads(found[0]["inputs"]) == {"flights_landed": 3}
    assert {row["fingerprint"] for row in found} == {ledger.fingerprint("features")}


def test_the_fingerprint_follows_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    before = ledger.digest_files([tmp_path / "a.py"], tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")
    changed = ledger.digest_files([tmp_path / "a.py"], tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    renamed = ledger.digest_files([tmp_path / "b.py"], tmp_path)
    assert len({before, changed, renamed}) == 3
