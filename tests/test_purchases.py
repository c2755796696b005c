"""The shop out of a seed: what it holds, and that it is the same however it is asked for."""

import ast
from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

import pipelines
from jobs import cli, record
from jobs.decode import decode
from jobs.interval import DAY, Interval
from jobs.replay import purchases
from jobs.replay.history import History
from jobs.replay.purchases import ITEMS, PURCHASES, START, Shop
from pipelines.purchases import PIPELINE

SMALL = Shop(users=300, days=40, events=8_000, items=60)
PROJECT = Path(__file__).resolve().parent.parent


def sent(shop: Shop, interval: Interval, broken_every: int = 0) -> tuple[History, History]:
    """All that the two topics get for the days."""
    pieces = [[history for history, _ in work] for _, work in purchases.pieces(shop, interval, broken_every)]
    sold, listed = (purchases._joined([piece[topic] for piece in pieces]) for topic in (0, 1))
    return sold, listed


def test_the_same_seed_is_the_same_to_the_byte_and_another_is_not() -> None:
    whole = sent(SMALL, SMALL.covered, 100)
    purchases._happened.cache_clear()
    assert sent(SMALL, SMALL.covered, 100) == whole
    assert sent(replace(SMALL, seed=8), SMALL.covered, 100)[0].values != whole[0].values


def test_a_day_is_the_same_whatever_days_are_asked_for_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sent(SMALL, SMALL.covered, 50)
    monkeypatch.setattr(purchases, "PIECE", 100)
    days = [START + 13 * DAY, START + 14 * DAY]
    cut = [Interval(SMALL.covered.start, days[0]), Interval(*days), Interval(days[1], SMALL.covered.end)]
    parts = [sent(SMALL, one, 50) for one in cut]
    assert tuple(purchases._joined([part[topic] for part in parts]) for topic in (0, 1)) == whole


def test_all_purchases_are_there_once_but_for_repeats_and_what_is_not_known_yet() -> None:
    rows = list(purchases.events(SMALL))
    names = Counter(row["purchase_id"] for row in rows)
    assert SMALL.events * 0.99 < len(names) <= SMALL.events
    repeats = sum(count - 1 for count in names.values())
    assert set(names.values()) == {1, 2}
    assert 0.7 < repeats / len(rows) / purchases.REPEATED < 1.3
    known = [row["known_time"] for row in rows]
    assert known == sorted(known)
    longer = replace(SMALL, days=80, events=16_000)
    assert len({row["purchase_id"] for row in purchases.events(longer)}) > 2 * SMALL.events * 0.99


def test_a_day_needs_no_more_memory_in_a_larger_shop_of_more_days() -> None:
    """Made by itself, out of no more days than a record can be late."""
    long = Shop(days=100_000, events=20_000_000)
    purchases._happened.cache_clear()
    assert 180 < purchases.purchases(long, Interval.inclusive(START + 50_000 * DAY, START + 50_000 * DAY)).num_rows < 230
    assert purchases._happened.cache_info().misses == purchases.REACH + 1


def test_some_are_known_late_and_none_before_it_happened() -> None:
    delays = [row["known_time"] - row["purchased_at"] for row in purchases.events(SMALL)]
    assert timedelta(0) <= min(delays) and max(delays) < purchases.LATEST + purchases.AGAIN_WITHIN
    share = sum(delay >= timedelta(minutes=10) for delay in delays) / len(delays)
    assert 0.7 < share / (purchases.LATE + purchases.REPEATED) < 1.3


def test_users_are_skewed_and_the_first_has_the_declared_share() -> None:
    users = Counter(row["user_id"] for row in purchases.events(SMALL))
    guests = users.pop(None)
    total = sum(users.values())
    (first, most), (_, second) = users.most_common(2)
    assert first == "u0" and 0.8 < most / total / purchases.TOP_SHARE < 1.2 and most > 1.5 * second
    assert 0.6 < guests / total / purchases.GUESTS < 1.4
    tenth = sum(count for _, count in users.most_common(SMALL.users // 10))
    assert tenth > 0.3 * total


def test_who_bought_lately_buys_again_more_often() -> None:
    """So that the label can be learned."""
    bought = {(row["user_id"], row["purchased_at"].date()) for row in purchases.events(SMALL)}
    day = START + 20 * DAY
    lately, before, again = (
        {user for user, when in bought if day + first * DAY <= when < day + last * DAY}
        for first, last in ((-7, 0), (-20, -7), (0, 7))
    )
    quiet = before - lately
    assert len(lately & again) / len(lately) > 1.3 * len(quiet & again) / len(quiet)


def test_items_change_over_time() -> None:
    versions = purchases.catalogue(SMALL, SMALL.covered).to_pylist()
    assert len({row["change_id"] for row in versions}) == len(versions) > 2 * SMALL.items
    assert [row["changed_at"].date() for row in versions[: SMALL.items]] == [START] * SMALL.items
    by_item: dict[str, list[tuple[str, float]]] = {}
    for row in versions:
        by_item.setdefault(row["item_id"], []).append((row["category"], row["list_price"]))
    steps = [step for found in by_item.values() for step in pairwise(found)]
    assert all(one[1] != other[1] for one, other in steps)
    assert 0 < sum(one[0] != other[0] for one, other in steps) < len(steps) / 2
    # Most is bought at the price that was announced.
    listed = {(row["item_id"], round(row["list_price"] * 100)) for row in versions}
    rows = list(purchases.events(SMALL))
    at_list = sum((row["item_id"], int(row["price"] * 100)) in listed for row in rows)
    assert 0.85 < at_list / len(rows) < 0.95


def test_every_record_fits_its_contract_but_for_the_damaged_ones() -> None:
    for history, source in zip(sent(SMALL, SMALL.covered, 100), (PURCHASES, ITEMS), strict=True):
        rejected = decode(source, history.values).rejected
        good = len(history) - len(rejected)
        # Where a day begins among the hundreds is not counted, but reckoned.
        assert abs(len(rejected) - good / 100) <= 5
        record.read(source, history.values[0])
    assert len(set(decode(PURCHASES, sent(SMALL, SMALL.covered, 100)[0].values).rejected.values())) == 5
    assert decode(PURCHASES, sent(SMALL, SMALL.covered)[0].values).rejected == {}


@pytest.mark.parametrize("name", ["seed", "users", "days", "events"])
def test_a_shop_of_no_size_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"--{name} is -1: it must be at least"):
        Shop(**{name: -1})


def test_no_stage_and_no_dag_knows_a_pipeline() -> None:
    """But for the data sets of `replay`, and the demo, which is about one."""
    names = {"flight_delays", "purchases"}
    found = {
        path.relative_to(PROJECT).as_posix()
        for folder in ("jobs", "dags")
        for path in (PROJECT / folder).rglob("*.py")
        if names & set(_named(path))
    }
    assert found == {f"jobs/replay/{name}.py" for name in ("__init__", "flights", "purchases", "retail", "stage")} | {
        "jobs/local/demo.py"
    }


def _named(path: Path) -> list[str]:
    """The words of all names, imports and texts of a file; its docstrings may have examples."""
    tree = ast.parse(path.read_text())
    explained = {
        node.value
        for owner in ast.walk(tree)
        if isinstance(owner, ast.Module | ast.ClassDef | ast.FunctionDef)
        for node in owner.body
        if isinstance(node, ast.Expr)
    }
    words: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in explained:
            words += node.value.replace("/", " ").replace(".", " ").split()
        elif isinstance(node, ast.ImportFrom):
            words += [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            words += [word for alias in node.names for word in alias.name.split(".")]
        elif isinstance(node, ast.Attribute):
            words.append(node.attr)
        elif isinstance(node, ast.Name):
            words.append(node.id)
    return words


def test_the_days_of_the_schedule_are_among_the_shops() -> None:
    assert PIPELINE.last_day is not None
    assert Shop().covered.start + timedelta(days=84) < date(2024, 4, 1) == PIPELINE.first_day
    assert PIPELINE.last_day < Shop().covered.end


def test_a_source_with_the_name_of_a_pipeline_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`penstock ingest` would take the one and mean the other."""
    assert {"shop_purchases", "shop_items"} <= pipelines.sources().keys()
    monkeypatch.setattr(pipelines, "names", lambda: ["purchases", "shop_items"])
    monkeypatch.setattr(pipelines, "load_all", lambda: ({"purchases": PIPELINE}, {}))
    with pytest.raises(ValueError, match="source 'shop_items' has the name of a pipeline"):
        pipelines.sources()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("purchases", "--days", "0"), "--days is 0: it must be at least 1"),
        (("purchases", "--from", "2023-01-01", "--to", "2024-01-02"), "the data are of 2024-01-01 to 2024-04-09"),
        (("purchases", "--from", "2024-01-02"), "only one end of the range was given"),
        (("purchases", "--broken-every", "-1"), "--broken-every -1 is negative"),
        (("retail", "--file", "/nowhere"), "--file /nowhere can't be read as Parquet"),
    ],
)
def test_wrong_arguments_are_refused_before_the_broker_is_asked(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["replay", *arguments]) == 64
    assert words in capsys.readouterr().err


def test_an_option_that_a_data_set_has_no_use_for_is_refused() -> None:
    with pytest.raises(SystemExit) as refused:
        cli.main(["replay", "flights", "--from", "2013-01-01", "--to", "2013-01-01", "--users", "3"])
    assert refused.value.code == 64
