"""People in events, dead letters and what is derived, for the tests of erasure: made as an ingest and its followers make them."""

import uuid
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import small_models
import small_topic
from deltalake import DeltaTable

from jobs import account, batches, contract, lake, versions
from jobs.account import Account, Partition
from jobs.command import Job
from jobs.commit import commit
from jobs.decode import events_schema
from jobs.erase import stage
from jobs.files import Folder, count_days
from pipelines.declare import Aggregate, FeatureSet, Field, Label, Pipeline, Source, Spine, days, hours

KEY = "alice@example.org"
OTHERS = ("malice@example.org", "alice@example.organic", "bob")
FIELDS = (*small_topic.FIELDS, Field("customer"))
DAY = date(2013, 4, 1)


def erase(source: Source, key: str = KEY, **options: Any) -> dict[str, Any]:
    """Run the stage. Returns the report."""
    settings = {"subject": source.name, "key": key, "dry_run": False, "json": True} | options
    job = Job(command="erase", options=Namespace(**settings), run_id="erasure", source=(source,))
    stage.run(job)
    return job.report


def traces(key: str = KEY) -> list[str]:
    """The files of the lake that tell of the person: Parquet files by their values, all others by their bytes."""
    found = []
    for path in Path(lake.uri()).rglob("*"):
        if not path.is_file():
            continue
        text = repr(pq.read_table(path, partitioning=None).to_pylist()) if path.suffix == ".parquet" else path.read_text()
        if any(word == key for word in text.replace("'", " ").replace('"', " ").replace("\\", " ").split()):
            found.append(str(path))
    return found


PEOPLE = small_topic.declare("orders", fields=FIELDS, subject="customer")


def pipeline() -> Pipeline:
    return replace(
        small_models.PIPELINE,
        name="erased",
        spine=Spine(source=PEOPLE, key="id", at="at", before=hours(1), columns=()),
        features=(
            FeatureSet(
                name="buyer", source=PEOPLE, entity=("customer",), windows=(days(7),), aggregates=(Aggregate("orders", "count"),)
            ),
        ),
        label=Label(source=PEOPLE, key="id", of="cents > 0", horizon=days(1)),
    )


def read_in(source: Source, people: Sequence[str | bytes], *, start: int = 0, kind: Any = "ingest") -> str:
    """Commit what an ingest would have read: an order of each person, a dead letter for each of the bytes. Returns its name."""
    table, batch = contract.table(source), uuid.uuid4().hex[:16]
    rows = []
    for offset, who in enumerate(people, start):
        moment = small_topic.MORNING + timedelta(hours=offset)
        row = {"known_time": moment, "topic": source.topic, "topic_epoch": 0, "kafka_partition": 0, "kafka_offset": offset}
        if isinstance(who, bytes):
            row |= {"rejected_reason": "not JSON", "raw_value": who}
        else:
            row |= {"id": f"o{offset}", "at": moment, "event_time": moment, "event_date": moment.date(), "customer": who}
        rows.append(row | {"batch": batch})
    told = pa.Table.from_pylist(rows, schema=events_schema(source))
    dead = sum(isinstance(who, bytes) for who in people)
    good = told.filter(pc.is_valid(told.column("event_date")))
    one = Partition(partition=0, start=start, end=start + len(people), good=len(people) - dead, dead=dead)
    one.counts += count_days(good)
    moved = {batches.position_id(source, 0, 0): start + len(people), batches.epoch_id(source): 0}
    if kind == "ingest":
        one.dead_counts = Counter({(DAY, "not JSON"): dead}) if dead else Counter()
    else:
        one.spans = [(start, start + len(people), "replayed")]
        one.dead_counts = Counter({(DAY, "not JSON"): one.good})
        one.start = one.end = 0
        moved = {batches.REWRITE: (table.transaction_version(batches.REWRITE) or 0) + 1}
    made = Account(kind=kind, batch=batch, run_id="r", topic=source.topic, topic_id="T", epoch=0, partitions=[one])
    assert commit(source, table, Folder(batches.events_uri(source)).write(told, prefix=batch), made, moved)
    account.settle(source)
    return batch


def make(name: str, rows: pa.Table, day: str, *, declared: Pipeline, of: str | None = None) -> None:
    """Write rows, all of DAY, to a table made as `declared` makes its table `of`, or the one called so."""
    uri = lake.uri(declared.name, name)
    configuration = {} if name == "predictions" else versions.properties(declared, of or name)
    rows = rows.append_column(day, pa.array([DAY] * len(rows)))
    lake.create(uri, rows.schema, partition_by=[day], configuration=lake.settings(rows.schema.names) | configuration)
    lake.replace(uri, rows, where=f"{day} = '{DAY}'", partition_by=[day])


def derive(keys: dict[str, str]) -> None:
    """What features and scoring would have written of these orders, twice over."""
    moment = small_topic.MORNING
    by_person = {"customer": sorted(set(keys.values())), "buyer_orders_7d": [1] * len(set(keys.values()))}
    by_key = {"key": sorted(keys), "as_of": pa.array([moment] * len(keys), lake.INSTANT), "x": [0.5] * len(keys)}
    for _ in range(2):
        for name, columns, day in (
            ("features_buyer", by_person, "event_date"),
            ("examples", by_key, "as_of_date"),
            ("labels", by_key, "mature_date"),
            ("predictions", by_key, "as_of_date"),
        ):
            make(name, pa.table(columns), day, declared=pipeline())


def held(name: str, column: str) -> list[str]:
    return lake.query(DeltaTable(lake.uri("erased", name)), f"select {column} from t order by 1").column(0).to_pylist()  # type: ignore[no-any-return]


def assert_gone(source: Source) -> None:
    """Nothing of the person is left, and all of the others."""
    assert [row["customer"] for row in small_topic.rows(source, "customer", "rejected_reason is null")] == ["bob", "bob"]
    assert held("features_buyer", "customer") == ["bob"]
    for name in ("examples", "labels", "predictions"):
        assert held(name, "key") == ["o1", "o4"]
    assert [trace for key in (KEY, "o0", "o2") for trace in traces(key)] == []
    erased = [row for row in small_topic.ranges(source) if row["kind"] == "erase"]
    assert sorted(n for row in erased for span in row["spans"] for n in range(span["start"], span["end"])) == [0, 2, 3]
    assert (sum(row["good"] for row in erased), sum(row["dead"] for row in erased)) == (2, 1)
