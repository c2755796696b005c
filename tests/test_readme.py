"""The README's commands, as written: each is one that exists, with arguments that it takes."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import pipelines
from jobs import cli
from jobs.interval import parse_day

PROJECT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md")
QUICK = ("make help", "penstock pipelines", "penstock --help")
"""Commands that are cheap enough to be run here; the long ones are run by the tests of what they do."""


def commands() -> list[str]:
    """Every line of a fenced `sh` block, and every `penstock …` or `make …` in a page's prose that names a whole command."""
    text = "\n".join((PROJECT / page).read_text() for page in PAGES)
    fenced = [line for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL) for line in block.splitlines()]
    inline = re.findall(r"`((?:penstock|make) [^`…]+)`", text)
    lines = [line.split(" #")[0].strip() for line in [*fenced, *inline]]
    return sorted({line for line in lines if line.startswith(("penstock ", "make ")) and " NAME" not in line})


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_readme_exists_as_written(line: str) -> None:
    program, *arguments = shlex.split(line)
    if program == "make":
        planned = subprocess.run(["make", "-n", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
        assert planned.returncode == 0, planned.stderr
        return
    if arguments == ["--help"]:
        return
    known = {command.name: command for command in cli.discover()}
    options = cli._parser(known).parse_args(arguments)
    if known[options.command].subject == "pipeline":
        assert pipelines.load(options.subject)
    for day in (getattr(options, "first", None), getattr(options, "last", None)):
        assert not day or parse_day(day)


def test_the_readme_has_its_two_commands() -> None:
    assert {"make demo", "make test"} <= set(commands())


@pytest.mark.parametrize("line", QUICK)
def test_the_quick_ones_run(line: str) -> None:
    program, *arguments = line.split()
    command = ["make", *arguments] if program == "make" else [sys.executable, "-m", "jobs.cli", *arguments]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()


def test_every_file_that_the_pages_name_exists() -> None:
    pages = [PROJECT / page for page in PAGES] + sorted((PROJECT / "docs").rglob("*.md"))
    for page in pages:
        for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / path).exists(), f"{page.name} links to {path}, which is not there"


def test_every_path_in_backticks_exists() -> None:
    for page in PAGES:
        for path in re.findall(
            r"`((?:jobs|dags|pipelines|tests|docs|bin)/[a-z_/0-9]+(?:\.[a-z]+)?)`", (PROJECT / page).read_text()
        ):
            assert (PROJECT / path).exists(), f"{page} names {path}, which is not there"


def test_nothing_is_left_to_fill_in() -> None:
    for page in [PROJECT / page for page in PAGES] + sorted((PROJECT / "docs").rglob("*.md")):
        assert not re.search(r"@@|TODO|TBD", page.read_text()), f"{page.name} is not finished"
