"""The export to a SQL warehouse: what lands there, again and again, at once, and what a warehouse that fails means."""

from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from fixtures_postgres import PASSWORD, Server
from small_models import FIRST, LAST, ROWS, examples_of, labels_of, pipeline, write_tables

from jobs import cli, lake, ledger, secrets, verdict, versions
from jobs.command import Job
from jobs.errors import DataError, RetryError, UsageError
from jobs.export import figures, stage, warehouse
from jobs.interval import DAY, Interval
from jobs.verdict import Row
from pipelines.declare import Expectation, Pipeline

D = LAST - 3 * DAY
SPAN = Interval.inclusive(D, D + DAY)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Pipeline:
    """A pipeline with a name of its own, its examples, labels, predictions, verdicts and ledger."""
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    small = pipeline(f"x{abs(hash(request.node.name)) % 10**9}", expectations=(Expectation(column="x", nulls=0.5),))
    write_tables(small)
    predictions = [
        {"key": f"{day}-{place}", "as_of": datetime(2013, 3, 1, tzinfo=UTC), "score": 0.25 * model, "model_version": model}
        | {"as_of_date": day}
        for day in (D + DAY, D + 2 * DAY)
        for model, rows in ((1, 2), (2, 1))
        for place in range(rows)
    ]
    lake.append(lake.uri(small.name, "predictions"), pa.Table.from_pylist(predictions), partition_by=["as_of_date"])
    rule = {"table": "examples", "column": "x", "rule": "nulls", "limit": "at most 0.5", "message": "", "inputs": "{}"}
    told = [
        Row(**rule, day=D, value=0.125, verdict="holds", run_id="r", recorded_at=datetime.now(UTC)),
        Row(**rule, day=D + DAY, value=None, verdict="holds", run_id="r", recorded_at=datetime.now(UTC)),
    ]
    verdict.replace(small, SPAN, told)
    ledger.record(small, [entry(small, day) for day in Interval.inclusive(FIRST, LAST - DAY).days()])
    return small


def entry(small: Pipeline, day: Any) -> ledger.Entry:
    declared = versions.digest(small, "examples")
    return ledger.Entry(
        stage="features/examples", day=day, inputs={}, output_version=1, rows=1, run_id="features", declaration=declared
    )


@pytest.fixture
def warehouse_url(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_WAREHOUSE", postgres.url)
    return postgres.url


def export(small: Pipeline, days: Interval = SPAN) -> dict[str, Any]:
    job = Job(command="export", options=Namespace(json=True), run_id="test", pipeline=small, interval=days)
    stage.run(job)
    return job.report


def held(url: str, table: str, columns: str = "*", order: str = "1, 2, 3") -> list[tuple[Any, ...]]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(f"select {columns} from {table} order by {order}"))]


def matured(*days: Any) -> list[tuple[Any, ...]]:
    """The labels that matured on the days, from the generator itself."""
    every = pa.concat_tables(labels_of(examples_of(day)) for day in Interval.inclusive(FIRST, LAST).days()).to_pylist()
    return sorted(
        (row["mature_date"], row["key"], row["as_of"], row["label"], 1.0, row["mature_at"])
        for row in every
        if row["mature_date"] in days
    )


@pytest.mark.postgres
@pytest.mark.parametrize(("key", "kind"), [(None, "23502"), ("a\0b", "22|DataError")])
def test_a_key_that_the_warehouse_can_not_hold_is_wrong_data(
    small: Pipeline, warehouse_url: str, key: str | None, kind: str
) -> None:
    """And is told as what it is."""
    export(small)
    before = held(warehouse_url, f"{small.name}_labels")
    uri = versions.uri(small, "labels")
    first = lake.query(lake.load(uri), f"select * from t where mature_date = date '{D}' limit 1")  # type: ignore[arg-type]
    first = first.set_column(first.schema.get_field_index("key"), "key", pa.array([key], pa.string()))
    lake.append(uri, first, partition_by=["mature_date"])
    with pytest.raises(DataError, match=rf"refused a row \(({kind}).*is null or of a kind") as refused:
        export(small)
    assert "a\0b" not in str(refused.value)
    assert held(warehouse_url, f"{small.name}_labels") == before


@pytest.mark.postgres
def test_two_labels_of_one_example_are_wrong_data(small: Pipeline, warehouse_url: str) -> None:
    """And the days stay as they were, and the message names no value."""
    export(small)
    before = held(warehouse_url, f"{small.name}_labels")
    uri = versions.uri(small, "labels")
    first = lake.query(lake.load(uri), f"select * from t where mature_date = date '{D}' limit 1")  # type: ignore[arg-type]
    lake.append(uri, first, partition_by=["mature_date"])
    with pytest.raises(DataError, match="the same key and as_of") as refused:
        export(small)
    assert first["key"][0].as_py() not in str(refused.value)
    assert held(warehouse_url, f"{small.name}_labels") == before


@pytest.mark.postgres
def test_what_lands_and_again(small: Pipeline, warehouse_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = export(small)
    labels = matured(D, D + DAY)
    columns = "mature_date, key, as_of, label, weight, mature_at"
    assert held(warehouse_url, f"{small.name}_labels", columns) == labels
    first = [row for row in labels if row[0] == D]
    metrics = {(row[1], row[2]): row[3] for row in held(warehouse_url, f"{small.name}_daily_metrics") if row[0] == D}
    positive = sum(row[3] for row in first)
    assert metrics == {
        ("examples", "rows"): ROWS,
        ("examples", "nulls of x"): 0.125,
        ("labels", "rows"): len(first),
        ("labels", "matured"): len(first),
        ("labels", "positive"): positive,
        ("labels", "weight"): len(first),
        ("labels", "positive_rate"): positive / len(first),
        ("predictions", "rows"): 3,
        ("predictions", "rows of model 1"): 2,
        ("predictions", "mean score of model 1"): 0.25,
        ("predictions", "rows of model 2"): 1,
        ("predictions", "mean score of model 2"): 0.5,
    }
    assert report["rows"] == {f"{small.name}_daily_metrics": 12 + 11, f"{small.name}_labels": len(labels)}
    assert PASSWORD not in str(report) and "***" in report["warehouse"]
    everything = held(warehouse_url, f"{small.name}_labels"), held(warehouse_url, f"{small.name}_daily_metrics")
    export(small)
    assert (held(warehouse_url, f"{small.name}_labels"), held(warehouse_url, f"{small.name}_daily_metrics")) == everything
    # A day exported alone leaves its neighbours, also where the lake has lost its labels meanwhile.
    uri = versions.uri(small, "labels")
    empty = schema_of(uri).empty_table()
    lake.replace(uri, empty, where=f"mature_date = '{D}'", partition_by=["mature_date"])
    export(small, Interval.inclusive(D, D))
    assert held(warehouse_url, f"{small.name}_labels", columns) == matured(D + DAY)
    assert capsys.readouterr().out == ""


def schema_of(uri: str) -> pa.Schema:
    table = lake.load(uri)
    assert table is not None
    return pa.schema(table.schema().to_arrow())


@pytest.mark.postgres
def test_exports_at_once_leave_each_row_once(small: Pipeline, warehouse_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over days that overlap, and over tables that none of them found."""
    monkeypatch.setattr(warehouse, "BATCH", 50)
    spans = [Interval.inclusive(D, D + DAY), Interval.inclusive(D - DAY, D), Interval.inclusive(D, D), SPAN]
    with ThreadPoolExecutor(len(spans)) as pool:
        list(pool.map(lambda span: export(small, span), spans))
    columns = "mature_date, key, as_of, label, weight, mature_at"
    assert held(warehouse_url, f"{small.name}_labels", columns) == matured(D - DAY, D, D + DAY)
    metrics = held(warehouse_url, f"{small.name}_daily_metrics")
    assert {row[0] for row in metrics} == {D - DAY, D, D + DAY}
    export(small, Interval.inclusive(D - DAY, D + DAY))
    assert held(warehouse_url, f"{small.name}_daily_metrics") == metrics


@pytest.mark.postgres
def test_readers_see_the_old_days_until_the_end(small: Pipeline, warehouse_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    export(small)
    table = f"{small.name}_labels"
    before = held(warehouse_url, table)
    seen = []
    insert = warehouse._insert

    def looked_at(connection: sa.Connection, into: sa.Table, rows: Iterator[dict[str, Any]]) -> int:
        seen.append(held(warehouse_url, table))
        if into.name == table:
            raise RuntimeError("killed")
        return insert(connection, into, rows)

    monkeypatch.setattr(warehouse, "_insert", looked_at)
    with pytest.raises(RuntimeError):
        export(small)
    assert seen == [before, before] and held(warehouse_url, table) == before


@pytest.mark.postgres
def test_a_server_that_goes_away_is_for_a_retry(small: Pipeline, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_WAREHOUSE", postgres.url)
    export(small)
    before = held(postgres.url, f"{small.name}_labels")
    labels = figures.labels

    def interrupted(pinned: Any, interval: Interval) -> Iterator[list[dict[str, Any]]]:
        yield next(labels(pinned, interval))
        postgres.stop()
        yield from labels(pinned, interval)

    monkeypatch.setattr(figures, "labels", interrupted)
    monkeypatch.setattr(warehouse, "BATCH", 50)
    try:
        with pytest.raises(RetryError, match="Nothing was changed there") as failure:
            export(small)
        assert PASSWORD not in str(failure.value)
        with pytest.raises(RetryError, match="did not answer"):
            export(small)
    finally:
        postgres.start()
    assert held(postgres.url, f"{small.name}_labels") == before


@pytest.mark.postgres
def test_a_busy_table_and_a_deadlock_are_for_a_retry(
    small: Pipeline, warehouse_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(small)
    before = held(warehouse_url, f"{small.name}_labels")
    engine = sa.create_engine(warehouse_url, poolclass=sa.NullPool)
    monkeypatch.setattr(warehouse, "LOCK_WAIT", 1)
    with engine.begin() as other:
        other.execute(sa.text(f"lock table {small.name}_labels in access exclusive mode"))
        with pytest.raises(RetryError, match="lock timeout"):
            export(small)
    with engine.begin() as other:
        raises = "raise exception 'deadlock detected' using errcode = '40P01'"
        other.execute(sa.text(f"create function {small.name}() returns trigger language plpgsql as $$ begin {raises}; end $$"))
        other.execute(sa.text(f"create trigger t before insert on {small.name}_labels execute function {small.name}()"))
    with pytest.raises(RetryError, match="deadlock detected"):
        export(small)
    assert held(warehouse_url, f"{small.name}_labels") == before


@pytest.mark.postgres
def test_a_wrong_address_is_for_a_person(small: Pipeline, postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(url: str) -> str:
        monkeypatch.setenv("PENSTOCK_WAREHOUSE", url)
        with pytest.raises(UsageError) as failure:
            export(small)
        return secrets.mask(str(failure.value))

    assert "is no address" in refused("warehouse")
    assert "is no address" in refused("nosuch://u:p@host/db")
    wrong = postgres.url.replace("penstock:", "penstock:wrong-")
    assert "authentication failed" in (said := refused(wrong)) and "wrong-" not in said
    assert "does not exist" in refused(postgres.url.replace("/postgres", "/nosuch"))
    monkeypatch.delenv("PENSTOCK_WAREHOUSE")
    with pytest.raises(UsageError, match="PENSTOCK_WAREHOUSE is not set"):
        export(small)
    # A table of somebody else's is left alone.
    engine = sa.create_engine(postgres.url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text(f"create table {small.name}_labels (key text)"))
    assert "lacks mature_date, as_of" in refused(postgres.url)


def test_days_that_were_never_computed_are_refused(small: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the warehouse is asked for anything."""
    monkeypatch.setenv("PENSTOCK_WAREHOUSE", "postgresql://127.0.0.1:1/none")
    with pytest.raises(RetryError, match=f"the features of {LAST} were never computed"):
        export(small, Interval.inclusive(LAST - DAY, LAST))


def test_sqlite_serves_too(small: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'warehouse.db'}"
    monkeypatch.setenv("PENSTOCK_WAREHOUSE", url)
    first = export(small)
    assert export(small) == first
    assert len(held(url, f"{small.name}_labels")) == len(matured(D, D + DAY))


def test_the_command_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["export", "--help"])
    assert "PENSTOCK_WAREHOUSE" in capsys.readouterr().out


def test_a_password_in_any_form_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("postgresql://u:pa,ss@host/db", "postgresql://host/db?user=u&password=pa,ss"):
        monkeypatch.setenv("PENSTOCK_WAREHOUSE", url)
        assert "pa,ss" not in secrets.mask(f"{url}; login with pa,ss failed")
