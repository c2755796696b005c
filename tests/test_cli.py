"""The job contract at the command line: exit codes, messages and run reports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import cli
from jobs.command import Command, Job
from jobs.errors import DataError, RetryError, UsageError


def penstock(*arguments: str, lake: Path) -> subprocess.CompletedProcess[str]:
    """One call of the command, as a shell would make it, with the lake given and no service."""
    environment = {"PENSTOCK_LAKE": str(lake), "PENSTOCK_STATE": str(lake / "state"), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "jobs.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def test_help_teaches_the_exit_codes(tmp_path: Path) -> None:
    shown = penstock("--help", lake=tmp_path)
    assert shown.returncode == 0
    for word in ("ingest", "features", "train", "promote", "score", "run", "replay", "75"):
        assert word in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["features", "flight_delay", "--from", "2013-01-01", "--to", "2013-01-01"], "did you mean 'flight_delays'"),
        (["ingest", "flights_lande"], "did you mean 'flights_landed'"),
        (["features", "flight_delays"], "no days were given"),
        (["features", "flight_delays", "--from", "2013-01-02", "--to", "2013-01-01"], "is after"),
        (["features", "flight_delays", "--from", "2099-01-01", "--to", "2099-01-01"], "is not over"),
        (["features"], "the following arguments are required: PIPELINE"),
        (["featurs"], "invalid choice: 'featurs'"),
        (["dead-letters"], "the following arguments are required: ACTION"),
        (["dead-letters", "lst", "flights_landed"], "invalid choice: 'lst' (choose from 'list', 'replay', 'acknowledge')"),
        (["dead-letters", "list", "flights_lande"], "did you mean 'flights_landed'"),
        (["dead-letters", "replay", "flights_landed", "--day", "April"], "'April' is not a day"),
        (["dead-letters", "acknowledge", "flights_landed", "--day", "2013-04-01", "--by", "ann"], "required: --reason"),
        (
            ["dead-letters", "acknowledge", "flight_delays", "--day", "2013-04-01", "--by", "ann", "--reason", "x"],
            "flight_delays reads several sources: acknowledge one of them at a time",
        ),
        (["score", "flight_delays", "--form", "2013-01-01"], "unrecognized arguments: --form"),
    ],
)
def test_wrong_arguments_end_with_64_and_say_why(arguments: list[str], words: str, tmp_path: Path) -> None:
    ended = penstock(*arguments, lake=tmp_path)
    assert ended.returncode == 64
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_missing_endpoint_names_itself_and_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    ended = penstock("ingest", "flights_landed", lake=tmp_path)
    assert ended.returncode == 64
    assert "KAFKA_BOOTSTRAP_SERVERS is not set" in ended.stderr and "make up" in ended.stderr


def test_resolve_answers_as_data_and_keeps_its_report(tmp_path: Path) -> None:
    copy = tmp_path / "report.json"
    arguments = ["--run-start", "2013-04-01T00:00:00+00:00", "--run-end", "2013-04-02T00:00:00+00:00", "--run-type", "backfill"]
    ended = penstock("resolve", "flight_delays", *arguments, "--run-id", "b/1", "--json", "--report", str(copy), lake=tmp_path)
    assert ended.returncode == 0
    printed = json.loads(ended.stdout)
    assert printed == json.loads(copy.read_text())
    assert (printed["first"], printed["last"], printed["closes_at"]) == ("2013-04-01", "2013-04-01", "2013-04-02T03:00:00+00:00")
    assert (printed["train"], printed["promote"]) == ("never", "never"), "a backfill never trains and never promotes"
    kept = list(tmp_path.glob("reports/flight_delays/resolve/*.json"))
    assert len(kept) == 1 and json.loads(kept[0].read_text()) == printed


def test_a_command_of_two_words_is_one_of_a_group(tmp_path: Path) -> None:
    shown = penstock("dead-letters", "--help", lake=tmp_path)
    assert shown.returncode == 0
    assert "usage: penstock dead-letters [-h] ACTION" in shown.stdout
    for word in ("list", "replay", "acknowledge", "75"):
        assert word in shown.stdout
    ended = penstock("dead-letters", "list", "flights_landed", "--json", lake=tmp_path)
    assert ended.returncode == 0
    told = json.loads(ended.stdout)
    assert (told["command"], told["subject"]) == ("dead-letters list", "flights_landed")
    assert told["sources"]["flights_landed"]["pending"] == 0
    kept = list(tmp_path.glob("reports/flights_landed/*/*.json"))
    assert [path.parent.name for path in kept] == ["dead-letters_list"]
    # Samples of what people sent are shown, and kept nowhere.
    assert told.pop("samples") == {"flights_landed": {}}
    assert json.loads(kept[0].read_text()) == told


def test_a_report_that_cant_be_written_changes_no_exit_code(tmp_path: Path) -> None:
    days = ("--from", "2013-04-01", "--to", "2013-04-01")
    ended = penstock("resolve", "flight_delays", *days, "--report", str(tmp_path / "nowhere" / "report.json"), lake=tmp_path)
    assert ended.returncode == 0
    assert "could not be written" in ended.stderr and "Traceback" not in ended.stderr
    assert len(list(tmp_path.glob("reports/flight_delays/resolve/*.json"))) == 1


@pytest.mark.parametrize(("failure", "code"), [(UsageError, 64), (DataError, 65), (RetryError, 75), (ZeroDivisionError, 70)])
def test_each_failure_has_its_exit_code_and_a_report(
    failure: type[Exception], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(job: Job) -> None:
        job.report["rows"] = 3
        raise failure("the value, the rule, the remedy")

    command = Command(name="fail", help="", target="", subject="pipeline", interval=True)
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))
    monkeypatch.setattr(cli, "discover", lambda: [command])
    monkeypatch.setattr(Command, "load", lambda _: fail)
    assert cli.main(["fail", "flight_delays", "--from", "2013-04-01", "--to", "2013-04-02", "--json"]) == code
    printed = json.loads(capsys.readouterr().out)
    assert printed["exit_code"] == code and printed["rows"] == 3 and "the remedy" in printed["message"]
    assert printed["interval"] == ["2013-04-01", "2013-04-03"]
