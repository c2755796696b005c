"""The audit sees each kind of damage at its offsets, and nothing where all is well."""

import re
import tracemalloc
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from small_topic import MORNING, assert_accounted, decided, forget, ingest, order, produce, ranges, recreate

from jobs import account, batches, lake
from jobs.audit import against, findings, positions, stage
from jobs.audit.positions import Partition
from jobs.command import Job
from jobs.errors import DataError, RetryError
from jobs.ingest import plan
from jobs.kafka import Bounds, Cluster, client_settings
from pipelines.declare import Source

pytestmark = pytest.mark.kafka

FAR = 10**12
"""An offset so far away that nothing could be held for each one below it."""


def audit(source: Source, read_kafka: bool = True) -> dict[str, Any]:
    job = Job(command="audit", options=Namespace(json=True, read_kafka=read_kafka), run_id="a", source=(source,))
    try:
        stage.run(job)
    finally:
        told: dict[str, Any] = job.report["sources"][source.name]
    return told


def wrong(source: Source, read_kafka: bool = True) -> list[tuple[int, int, int, str]]:
    """The findings: partition, start, end, and what."""
    with pytest.raises(DataError) as failure:
        audit(source, read_kafka)
    return [
        (int(one[1]), int(one[2]), int(one[3]), one[4])
        for one in re.finditer(r"partition (\d+)[^,]*, \[(\d+), (\d+)\): (.*)", str(failure.value))
    ]


def change(source: Source, rows: pa.Table) -> None:
    """Add rows behind everybody's back."""
    write_deltalake(batches.events_uri(source), rows, mode="append")


def events(source: Source, where: str) -> pa.Table:
    table = lake.load(batches.events_uri(source))
    assert table is not None
    found = lake.query(table, f"select * from t where {where}")
    return found.cast(pa.schema(table.schema().to_arrow()))


def delete(source: Source, where: str) -> None:
    DeltaTable(batches.events_uri(source)).delete(where)


def test_a_sound_table_has_no_findings_and_the_lag_is_told(source: Source) -> None:
    assert audit(source)["never_ingested"]
    produce(source, [order(n) if n % 5 else b"{" for n in range(40)])
    ingest(source)
    produce(source, [order(n) for n in range(7)], partition=1)
    told = audit(source)
    assert (told["rows"], told["lag"], told["findings"], told["without_row"]) == (40, 7, [], {})
    assert [told["partitions"][n]["compared"] for n in ("0", "1")] == [40, 0]
    assert audit(source, read_kafka=False)["partitions"]["0"]["compared"] is None


def test_each_kind_of_damage_is_found_at_its_offsets(source: Source) -> None:
    produce(source, [order(n) if n != 11 else b"{" for n in range(30)])
    ingest(source)
    delete(source, "kafka_offset in (3, 4, 20)")
    assert wrong(source, read_kafka=False) == [
        (0, 3, 5, "a gap: no row, and nothing explains it"),
        (0, 20, 21, "a gap: no row, and nothing explains it"),
    ]
    assert (0, 3, 5, "a record of Kafka that has no row") in wrong(source)
    ingest(source, rebuild=True)
    change(source, events(source, "kafka_offset in (7, 8)"))
    change(source, events(source, "kafka_offset = 8"))
    assert wrong(source) == [(0, 7, 8, "a duplicate: more than one row"), (0, 8, 9, "a duplicate: more than one row")]


def test_a_good_row_beside_a_dead_letter_and_rows_that_nobody_read(source: Source) -> None:
    produce(source, [order(n) if n != 11 else b"{" for n in range(30)])
    ingest(source)
    risen = events(source, "kafka_offset = 10")
    offset = risen.schema.get_field_index("kafka_offset")
    change(source, risen.set_column(offset, "kafka_offset", pa.array([11], pa.int64())))
    change(source, risen.set_column(offset, "kafka_offset", pa.array([77], pa.int64())))
    assert wrong(source) == [
        (0, 11, 12, "a duplicate: a good row beside a dead letter that nobody replayed"),
        (0, 77, 78, "a row beyond the offset up to which the table is read"),
    ]


def test_a_moved_position_and_a_row_in_a_span_are_found(source: Source) -> None:
    producer = Producer(client_settings() | {"transactional.id": source.topic})
    producer.init_transactions()
    producer.begin_transaction()
    produce(source, [order(n) for n in range(5)], producer=producer)
    producer.commit_transaction()
    decided(source)
    ingest(source)
    assert audit(source)["without_row"] == {"marker": 1}
    row = events(source, "kafka_offset = 4")
    change(source, row.set_column(row.schema.get_field_index("kafka_offset"), "kafka_offset", pa.array([5], pa.int64())))
    assert (0, 5, 6, "a row where the account says that there is none") in wrong(source)
    table = DeltaTable(batches.events_uri(source))
    table.create_write_transaction(
        [],
        mode="append",
        schema=table.schema(),
        partition_by=["event_date"],
        commit_properties=CommitProperties(app_transactions=[Transaction(batches.position_id(source, 0, 0), FAR)]),
    )
    found = wrong(source)
    assert (0, 6, FAR, "a gap: no row, and nothing explains it") in found
    assert (0, 6, FAR, "read, though Kafka ends before it") in found


def test_lost_and_recreated_topics_are_found_and_kept_rows_are_counted(source: Source) -> None:
    produce(source, [order(n) for n in range(10)])
    ingest(source)
    produce(source, [order(n) for n in range(10, 20)])
    forget(source, 6)
    told = audit(source)
    assert (told["only_here"], told["lag"], told["findings"]) == (6, 10, [])
    forget(source, 13)
    assert wrong(source) == [(0, 10, 13, "lost: Kafka no longer has it, and it was never read")]
    ingest(source, accept_loss=True)
    told = audit(source)
    assert (told["without_row"], told["findings"]) == ({"expired": 3}, [])
    recreate(source)
    assert [what for *_, what in wrong(source)] == [f"topic '{source.topic}' was created again, and nothing of it was read"] * 2
    ingest(source, accept_new_topic=True)
    assert audit(source)["findings"] == []


def test_the_account_must_be_whole(source: Source) -> None:
    for start in (0, 10, 20):
        produce(source, [order(n) for n in range(start, start + 10)])
        ingest(source)
    DeltaTable(batches.ranges_uri(source)).delete("start_offset = 10 and kafka_partition = 0")
    ((partition, start, end, what),) = wrong(source)
    assert (partition, start, end) == (0, 10, 20)
    assert what.startswith("the account skips it")


def test_a_run_that_was_planned_earlier_and_found_nothing_is_no_overlap(source: Source) -> None:
    produce(source, [order(n) for n in range(100)])
    ingest(source)
    cluster = Cluster()
    planned = plan.make(cluster, source, plan.reach(cluster, (source,))[source.name], "slow")
    assert planned.is_empty
    for start in (100, 150):
        produce(source, [order(n) for n in range(start, start + 50)])
        ingest(source)
    account.settle(source, closure=planned.account([]))
    # As an older release told it: where each partition stood.
    stood = [account.Partition(partition=0, start=100, end=100), account.Partition(partition=1)]
    older = planned.account([])
    older.partitions = stood
    account.settle(source, closure=older)
    assert audit(source)["findings"] == []
    assert_accounted(source)
    assert list(findings.of_account(batches.ranges(source).to_pylist())) == []


def test_a_run_that_finds_nothing_new_adds_one_row_where_it_closes_something(source: Source) -> None:
    produce(source, [order(n) for n in range(10)])
    ingest(source)
    before, closed = ranges(source), batches.read_up_to(source)
    ingest(source)
    (row,) = [row for row in ranges(source) if row not in before]
    assert (row["kafka_partition"], row["start_offset"], row["end_offset"], row["spans"]) == (None, 0, 0, [])
    assert row["read_up_to"] == batches.read_up_to(source) > closed
    ingest(source, until=MORNING.isoformat())
    assert len(ranges(source)) == len(before) + 1
    assert audit(source)["findings"] == []
    assert_accounted(source)


def test_a_rebuild_beside_the_audit_is_for_the_next_one(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(source, [order(n) for n in range(10)])
    ingest(source)
    settle = account.settle

    def late(source: Source) -> int:
        monkeypatch.setattr(account, "settle", settle)
        ingest(source, rebuild=True)
        return settle(source)

    monkeypatch.setattr(account, "settle", late)
    assert [audit(source)["epoch"], audit(source)["epoch"]] == [0, 1]


def test_a_file_that_was_taken_meanwhile_is_for_another_try(source: Source) -> None:
    produce(source, [order(n) for n in range(10)])
    ingest(source)
    path = next(Path(batches.events_uri(source)).rglob("*.parquet"))
    path.unlink()
    with pytest.raises(RetryError, match=f"{path.name}.* could not be read .* run the audit again"):
        stage.audit(Cluster(), source, read_kafka=False)


def test_damage_looks_the_same_whatever_is_held_at_once(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and slices of a few offsets, so that each kind of damage lies across their edges."""
    monkeypatch.setattr(positions, "CHUNK", 8)
    monkeypatch.setattr(against, "SLICE", 7)
    produce(source, [order(n) for n in range(5)])
    forget(source, 5)
    produce(source, [order(n) for n in range(60)])
    ingest(source)
    assert audit(source)["partitions"]["0"] == {"earliest": 5, "end": 65, "lag": 0, "only_here": 0, "compared": 60}
    delete(source, "kafka_offset between 14 and 33 or kafka_offset = 60")
    change(source, events(source, "kafka_offset between 36 and 50"))
    assert wrong(source) == [
        (0, 14, 34, "a gap: no row, and nothing explains it"),
        (0, 36, 51, "a duplicate: more than one row"),
        (0, 60, 61, "a gap: no row, and nothing explains it"),
        (0, 14, 34, "a record of Kafka that has no row"),
        (0, 60, 61, "a record of Kafka that has no row"),
    ]
    forget(source, 40)
    told, _ = stage.audit(Cluster(), source, read_kafka=False)
    assert told["only_here"] == 40 - 5 - 20


def test_bytes_saturate_and_keep_good_and_dead_apart() -> None:
    partition = Partition(epoch=0, number=0, next=1_000)
    partition.add(np.arange(0, 500), positions.GOOD)
    partition.add(np.array([700, 500, 500, 500, 500, 600]), positions.DEAD)
    partition.add(np.array([1_000, -1]), positions.GOOD)
    assert partition.states(0, 1_000)[[0, 499, 500, 600, 700, 999]].tolist() == [1, 1, 12, 4, 4, 0]
    assert np.concatenate(partition.beyond).tolist() == [1_000, -1]


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """The most bytes that were held since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_what_expired_and_what_was_never_read_costs_nothing(peak: Callable[[], int]) -> None:
    start = 10**10 + 12_345
    partition = Partition(epoch=0, number=0, next=start + 100)
    partition.mark(0, start, positions.EXPLAINED)
    partition.add(np.arange(start, start + 90), positions.GOOD)
    partition.add(np.array([7, 8, 10**9, 10**9]), positions.GOOD)
    held = Bounds(earliest=start + 30, end=start + 100, undecided=False)
    assert against.ends(partition, held)[0].only_here == 30 + 3
    assert [(one.start, one.end, one.what) for one in findings.of_partition(partition)] == [
        (7, 9, "a row where the account says that there is none"),
        (10**9, 10**9 + 1, "a duplicate: more than one row"),
        (start + 90, start + 100, "a gap: no row, and nothing explains it"),
    ]
    unread = Partition(epoch=0, number=1, next=10**15)
    told, wrong = against.ends(unread, Bounds(earliest=10**15, end=10**15 + 5, undecided=False))
    assert (told.lag, told.only_here, wrong) == (5, 0, [])
    assert peak() < 30e6


def test_a_later_loss_of_billions_costs_nothing_either(peak: Callable[[], int]) -> None:
    lost, found = 5_000, 5 * 10**9
    partition = Partition(epoch=0, number=0, next=found + 70)
    for start, end in ((0, lost), (found, found + 70)):
        partition.add(np.arange(start, end), positions.GOOD)
    partition.mark(lost, found, positions.EXPLAINED)
    assert list(findings.of_partition(partition)) == []
    assert partition.rows_below(found + 70) == lost + 70
    assert peak() < 30e6


def test_fifty_million_positions_are_held_in_a_byte_each(peak: Callable[[], int]) -> None:
    wanted, rows = 50_000_000, 500_000
    partition = Partition(epoch=0, number=0, next=wanted)
    for start in range(0, wanted, rows):
        partition.add(np.arange(start, start + rows), positions.GOOD)
    assert list(findings.of_partition(partition)) == []
    assert partition.rows_below(wanted) == wanted
    assert peak() < 1.6 * wanted


def test_files_are_read_only_so_far_ahead() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return item * item

    for number, found in enumerate(positions.ahead(work, range(100))):
        assert found == number * number
        assert len(begun) <= number + positions.AHEAD
    assert sorted(begun) == list(range(100))
