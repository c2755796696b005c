"""No secret in what a job says: its messages, its log, its tracebacks, its reports, and samples of broken records."""

import base64
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import cli, report
from jobs.command import Command, Job
from jobs.errors import RetryError
from jobs.secrets import Masked, mask, mask_fields

PASSWORD = 'hunt"er\\2 /é'


@pytest.mark.parametrize(
    "name",
    [
        "KAFKA_SECURITY_PASSWORD",
        "KAFKA_SECURITY_KEY_PASSWORD",
        "KAFKA_CLIENT_SASL_OAUTHBEARER_CONFIG",
        "KAFKA_CLIENT_SASL_USERNAME",
        "KAFKA_CLIENT_SSL_KEY_PEM",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "SOME_API_KEY",
        "VAULT_SECRET_ID",
        "GOOGLE_CREDENTIALS",
    ],
)
def test_the_value_of_a_secret_variable_is_hidden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, PASSWORD)
    # As it is, and as Python, JSON and an address write it.
    for written in (PASSWORD, repr(PASSWORD), json.dumps(PASSWORD), "https://me:hunt%22er%5C2%20%2F%C3%A9@host/"):
        shown = mask(f"before {written} after")
        assert "er" not in shown.replace("before", "").replace("after", ""), shown
        assert shown.startswith("before ") and shown.endswith(" after") and "***" in shown


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KAFKA_SECURITY_KEY_FILE", "/etc/penstock/client.key"),
        ("AIRFLOW_PASSWORD_FILE", "/run/password"),
        ("AWS_ACCESS_KEY_ID", "AKIA0000000000000000"),
        ("KAFKA_SECURITY_USERNAME", "penstock"),
        ("KAFKA_SECURITY_MECHANISM", "PLAIN"),
        ("KAFKA_CLIENT_SASL_MECHANISM", "PLAIN"),
        ("PENSTOCK_LAKE", "s3://lake/penstock"),
        ("SOME_PASSWORD", "abc"),
        ("TOKEN_CHECK", "true"),
    ],
)
def test_what_a_reader_needs_is_shown(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert mask(f"{name} is {value}.") == f"{name} is {value}."


def test_a_password_in_an_address_is_hidden_there_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mary:swordfish@mlflow:5000")
    assert mask("no answer from https://mary:swordfish@mlflow:5000/api") == "no answer from https://mary:***@mlflow:5000/api"
    assert mask("login with 'swordfish' failed") == "login with '***' failed"
    assert mask("ftp://other:unheard@host") == "ftp://other:***@host"
    assert mask("http://host:8080/a@b and s3://bucket/path") == "http://host:8080/a@b and s3://bucket/path"


def test_a_private_key_is_hidden_whole_and_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    line = base64.b64encode(bytes(range(48))).decode()
    key = f"-----BEGIN PRIVATE KEY-----\n{line}\n{line[::-1]}\n-----END PRIVATE KEY-----\n"
    assert mask(f"can't read {key}!") == "can't read ***\n!"
    monkeypatch.setenv("KAFKA_CLIENT_SSL_KEY_PEM", key)
    assert mask(f"bad line: {line[::-1]}") == "bad line: ***"


@given(
    st.text(min_size=4).filter(
        lambda text: text.strip() == text and "\0" not in text and text.lower() not in ("true", "none", "null")
    )
)
def test_no_text_that_can_be_a_password_gets_through(password: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        try:
            patch.setenv("KAFKA_SECURITY_PASSWORD", password)
        except UnicodeEncodeError:
            return  # Not to be had in an environment.
        if password in ("***", "****"):
            return
        assert password not in mask(f"<{password}>").replace("***", "")
        told = report.dumps({"message": f"<{password}>", "n": 1234, "yes": True})
        assert password not in json.loads(told)["message"].replace("***", "")
        assert (json.loads(told)["n"], json.loads(told)["yes"]) == (1234, True)


def test_a_log_and_its_tracebacks_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SECURITY_PASSWORD", PASSWORD)
    try:
        raise ValueError(PASSWORD)
    except ValueError:
        record = logging.LogRecord("x", logging.INFO, "f", 1, "user %r", (PASSWORD,), sys.exc_info())
    shown = Masked("%(message)s").format(record)
    assert "user '***'" in shown and "ValueError: ***" in shown and "hunt" not in shown


@pytest.mark.parametrize("failure", [RetryError, ZeroDivisionError])
def test_a_command_shows_no_secret_however_it_ends(
    failure: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAFKA_SECURITY_PASSWORD", PASSWORD)
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path))

    def fail(job: Job) -> None:
        job.report["said"] = {"by": [PASSWORD, {PASSWORD: 1}]}
        raise failure(f"not with {PASSWORD}")

    command = Command(name="fail", help="", target="", subject="pipeline")
    monkeypatch.setattr(cli, "discover", lambda: [command])
    monkeypatch.setattr(Command, "load", lambda _: fail)
    copy = tmp_path / "copy.json"
    assert cli.main(["fail", "flight_delays", "--json", "--report", str(copy)]) in (70, 75)
    shown = capsys.readouterr()
    (kept,) = tmp_path.glob("reports/flight_delays/fail/*.json")
    assert json.loads(shown.out)["said"] == {"by": ["***", {"***": 1}]}
    for text in (shown.out, shown.err, kept.read_text(), copy.read_text()):
        assert "hunt" not in text and "not with ***" in text


def test_the_commands_log_is_masked_in_a_process_of_its_own() -> None:
    code = (
        "import logging; from jobs.secrets import log_to_stderr; log_to_stderr(); logging.getLogger('a').info('it is swordfish')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env={"THE_SECRET": "swordfish", "PATH": ""}, capture_output=True, text=True, check=True
    )
    assert ended.stderr.strip().endswith("it is ***")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b'{"id": 7, "password": "swordfish", "city": "Oslo"}', '{"id": 7, "password": "***", "city": "Oslo"}'),
        (b'{"user_Password":"sword\\"fish","a":1}', '{"user_Password":"***","a":1}'),
        (b'{"id": 7, "secret": "swordfi', '{"id": 7, "secret": "***"'),
        (b'{"client_secret": ["sword", "fish"], "a": 1}', '{"client_secret": "***", "a": 1}'),
        (b'{"card": {"number": "swordfish"}, "a": 1}', '{"card": "***", "a": 1}'),
        (b'{"pin": 1234, "shipping": "fast", "a": 1}', '{"pin": ***, "shipping": "fast", "a": 1}'),
        (b"{'token': 'swordfish', 'a': 1}", "{'token': \"***\", 'a': 1}"),
        (b"user=7&api_key=swordfish&a=1", "user=7&api_key=***&a=1"),
        (b'{"apiKey": null, "iban": "NO93 8601 1117 947"}', '{"apiKey": ***, "iban": "***"}'),
        (b'"Authorization": "Bearer swordfish.abc"', '"Authorization": "***"'),
        (b'{"h": "bearer swordfish.abc-_"}', '{"h": "bearer ***"}'),
        (b'{"mail": "mary.jane@example.com"}', '{"mail": "m***@example.com"}'),
        (b'{"n": 4111111111111111, "m": "4111 1111 1111 1111", "k": 12345678901}', '{"n": ***, "m": "***", "k": 12345678901}'),
        (b'{"at": "2013-04-01T10:00:00.123456Z", "v": 0.123456}', '{"at": "2013-04-01T10:00:00.123456Z", "v": 0.123456}'),
        (b"\xff\x00\n{", "\N{REPLACEMENT CHARACTER}· {"),
        (b"", ""),
        (None, ""),
    ],
)
def test_a_sample_of_a_record_shows_what_is_wrong_and_no_secret(raw: bytes | None, shown: str) -> None:
    assert mask_fields(raw) == shown


def test_a_sample_is_short_and_quick_whatever_the_record() -> None:
    assert len(mask_fields(b"x" * 5_000_000)) == 200
    assert mask_fields(b"x" * 5_000_000).endswith("…")
    # A secret that begins beyond what is shown, or is cut by it.
    assert "swordfish" not in mask_fields(b'{"a": "' + b"y" * 150 + b'", "password": "' + b"swordfish" * 100)


@given(st.binary(max_size=3000))
def test_any_bytes_give_a_printable_line(raw: bytes) -> None:
    shown = mask_fields(raw)
    assert len(shown) <= 200 and shown.isprintable()


@given(st.sampled_from(["password", "x_token", "api-key", "card"]), st.integers(0, 60))
def test_a_cut_record_shows_no_value_of_a_secret_field(name: str, cut: int) -> None:
    raw = f'{{"id": 17, "{name}": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}}'.encode()
    assert "ABC" not in mask_fields(raw[:cut])
