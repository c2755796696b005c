"""Every Kafka record becomes one row, once, whatever is killed and however many run: against a real broker."""

import json
import os
import signal
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from deltalake.exceptions import CommitFailedError
from small_topic import (
    MORNING,
    STEPS,
    apart,
    assert_accounted,
    decided,
    declare,
    ingest,
    offsets,
    order,
    produce,
    ranges,
    recreate,
    rows,
    until,
    version,
)

from jobs import account, batches, commit, lake
from jobs.errors import DataError, RetryError, UsageError
from jobs.ingest import local_engine, plan
from jobs.ingest.catch_up import catch_up
from jobs.ingest.progress import Progress
from jobs.ingest.ranges import Range, divide
from jobs.kafka import Cluster, client_settings
from pipelines.declare import Field, Source

pytestmark = pytest.mark.kafka


def test_two_ingests_read_each_record_once_and_a_third_adds_nothing(source: Source) -> None:
    produce(source, [order(n) for n in range(50)], partition=0)
    produce(source, [order(n) for n in range(50, 60)], partition=1)
    assert ingest(source)["good"] == 60
    produce(source, [order(n) for n in range(60, 70)], partition=1)
    before = datetime.now(UTC)
    assert ingest(source)["good"] == 10
    assert before < batches.read_up_to(source) < datetime.now(UTC)  # type: ignore[operator]
    assert offsets(source) == [(0, n) for n in range(50)] + [(1, n) for n in range(20)]
    assert [row["id"] for row in rows(source)] == [f"o{n}" for n in range(70)]
    standing, before = version(source), datetime.now(UTC)
    told = ingest(source)
    # The day closes all the same.
    assert (told["good"], told["batches"], version(source)) == (0, 0, standing)
    assert before < batches.read_up_to(source) < datetime.now(UTC)  # type: ignore[operator]
    assert_accounted(source)


def test_a_row_says_where_it_comes_from_and_its_files_can_be_skipped(source: Source) -> None:
    produce(source, [order(n) for n in range(30)])
    ingest(source)
    first, last = rows(source)[0], rows(source)[-1]
    assert first == {
        "id": "o0",
        "at": MORNING,
        "cents": 0,
        "event_time": MORNING,
        "known_time": MORNING,
        "topic": source.topic,
        "topic_epoch": 0,
        "kafka_partition": 0,
        "kafka_offset": 0,
        "batch": first["batch"],
        "rejected_reason": None,
        "raw_key": None,
        "raw_value": None,
        "headers": None,
        "event_date": date(2013, 4, 1),
    }
    assert (last["event_date"], last["batch"]) == (date(2013, 4, 2), first["batch"])
    table = lake.load(batches.events_uri(source))
    assert table is not None
    found = sorted(
        (
            str(row["partition.event_date"]),
            row["num_records"],
            row["min.kafka_offset"],
            row["max.kafka_offset"],
            row["null_count.event_time"],
        )
        for row in lake.pa.table(table.get_add_actions(flatten=True)).to_pylist()
    )
    assert found == [("2013-04-01", 14, 0, 13, 0), ("2013-04-02", 16, 14, 29, 0)]
    assert json.loads(ranges(source)[0]["counts"]) == [["2013-04-01", "2013-04-01", 14], ["2013-04-02", "2013-04-02", 16]]


def test_dead_letters_keep_what_came_beside_their_neighbours(source: Source) -> None:
    broken = [b"\xff\x00", order(1)[:-3], None, b"", b'{"id": "x", "at": "2013-04-01T10:00:00Z", "cents": 327267367867168100000}']
    produce(
        source, [piece for n, bad in enumerate(broken) for piece in (order(n), bad)], headers=[("trace", b"\xfe"), ("none", None)]
    )
    told = ingest(source)
    assert (told["good"], told["dead"]) == (5, 5)
    assert [row["id"] for row in rows(source, where="rejected_reason is null")] == [f"o{n}" for n in range(5)]
    dead = rows(source, where="rejected_reason is not null")
    assert [row["raw_value"] for row in dead] == broken
    assert [row["rejected_reason"] for row in dead] == [
        "not UTF-8",
        "not JSON",
        "tombstone",
        "tombstone",
        "integer out of range in field cents",
    ]
    assert [row["raw_key"] for row in dead] == [b"k1", b"k3", b"k5", b"k7", b"k9"]
    assert dead[0]["headers"] == [{"name": "trace", "value": b"\xfe"}, {"name": "none", "value": None}]
    assert {(row["event_date"], row["event_time"], row["id"]) for row in dead} == {(None, None, None)}
    assert {row["batch"] for row in rows(source)} == {dead[0]["batch"]}
    assert version(source) == 1  # The table was made, then one commit.
    assert_accounted(source)


def test_transactions_leave_gaps_that_are_no_loss_and_open_ones_close_no_day(source: Source) -> None:
    # A run that waits at a gap would wait for ever, so the test would not end.
    producer = Producer(client_settings() | {"transactional.id": source.topic})
    producer.init_transactions()
    for numbers, keep in ((range(5), True), (range(5, 8), False), (range(8, 10), True), (range(10, 12), False)):
        producer.begin_transaction()
        produce(source, [order(n) for n in numbers], producer=producer)
        producer.commit_transaction() if keep else producer.abort_transaction()
    decided(source)
    told = ingest(source)
    assert [row["id"] for row in rows(source)] == [f"o{n}" for n in (*range(5), 8, 9)]
    # Twelve records and four markers.
    assert (told["positions"]["0"], told["open_transaction"]) == (16, False)
    assert told["without_row"] == {"marker": 4, "aborted": 5}
    assert [(span["start"], span["end"], span["reason"]) for span in ranges(source)[0]["spans"]] == [
        *((5, 6, "marker"), (6, 9, "aborted"), (9, 10, "marker")),
        *((12, 13, "marker"), (13, 15, "aborted"), (15, 16, "marker")),
    ]
    closed = batches.read_up_to(source)
    producer.begin_transaction()
    produce(source, [order(12)], producer=producer)
    produce(source, [order(13)], partition=1)
    told = ingest(source)
    assert (told["good"], told["open_transaction"], told["read_up_to"]) == (1, True, None)
    assert batches.read_up_to(source) == closed
    producer.commit_transaction()
    decided(source)
    told = ingest(source)
    assert (told["good"], told["open_transaction"]) == (1, False)
    assert batches.read_up_to(source) > closed  # type: ignore[operator]
    assert_accounted(source)


@pytest.mark.parametrize("death", STEPS)
def test_a_killed_run_is_completed_by_the_next(source: Source, death: str) -> None:
    produce(source, [order(n) for n in range(40)], partition=0)
    produce(source, [b"{", order(41)], partition=1)
    killed = apart(source, death)
    assert killed.wait(60) == -signal.SIGKILL
    produce(source, [order(42)], partition=1)
    assert ingest(source)["good"] == (1 if death in ("committed", "accounting", "accounted") else 42)
    assert offsets(source) == [(0, n) for n in range(40)] + [(1, n) for n in range(3)]
    assert_accounted(source)


def test_of_two_plans_from_one_state_one_commits(source: Source) -> None:
    produce(source, [order(n) for n in range(10)])
    cluster = Cluster()
    reach = plan.reach(cluster, (source,))[source.name]
    plans = [plan.make(cluster, source, reach, run_id) for run_id in ("a", "b")]
    done = [local_engine.read_here(made.ranges) for made in plans]
    assert [
        commit.commit(source, made.table, [one for part in parts for one in part.files], made.account(parts), made.transactions())
        for made, parts in zip(plans, done, strict=True)
    ] == [True, False]
    # The winner died before it accounted; whoever comes next does, and the loser's own run finds nothing left to read.
    assert ingest(source)["good"] == 0
    assert account.settle(source) == 0
    assert offsets(source) == [(0, n) for n in range(10)]
    assert_accounted(source)


def test_a_commit_whose_answer_was_lost_is_not_repeated(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(source, [order(n) for n in range(10)])
    table_class = plan.DeltaTable
    write = table_class.create_write_transaction

    def lose(*arguments: Any, **options: Any) -> None:
        write(*arguments, **options)
        raise CommitFailedError("the answer was lost")

    monkeypatch.setattr(table_class, "create_write_transaction", lose)
    assert ingest(source)["good"] == 10
    assert offsets(source) == [(0, n) for n in range(10)]
    assert_accounted(source)


def test_ingests_at_the_same_time_read_each_record_once(source: Source) -> None:
    produce(source, [order(n) for n in range(3_000)], partition=0)
    produce(source, [order(n) for n in range(2_000)], partition=1)
    racing = [apart(source) for _ in range(3)]
    assert [one.wait(120) for one in racing] == [0, 0, 0], [one.stderr.read() for one in racing if one.stderr]
    assert offsets(source) == [(0, n) for n in range(3_000)] + [(1, n) for n in range(2_000)]
    assert_accounted(source)


def test_a_large_backlog_takes_several_commits_and_closes_with_the_last(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "BATCH_RECORDS", 40)
    produce(source, [order(n) for n in range(90)], partition=0)
    produce(source, [order(n) for n in range(10)], partition=1)
    told = ingest(source)
    assert (told["good"], told["batches"]) == (100, 3)
    assert [row["read_up_to"] is not None for row in ranges(source)] == [
        row["version"] == version(source) for row in ranges(source)
    ]
    assert_accounted(source)


def test_processes_read_what_one_would(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "ALONE", 100)
    monkeypatch.setattr(local_engine, "cores", lambda: 3)
    produce(source, [order(n) if n % 7 else b"[]" for n in range(250)], partition=0)
    produce(source, [order(n) for n in range(20)], partition=1)
    told = ingest(source)
    assert (told["good"], told["dead"]) == (234, 36)
    assert offsets(source) == [(0, n) for n in range(250)] + [(1, n) for n in range(20)]
    assert_accounted(source)


class _Deadly:
    """Ends the process that unpickles it, as the kernel does when memory runs out."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def test_a_reading_process_that_dies_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "ALONE", 2)
    monkeypatch.setattr(local_engine, "cores", lambda: 2)
    deadly = Range(source=_Deadly(), batch="b", epoch=0, partition=0, start=0, first=0, end=4)  # type: ignore[arg-type]
    engine = local_engine.LocalEngine()
    try:
        with pytest.raises(RetryError, match="a reading process died"):
            engine.read_all([deadly])
    finally:
        engine.close()


def test_a_signal_to_the_whole_group_leaves_the_readers_to_their_parent(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "ALONE", 2)
    monkeypatch.setattr(local_engine, "cores", lambda: 2)
    produce(source, [order(n) for n in range(10)])
    engine = local_engine.LocalEngine()
    try:
        engine.prepare(10)
        assert engine._pool is not None
        readers = list(engine._pool._processes)
        assert readers
        for reader in readers:
            until(lambda reader=reader: _ignored(reader) >> (signal.SIGTERM - 1) & 1)  # type: ignore[misc]
            os.kill(reader, signal.SIGTERM)
        cluster = Cluster()
        made = plan.make(cluster, source, plan.reach(cluster, (source,))[source.name], "r")
        assert sum(done.good for done in engine.read_all(made.ranges)) == 10
        assert list(engine._pool._processes)[: len(readers)] == readers
    finally:
        engine.close()


def _ignored(process: int) -> int:
    """The mask of the signals that a process ignores."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("SigIgn:")), 16)


def test_ranges_are_divided_evenly_without_gap() -> None:
    whole = [
        Range(source=None, batch="b", epoch=0, partition=number, start=0, first=first, end=end)  # type: ignore[arg-type]
        for number, (first, end) in enumerate(((0, 100), (0, 7), (5, 48), (9, 9)))
    ]
    shares = divide(whole, 4)
    assert [sum(map(len, share)) for share in shares] == [38, 38, 38, 36]
    assert sorted((part.partition, part.start, part.first, part.end) for share in shares for part in share) == [
        *((0, 0, 0, 38), (0, 38, 38, 76), (0, 76, 76, 100)),
        (1, 0, 0, 7),
        *((2, 0, 5, 12), (2, 12, 12, 48)),
        (3, 0, 9, 9),
    ]


def test_added_partitions_are_read_from_their_beginning(source: Source) -> None:
    produce(source, [order(0)])
    ingest(source)
    admin = AdminClient(client_settings())
    admin.create_partitions([NewPartitions(source.topic, 4)])[source.topic].result(10)
    produce(source, [order(1), order(2)], partition=3)
    assert ingest(source)["good"] == 2
    assert offsets(source) == [(0, 0), (3, 0), (3, 1)]


def test_partitions_added_during_a_run_come_with_the_next_and_close_no_day_too_soon(source: Source) -> None:
    produce(source, [order(0)])
    cluster = Cluster()
    reaches = plan.reach(cluster, (source,))
    admin = AdminClient(client_settings())
    admin.create_partitions([NewPartitions(source.topic, 3)])[source.topic].result(10)
    produce(source, [order(1)], partition=2)
    progress = Progress(name=source.name, open_transaction=False)
    catch_up(cluster, local_engine.LocalEngine(), (source,), reaches, {source.name: progress}, run_id="r")
    assert offsets(source) == [(0, 0)]
    # What it vouches for ends before the partition was there.
    assert batches.read_up_to(source) == reaches[source.name].moment
    assert ingest(source)["good"] == 1
    assert offsets(source) == [(0, 0), (2, 0)]
    assert_accounted(source)


@pytest.mark.parametrize("records", [2, 8])
def test_a_recreated_topic_is_refused(source: Source, records: int) -> None:
    produce(source, [order(n) for n in range(5)])
    ingest(source)
    recreate(source)
    produce(source, [order(n) for n in range(100, 100 + records)])
    standing = version(source)
    with pytest.raises(DataError, match=rf"created again(.|\n)*0: stored=5 kafka=\[0, {records}\)"):
        ingest(source)
    assert version(source) == standing


def test_expired_offsets_are_refused(source: Source) -> None:
    produce(source, [order(n) for n in range(5)])
    ingest(source)
    produce(source, [order(n) for n in range(5, 20)])
    admin, gone = AdminClient(client_settings()), TopicPartition(source.topic, 0, 12)
    admin.delete_records([gone])[gone].result(10)
    with pytest.raises(DataError, match=r"no longer holds(.|\n)*0: stored=5 kafka=\[12, 20\)"):
        ingest(source)


def test_a_record_without_a_clock_is_a_dead_letter(source: Source) -> None:
    producer = Producer(client_settings())
    for known in (1364810400000, 1000):
        producer.produce(source.topic, order(0), partition=0, timestamp=known)
    assert producer.flush(30) == 0
    assert ingest(source)["reasons"] == {"implausible known time": 1}
    assert offsets(source, "rejected_reason is null") == [(0, 0)]


def test_a_broker_that_is_away_may_be_tried_again(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    monkeypatch.setattr("jobs.kafka.PATIENCE", 1.0)
    with pytest.raises(RetryError, match=r"127\.0\.0\.1:9 did not answer"):
        ingest(source)
    monkeypatch.setenv("KAFKA_SECURITY_PASSWRD", "x")
    with pytest.raises(UsageError, match="KAFKA_SECURITY_PASSWRD is set, but nothing reads it"):
        ingest(source)


def test_what_can_not_be_read_as_declared_is_refused(source: Source) -> None:
    Cluster().create(f"{source.topic}-append", partitions=1, configuration={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(UsageError, match=r"message\.timestamp\.type=LogAppendTime"):
        ingest(declare(f"{source.topic}-append", name="appended"))
    with pytest.raises(UsageError, match="there is no topic 'nowhere'"):
        ingest(declare("nowhere", name="nowhere"))


def test_a_wider_contract_adds_its_columns_and_a_changed_one_is_refused(source: Source) -> None:
    produce(source, [order(0)])
    ingest(source)
    wider = declare(source.topic, fields=(*source.fields, Field("note")))
    produce(source, [order(1)[:-1] + b', "note": "new"}'])
    ingest(wider)
    assert [row["note"] for row in rows(source)] == [None, "new"]
    changed = declare(source.topic, fields=(*source.fields, Field("note", "int64")))
    with pytest.raises(UsageError, match="'note'"):
        ingest(changed)
