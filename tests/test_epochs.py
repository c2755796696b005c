"""What a person decides after a refusal, reading up to a moment, and reading everything again."""

import signal
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from small_topic import (
    MORNING,
    apart,
    assert_accounted,
    create,
    decided,
    declare,
    forget,
    ingest,
    offsets,
    order,
    produce,
    ranges,
    recreate,
    rows,
    spans,
    version,
    wait_for_compaction,
)

from jobs import account, batches, commit
from jobs.errors import DataError, RetryError, UsageError
from jobs.ingest import local_engine, plan, rebuild
from jobs.ingest.wishes import Wishes
from jobs.kafka import Cluster, client_settings
from pipelines.declare import Field, Source

pytestmark = pytest.mark.kafka


def test_an_accepted_loss_is_recorded_for_ever_and_the_reading_goes_on(source: Source) -> None:
    produce(source, [order(n) for n in range(5)])
    ingest(source)
    produce(source, [order(n) for n in range(5, 20)])
    forget(source, 12)
    with pytest.raises(DataError, match=r"no longer holds 7 records(.|\n)*0: stored=5 kafka=\[12, 20\)(.|\n)*--accept-loss"):
        ingest(source)
    told = ingest(source, accept_loss=True)
    assert (told["good"], told["without_row"]) == (8, {"expired": 7})
    assert offsets(source) == [(0, n) for n in (*range(5), *range(12, 20))]
    assert ranges(source)[-1]["spans"] == [{"start": 5, "end": 12, "reason": "expired"}]
    assert_accounted(source)
    # Without another loss the flag changes nothing.
    assert ingest(source, accept_loss=True)["without_row"] == {}


def test_what_expired_before_the_first_run_is_recorded_and_no_refusal(source: Source) -> None:
    produce(source, [order(n) for n in range(10)])
    produce(source, [order(n) for n in range(3)], partition=1)
    forget(source, 4)
    forget(source, 3, partition=1)
    told = ingest(source)
    assert (told["good"], told["without_row"], told["positions"]) == (6, {"expired": 7}, {"0": 10, "1": 3})
    assert_accounted(source)


@pytest.mark.parametrize("records", [0, 2, 8])
def test_an_accepted_new_topic_is_an_epoch_beside_the_old_one(source: Source, records: int) -> None:
    produce(source, [order(n) for n in range(5)])
    ingest(source)
    recreate(source)
    produce(source, [order(n) for n in range(100, 100 + records)])
    with pytest.raises(DataError, match="--accept-new-topic"):
        ingest(source)
    told = ingest(source, accept_new_topic=True)
    assert (told["good"], told["epoch"]) == (records, 1)
    # It is known from then on.
    produce(source, [order(200)])
    assert ingest(source)["good"] == 1
    assert [(row["topic_epoch"], row["kafka_offset"]) for row in rows(source)] == [
        *((0, n) for n in range(5)),
        *((1, n) for n in range(records + 1)),
    ]
    assert_accounted(source)
    recreate(source)
    with pytest.raises(DataError, match="created again"):
        ingest(source)


def test_until_a_moment_reads_what_is_older_and_closes_no_day(source: Source) -> None:
    # One record an hour, by its known time.
    produce(source, [order(n) for n in range(10)])
    produce(source, [order(n) for n in range(3)], partition=1)
    told = ingest(source, until=(MORNING + timedelta(hours=4)).isoformat())
    assert (told["good"], told["read_up_to"], told["positions"]) == (7, None, {"0": 4, "1": 3})
    assert batches.read_up_to(source) is None
    # An earlier moment than the table's own has nothing left to read, and is no contradiction.
    assert ingest(source, until=(MORNING + timedelta(hours=2)).isoformat())["good"] == 0
    assert ingest(source)["good"] == 6
    assert batches.read_up_to(source) is not None
    assert_accounted(source)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": "yesterday"}, "'yesterday' is no instant"),
        ({"until": "2013-04-01T06:00:00"}, "has no offset"),
        ({"every": 5.0}, "--every is for the service alone"),
        ({"continuous": True, "every": 0.0}, "--every 0 is not above 0"),
        ({"continuous": True, "rebuild": True}, "--continuous and --rebuild exclude each other"),
        ({"continuous": True, "until": "2013-04-01T06:00:00Z"}, "exclude each other"),
        ({"continuous": True, "metrics": "here"}, "'here' is no address"),
        ({"continuous": True, "accept_loss": True}, "--continuous and --accept-loss exclude each other: a service would accept"),
        ({"continuous": True, "accept_new_topic": True}, "--accept-new-topic, then start the service without"),
    ],
)
def test_options_that_contradict_each_other_are_refused(source: Source, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ingest(source, **options)


def test_metrics_stay_on_loopback_unless_a_host_is_named() -> None:
    from argparse import Namespace

    assert Wishes.of(Namespace(continuous=True, metrics="9400")).metrics == ("127.0.0.1", 9400)
    assert Wishes.of(Namespace(continuous=True, metrics="0.0.0.0:9400")).metrics == ("0.0.0.0", 9400)


def test_a_rebuild_reads_again_by_todays_contract_and_later_runs_go_on(source: Source) -> None:
    produce(source, [order(n, note="x") if n % 4 else order(n) for n in range(20)])
    strict = declare(source.topic, fields=(*source.fields, Field("note", required=True)))
    assert ingest(strict)["dead"] == 5
    wider = declare(source.topic, fields=(*source.fields, Field("note"), Field("text", default="none")))
    told = ingest(wider, rebuild=True)
    assert (told["good"], told["dead"], told["epoch"]) == (20, 0, 1)
    assert {(row["topic_epoch"], row["rejected_reason"]) for row in rows(wider)} == {(1, None)}
    assert [row["note"] for row in rows(wider)][:3] == [None, "x", "x"]
    assert batches.read_up_to(wider) is not None
    produce(wider, [order(20)])
    assert ingest(wider)["good"] == 1
    assert offsets(wider) == [(0, n) for n in range(21)]
    assert_accounted(wider)
    assert ingest(wider, rebuild=True)["epoch"] == 2
    assert_accounted(wider)


def test_a_rebuild_that_would_lose_rows_is_refused(source: Source) -> None:
    produce(source, [order(n) for n in range(10)])
    ingest(source)
    forget(source, 4)
    with pytest.raises(DataError, match=r"4 records that orders holds(.|\n)*partition 0: 4 rows, offsets 0 to 3"):
        ingest(source, rebuild=True)
    assert len(offsets(source)) == 10
    told = ingest(source, rebuild=True, accept_loss=True)
    assert (told["good"], told["without_row"]) == (6, {"expired": 4})
    recreate(source)
    produce(source, [order(0)])
    with pytest.raises(DataError, match="6 records that orders holds"):
        ingest(source, rebuild=True)
    assert_accounted(source)


@pytest.mark.parametrize("death", ["planned", "writing", "committing", "committed", "accounting"])
def test_a_killed_rebuild_leaves_the_old_table_or_the_new_one(source: Source, death: str) -> None:
    produce(source, [order(n) for n in range(40)], partition=0)
    produce(source, [order(n) for n in range(9)], partition=1)
    ingest(source)
    killed = apart(source, death, rebuild=True)
    assert killed.wait(60) == -signal.SIGKILL
    produce(source, [order(9)], partition=1)
    assert ingest(source)["good"] == 1
    assert {row["topic_epoch"] for row in rows(source)} == ({1} if death in ("committed", "accounting") else {0})
    assert offsets(source) == [(0, n) for n in range(40)] + [(1, n) for n in range(10)]
    assert_accounted(source)


def test_a_rebuild_sees_that_the_topic_lost_its_tail(source: Source) -> None:
    produce(source, [order(n) for n in range(10)])
    ingest(source)
    reach = _reach(source)
    ends = {0: 7, 1: 0}
    with pytest.MonkeyPatch.context() as patched, pytest.raises(DataError, match="partition 0: 3 rows, offsets 7 to 9"):
        # A broker can't be made to forget its newest records.
        patched.setattr(rebuild, "ends", lambda *_: ends)
        rebuild.rebuild(source, reach, local_engine.read_here, "r", accept_loss=False)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_created_again_while_it_is_read_is_not_mixed_in(
    source: Source, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(source, [order(n) for n in range(10)])
    ingest(source)
    reach, standing = _reach(source), version(source)
    produce(source, [order(n) for n in range(10, 15)])
    read_all = local_engine.LocalEngine.read_all

    def read(engine: local_engine.LocalEngine, ranges: Any) -> Any:
        done = read_all(engine, ranges)
        recreate(source)
        return done

    with monkeypatch.context() as patched, pytest.raises(RetryError, match="was created again while it was read; nothing"):
        patched.setattr(local_engine.LocalEngine, "read_all", read)
        ingest(source, rebuild=again)
    assert version(source) == standing
    with pytest.raises(RetryError, match="was created again while it was read; nothing"):
        plan.make(Cluster(), source, reach, "late")
    with pytest.raises(DataError, match="created again"):
        ingest(source)


def _reach(source: Source) -> plan.Reach:
    return plan.reach(Cluster(), (source,))[source.name]


def test_a_rebuild_beside_an_ingest_neither_loses_nor_doubles(source: Source) -> None:
    produce(source, [order(n) for n in range(10)])
    ingest(source)
    reach = _reach(source)

    def read_all(ranges: Any) -> Any:
        # While the rebuild reads, more comes, also from a partition that was empty, and a neighbour ingests it.
        done = local_engine.read_here(ranges)
        produce(source, [order(n) for n in range(10, 15)])
        produce(source, [order(n) for n in range(3)], partition=1)
        assert ingest(source)["good"] == 8
        return done

    rebuild.rebuild(source, reach, read_all, "r", accept_loss=False)
    assert offsets(source) == [(0, n) for n in range(10)]
    assert ingest(source)["good"] == 8
    assert offsets(source) == [(0, n) for n in range(15)] + [(1, n) for n in range(3)]
    assert {row["topic_epoch"] for row in rows(source)} == {1}
    assert_accounted(source)


def test_an_ingest_planned_before_a_rebuild_does_not_commit_after_it(source: Source) -> None:
    produce(source, [order(n) for n in range(10)])
    ingest(source)
    produce(source, [order(n) for n in range(3)], partition=1)
    made = plan.make(Cluster(), source, _reach(source), "late")
    done = local_engine.read_here(made.ranges)
    ingest(source, rebuild=True)
    files = [one for part in done for one in part.files]
    assert not commit.commit(source, made.table, files, made.account(done), made.transactions())
    assert len(offsets(source)) == 13


def test_of_a_rebuild_and_another_rewrite_one_is_refused(source: Source) -> None:
    produce(source, [order(n) for n in range(10)])
    ingest(source)

    def read_all(ranges: Any) -> Any:
        done = local_engine.read_here(ranges)
        ingest(source, rebuild=True)
        return done

    with pytest.raises(RetryError, match="while this rebuild read"):
        rebuild.rebuild(source, _reach(source), read_all, "r", accept_loss=False)
    assert offsets(source) == [(0, n) for n in range(10)]
    assert_accounted(source)


@pytest.mark.usefixtures("source")
def test_a_compacted_topic_has_holes_that_are_no_loss() -> None:
    compacted = declare(name="compacted")
    quick = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.01", "max_compaction_lag_ms": "100"}
    create(compacted.topic, 1, cleanup_policy="compact", **quick)
    produce(compacted, [order(n) for n in range(50)], key=b"same")
    assert ingest(compacted)["good"] == 50
    wait_for_compaction(compacted)
    # Read again, most offsets are gone; the newest of each key and what follows are there.
    before, version_before = offsets(compacted), version(compacted)
    with pytest.raises(
        DataError, match=r"no longer has \d+ records that compacted holds(.|\n)*offsets 0 to \d+\n(.|\n)*--accept-loss"
    ):
        ingest(compacted, rebuild=True)
    assert (offsets(compacted), version(compacted)) == (before, version_before)
    told = ingest(compacted, rebuild=True, accept_loss=True)
    held = [offset for _, offset in offsets(compacted)]
    assert 0 < len(held) < 50 and held[-1] >= 49
    assert told["without_row"] == {"compacted": told["positions"]["0"] - len(held)}
    assert_accounted(compacted)


def test_many_holes_are_packed_into_the_commit_and_come_out_whole(source: Source) -> None:
    producer = Producer(client_settings() | {"transactional.id": source.topic})
    producer.init_transactions()
    for number in range(account._PLAIN_SPANS + 5):
        producer.begin_transaction()
        produce(source, [order(number)], producer=producer)
        producer.commit_transaction()
    decided(source)
    ingest(source)
    assert spans(source) == {"marker": account._PLAIN_SPANS + 5}
    assert [span["start"] for span in ranges(source)[0]["spans"]] == list(range(1, 2 * account._PLAIN_SPANS + 10, 2))
    assert_accounted(source)


def test_large_records_null_keys_and_headers(source: Source) -> None:
    create(f"{source.topic}-large", 1, max_message_bytes=str(4 << 20))
    large = declare(f"{source.topic}-large", name="large", fields=(*source.fields, Field("text")))
    producer = Producer(client_settings() | {"message.max.bytes": 4 << 20})
    # Each is larger than one fetch of a partition, 1 MB, and one of them doesn't fit the contract.
    values: list[bytes | None] = [order(n, text="x" * (3 << 20)) for n in range(4)]
    values[2] = b'{"text": "' + b"y" * (3 << 20) + b'"}'
    produce(large, values, producer=producer, key=None, headers=[("trace", b"1")])
    told = ingest(large)
    assert (told["good"], told["dead"]) == (3, 1)
    (letter,) = rows(large, where="rejected_reason is not null")
    assert (letter["raw_key"], letter["raw_value"], letter["headers"]) == (None, values[2], [{"name": "trace", "value": b"1"}])
    assert {len(row["text"]) for row in rows(large, where="rejected_reason is null")} == {3 << 20}
