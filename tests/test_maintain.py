"""Upkeep: compaction beside running ingests, and a vacuum that takes neither what models name nor what runs still need."""

import json
import os
import time
from argparse import Namespace
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import small_models
import small_topic
from deltalake import DeltaTable

import pipelines
from jobs import batches, cli, contract, lake, registry
from jobs.command import Job
from jobs.decode import events_schema
from jobs.errors import DataError, RetryError, UsageError
from jobs.maintain import retention, stage, tables
from pipelines.declare import Pipeline, Source, days

DAY = 86400


def maintain(source: Source, **options: Any) -> dict[str, Any]:
    """Run the stage on a source. Returns what the report says of its tables."""
    settings = {"subject": source.name, "dry_run": False, "no_registry": True, "json": True} | options
    job = Job(command="maintain", options=Namespace(**settings), run_id="upkeep", source=(source,))
    stage.run(job)
    return job.report["tables"]  # type: ignore[no-any-return]


def folder(source: Source) -> Path:
    return Path(batches.events_uri(source))


def on_disk(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def positions(source: Source) -> dict[str, int | None]:
    table = DeltaTable(batches.events_uri(source))
    ids = [batches.epoch_id(source), batches.REWRITE, *(batches.position_id(source, 0, number) for number in (0, 1))]
    return {name: table.transaction_version(name) for name in ids} | {
        "settled": DeltaTable(batches.ranges_uri(source)).transaction_version("settled")
    }


def age(table_uri: str, back: int = 3 * DAY) -> None:
    """Let all that was written and removed so far be so many seconds older. Checkpoints repeat the log, and go."""
    root = Path(table_uri)
    for path in [*root.glob("_delta_log/*.checkpoint.parquet"), *root.glob("_delta_log/_last_checkpoint")]:
        path.unlink()
    for commit in (root / "_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        for line in lines:
            if "remove" in line:
                line["remove"]["deletionTimestamp"] -= back * 1000
        commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for path in root.rglob("*.parquet"):
        moment = path.stat().st_mtime - back
        os.utime(path, (moment, moment))


@pytest.mark.kafka
def test_ingests_that_run_meanwhile_lose_nothing(source: Source) -> None:
    """Maintenance over and over while ingests of two partitions run as processes of their own."""
    produced = 0
    for _ in range(3):
        values = [small_topic.order(number) for number in range(produced, produced + 20)]
        for partition in (0, 1):
            small_topic.produce(source, [*values, b"no order"], partition)
        produced += 21
        ingest = small_topic.apart(source)
        while ingest.poll() is None:
            maintain(source)
        assert ingest.returncode == 0, ingest.stderr and ingest.stderr.read()
    before = positions(source)
    told = maintain(source)
    assert positions(source) == before and before["settled"] is not None
    assert small_topic.offsets(source) == [(partition, offset) for partition in (0, 1) for offset in range(produced)]
    small_topic.assert_accounted(source)
    # Three days of events, and the dead letters, whose partition is null.
    assert told[f"events/{source.name}"]["files_after"] == len({row["event_date"] for row in small_topic.rows(source)})
    assert told[f"ranges/{source.name}"]["files_after"] == 1
    small_topic.produce(source, [small_topic.order(produced)])
    assert small_topic.ingest(source)["good"] == 1


@pytest.mark.kafka
def test_a_lost_ingests_files_go_after_the_retention_and_not_before(source: Source) -> None:
    source = replace(source, retention=days(2))
    for number in range(2):
        small_topic.produce(source, [small_topic.order(number)])
        small_topic.ingest(source)
    small_topic.produce(source, [small_topic.order(2)])
    held = on_disk(folder(source))
    assert small_topic.apart(source, "committing").wait() != 0
    (staged,) = {name for name in on_disk(folder(source)) - held if name.endswith(".parquet")}
    stray = folder(source) / "_delta_log" / "stray.parquet"
    stray.write_text("somebody's")
    os.utime(stray, (1, 1))
    foreign = folder(source) / "event_date=2013-04-01" / "foreign.parquet"
    foreign.write_text("an orphan")
    os.utime(foreign, (time.time() - 2 * DAY - 60,) * 2)
    logs = {name for name in on_disk(folder(source)) if name.startswith("_delta_log")}
    planned = maintain(source, dry_run=True)[f"events/{source.name}"]
    assert (planned["partitions_to_compact"], planned["deleted_files"], planned["deleted_bytes"]) == (1, 1, 9)
    assert foreign.exists() and small_topic.version(source) == 2
    told = maintain(source)[f"events/{source.name}"]
    assert (told["files_before"], told["files_after"], told["deleted_files"]) == (2, 1, 1)
    assert not foreign.exists() and (folder(source) / staged).exists()
    assert logs <= on_disk(folder(source)), "nothing under _delta_log may go"
    age(batches.events_uri(source))
    age(batches.ranges_uri(source))
    told = maintain(source)
    # The staged file, and the two that were compacted; of the ranges too the two that were compacted.
    assert told[f"events/{source.name}"]["deleted_files"] == 3 and told[f"ranges/{source.name}"]["deleted_files"] == 2
    assert not (folder(source) / staged).exists()
    assert logs <= on_disk(folder(source)), "nothing under _delta_log may go"
    small_topic.ingest(source)
    assert small_topic.offsets(source) == [(0, 0), (0, 1), (0, 2)]
    small_topic.assert_accounted(source)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """The small pipeline with a source of its own, in a lake of its own, as the only one that is declared."""
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    made = small_models.pipeline("upkeep")
    monkeypatch.setattr(pipelines, "load_all", lambda: ({made.name: made}, {}))
    return made


def add_event(source: Source, number: int) -> int:
    """Append an event. Returns the version that holds it."""
    contract.table(source)
    schema = events_schema(source)
    moment = small_topic.MORNING
    row = {"id": f"e{number}", "at": moment, "event_time": moment, "known_time": moment, "event_date": moment.date()}
    position = {"topic_epoch": 0, "kafka_partition": 0, "kafka_offset": number}
    return lake.append(batches.events_uri(source), pa.Table.from_pylist([row | position], schema=schema))


def ids(source: Source, version: int) -> list[str]:
    table = lake.load(batches.events_uri(source), version)
    assert table is not None
    return lake.query(table, "select id from t order by id").column("id").to_pylist()  # type: ignore[no-any-return]


def register(pipeline: Pipeline, logged: small_models.Logged, *, events: int, examples: int, labels: int) -> int:
    """A version whose snapshot names these versions."""
    import mlflow

    said = [{"version": events, "from": "2013-03-01", "to": "2013-03-05"}, {"version": None, "from": "a", "to": "b"}]
    snapshot = {
        "tables": {"examples": {"version": examples, "files": []}, "labels": {"version": labels, "files": []}},
        "sources": {"examples": {"booked": said}, "labels": {"booked": said}},
    }
    mlflow.MlflowClient().log_dict(logged.run_id, snapshot, "snapshot.json")
    return small_models.register(pipeline, logged, through=date(2013, 3, 5), run_id=f"run-{events}")


@pytest.mark.mlflow
def test_what_a_model_names_stays_readable(
    small: Pipeline, mlflow_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    source = small.spine.source
    versions = [add_event(source, number) for number in range(5)]
    small_models.write_tables(small)
    table = lake.uri(small.name, "examples")
    lake.append(table, small_models.examples_of(small_models.FIRST), partition_by=["as_of_date"])
    registry.connect()
    logged = small_models.log_model(tmp_path, 2.0)
    number = register(small, logged, events=versions[1], examples=0, labels=0)
    first = maintain(source, no_registry=False)[f"events/{source.name}"]
    assert (first["files_after"], first["deleted_files"], first["kept_versions"]) == (1, 0, [versions[1]])
    add_event(source, 5)
    maintain(source, no_registry=False)
    age(batches.events_uri(source))
    told = maintain(replace(source, retention=days(1)), no_registry=False)[f"events/{source.name}"]
    # Of seven files before the newest, the two that version names stay.
    assert told["deleted_files"] == 5
    assert ids(source, versions[1]) == ["e0", "e1"] and len(ids(source, small_topic.version(source))) == 6
    with pytest.raises(Exception, match=r"(?i)not found|no such file"):
        ids(source, versions[2])

    # The pipeline's own tables: version 0 of the examples lacks the file that came later.
    job = Job(
        command="maintain",
        options=Namespace(subject=small.name, dry_run=False, no_registry=False, json=True),
        run_id="upkeep",
        source=small.sources,
    )
    monkeypatch.setattr(pipelines, "load", lambda _: small)
    rows = lake.query(DeltaTable(table, version=0), "select * from t order by key, as_of")
    stage.run(job)
    age(table, 8 * DAY)
    stage.run(job)
    assert job.report["tables"]["upkeep/examples"]["kept_versions"] == [0]
    assert job.report["tables"]["upkeep/examples"]["deleted_files"] == 1
    assert lake.query(DeltaTable(table, version=0), "select * from t order by key, as_of").equals(rows)
    assert DeltaTable(table).metadata().configuration["delta.enableExpiredLogCleanup"] == "false"

    # A version that can't be loaded any more, a registry that is away: the compaction stands, nothing is deleted.
    register(small, small_models.log_model(tmp_path, 1.0), events=999, examples=0, labels=0)
    add_event(source, 6)
    age(batches.events_uri(source))
    held = on_disk(folder(source))
    with pytest.raises(DataError, match=rf"version 999 of .*booked, which model upkeep/{number + 1} names"):
        maintain(replace(source, retention=days(1)), no_registry=False)
    assert len(pa.table(DeltaTable(batches.events_uri(source)).get_add_actions())) == 1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(RetryError, match="did not answer"):
        maintain(replace(source, retention=days(1)), no_registry=False)
    assert held <= on_disk(folder(source))


def test_without_a_registry_somebody_has_to_vouch(small: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    source = small.spine.source
    add_event(source, 0)
    add_event(source, 1)
    with pytest.raises(UsageError, match="--no-registry"):
        maintain(source, no_registry=False)
    assert small_topic.version(source) == 2, "nothing was compacted"
    assert maintain(source)[f"events/{source.name}"]["files_after"] == 1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setattr(pipelines, "load_all", lambda: ({}, {"bad": "pipelines/bad.py: is broken."}))
    with pytest.raises(UsageError, match=r"bad\.py: is broken: what its models name"):
        maintain(source, no_registry=False)


def test_a_retention_shorter_than_the_longest_run_is_refused(small: Pipeline) -> None:
    source = replace(small.spine.source, retention=days(1))
    add_event(source, 0)
    add_event(source, 1)
    root = Path(lake.uri("reports"))

    def report(subject: str, command: str, **told: Any) -> Path:
        path = root / subject / command / "2026-01-01T00_00_00-run.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(told))
        return path

    report(source.name, "ingest", seconds=90 * DAY, continuous=True, sources={source.name: {"longest_batch_seconds": 60}})
    report(source.name, "maintain", seconds=10 * DAY)
    report("another", "features", seconds=10 * DAY)
    report(small.name, "score", seconds=0.4 * DAY)
    (root / small.name / "score" / "half.json").write_text('{"seconds": 9')
    maintain(source)
    path = report(small.name, "features", seconds=0.6 * DAY)
    add_event(source, 2)
    with pytest.raises(
        UsageError, match=r"is 1 days, and the longest run took 14\.4 hours \(reports/upkeep/features/.*days\(2\)"
    ):
        maintain(source)
    assert len(pa.table(DeltaTable(batches.events_uri(source)).get_add_actions())) == 2, "nothing was compacted"
    maintain(replace(source, retention=days(2)))
    path.unlink()
    maintain(source)
    assert retention.longest([source.name]).seconds == 60


def test_a_persons_fields_do_not_enter_the_log(small: Pipeline) -> None:
    """The log outlives what is erased: it holds the ends of positions and instants alone."""
    source = small.spine.source
    for number in range(2):
        add_event(source, number)
    maintain(source)
    newest = max((folder(source) / "_delta_log").glob("*.json"))
    (stats,) = [json.loads(line)["add"]["stats"] for line in newest.read_text().splitlines() if '"add"' in line]
    assert json.loads(stats)["numRecords"] == 2 and json.loads(stats)["maxValues"]["kafka_offset"] == 1
    assert not {"id", "carrier", "x", "raw_value"} & json.loads(stats)["minValues"].keys()


def test_a_compaction_that_always_loses_is_left_for_the_next_time(small: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small.spine.source
    for number in range(10):
        add_event(source, number)
    uri = batches.events_uri(source)
    erased = iter(range(10))
    kept = tables.Kept(uri=uri, retention=days(7))
    load = lake.load

    def beside_a_rewrite(table_uri: str, version: int | None = None) -> DeltaTable | None:
        handle = load(table_uri, version)
        DeltaTable(uri).delete(f"kafka_offset = {next(erased)}")
        return handle

    monkeypatch.setattr(lake, "load", beside_a_rewrite)
    assert "lost to neighbours" in tables.compact(kept, dry_run=False)["note"]
    monkeypatch.setattr(lake, "load", load)
    assert ids(source, small_topic.version(source)) == [f"e{number}" for number in erased]


def test_the_command_line_takes_a_source(small: Pipeline) -> None:
    source = small.spine.source
    add_event(source, 0)
    assert cli.main(["maintain", source.name, "--no-registry"]) == 0
    kept = json.loads(next(Path(lake.uri("reports", source.name, "maintain")).glob("*.json")).read_text())
    assert kept["tables"][f"events/{source.name}"]["files_before"] == 1
    assert (folder(source) / "_delta_log" / "_last_checkpoint").exists()
