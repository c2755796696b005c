"""A store that is away, or full, is for the next try; one that is missing or closed is for a person; nothing else is either."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError
from small_topic import assert_accounted, ingest, offsets, order, produce

from jobs import batches, lake, store
from jobs.errors import RetryError, UsageError
from jobs.ingest import plan
from pipelines.declare import Source

ROWS = pa.table({"value": pa.array(range(50_000), pa.int64())})

ASK = """
import resource, signal, sys
import pyarrow as pa
from jobs import account, batches, contract, lake, store
from jobs.errors import JobError
from jobs.files import Folder
from pipelines.declare import Field, Source

fields = (Field("id", required=True), Field("at", "timestamp", required=True))
source = Source(name="orders", topic="orders", fields=fields, event_time="at", event_id="id")
closure = account.Account(
    kind="ingest", batch="b", run_id="r", topic="orders", topic_id="i", epoch=0, partitions=[account.Partition(partition=0)]
)
rows = pa.table({"value": pa.array(range(50_000), pa.int64())})
table = lake.uri("t")
if sys.argv[1] == "full":
    lake.append(table, rows)
    contract.table(source)
    account.settle(source, closure=closure)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # Every write beyond this fails, as it does on a disk that is full.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
event_day = rows.append_column("event_date", pa.nulls(len(rows), pa.date32()))
asks = {
    "load": lambda: lake.load(table),
    "log": lambda: lake.log(table),
    "query": lambda: lake.query(lake.load(table), "select count(*) from t"),
    "create": lambda: lake.create(lake.uri("u"), rows.schema),
    "append": lambda: lake.append(table, rows),
    "replace": lambda: lake.replace(table, rows, where="true", partition_by=[]),
    "list": lambda: list(store.files(table)),
    "settle": lambda: account.settle(source, closure=closure),
    "write": lambda: Folder(table).write(event_day, prefix="p"),
}
for name in sys.argv[2:]:
    try:
        asks[name]()
        said = "done"
    except JobError as failure:
        said = f"{failure.exit_code} {failure}"
    except Exception as failure:
        said = f"70 {failure!r}"
    print(name, said.replace("\\n", " "), flush=True)
"""


@pytest.fixture(autouse=True)
def lake_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    return tmp_path / "lake"


def asked(how: str, *names: str) -> dict[str, str]:
    """What became of each ask, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, how, *names], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=300
    )
    assert done.returncode == 0
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def test_a_full_disk_is_for_the_next_try() -> None:
    told = asked("full", "load", "query", "create", "append", "replace", "settle", "write")
    assert {name: said.split()[0] for name, said in told.items()} == {
        **dict.fromkeys(("load", "query"), "done"),
        **dict.fromkeys(("create", "append", "replace", "settle", "write"), "75"),
    }
    assert all("File too large" in said and "Try again" in said for said in told.values() if said != "done")


def test_an_object_store_that_does_not_answer_is_for_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens on port 9 of this machine.
    address = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    for name, value in (address | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PENSTOCK_LAKE", "s3://lake")
    names = ("load", "log", "create", "append", "list", "write")
    told = asked("away", *names)
    assert {name: said.split()[0] for name, said in told.items()} == dict.fromkeys(names, "75"), told
    assert "s3://lake/t could not be loaded" in told["load"] and "\x1b" not in "".join(told.values())


def test_a_lake_that_is_no_folder_any_more_is_a_wrong_setting(lake_folder: Path) -> None:
    lake.append(lake.uri("t"), ROWS)
    table = lake.load(lake.uri("t"))
    assert table is not None
    lake_folder.rename(lake_folder.with_name("elsewhere"))
    lake_folder.write_text("")
    with pytest.raises(UsageError, match=r"could not be read \(.*Not a directory.*Correct PENSTOCK_LAKE"):
        lake.query(table, "select sum(value) from t")
    with pytest.raises(UsageError, match=r"could not be loaded \(.*Not a directory"):
        lake.load(lake.uri("t"))


def test_a_disk_that_fails_is_no_lake_without_tables(lake_folder: Path) -> None:
    lake.append(lake.uri("t"), ROWS)
    lake_folder.rename(lake_folder.with_name("elsewhere"))
    assert lake.load(lake.uri("t")) is None
    # What is asked now is answered with an error of the operating system that may pass.
    lake_folder.symlink_to(lake_folder)
    with pytest.raises(RetryError, match=r"could not be loaded \(.*symbolic links.*Try again"):
        lake.load(lake.uri("t"))


def test_what_is_no_failure_of_the_store_stays_what_it_is() -> None:
    lake.append(lake.uri("t"), ROWS)
    table = lake.load(lake.uri("t"))
    assert table is not None
    with pytest.raises(DeltaError, match="No field named nothing"):
        lake.query(table, "select nothing from t")
    with pytest.raises(DeltaError, match="version"):
        lake.load(lake.uri("t"), 7)
    for path in table.file_uris():
        Path(path).unlink()
    with pytest.raises(Exception, match="not found") as gone:
        lake.query(table, "select sum(value) from t")
    assert not isinstance(gone.value, RetryError | UsageError), "a file that is gone does not come back by waiting"
    with pytest.raises(CommitFailedError), store.asked("it could not be done"):
        raise CommitFailedError("a neighbour was first")


@pytest.mark.kafka
@pytest.mark.parametrize("arrived", [True, False])
def test_a_store_that_goes_away_with_a_commit_says_so(arrived: bool, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails while the commit is on its way, and does not answer whether it arrived."""
    produce(source, [order(n) for n in range(10)])
    ingest(source)
    produce(source, [order(n) for n in range(10, 15)])
    there = Path(batches.events_uri(source))
    write = plan.DeltaTable.create_write_transaction

    def lose(*arguments: Any, **options: Any) -> None:
        if arrived:
            write(*arguments, **options)
        # What is asked afterwards is answered by the operating system, with an error that may pass.
        there.rename(there.with_name("elsewhere"))
        there.symlink_to(there)
        raise OSError("the store went away")

    with monkeypatch.context() as patch:
        patch.setattr(plan.DeltaTable, "create_write_transaction", lose)
        with pytest.raises(RetryError, match=r"batch \w+ may or may not be committed.*The next run finds out"):
            ingest(source)
    there.unlink()
    there.with_name("elsewhere").rename(there)
    assert ingest(source)["good"] == (0 if arrived else 5)
    assert offsets(source) == [(0, n) for n in range(15)]
    assert_accounted(source)
