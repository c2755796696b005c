"""A set as plain Parquet: the same rows as the table, a file a day, at every moment the old one or the new."""

import os
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_history
from hypothesis import given, settings
from hypothesis import strategies as st
from small_history import PIPELINE, write_all

from jobs import lake, plain, versions
from jobs.command import Job
from jobs.erase import plain_files
from jobs.erase.derived import Mark, Target
from jobs.errors import RetryError
from jobs.features import parquet, stage
from jobs.interval import Interval
from jobs.plan.cells import cells

FIRST, LAST = date(2020, 1, 14), date(2020, 1, 15)
SCHEMA = pa.schema([("user", pa.string()), ("shop", pa.int64()), ("value", pa.float64()), ("event_date", pa.date32())])


@pytest.fixture(autouse=True)
def own_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    return tmp_path


def rows_of(day: date, count: int, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(day.toordinal() + seed)
    columns = [[f"u{n // 3}" for n in range(count)], [n % 3 for n in range(count)], draw.normal(size=count), [day] * count]
    return pa.table(columns, schema=SCHEMA).take(pa.array(draw.permutation(count)))


def table(*blocks: pa.Table) -> str:
    """A Delta table whose files are sorted each, one for each block."""
    uri = lake.uri("shop", "features_t")
    for block in blocks:
        lake.append(uri, block.sort_by([("user", "ascending"), ("shop", "ascending")]), partition_by=["event_date"])
    return uri


def put(uri: str, version: int, *days: date) -> int:
    return parquet.write(uri, version, days, partition="event_date", order=("user", "shop"))


def read(uri: str, day: date) -> pa.Table:
    return pq.ParquetFile(f"{plain.folder(uri)}/event_date={day}/{plain.FILE}").read()


def files(uri: str) -> set[str]:
    """All that lies under the plain folder, hidden files too."""
    folder = Path(plain.folder(uri))
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def ordered(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by([("user", "ascending"), ("shop", "ascending")]).to_pylist()


def test_several_files_become_one_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the blocks in which they are read: rows, order, columns, and a day without rows."""
    whole = rows_of(FIRST, 300)
    uri = table(*(whole.take(pa.array(np.arange(part, 300, 3))) for part in range(3)))
    version = lake.load(uri).version()  # type: ignore[union-attr]
    for size in (7, 1000):
        monkeypatch.setattr(parquet, "ROWS", size)
        assert put(uri, version, FIRST, LAST) == 300
        found = read(uri, FIRST)
        assert found.schema.names == ["user", "shop", "value"]
        assert found.to_pylist() == ordered(whole.drop_columns(["event_date"]))
        assert read(uri, LAST).num_rows == 0 and read(uri, LAST).schema.names == found.schema.names
    assert files(uri) == {f"event_date={day}/{plain.FILE}" for day in (FIRST, LAST)}
    # Readers without Delta find the day in the folder's name alone.
    told = duckdb.sql(f"select event_date, count(*) from '{plain.folder(uri)}/*/*.parquet' group by all").fetchall()
    assert [(str(day), rows) for day, rows in told] == [(str(FIRST), 300)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), max_size=30), max_size=4), st.integers(1, 7))
def test_merging_is_sorting(parts: list[list[int]], size: int) -> None:
    def blocks(values: list[int]) -> Iterator[pa.Table]:
        values = sorted(values)
        for start in range(0, len(values), size):
            yield pa.table({"n": pa.array(values[start : start + size], pa.int64())})

    found = [value for block in parquet.merged([blocks(part) for part in parts], ["n"]) for value in block["n"].to_pylist()]
    assert found == sorted(value for part in parts for value in part)


def test_a_failure_leaves_the_old_day(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = table(rows_of(FIRST, 30))
    put(uri, 0, FIRST)
    before = read(uri, FIRST)
    lake.replace(uri, rows_of(FIRST, 60, seed=1), where=f"event_date = '{FIRST}'", partition_by=["event_date"])

    def full(*_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RetryError, match="could not be written"):
        put(uri, 1, FIRST)
    monkeypatch.undo()
    assert read(uri, FIRST) == before and files(uri) == {f"event_date={FIRST}/{plain.FILE}"}


def test_what_a_killed_run_left_goes_after_a_day() -> None:
    uri = table(rows_of(FIRST, 30))
    put(uri, 0, FIRST)
    home = Path(plain.folder(uri)) / f"event_date={FIRST}"
    for name, age in ((".old.part", 25), (".new.part", 1)):
        (home / name).write_text("half")
        os.utime(home / name, (time.time() - age * 3600,) * 2)
    put(uri, 0, FIRST)
    assert {path.name for path in home.iterdir()} == {".new.part", plain.FILE}


def test_of_runs_that_meet_the_newest_version_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run commits and puts its own file while this one copies; only then does this one put the old rows."""
    uri = table(rows_of(FIRST, 30), rows_of(LAST, 30))
    newer = rows_of(FIRST, 60, seed=1)
    copy = parquet._write
    met = []

    def meets(*arguments: Any) -> int:
        if not met:
            met.append(True)
            lake.replace(uri, newer, where=f"event_date = '{FIRST}'", partition_by=["event_date"])
            put(uri, 2, FIRST)
        return copy(*arguments)

    monkeypatch.setattr(parquet, "_write", meets)
    assert put(uri, 1, FIRST, LAST) == 90
    assert ordered(read(uri, FIRST)) == ordered(newer.drop_columns(["event_date"]))


def test_an_erasure_reaches_the_plain_files() -> None:
    uri = table(rows_of(FIRST, 30), rows_of(LAST, 30))
    put(uri, 1, FIRST, LAST)
    target = Target(uri=uri, marks=[Mark(column="user", texts={"u2"})])
    assert plain_files.count(target) == 6 and plain_files.erase(target) == 6
    assert plain_files.count(target) == 0
    assert [row["user"] for row in read(uri, FIRST).to_pylist()].count("u1") == 3 and read(uri, FIRST).num_rows == 27


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_stage_writes_what_the_table_holds(own_lake: Path) -> None:
    """Asked for from the start, and asked for later, when nothing is computed any more."""
    write_all(small_history.random_history(3, date(2020, 1, 1), date(2020, 1, 20)))
    small = replace(PIPELINE, dimensions=())
    late = replace(small, features=(replace(PIPELINE.features[0], parquet=True), PIPELINE.features[1]))
    both = replace(small, features=tuple(replace(one, parquet=True) for one in PIPELINE.features))

    def compute(pipeline: Any, first: date, last: date) -> dict[str, Any]:
        days = Interval.inclusive(first, last)
        options = Namespace(json=True, force=False, chunk_days=30, preview=None, entity=None)
        job = Job(command="features", options=options, run_id="test", pipeline=pipeline, interval=days)
        stage.run(job)
        return job.report

    compute(late, FIRST, LAST)
    told = [cell for cell in cells(both, Interval.inclusive(FIRST, LAST)) if cell.stage == "features"]
    assert [(cell.state, cell.why, cell.to_do) for cell in told] == [
        ("done", ("the plain files of pair will be made",), True)
    ] * 2
    assert not (own_lake / "shop" / "parquet" / "features_pair").exists()
    report = compute(both, FIRST, LAST)
    assert report["days"]["computed"] == {} and report["plain_files_filled"] == {"features_pair": 2}
    # Computed again without them: what lies there is of another computation.
    old = read(versions.uri(PIPELINE, "features_user"), LAST)
    lake.replace(
        versions.uri(PIPELINE, "features_user"),
        lake.query(
            lake.load(versions.uri(PIPELINE, "features_user")), f"select * from t where event_date = date '{LAST}' limit 1"
        ),  # type: ignore[arg-type]
        where=f"event_date = '{LAST}'",
        partition_by=["event_date"],
    )
    assert read(versions.uri(PIPELINE, "features_user"), LAST) == old and old.num_rows > 1
    assert compute(both, FIRST, LAST)["plain_files_filled"] == {"features_user": 1}
    for name, entity in (("features_user", ["user"]), ("features_pair", ["user", "shop"])):
        same(name, entity, FIRST, LAST)


def same(name: str, entity: list[str], *days: date) -> None:
    uri = versions.uri(PIPELINE, name)
    handle = lake.load(uri)
    assert handle is not None
    for day in days:
        order = ", ".join(f'"{column}"' for column in entity)
        held = lake.query(handle, f"select * from t where event_date = date '{day}' order by {order}").drop_columns(
            ["event_date"]
        )
        found = read(uri, day)
        assert found.to_pylist() == held.select(found.schema.names).to_pylist()
        assert set(found.schema.names) == set(held.schema.names)
        assert pa.timestamp("us", tz="UTC") == found.schema.field("available_at").type
