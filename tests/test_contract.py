"""What a source's table keeps of its declaration, and what may change of it and what not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from small_topic import FIELDS, declare

from jobs import batches, contract, lake
from jobs.errors import UsageError
from pipelines.declare import Field, Source


@pytest.fixture(autouse=True)
def a_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))


def orders(*more: Field) -> Source:
    return declare("orders", fields=(*FIELDS, *more))


def kept(table: DeltaTable) -> dict[str, Any]:
    return json.loads(table.metadata().configuration[contract.DECLARED])  # type: ignore[no-any-return]


SEEN = Field("seen", "timestamp", time_unit="ms")
CITY = Field("city", path="address.city")


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        (SEEN, Field("seen", "timestamp", time_unit="s"), r"'seen'.*timestamp in s at 'seen'.*read as timestamp in ms at 'seen'"),
        (SEEN, Field("seen", "timestamp"), r"declared as timestamp in iso .*read as timestamp in ms"),
        (CITY, Field("city", path="customer.city"), r"declared as string at 'customer\.city'.*read as string at 'address\.city'"),
        (CITY, Field("city"), r"declared as string at 'city'.*a field can't change its meaning\. Give the field"),
        (Field("sum", "decimal(12,2)"), Field("sum", "decimal(12,4)"), r"'sum'.*can't change its meaning"),
        (Field("sum", "int64"), Field("sum", "float64"), r"'sum'.*can't change its meaning"),
        (CITY, None, r"'city' of source 'orders', string at 'address\.city', is declared no more.*Go on declaring it"),
        # A rename: the column of the old name would turn null.
        (CITY, Field("town", path="address.city"), r"'city'.*is declared no more"),
    ],
)
def test_what_changes_its_meaning_or_disappears_is_refused(was: Field, now: Field | None, message: str) -> None:
    held = contract.table(orders(was))
    changed = orders(*([now] if now else []))
    with pytest.raises(UsageError, match=message):
        contract.table(changed)
    with pytest.raises(UsageError, match=message):
        contract.missing(changed, held)
    # Nothing was changed, and the declaration as it was is still taken.
    assert contract.table(orders(was)).version() == held.version()


def test_what_may_change_makes_no_commit() -> None:
    held = contract.table(orders(SEEN, CITY))
    again = contract.table(
        orders(Field("city", path=("address", "city"), default="Rome"), Field("seen", "timestamp", time_unit="ms", required=True))
    )
    assert again.version() == held.version() == 0


def test_a_meaning_that_ended_goes_on_under_a_new_name() -> None:
    """The producer changed the unit: the value lies where it lay, and the two columns don't mix."""
    contract.table(orders(SEEN))
    anew = orders(Field("seen_s", "timestamp", path="seen", time_unit="s"))
    version = contract.table(anew).version()
    assert contract.table(anew).version() == version
    with pytest.raises(UsageError, match=r"'seen'.*is declared no more"):
        contract.table(orders())
    with pytest.raises(UsageError, match=r"'seen'.*can't change its meaning"):
        contract.table(orders(Field("seen", "timestamp", time_unit="s")))


def test_a_new_field_is_told_before_its_column_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    contract.table(orders())

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("deltalake.table.TableAlterer.add_columns", dies)
        with pytest.raises(KeyboardInterrupt):
            contract.table(orders(SEEN))
    with pytest.raises(UsageError, match=r"'seen'.*can't change its meaning"):
        contract.table(orders(Field("seen", "timestamp", time_unit="s")))
    # Nothing was read into it yet, so it may be given up; the same declaration goes on.
    contract.table(orders())
    table = contract.table(orders(SEEN))
    assert "seen" in {column.name for column in table.schema().fields}
    assert kept(table)["seen"] == {"type": "timestamp", "path": ["seen"], "time_unit": "ms"}


def _old_table(source: Source) -> None:
    """As an earlier release made it."""
    from jobs.decode import events_schema

    lake.create(batches.events_uri(source), events_schema(source), partition_by=["event_date"])


def test_a_table_without_it_takes_todays_declaration() -> None:
    _old_table(orders(SEEN))
    told = kept(contract.table(orders(SEEN)))
    assert told.keys() == {"id", "at", "cents", "seen"}
    with pytest.raises(UsageError, match=r"'seen'"):
        contract.table(orders(Field("seen", "timestamp", time_unit="s")))


@pytest.mark.parametrize("make", [_old_table, contract.table])
def test_two_runs_with_the_same_declaration_do_not_fight(
    make: Callable[[Source], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of one has a whole run of the other before it."""
    make(orders())
    wider, stale = orders(SEEN), []
    load = lake.load

    def beside(uri: str, version: int | None = None) -> DeltaTable | None:
        held = load(uri, version)
        if len(stale) < 2:
            stale.append(held)
            monkeypatch.setattr(lake, "load", load)
            contract.table(wider)
            monkeypatch.setattr(lake, "load", beside)
        return held

    monkeypatch.setattr(lake, "load", beside)
    table = contract.table(wider)
    assert kept(table).keys() == {"id", "at", "cents", "seen"} and len(stale) == 2
    assert [column.name for column in table.schema().fields].count("seen") == 1


def test_of_two_declarations_at_once_the_second_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    contract.table(orders())
    load = lake.load

    def beside(uri: str, version: int | None = None) -> DeltaTable | None:
        held = load(uri, version)
        monkeypatch.setattr(lake, "load", load)
        contract.table(orders(SEEN))
        return held

    monkeypatch.setattr(lake, "load", beside)
    with pytest.raises(UsageError, match=r"'seen'.*can't change its meaning"):
        contract.table(orders(Field("seen", "timestamp", time_unit="s")))


def test_another_topic_is_refused() -> None:
    held = contract.table(orders())
    with pytest.raises(UsageError, match=r"reads topic 'orders-2', but its table holds the records of 'orders': .* a new name"):
        contract.table(declare("orders-2"))
    assert contract.table(orders()).version() == held.version()


def test_no_value_of_a_person_is_kept_as_a_statistic_of_events() -> None:
    told = contract.table(orders()).metadata().configuration
    assert set(told["delta.dataSkippingStatsColumns"].split(",")) <= set(lake.ENDS)
    assert told["delta.enableExpiredLogCleanup"] == "false"
