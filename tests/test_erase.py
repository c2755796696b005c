"""A person's records go for good: from events, dead letters, what is derived and the old files, and nothing else does."""

import base64
import io
import json
import os
import pickle
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_models
import small_topic
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction
from small_people import DAY, FIELDS, KEY, OTHERS, PEOPLE, assert_gone, derive, erase, held, make, pipeline, read_in, traces

import pipelines
from jobs import account, batches, cli, contract, lake, letters, registry, versions
from jobs.account import Account, Partition
from jobs.audit import stage as audit
from jobs.command import Job
from jobs.commit import commit
from jobs.erase import events, leftovers, rewriting
from jobs.erase.person import Person
from jobs.errors import DataError, RetryError, UsageError
from jobs.ingest import local_engine, plan, rebuild
from jobs.kafka import Cluster
from jobs.maintain import tables as upkeep
from pipelines.declare import Aggregate, DailySpine, Dimension, Field, Label, Pipeline, Source, days

# Against a broker.


def fill(source: Source) -> None:
    """Orders and dead letters of several people, over two partitions, in several small files."""
    small_topic.produce(source, [small_topic.order(n, customer=(KEY, *OTHERS)[n % 4]) for n in range(8)])
    small_topic.ingest(source)
    broken = [
        b"%s bought something" % KEY.encode(),
        b"malice@example.org bought something",
        json.dumps({"id": "o1", "customer": KEY, "at": "never"}).encode().replace(b"alice", b"\\u0061lice"),
        small_topic.order(9, customer="bob", at=None),
    ]
    small_topic.produce(source, broken, 1)
    small_topic.produce(source, [None], 1, key=KEY.encode())
    small_topic.produce(source, [b"{"], 1, headers=[("who", KEY.encode())])
    small_topic.ingest(source)
    small_topic.produce(source, [small_topic.order(n, customer=KEY) for n in range(10, 13)], 1)
    small_topic.ingest(source)


@pytest.mark.kafka
def test_a_person_goes_and_a_rebuild_does_not_bring_them_back(source: Source) -> None:
    source = replace(source, fields=FIELDS, subject="customer")
    fill(source)
    upkeep.compact(upkeep.Kept(uri=batches.events_uri(source), retention=source.retention), dry_run=False)
    planned = erase(source, dry_run=True)["tables"][f"events/{source.name}"]
    assert planned == {"good": 5, "dead": 4, "old_files": 2} and traces()
    assert erase(source)["tables"][f"events/{source.name}"] == {
        "good": 5,
        "dead": 4,
        "commits": 1,
        "files_deleted": 4,
        "files_uncommitted": 0,
    }
    left = [(0, n) for n in range(8) if n % 4] + [(1, 1), (1, 3)]
    assert small_topic.offsets(source) == left
    assert {row["customer"] for row in small_topic.rows(source, where="rejected_reason is null")} == set(OTHERS)
    assert traces() == []
    (first, second) = [row for row in small_topic.ranges(source) if row["kind"] == "erase"]
    assert [(span["start"], span["end"], span["reason"]) for span in first["spans"]] == [(0, 1, "erased"), (4, 5, "erased")]
    assert [(span["start"], span["end"]) for span in second["spans"]] == [(0, 1), (2, 3), (4, 9)]
    assert (second["good"], second["dead"], second["start_offset"], second["end_offset"]) == (3, 4, 0, 0)
    known = letters.by_known_day(source)
    assert {day: (each.good, each.dead) for day, each in known.items()} == {DAY: (6, 2)}

    assert_audited(source)

    # The ingest goes on, and a rebuild reads what Kafka still has without the person.
    small_topic.produce(source, [small_topic.order(20, customer="carol")], 1)
    assert small_topic.ingest(source)["good"] == 1
    small_topic.ingest(source, rebuild=True)
    assert small_topic.offsets(source) == [*left, (1, 9)]
    assert small_topic.spans(source) == {"erased": 18}
    small_topic.assert_accounted(source)
    small_topic.ingest(source, rebuild=True)
    assert small_topic.offsets(source) == [*left, (1, 9)]
    small_topic.assert_accounted(source)
    assert traces() == [] and erase(source)["tables"][f"events/{source.name}"]["commits"] == 0
    assert_audited(source)


@pytest.mark.kafka
def test_beside_ingests_and_maintenance_each_position_stays_accounted_for(source: Source) -> None:
    source = replace(source, fields=FIELDS, subject="customer")
    kept = upkeep.Kept(uri=batches.events_uri(source), retention=source.retention)
    erased = 0
    for start in range(0, 30, 10):
        small_topic.produce(source, [small_topic.order(n, customer=(KEY, "bob")[n % 2]) for n in range(start, start + 10)])
        ingest = small_topic.apart(source)
        while ingest.poll() is None:
            if lake.load(kept.uri) is not None:
                erased += erase(source)["tables"][f"events/{source.name}"]["good"]
                upkeep.compact(kept, dry_run=False)
        assert ingest.returncode == 0, ingest.stderr and ingest.stderr.read()
    erased += erase(source)["tables"][f"events/{source.name}"]["good"]
    assert erased == 15 and small_topic.offsets(source) == [(0, n) for n in range(1, 30, 2)]
    assert small_topic.spans(source) == {"erased": 15} and traces() == []
    assert_audited(source)


def customers(source: Source) -> set[str]:
    return {row["customer"] for row in small_topic.rows(source, "customer", "rejected_reason is null")}


@pytest.mark.kafka
def test_a_rebuild_after_a_killed_erasure_does_not_bring_them_back(source: Source) -> None:
    source = replace(source, fields=FIELDS, subject="customer")
    fill(source)
    assert killed(source, "committed") == -9
    left = small_topic.offsets(source)
    small_topic.ingest(source, rebuild=True)
    assert customers(source) == set(OTHERS) and small_topic.offsets(source) == left
    small_topic.assert_accounted(source)
    assert_audited(source)


@pytest.mark.kafka
def test_what_lies_beyond_a_rebuilds_reach_does_not_come_back_either(source: Source) -> None:
    source = replace(source, fields=FIELDS, subject="customer")
    small_topic.produce(source, [small_topic.order(n, customer="bob") for n in range(3)])
    small_topic.ingest(source)
    reach = plan.reach(Cluster(), (source,))[source.name]
    small_topic.produce(source, [small_topic.order(n, customer=(KEY, "bob")[n % 2]) for n in range(4)])
    small_topic.ingest(source)
    erase(source)
    rebuild.rebuild(source, reach, local_engine.read_here, "r", accept_loss=False)
    assert small_topic.ingest(source)["good"] == 2
    assert customers(source) == {"bob"} and small_topic.offsets(source) == [(0, n) for n in (0, 1, 2, 4, 6)]
    small_topic.assert_accounted(source)


@pytest.mark.kafka
def test_a_topic_that_lost_its_tail_brings_nobody_back_and_loses_nobody_else(source: Source) -> None:
    source = replace(source, fields=FIELDS, subject="customer")
    small_topic.produce(source, [small_topic.order(n, customer=(KEY, *OTHERS)[n % 4]) for n in range(8)])
    small_topic.ingest(source)
    assert erase(source)["tables"][f"events/{source.name}"]["good"] == 2
    # The table was read up to 12, and 9 was erased too; then the topic lost what came after 8.
    gone = Partition(partition=0, spans=[(9, 10, "erased")])
    told = Account(
        kind="erase", batch="tail", run_id="r", topic=source.topic, topic_id=topic_id(source), epoch=0, partitions=[gone]
    )
    moved = {batches.REWRITE: 2, batches.position_id(source, 0, 0): 12}
    assert commit(source, contract.table(source), [], told, moved)
    with pytest.raises(DataError, match="ends below what was read"):
        small_topic.ingest(source)
    # Read again in two batches, the second of which does not know of the first's acceptance.
    reach = plan.reach(Cluster(), (source,))[source.name]
    made = plan.make(Cluster(), source, reach, "r", accept=plan.Accept(new_topic=True), records=3)
    done = local_engine.read_here(made.ranges)
    assert commit(source, made.table, [file for one in done for file in one.files], made.account(done), made.transactions())
    assert (made.epoch, small_topic.ingest(source)["good"]) == (1, 4)
    left = [(0, n) for n in range(8) if n % 4]
    assert small_topic.offsets(source, "topic_epoch = 1") == left and customers(source) == set(OTHERS)
    # What comes now lies where something else was erased once.
    small_topic.produce(source, [small_topic.order(n, customer="carol") for n in range(8, 12)])
    assert small_topic.ingest(source)["good"] == 4
    small_topic.ingest(source, rebuild=True, accept_loss=True)
    assert small_topic.offsets(source) == left + [(0, n) for n in range(8, 12)]
    small_topic.assert_accounted(source)


def topic_id(source: Source) -> str:
    return Cluster().topics([source.topic])[source.topic].id


def assert_audited(source: Source) -> None:
    audit.run(Job(command="audit", options=Namespace(json=True), run_id="audit", source=(source,)))


# Without a broker: batches as an ingest commits them.


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """The source of orders, read by one pipeline; no registry."""
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(pipelines, "load_all", lambda: ({"erased": pipeline()}, {}))
    return PEOPLE


def test_what_is_derived_goes_and_the_logs_say_nothing_of_it(people: Source) -> None:
    read_in(people, [KEY, "bob", KEY, KEY.encode(), "bob"])
    derive({"o0": KEY, "o1": "bob", "o2": KEY, "o4": "bob"})
    logs = {path: path.read_text() for path in Path(lake.uri()).rglob("_delta_log/*.json")}
    planned = erase(people, dry_run=True)["tables"]
    assert planned["erased/features_buyer"] == {"rows": 1, "old_files": 1}
    assert planned["erased/examples"] == {"rows": 2, "old_files": 1}
    assert all(path.read_text() == text for path, text in logs.items())
    report = erase(people)
    assert_gone(people)
    assert report["tables"]["erased/labels"] == {
        "rows": 2,
        "commits": 1,
        "files_deleted": 2,
        "files_uncommitted": 0,
        "commits_that_name_them": 0,
    }
    assert report["registry"].startswith("could not be asked: MLFLOW_TRACKING_URI is not set")
    new = set(Path(lake.uri()).rglob("_delta_log/*.json")) - logs.keys()
    assert len(new) == 6, "one commit on each table, and the account's"
    for path in new:
        assert KEY not in path.read_text() and '"o0"' not in path.read_text().replace("\\", "")
    assert KEY not in json.dumps(report, default=str)
    assert DeltaTable(batches.events_uri(people)).transaction_version(batches.REWRITE) == 1


OTHER = small_topic.declare("visits", name="visits", fields=(*FIELDS, Field("shop"), Field("buyer")))
"""A source that names nobody."""


def of_days(*entity: str, source: Source = OTHER, **more: Any) -> Pipeline:
    """The pipeline with an entity on a day as its example."""
    label = Label(source=source, entity=entity, aggregates=(Aggregate("n", "count"),), of="n > 0", horizon=days(1))
    spine = DailySpine(source=source, entity=entity, within=days(7))
    return replace(pipeline(), spine=spine, label=label, **({"features": ()} | more))


def lookup(source: Source) -> Dimension:
    return Dimension(name="last", source=source, entity=("customer",), fields=("cents",), within=days(7))


def test_what_other_declarations_left_behind_goes(people: Source) -> None:
    """Each table says of what it is: the pipeline reads none of the person's sources now."""
    read_in(people, [KEY, "bob"])
    (buyer,) = pipeline().features
    shops = replace(buyer, name="shop", source=OTHER, entity=("shop", "customer"), lookups=(lookup(people),))
    alone = replace(buyer, name="alone", source=OTHER)
    declared = replace(pipeline(), spine=replace(pipeline().spine, source=OTHER), features=(buyer, shops, alone))
    two = pa.table({"customer": [KEY, "bob"], "n": [1, 1]})
    make("features_buyer", two, "event_date", declared=declared)
    make("tiles_buyer", two, "event_date", declared=declared)
    make("features_shop_v2", two, "event_date", declared=declared, of="features_shop")
    make("features_alone", two, "event_date", declared=declared)

    def keyed(name: str, keys: list[str], declared: Pipeline) -> None:
        day = "mature_date" if name.startswith("labels") else "as_of_date"
        make(name, pa.table({"key": keys, "x": [0.5] * len(keys)}), day, declared=declared, of=name.partition("_")[0])

    keyed("examples", [KEY, "bob"], of_days("customer", source=people))
    keyed("labels", [KEY, "bob"], of_days("customer", source=people))
    keyed("examples_v2", [json.dumps([KEY, "s"]), json.dumps(["s", KEY])], of_days("customer", "shop", features=(alone, buyer)))
    keyed("examples_v3", [json.dumps(["s", KEY]), KEY], of_days("shop", "customer", dimensions=(lookup(people),)))
    keyed("examples_v4", [KEY, "bob"], of_days("buyer", features=(replace(buyer, spine_entity=("buyer",)),)))
    keyed("examples_v5", [KEY, "o0", "o1"], pipeline())
    keyed("examples_v6", [KEY, "bob"], of_days("shop", features=()))
    bought = replace(pipeline().label, source=OTHER)
    keyed("examples_v7", ["o0", "v0", "v1"], replace(declared, label=bought, features=(replace(buyer, spine_entity=("buyer",)),)))
    keyed("predictions", [KEY, "bob", json.dumps(["s", KEY]), json.dumps([KEY, "s"]), json.dumps(["s"]), "o1", "{}"], declared)
    visits = [{"id": f"v{n}", "buyer": who, "shop": KEY, "event_date": DAY} for n, who in enumerate((KEY, "bob"))]
    lake.replace(
        batches.events_uri(OTHER), pa.Table.from_pylist(visits), where=f"event_date = '{DAY}'", partition_by=["event_date"]
    )

    erase(people)
    for name in ("features_buyer", "tiles_buyer", "features_shop_v2"):
        assert held(name, "customer") == ["bob"], name
    assert held("features_alone", "customer") == [KEY, "bob"], "of another source, whose customers may be others"
    assert held("examples", "key") == held("labels", "key") == held("examples_v4", "key") == ["bob"]
    assert held("examples_v2", "key") == [json.dumps(["s", KEY])]
    assert held("examples_v3", "key") == [KEY]
    assert held("examples_v5", "key") == [KEY, "o1"], "there the key is an order's"
    assert held("examples_v6", "key") == [KEY, "bob"], "there it is a shop's"
    assert held("examples_v7", "key") == ["o0", "v1"]
    assert held("predictions", "key") == ['["s"]', "bob", "o1", "{}"]


def test_a_table_that_does_not_say_of_what_it_is_stops_the_erasure(people: Source) -> None:
    read_in(people, [KEY])
    rows = pa.table({"customer": [KEY], "event_date": [DAY]})
    lake.replace(lake.uri("old", "features_x"), rows, where="true", partition_by=["event_date"])
    with pytest.raises(UsageError, match=r"don't say of what, so nothing was erased: old/features_x\. Move them"):
        erase(people)
    assert small_topic.offsets(people) == [(0, 0)]


STEPS = ("planned", "committing", "committed", "settled", "deriving", "derived", "deleting", "deleted")

_APART = (
    small_topic.DYING
    + """
import base64, pickle, sys
from argparse import Namespace
import pipelines
from jobs import account
from jobs.command import Job
from jobs.erase import derived, events, leftovers, rewriting, stage

match sys.argv[2]:
    case "planned":
        events.erase = die
    case "committing":
        rewriting.DeltaTable.create_write_transaction = die
    case "committed":
        after(rewriting, "swap")
    case "settled":
        after(events, "erase")
    case "deriving":
        derived.erase = die
    case "derived":
        after(derived, "erase")
    case "deleting":
        leftovers.delete = die
    case "deleted":
        after(leftovers, "delete")
source, made, options = pickle.loads(base64.b64decode(sys.argv[1]))
pipelines.load_all = lambda: ({made.name: made}, {})
stage.run(Job(command="erase", options=Namespace(**options), run_id="apart", source=(source,)))
"""
)


def killed(source: Source, step: str) -> int:
    """An erasure in a process of its own, which dies at the step. Returns how it ended."""
    options = {"subject": source.name, "key": KEY, "dry_run": False, "json": True}
    told = base64.b64encode(pickle.dumps((source, pipeline(), options))).decode()
    return subprocess.run([sys.executable, "-c", _APART, told, step], timeout=60).returncode


@pytest.mark.parametrize("step", STEPS)
def test_an_erasure_killed_at_any_step_is_completed_by_the_next(people: Source, step: str) -> None:
    read_in(people, [KEY, "bob", KEY, KEY.encode(), "bob"])
    derive({"o0": KEY, "o1": "bob", "o2": KEY, "o4": "bob"})
    assert killed(people, step) == -9
    erase(people)
    assert_gone(people)


@pytest.mark.parametrize("step", [None, "committed"])
def test_what_is_derived_of_an_event_that_goes_with_its_letter_goes_too(people: Source, step: str | None) -> None:
    """The letter names the person, the event that it became does not; beside it in one file is one that does."""
    read_in(people, [KEY.encode(), b"nobody", b"nobody"])
    read_in(people, ["bob", KEY, "bob"], kind="replay")
    derive({"o0": "bob", "o1": KEY, "o2": "bob"})
    if step is not None:
        assert killed(people, step) == -9
    erase(people)
    assert small_topic.offsets(people) == [(0, 2)] * 2
    assert held("examples", "key") == held("labels", "key") == ["o2"]


def test_a_kept_report_holds_no_letter(people: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read_in(people, [b"bob bought"])
    file = tmp_path / "report.json"
    assert cli.main(["dead-letters", "list", people.name, "--json", "--report", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["samples"][people.name]["not JSON"][0]["value"] == "bob bought"
    assert cli.main(["dead-letters", "list", people.name]) == 0
    assert "bob bought" in capsys.readouterr().out
    reports = [file, *Path(lake.uri("reports", people.name)).rglob("*.json")]
    assert len(reports) == 3 and not any("bought" in path.read_text() for path in reports)


def test_a_neighbours_commit_makes_the_erasure_plan_again(people: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in(people, [KEY, "bob"])
    swap, late = rewriting.swap, iter(((KEY,), ("bob",)))

    def beside_an_ingest(*arguments: Any, **options: Any) -> None:
        if (more := next(late, None)) is not None:
            read_in(people, more, start=len(small_topic.rows(people)))
        swap(*arguments, **options)

    monkeypatch.setattr(rewriting, "swap", beside_an_ingest)
    report = erase(people)["tables"][f"events/{people.name}"]
    assert (report["good"], report["commits"]) == (2, 1)
    assert small_topic.offsets(people) == [(0, 1), (0, 3)] and traces() == []

    def lost(*_: Any, **__: Any) -> None:
        raise CommitFailedError("a neighbour")

    monkeypatch.setattr(rewriting, "swap", lost)
    with pytest.raises(RetryError, match="lost to other writers 10 times"):
        erase(people, "bob")


def test_a_compaction_that_was_planned_before_brings_nobody_back(people: Source) -> None:
    read_in(people, [KEY, "bob"])
    read_in(people, ["bob"], start=2)
    stale = DeltaTable(batches.events_uri(people))
    erase(replace(people, retention=days(1)))
    with pytest.raises((CommitFailedError, DeltaError)):
        stale.optimize.compact(writer_properties=upkeep.WRITER)
    assert small_topic.offsets(people) == [(0, 1), (0, 2)] and traces() == []


def test_a_lost_answer_is_looked_up(people: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in(people, [KEY, "bob"])
    swap = rewriting.swap

    def unanswered(*arguments: Any, **options: Any) -> None:
        swap(*arguments, **options)
        raise OSError("the answer was lost")

    monkeypatch.setattr(rewriting, "swap", unanswered)
    report = erase(people)["tables"][f"events/{people.name}"]
    assert (report["good"], report["commits"]) == (1, 1) and small_topic.offsets(people) == [(0, 1)]


def test_a_replayed_letter_goes_with_its_event_and_counts_once(people: Source) -> None:
    """Also where only one of the two names the person."""
    read_in(people, [b"somebody", KEY.encode(), b"nobody", KEY.encode()])
    moment = {"by": "b", "reason": "r", "days": [str(DAY)], "version": small_topic.version(people)}
    seen = Partition(partition=None, dead_counts=Counter({(DAY, "not JSON"): 4}))
    made = Account(
        kind="acknowledge", batch="ack", run_id="r", topic=people.topic, topic_id="T", epoch=0, partitions=[seen], note=moment
    )
    assert commit(people, contract.table(people), [], made, {batches.REWRITE: 1})
    account.settle(people)
    read_in(people, [KEY, "bob"], kind="replay")
    report = erase(people)["tables"][f"events/{people.name}"]
    # The letters 0 and 1 were replayed, 3 was not.
    assert (report["good"], report["dead"]) == (2, 3)
    assert small_topic.offsets(people) == [(0, 2)] and traces() == []
    (row,) = [row for row in small_topic.ranges(people) if row["kind"] == "erase"]
    assert json.loads(row["dead_counts"]) == [[str(DAY), "not JSON", 1]] and len(row["spans"]) == 2
    assert json.loads(row["note"]) == {letters.ACKNOWLEDGED: [[str(DAY), "not JSON", 1]]}


def test_files_that_nobody_committed_stay_while_somebody_may(people: Source) -> None:
    read_in(people, [KEY, "bob"])
    root = Path(batches.events_uri(people))
    staged = root / "event_date=2013-04-01" / "staged.parquet"
    (committed,) = root.glob("event_date=2013-04-01/*.parquet")
    staged.write_bytes(committed.read_bytes())
    half = root / "event_date=2013-04-01" / "half.parquet"
    half.write_bytes(committed.read_bytes()[:100])
    report = erase(people)["tables"][f"events/{people.name}"]
    assert (report["files_deleted"], report["files_uncommitted"]) == (1, 1) and staged.exists() and not committed.exists()
    old = time.time() - people.retention.total_seconds() - 60
    os.utime(staged, (old, old))
    report = erase(people)["tables"][f"events/{people.name}"]
    assert (report["files_deleted"], report["files_uncommitted"]) == (1, 0) and not staged.exists() and half.exists()


def test_a_file_that_is_committed_during_the_look_stays(people: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was no part of the table when that was loaded, and the log names it a moment later."""
    read_in(people, [KEY, "bob"])
    current = leftovers._current
    looks = iter((lambda _: set[str](), current))
    monkeypatch.setattr(leftovers, "_current", lambda uri: next(looks)(uri))
    old = leftovers.find(batches.events_uri(people), people.retention, lambda _: True)
    assert (old.doomed, old.uncommitted) == ([], [])


def test_a_log_that_names_the_person_is_told(people: Source, caplog: pytest.LogCaptureFixture) -> None:
    """As tables have it that were made with Delta's own settings."""
    read_in(people, [KEY, "bob"])
    rows = pa.table({"customer": [KEY, "bob"], "event_date": [DAY] * 2})
    uri, told = lake.uri("erased", "features_buyer"), versions.properties(pipeline(), "features_buyer")
    lake.create(uri, rows.schema, partition_by=["event_date"], configuration=told)
    lake.append(uri, rows, partition_by=["event_date"])
    assert erase(people)["tables"]["erased/features_buyer"]["commits_that_name_them"] == 1
    assert "still name the person" in caplog.text and KEY not in caplog.text


def test_sparks_old_instants_stay_what_they_are(tmp_path: Path) -> None:
    """Spark may write instants as INT96, without a zone."""
    uri = str(tmp_path / "table")
    schema = pa.schema([("key", pa.string()), ("as_of", lake.INSTANT), ("day", pa.date32())])
    lake.create(uri, schema, partition_by=["day"])
    moment = small_topic.MORNING.replace(microsecond=123456)
    file = pa.table({"key": ["a", "b"], "as_of": pa.array([moment.replace(tzinfo=None)] * 2, pa.timestamp("us"))})
    (tmp_path / "table" / "day=2013-04-01").mkdir()
    path = "day=2013-04-01/part.parquet"
    pq.write_table(file, tmp_path / "table" / path, use_deprecated_int96_timestamps=True)
    size = (tmp_path / "table" / path).stat().st_size
    DeltaTable(uri).create_write_transaction(
        [AddAction(path, size, {"day": "2013-04-01"}, 0, True, '{"numRecords": 2}')], "append", schema, ["day"]
    )
    table = DeltaTable(uri)
    rewriting.swap(
        *(uri, table, rewriting.held(table), lambda rows: rows.column("key").to_numpy() == "a"), metadata={}, transactions={}
    )
    assert lake.query(DeltaTable(uri), "select * from t").to_pylist() == [{"key": "b", "as_of": moment, "day": DAY}]
    (actions,) = pa.table(DeltaTable(uri).get_add_actions(flatten=True)).to_pylist()
    assert actions["num_records"] == 1 and actions["min.as_of"] == moment and actions.get("min.key") is None


LETTERS = [
    (KEY.encode(), True),
    (b"<%s>" % KEY.encode(), True),
    (b"malice@example.org", False),
    (b"alice@example.organic", False),
    (b'{"customer": "\\u0061lice@example.org"', False),  # No JSON, and the text is written otherwise.
    (b'{"customer": "\\u0061lice@example.org"}', True),
    (b'{"note": ["\\nalice\\u0040example.org"]}', True),
    (b'{"customer": "bob"}', False),
    (b"\xff\xfe" + KEY.encode(), True),
    (b"", False),
    (None, False),
]


@pytest.mark.parametrize(("value", "named"), LETTERS)
def test_which_letters_name_the_person(value: bytes | None, named: bool) -> None:
    person = Person(source=PEOPLE, key=KEY)
    assert person.letter(None, value, None) is named
    # A key may be JSON, or of several parts.
    assert person.letter(value, None, None) is named
    assert KEY not in repr(person)


def test_numbers_name_a_person_too() -> None:
    source = replace(PEOPLE, fields=(*small_topic.FIELDS, Field("customer", "int64", path="who.id")))
    person = Person(source=source, key="17")
    assert person.letter(None, b'{"who": {"id": 17}}', None) and not person.letter(None, b'{"who": {"id": 170}}', None)
    rows = pa.table({"customer": [17, 1, None], "rejected_reason": pa.array([None] * 3, pa.string())})
    assert person.events(rows).tolist() == [True, False, False]
    avro = replace(source, format="avro", avro_schema=None)
    assert Person(source=avro, key="x" * 40).letter(None, b"P" + b"x" * 40, None), "a length of 40 looks like the letter P"


def test_neither_report_nor_output_says_who_it_was(people: Source, capfd: pytest.CaptureFixture[str]) -> None:
    read_in(people, [KEY, "bob"])
    assert cli.main(["erase", people.name, "--key", KEY, "--dry-run"]) == 0
    assert cli.main(["erase", people.name, "--key", KEY]) == 0
    assert len(list(Path(lake.uri("reports", people.name, "erase")).iterdir())) == 2 and traces() == []
    told = capfd.readouterr()
    assert "events/orders: 1 good, 0 dead" in told.out and KEY not in told.out + told.err


def test_what_is_refused(people: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"declares no subject.*subject='FIELD' with one of id, at, cents, customer"):
        erase(replace(people, subject=None))
    with pytest.raises(UsageError, match="--key is empty"):
        erase(people, " ")
    with pytest.raises(UsageError, match="has no events"):
        erase(people)
    read_in(people, [KEY])
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{KEY}\n"))
    assert erase(people, "-")["tables"][f"events/{people.name}"]["good"] == 1
    monkeypatch.setattr(pipelines, "load_all", lambda: ({}, {"bad": "pipelines/bad.py: is broken."}))
    with pytest.raises(UsageError, match=r"bad\.py: is broken: which models name.*nothing was erased"):
        erase(people)


@pytest.mark.mlflow
def test_models_that_named_the_bytes_are_told(
    people: Source, mlflow_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    read_in(people, ["bob"])
    read_in(people, [KEY], start=1)
    derive({"o0": "bob", "o1": KEY})
    registry.connect()
    import mlflow

    for version, number in ((1, 1), (2, 2)):
        logged = small_models.log_model(tmp_path, 2.0)
        said = {people.name: [{"version": version, "from": "2013-03-01", "to": "2013-03-05"}]}
        tables = {name: {"version": 0, "files": []} for name in ("examples", "labels")}
        snapshot = {"tables": tables, "sources": {"examples": said, "labels": said}}
        mlflow.MlflowClient().log_dict(logged.run_id, snapshot, "snapshot.json")
        assert small_models.register(pipeline(), logged, through=date(2013, 3, 5), run_id=f"run-{version}") == number
    report = erase(people)
    # Version 1 of the events has only bob, and the tables that both name were empty then.
    assert (report["models_not_reproducible"], report["registry"]) == (["erased/2"], "asked")
    assert events.TRIES == 10
