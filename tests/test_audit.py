"""The audit sees each kind of damage at its offsets, and nothing where all is well."""

import re
from argparse import Namespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from small_topic import decided, forget, ingest, order, produce, recreate

from jobs import batches, lake
from jobs.audit import positions, stage
from jobs.command import Job
from jobs.errors import DataError
from jobs.kafka import client_settings
from pipelines.declare import Source

pytestmark = pytest.mark.kafka


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
        commit_properties=CommitProperties(app_transactions=[Transaction(batches.position_id(source, 0, 0), 9)]),
    )
    found = wrong(source)
    assert (0, 6, 9, "a gap: no row, and nothing explains it") in found
    assert (0, 6, 9, "read, though Kafka ends before it") in found


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
    ranges = DeltaTable(batches.ranges_uri(source))
    ranges.delete("start_offset = 10 and kafka_partition = 0")
    ((partition, start, end, what),) = wrong(source)
    assert (partition, start, end) == (0, 10, 20)
    assert what.startswith("the account skips it")


def test_fifty_million_positions_are_held_in_bytes() -> None:
    partition = positions.Partition.blank(0, 0, 1_000)
    partition.add(np.arange(0, 500), positions.GOOD)
    partition.add(np.array([700, 500, 500, 500, 500, 600]), positions.DEAD)
    partition.add(np.array([1_000, -1]), positions.GOOD)
    assert partition.states.nbytes == 1_000
    assert partition.states[[0, 499, 500, 600, 700, 999]].tolist() == [1, 1, 12, 4, 4, 0]
    assert np.concatenate(partition.beyond).tolist() == [1_000, -1]
