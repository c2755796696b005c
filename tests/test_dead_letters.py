"""`penstock dead-letters list` and `replay`: every letter good at most once, whatever is killed and whoever runs beside it."""

import base64
import json
import pickle
import signal
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from small_topic import DYING, FIELDS, MORNING, declare, ingest, offsets, order, produce, ranges, rows, version

from jobs import account, batches, lake, ledger, versions
from jobs.command import Job
from jobs.dead_letters import replay, show
from jobs.errors import RetryError, UsageError
from jobs.ingest import rebuild
from jobs.kafka import client_settings
from pipelines.declare import Aggregate, Column, FeatureSet, Field, Label, Pipeline, Source, Spine, Training, days, hours

pytestmark = pytest.mark.kafka

DAY = MORNING.date()
MISSING = "missing required field shop"
WRONG = "wrong type in field cents"


def strict(source: Source) -> Source:
    """The contract under which the letters are dead: a record must name its shop."""
    return declare(source.topic, fields=(*FIELDS, Field("shop", required=True)))


def mended(source: Source) -> Source:
    """The contract of today: it need not, and there is a new column."""
    return declare(source.topic, fields=(*FIELDS, Field("shop"), Field("note")))


def job(source: Source, command: str, **options: Any) -> Job:
    """A call of `penstock dead-letters COMMAND`."""
    given = {"json": True, "day": None, "reason": None, "samples": 3, "dry_run": False} | options
    return Job(command=f"dead-letters {command}", options=Namespace(**given), run_id="run", source=(source,))


def mend(source: Source, **options: Any) -> dict[str, Any]:
    """Replay here. Returns what the report says of the source."""
    made = job(source, "replay", **options)
    replay.run(made)
    return made.report["sources"][source.name]  # type: ignore[no-any-return]


def listed(source: Source, **options: Any) -> dict[str, Any]:
    """List. Returns what the report says of the source, and the samples that are shown beside it."""
    made = job(source, "list", **options)
    show.run(made)
    assert "samples" not in made.report["sources"][source.name]
    return made.report["sources"][source.name] | {"samples": made.shown["samples"][source.name]}  # type: ignore[no-any-return]


def bury(source: Source, letters: int = 6) -> None:
    """Letters without a shop at odd offsets of partition 0, others that never fit, and good ones between, all ingested."""
    # Many of them are of one day, or they would be a file for each.
    same: dict[str, Any] = {"at": MORNING.isoformat()} if letters > 100 else {}
    known: dict[str, Any] = {"timestamp": int(MORNING.timestamp() * 1000)} if letters > 100 else {}
    produce(source, [order(n, **same) if n % 2 else order(n, shop="s", **same) for n in range(2 * letters)], **known)
    produce(source, [order(0, shop="s", cents="12"), None, order(1, shop="s")], partition=1)
    ingest(strict(source))


def assert_mended(source: Source, letters: int = 6) -> None:
    """Each letter of `bury` that fits has one good row beside its dead one, and the account says the same."""
    assert offsets(source, "rejected_reason is not null") == [(0, n) for n in range(1, 2 * letters, 2)] + [(1, 0), (1, 1)]
    assert offsets(source, "rejected_reason is null") == [(0, n) for n in range(2 * letters)] + [(1, 2)]
    found = batches.ranges(source).to_pylist()
    replays = [row for row in found if row["kind"] == "replay"]
    assert sum(row["good"] for row in replays) == letters
    spans = [(span["start"], span["end"], span["reason"]) for row in replays for span in row["spans"]]
    assert sorted(spans) == [(n, n + 1, "replayed") for n in range(1, 2 * letters, 2)]
    gone: Counter[str] = Counter()
    for row in replays:
        assert (row["start_offset"], row["end_offset"], row["dead"], row["kafka_partition"]) == (0, 0, 0, 0)
        for _, reason, count in json.loads(row["dead_counts"]):
            gone[reason] += count
    assert gone == {MISSING: letters}
    counted = sum(count for row in found for _, _, count in json.loads(row["counts"]))
    assert counted == len(offsets(source, "rejected_reason is null"))
    assert account.settle(source) == 0


def test_what_fits_now_becomes_good_with_its_own_position(source: Source) -> None:
    bury(source)
    before = {row["kafka_offset"]: row for row in rows(source, where="kafka_partition = 0 and rejected_reason is not null")}
    told = mend(mended(source))
    assert (told["fit"], told["fit_by_reason"]) == (6, {MISSING: 6})
    assert (told["unfit"], told["unfit_by_reason"]) == (1, {WRONG: 1}), "a tombstone is no letter that could fit"
    assert told["known_days"] == [DAY]
    (batch,) = told["batches"]
    good = rows(source, where=f"batch = '{batch}'")
    assert [(row["kafka_partition"], row["kafka_offset"]) for row in good] == [(0, n) for n in (1, 3, 5, 7, 9, 11)]
    for row in good:
        number, letter = row["kafka_offset"], before[row["kafka_offset"]]
        assert row == dict.fromkeys(row) | {
            "id": f"o{number}",
            "at": MORNING + timedelta(hours=number),
            "cents": number,
            "event_time": MORNING + timedelta(hours=number),
            "event_date": (MORNING + timedelta(hours=number)).date(),
            "batch": batch,
            **{name: letter[name] for name in ("known_time", "topic", "topic_epoch", "kafka_partition", "kafka_offset")},
        }
    # The letters are as they were, but for the column that the wider contract added.
    after = rows(source, where="kafka_partition = 0 and rejected_reason is not null")
    assert after == [before[row["kafka_offset"]] | {"note": None} for row in after]
    table = lake.load(batches.events_uri(source))
    assert table is not None and table.transaction_version(batches.REWRITE) == 1
    assert_mended(source)


def test_a_second_replay_adds_nothing_and_an_ingest_goes_on(source: Source) -> None:
    bury(source)
    assert mend(mended(source))["fit"] == 6
    standing = version(source)
    told = mend(mended(source))
    assert (told["fit"], told["unfit"], told["batches"], version(source)) == (0, 1, [], standing)
    assert_mended(source)
    produce(source, [order(12)])
    assert ingest(mended(source))["good"] == 1
    assert offsets(source, "rejected_reason is null and kafka_partition = 0") == [(0, n) for n in range(13)]


def test_a_dry_run_changes_nothing(source: Source) -> None:
    bury(source)
    standing = version(source)
    told = mend(mended(source), dry_run=True)
    assert (told["fit"], told["unfit_by_reason"], told["batches"], version(source)) == (6, {WRONG: 1}, [], standing)
    changed = declare(source.topic, fields=(*FIELDS, Field("shop", "int64")))
    for dry in (True, False):
        with pytest.raises(UsageError, match="'shop'"):
            mend(changed, dry_run=dry)


def test_only_the_letters_that_are_asked_for(source: Source) -> None:
    produce(source, [order(0), order(1, cents="x")], timestamp=int(MORNING.timestamp() * 1000))
    produce(source, [order(2)], timestamp=int((MORNING + timedelta(days=1)).timestamp() * 1000))
    ingest(strict(source))
    assert mend(mended(source), day="2013-04-02")["fit"] == 1
    assert offsets(source, "rejected_reason is null") == [(0, 2)]
    assert mend(mended(source), reason="field cents") | {"batches": []} == {
        "fit": 0,
        "fit_by_reason": {},
        "unfit": 1,
        "unfit_by_reason": {WRONG: 1},
        "known_days": [],
        "batches": [],
    }
    assert mend(mended(source), reason="it's")["unfit"] == 0
    assert mend(mended(source), reason="shop")["fit"] == 1
    with pytest.raises(UsageError, match="--reason is empty"):
        mend(mended(source), reason=" ")


def test_a_letter_without_a_plausible_known_time_stays_dead(source: Source) -> None:
    producer = Producer(client_settings())
    for known in (1364810400000, 1000):
        producer.produce(source.topic, order(0), partition=0, timestamp=known)
    assert producer.flush(30) == 0
    ingest(strict(source))
    assert mend(mended(source))["unfit_by_reason"] == {"implausible known time": 1}
    assert offsets(source, "rejected_reason is null") == [(0, 0)]


def test_many_letters_take_several_commits(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "BLOCK_LETTERS", 5_000)
    monkeypatch.setattr(replay, "BLOCK_BYTES", 100_000)
    bury(source, letters=12_000)
    told = mend(mended(source))
    assert (told["fit"], len(told["batches"])) == (12_000, 2)
    assert_mended(source, letters=12_000)
    assert listed(source)["pending"] == 1


STEPS = ("decoding", "writing", "committing", "committed", "settled")

_APART = (
    DYING
    + """
import base64, pickle, sys
from argparse import Namespace
from jobs import account
from jobs.command import Job
from jobs.dead_letters import replay
from jobs.files import Folder

match sys.argv[2]:
    case "decoding":
        replay.decode = die
    case "writing":
        after(Folder, "_write")
    case "committing":
        replay.commit = die
    case "committed":
        after(replay, "commit")
    case "settled":
        keep = replay._keep
        replay._keep = lambda *arguments: (keep(*arguments), die())
source, = pickle.loads(base64.b64decode(sys.argv[1]))
options = Namespace(json=True, day=None, reason=None, dry_run=False)
replay.run(Job(command="dead-letters replay", options=options, run_id="apart", source=(source,)))
"""
)


def apart(source: Source, death: str = "none") -> "subprocess.Popen[str]":
    """A replay as a process of its own, which kills itself at a step of our choice."""
    told = base64.b64encode(pickle.dumps((source,))).decode()
    return subprocess.Popen([sys.executable, "-c", _APART, told, death], stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("death", STEPS)
def test_a_killed_replay_is_completed_by_the_next(source: Source, death: str) -> None:
    bury(source)
    assert apart(mended(source), death).wait(60) == -signal.SIGKILL
    assert mend(mended(source))["fit"] == (0 if death in ("committed", "settled") else 6)
    assert_mended(source)


def test_replays_at_the_same_time_make_each_letter_good_once(source: Source) -> None:
    bury(source, letters=1_500)
    racing = [apart(mended(source)) for _ in range(3)]
    assert [one.wait(120) for one in racing] == [0, 0, 0], [one.stderr.read() for one in racing if one.stderr]
    assert_mended(source, letters=1_500)


def test_a_replay_that_loses_looks_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(source)
    commit = replay.commit
    lost: list[bool] = []

    def late(*arguments: Any) -> bool:
        monkeypatch.setattr(replay, "commit", commit)
        assert mend(mended(source))["fit"] == 6
        lost.append(commit(*arguments))
        return lost[0]

    monkeypatch.setattr(replay, "commit", late)
    assert mend(mended(source))["fit"] == 0
    assert lost == [False]
    assert_mended(source)


def test_a_replay_gives_up_when_others_are_always_first(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(source)
    monkeypatch.setattr(replay, "commit", lambda *_: False)
    with pytest.raises(RetryError, match="lost to other writers 10 times"):
        mend(mended(source))
    assert offsets(source, "rejected_reason is null and kafka_partition = 0") == [(0, n) for n in range(0, 12, 2)]


def test_a_rebuild_beside_a_replay_wins_or_gives_up_but_never_doubles(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(source)
    by_replay, by_rebuild = replay.commit, rebuild.commit

    def behind(*arguments: Any, **options: Any) -> bool:
        monkeypatch.setattr(rebuild, "commit", by_rebuild)
        assert mend(mended(source))["fit"] == 6
        return by_rebuild(*arguments, **options)

    monkeypatch.setattr(rebuild, "commit", behind)
    with pytest.raises(RetryError, match="replayed into"):
        ingest(mended(source), rebuild=True)
    assert_mended(source)

    # The other way round: the rebuild is first, and there is nothing left to replay.
    produce(source, [order(12)])
    ingest(replace(mended(source), fields=(*strict(source).fields, Field("note"))))

    def late(*arguments: Any) -> bool:
        monkeypatch.setattr(replay, "commit", by_replay)
        ingest(mended(source), rebuild=True)
        return by_replay(*arguments)

    monkeypatch.setattr(replay, "commit", late)
    assert mend(mended(source))["fit"] == 0
    assert offsets(source, "rejected_reason is null") == [(0, n) for n in range(13)] + [(1, 2)]
    assert {row["topic_epoch"] for row in rows(source, "*")} == {1}
    told = listed(source)
    assert (told["pending"], told["tombstones"]) == (1, 1)


def test_the_list_counts_by_reason_day_and_partition(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    bury(source)
    produce(source, [order(12)], timestamp=int((MORNING + timedelta(days=1)).timestamp() * 1000))
    ingest(strict(source))
    told = listed(source, samples=2)
    assert (told["pending"], told["tombstones"], told["reasons"]) == (8, 1, {MISSING: 7, WRONG: 1})
    assert told["counts"] == [
        {"reason": MISSING, "day": DAY, "epoch": 0, "partition": 0, "letters": 6},
        {"reason": MISSING, "day": date(2013, 4, 2), "epoch": 0, "partition": 0, "letters": 1},
        {"reason": WRONG, "day": DAY, "epoch": 0, "partition": 1, "letters": 1},
    ]
    share = {"acknowledged": 0, "over": False}
    assert told["days"] == [
        {"day": DAY, "good": 7, "dead": 7, "share": 0.5} | share,
        {"day": date(2013, 4, 2), "good": 0, "dead": 1, "share": 1.0} | share,
    ]
    assert told["samples"][MISSING] == [
        {
            "epoch": 0,
            "partition": 0,
            "offset": number,
            "known_time": MORNING + timedelta(hours=number),
            "key": f"k{number}",
            "value": order(number).decode(),
        }
        for number in (1, 3)
    ]
    assert listed(source, day="2013-04-02")["reasons"] == {MISSING: 1}
    assert listed(source, reason="cents")["reasons"] == {WRONG: 1}
    assert listed(source, samples=0)["samples"] == {}
    with pytest.raises(UsageError, match="--samples -1"):
        listed(source, samples=-1)
    limited = declare(source.topic, fields=strict(source).fields, dead_letter_limit=0.1)
    capsys.readouterr()
    listed(limited, json=False)
    shown = capsys.readouterr().out
    assert "2013-04-01: 7 of 14 records are dead; 50.0% count, at most 10.0% is declared: over the limit" in shown
    mend(mended(source))
    told = listed(source)
    assert (told["pending"], told["tombstones"], told["reasons"]) == (1, 1, {WRONG: 1})
    assert [(day["dead"], day["good"]) for day in told["days"]] == [(1, 13)]


def test_samples_show_no_secret(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    record = {
        "id": "o1",
        "password": "hunter2-and-more",
        "mail": "ann.b@example.org",
        "card": "4111 1111 1111 1111",
        "note": "seen",
    }
    produce(source, [json.dumps(record).encode()], key=b"token=abcdef123456")
    ingest(strict(source))
    told = listed(source, json=False)
    shown = json.dumps(told, default=str) + capsys.readouterr().out
    assert "seen" in shown and "***" in shown
    for secret in ("hunter2", "ann.b", "4111", "abcdef123456"):
        assert secret not in shown


def test_a_source_without_a_table_has_no_letters(source: Source) -> None:
    assert listed(source)["pending"] == 0
    assert mend(source)["fit"] == 0
    assert lake.load(batches.events_uri(source)) is None, "looking must not make a table"


def test_the_report_names_the_days_that_a_replay_made_stale(
    source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bury(source)
    today = mended(source)
    shops = Pipeline(
        name="shops",
        description="One source for all.",
        first_day=DAY,
        lateness=hours(0),
        spine=Spine(source=today, key="id", at="at", before=hours(1), columns=(Column("cents"),)),
        features=(
            FeatureSet(name="shop", source=today, entity=("shop",), windows=(days(1),), aggregates=(Aggregate("n", "count"),)),
        ),
        label=Label(source=today, key="id", of="cents > 5", horizon=days(1)),
        training=Training(every=days(7), days=days(30), validation=days(7), holdout=days(7)),
    )
    monkeypatch.setattr("pipelines.load_all", lambda: ({"shops": shops}, {}))
    days_of = [DAY - timedelta(days=1), DAY, DAY + timedelta(days=1), DAY + timedelta(days=40)]
    inputs = {today.name: version(source)}
    ledger.record(
        shops,
        [
            ledger.Entry(
                stage="features/labels",
                day=day,
                inputs=inputs,
                output_version=1,
                rows=1,
                run_id="r",
                declaration=versions.digest(shops, "labels"),
            )
            for day in days_of
        ],
    )
    made = job(today, "replay", json=False)
    replay.run(made)
    (batch,) = made.report["sources"][today.name]["batches"]
    stale = made.report["stale"]["shops"]
    assert [(one["day"], one["batch"], one["kind"], one["rows"]) for one in stale] == [
        (DAY, batch, "replay", 6),
        (DAY + timedelta(days=1), batch, "replay", 6),
    ]
    assert "`penstock features shops --from 2013-04-01 --to 2013-04-02` computes again" in capsys.readouterr().out
    made = job(today, "list")
    show.run(made)
    assert made.report["stale"]["shops"] == stale
    assert [row["kind"] for row in ranges(today)].count("replay") == 1
