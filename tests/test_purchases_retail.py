"""A real shop's transactions become purchases, and its users' features are what DuckDB says of the raw file."""

import json
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_topic import drop

from jobs import cli, lake, versions
from jobs.decode import decode
from jobs.errors import UsageError
from jobs.interval import DAY, Interval
from jobs.replay import retail
from pipelines.purchases import ITEMS, PIPELINE, PURCHASES

FILE = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "online-retail" / "transactions.parquet"
KNOWN = Interval.inclusive(date(2010, 12, 1), date(2011, 1, 7))
DAYS = Interval.inclusive(date(2011, 1, 5), date(2011, 1, 6))
"""Shops are shut from Christmas to 4 January, so the windows hold three weeks of one year and a few days of the next."""

there = pytest.mark.skipif(not FILE.exists(), reason="the real transactions are not there")


def asked(sql: str) -> list[dict[str, Any]]:
    """A query over the raw file, `raw`."""
    with duckdb.connect() as database:
        database.execute(f"set timezone = 'UTC'; create view raw as select * from '{FILE}'")
        return database.sql(sql).to_arrow_table().to_pylist()


@there
def test_every_line_is_sent_once_with_what_it_says() -> None:
    found = retail.records(FILE)
    assert retail.covered(found) == Interval.inclusive(date(2010, 12, 1), date(2011, 9, 30))
    (_, lines, _), (_, items, _) = found
    (told,) = asked("""select count(*) as lines, count(customer_id) as users, sum(quantity) as pieces,
        sum(quantity * unit_price::decimal(12,3)) as spent,
        count(*) filter (starts_with(invoice_no, 'C')) as cancelled from raw""")
    assert told["lines"] == lines.num_rows == len(set(lines["purchase_id"].to_pylist())) == 370_931
    assert told["users"] == lines.num_rows - lines["user_id"].null_count
    assert told["pieces"] == sum(lines["quantity"].to_pylist())
    assert told["spent"] == sum(a * b for a, b in zip(lines["quantity"].to_pylist(), lines["price"].to_pylist(), strict=True))
    assert sum(quantity < 0 for quantity in lines["quantity"].to_pylist()) > told["cancelled"] > 6_000
    (sold,) = asked("select count(distinct stock_code) as items from raw where quantity > 0 and unit_price > 0")
    assert items.num_rows == sold["items"] == len(set(items["item_id"].to_pylist()))


@there
def test_a_month_fits_its_contract_with_all_its_quotes() -> None:
    (pieces,) = retail.pieces(retail.records(FILE), Interval.inclusive(date(2011, 1, 1), date(2011, 1, 30)), 0)
    for (history, broken), source in zip(pieces[1], (PURCHASES, ITEMS), strict=True):
        assert broken == 0 and len(history) > 100
        assert history.times == sorted(history.times)
        assert decode(source, history.values).rejected == {}
    assert any(b'\\"' in value for value in pieces[1][1][0].values)


def test_a_file_that_is_no_such_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read as Parquet"):
        retail.records(tmp_path / "nothing.parquet")
    pq.write_table(pa.table({"quantity": [1], "country": ["France"]}), tmp_path / "other.parquet")
    with pytest.raises(UsageError, match="has no stock_code, description, invoice_time"):
        retail.records(tmp_path / "other.parquet")
    columns = {name: ["x"] for name in retail.COLUMNS}
    pq.write_table(pa.table(columns), tmp_path / "types.parquet")
    with pytest.raises(UsageError, match="has a column of another type"):
        retail.records(tmp_path / "types.parquet")


@pytest.fixture(scope="module")
def features(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The first weeks of the file through the broker, and two days of features."""
    folder = tmp_path_factory.mktemp("retail")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_LAKE", str(folder / "lake"))
        patch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka)
        drop(PURCHASES.topic, ITEMS.topic)
        report = folder / "report.json"
        for arguments in (
            ("replay", "retail", "--file", str(FILE), "--from", str(KNOWN.start), "--to", str(KNOWN.last)),
            ("ingest", PIPELINE.name),
            ("features", PIPELINE.name, "--from", str(DAYS.start), "--to", str(DAYS.last)),
        ):
            assert cli.main([*arguments, "--json", "--report", str(report)]) == 0
        yield json.loads(report.read_text())
        drop(PURCHASES.topic, ITEMS.topic)


def rows(name: str, sql: str) -> list[dict[str, Any]]:
    handle = lake.load(versions.uri(PIPELINE, name))
    assert handle is not None
    return lake.query(handle, sql).to_pylist()


@there
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.usefixtures("spark", "features")
@pytest.mark.parametrize("day", list(DAYS.days()))
def test_features_by_user_are_those_of_the_raw_file(day: date) -> None:
    wanted = asked(f"""
        select cast(customer_id as varchar) as user_id,
            {
        ", ".join(
            f'''count(*) filter ({w} and quantity > 0) as user_purchases_{n}d,
            count(*) filter ({w} and quantity < 0) as user_returns_{n}d,
            coalesce(sum(quantity * unit_price::decimal(12,3)) filter ({w}), 0) as user_spent_{n}d,
            count(distinct stock_code) filter ({w} and quantity > 0) as user_items_{n}d'''
            for n in (7, 30)
            for w in [f"invoice_time >= timestamptz '{day - (n - 1) * DAY} 00:00:00+00'"]
        )
    }
        from raw
        where customer_id is not null and invoice_time < timestamptz '{day + DAY} 00:00:00+00'
            and invoice_time >= timestamptz '{day - 29 * DAY} 00:00:00+00'
        group by 1 order by 1""")
    names = ", ".join(wanted[0])
    assert rows("features_user", f"select {names} from t where event_date = '{day}' order by 1") == wanted
    assert len(wanted) > 500 and sum(row["user_returns_30d"] for row in wanted) > 100
    busiest = max(wanted, key=lambda row: row["user_purchases_30d"])
    assert busiest["user_purchases_30d"] > busiest["user_items_30d"] > 100


@there
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.usefixtures("spark", "features")
def test_an_example_is_a_user_in_a_country_who_bought_and_nobody_without_a_number_is_one() -> None:
    day = DAYS.last
    wanted = asked(f"""
        select distinct '["' || customer_id || '","' || country || '"]' as key from raw
        where customer_id is not null and quantity > 0 and invoice_time < timestamptz '{day + DAY} 00:00:00+00'
            and invoice_time >= timestamptz '{day - 29 * DAY} 00:00:00+00' order by 1""")
    assert rows("examples", f"select key from t where as_of_date = '{day + DAY}' order by 1") == wanted
    table = lake.load(lake.uri("events", PURCHASES.name))
    assert table is not None
    (held,) = lake.query(table, "select count(*) as lines, count(user_id) as users from t").to_pylist()
    end = KNOWN.end
    assert [held] == asked(
        f"select count(*) as lines, count(customer_id) as users from raw where invoice_time < timestamptz '{end} 00:00:00+00'"
    )
    assert held["lines"] - held["users"] > 10_000


@there
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_nearly_every_sale_finds_its_item(features: dict[str, Any]) -> None:
    assert features["exit_code"] == 0
    (told,) = rows(
        "features_user", "select count(*) as n, count(user_last_category_30d) as told from t where user_purchases_30d > 0"
    )
    assert told["told"] > 0.99 * told["n"]
    assert timedelta(minutes=1) == retail.MINUTE
