"""The share of dead letters by known day: what counts, what no longer does, and what it refuses. Against a real broker."""

import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from typing import Any

import pytest
from small_topic import MORNING, declare, ingest, offsets, order, produce, recreate

from jobs import batches, lake, letters
from jobs.command import Job
from jobs.dead_letters import acknowledge, replay
from jobs.errors import DataError, UsageError
from jobs.interval import Interval
from jobs.letters import KnownDay
from pipelines.declare import Aggregate, Column, FeatureSet, Field, Label, Pipeline, Source, Spine, Training, days, hours

pytestmark = pytest.mark.kafka

DAY = MORNING.date()
NEXT = DAY + timedelta(days=1)
WRONG = "wrong type in field cents"
MISSING = "missing required field shop"
STRICT = (Field("id", required=True), Field("at", "timestamp", required=True), Field("cents", "int64"))


def limited(source: Source, limit: float, *, shop: bool = True) -> Source:
    """The source with a limit, and with a shop that a record must have, or may."""
    return declare(source.topic, fields=(*STRICT, Field("shop", required=shop)), dead_letter_limit=limit)


def good(number: int) -> bytes:
    """A record that fits the strict contract too."""
    return order(number, shop="s")


def wrong(number: int) -> bytes:
    """One that never fits."""
    return order(number, shop="s", cents="12")


def send(source: Source, values: list[bytes | None], day: date = DAY, partition: int = 0) -> None:
    """Produce records that all became known on one day."""
    moment = MORNING + (day - DAY)
    produce(source, values, partition=partition, timestamp=int(moment.timestamp() * 1000))


def job(source: Source, command: str, **options: Any) -> Job:
    """A call of `penstock dead-letters COMMAND`."""
    given = {"json": True, "day": None, "reason": None, "samples": 3, "dry_run": False, "last": None, "subject": source.name}
    return Job(command=f"dead-letters {command}", options=Namespace(**(given | options)), run_id="run", source=(source,))


def accept(source: Source, day: date = DAY, **options: Any) -> int:
    """Acknowledge a day. Returns how many letters that were."""
    made = job(source, "acknowledge", **({"day": str(day), "by": "ann", "reason": "a test of ours"} | options))
    acknowledge.run(made)
    return made.report["sources"][source.name]["acknowledged"]  # type: ignore[no-any-return]


def mend(source: Source) -> int:
    """Replay all letters. Returns how many fit."""
    made = job(source, "replay")
    replay.run(made)
    return made.report["sources"][source.name]["fit"]  # type: ignore[no-any-return]


def known(source: Source, day: date = DAY) -> KnownDay:
    """What the account says of a day."""
    return letters.by_known_day(source)[day]


def test_over_the_limit_an_ingest_fails_and_keeps_all(source: Source) -> None:
    strict = limited(source, 0.25)
    send(source, [good(0), good(1), good(2), wrong(3)])
    assert ingest(strict)["dead"] == 1
    send(source, [good(4), wrong(5), wrong(6)])
    with pytest.raises(DataError, match=r"orders, 2013-04-01: 3 of 7 records are dead letters \(42\.9%; at most 25\.0%"):
        ingest(strict)
    assert offsets(source) == [(0, n) for n in range(7)]
    # Another day's records don't change the verdict, and are judged by themselves.
    send(source, [good(7)], NEXT)
    assert ingest(strict)["good"] == 1
    assert [one.day for one in letters.over_limit(strict, [DAY, NEXT])] == [DAY]


def test_the_limit_itself_is_allowed_and_tombstones_never_count(source: Source) -> None:
    strict = limited(source, 0.5)
    send(source, [good(0), wrong(1), None, b"", b"null", None])
    assert ingest(strict)["dead"] == 5
    assert (known(strict).dead, known(strict).share) == (1, 0.5)


def test_an_acknowledgement_is_about_the_letters_of_its_moment(source: Source) -> None:
    strict = limited(source, 0.1)
    send(source, [good(0), wrong(1), order(2), None])
    send(source, [wrong(3)], NEXT)
    with pytest.raises(DataError):
        ingest(strict)
    assert accept(strict) == 2
    assert letters.over_limit(strict, [DAY]) == [] and letters.over_limit(strict, [NEXT])
    assert accept(strict) == 0, "there is nothing left to acknowledge"
    send(source, [wrong(4)])
    with pytest.raises(DataError, match="1 of 4 records"):
        ingest(strict)
    assert accept(strict, last=str(NEXT)) == 2
    assert letters.over_limit(strict, [DAY, NEXT]) == []
    notes = [json.loads(row["note"]) for row in batches.ranges(strict, where="kind = 'acknowledge'").to_pylist()]
    assert [(note["by"], note["reason"], note["days"]) for note in notes] == [
        ("ann", "a test of ours", ["2013-04-01"]),
        ("ann", "a test of ours", ["2013-04-01", "2013-04-02"]),
    ]
    assert offsets(source) == [(0, n) for n in range(6)], "no row came or went"


def test_a_replay_takes_the_acknowledgement_of_its_letters_along(source: Source) -> None:
    strict, mended = limited(source, 0.1), limited(source, 0.1, shop=False)
    send(source, [order(0), order(1), wrong(2), wrong(3)])
    with pytest.raises(DataError):
        ingest(strict)
    assert accept(strict) == 4
    send(source, [order(4), wrong(5)])
    with pytest.raises(DataError):
        ingest(strict)
    assert known(strict).open == {MISSING: 1, WRONG: 1}
    assert mend(mended) == 3
    now = known(mended)
    assert (now.good, now.reasons, now.accepted) == (3, {WRONG: 3, MISSING: 0}, {WRONG: 2, MISSING: 0})
    # Were the two that are good now still taken for acknowledged, this one would not count.
    assert now.open == {WRONG: 1}


def test_an_ingest_that_comes_between_is_not_acknowledged(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    strict, mended = limited(source, 0.9), limited(source, 0.9, shop=False)
    send(source, [order(0), good(1)])
    ingest(strict)
    commit = acknowledge.commit

    def late(*arguments: Any) -> bool:
        monkeypatch.setattr(acknowledge, "commit", commit)
        send(source, [order(2), order(3)])
        ingest(strict)
        return commit(*arguments)

    monkeypatch.setattr(acknowledge, "commit", late)
    assert accept(strict) == 1
    assert known(strict).open == {MISSING: 2}
    assert mend(mended) == 3
    assert known(mended).open == {} and known(mended).acknowledged == 0


def test_a_rebuild_asks_for_a_new_acknowledgement(source: Source) -> None:
    strict = limited(source, 0.1)
    send(source, [good(0), wrong(1)])
    with pytest.raises(DataError):
        ingest(strict)
    assert accept(strict) == 1
    with pytest.raises(DataError):
        ingest(strict, rebuild=True)
    assert accept(strict) == 1 and letters.over_limit(strict, [DAY]) == []


def test_letters_of_two_epochs_are_judged_and_mended_together(source: Source) -> None:
    strict, mended = limited(source, 0.9), limited(source, 0.9, shop=False)
    send(source, [order(0), good(1)])
    ingest(strict)
    recreate(source)
    send(source, [order(2), order(3), good(4)])
    ingest(strict, accept_new_topic=True)
    assert (known(strict).dead, known(strict).good) == (3, 2)
    assert mend(mended) == 3
    assert (known(mended).dead, known(mended).good) == (0, 5)
    found = batches.ranges(mended, where="kind = 'replay'").to_pylist()
    assert [(row["topic_epoch"], row["good"]) for row in found] == [(0, 1), (1, 2)]
    assert found[0]["topic_id"] != found[1]["topic_id"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"by": " "}, "--by is empty"),
        ({"reason": ""}, "--reason is empty"),
        ({"day": "April"}, "not a day"),
        ({"last": "2013-03-31"}, "is after"),
    ],
)
def test_an_acknowledgement_needs_a_name_a_reason_and_days(source: Source, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        accept(source, **options)
    assert lake.load(batches.events_uri(source)) is None


def test_nothing_to_acknowledge_is_no_failure(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    assert accept(source, json=False) == 0
    send(source, [order(0), None])
    ingest(source)
    assert accept(source, json=False) == 0
    assert capsys.readouterr().out == 2 * "orders, 2013-04-01: nothing to acknowledge\n"
    assert batches.ranges(source, where="kind = 'acknowledge'").to_pylist() == []


def test_features_refuse_a_day_until_its_letters_are_mended_or_acknowledged(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs.features import stage

    class Reached(Exception):  # noqa: N818
        """Spark was about to start."""

    @contextmanager
    def session() -> Iterator[None]:
        raise Reached
        yield

    monkeypatch.setattr(stage, "session", session)

    def features(declared: Source, day: date) -> None:
        pipeline = _pipeline(declared)
        asked = Namespace(json=True, force=False, chunk_days=31, preview=None, entity=None)
        made = Job(command="features", options=asked, run_id="run", pipeline=pipeline)
        made.interval = Interval.inclusive(day, day)
        stage.run(made)

    strict, mended = limited(source, 0.1), limited(source, 0.1, shop=False)
    send(source, [good(0), order(1)])
    send(source, [good(2), wrong(3)], NEXT)
    # The ingest dies between its commit and its account: the refusal must not miss what it left out.
    with monkeypatch.context() as killed:
        killed.setattr("jobs.account.settle", lambda *_, **__: 0)
        ingest(strict)
    monkeypatch.setattr("jobs.batches.require_closed", lambda *_: None)
    for day in (DAY, NEXT):
        with pytest.raises(DataError, match=f"the features of {day} are refused(.|\n)*dead-letters replay orders"):
            features(strict, day)
    with pytest.raises(Reached):
        features(strict, NEXT + timedelta(days=1))
    mend(mended)
    with pytest.raises(Reached):
        features(mended, DAY)
    with pytest.raises(DataError):
        features(mended, NEXT)
    accept(mended, NEXT)
    with pytest.raises(Reached):
        features(mended, NEXT)


def _pipeline(source: Source) -> Pipeline:
    return Pipeline(
        name="shops",
        description="One source for all.",
        first_day=DAY,
        lateness=hours(1),
        spine=Spine(source=source, key="id", at="at", before=hours(1), columns=(Column("cents"),)),
        features=(
            FeatureSet(name="shop", source=source, entity=("shop",), windows=(days(1),), aggregates=(Aggregate("n", "count"),)),
        ),
        label=Label(source=source, key="id", of="cents > 5", horizon=days(1)),
        training=Training(every=days(7), days=days(30), validation=days(7), holdout=days(7)),
    )


def test_days_asked_for_by_name_are_complete(source: Source) -> None:
    strict = limited(source, 1.0)
    for number, day in enumerate((DAY, NEXT, DAY)):
        send(strict, [good(1), wrong(2), good(3), order(4)], day=day, partition=number % 2)
        ingest(strict)
    accept(strict, NEXT)
    replay.run(job(limited(source, 1.0, shop=False), "replay"))
    whole = letters.by_known_day(strict)
    assert {day: letters.by_known_day(strict, days=[day])[day] for day in whole} == whole
    assert whole[NEXT].acknowledged == 1 and whole[DAY].good == 6
    assert letters.by_known_day(strict, days=[DAY - timedelta(days=9)]) == {}
