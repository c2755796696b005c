"""A person's records go: from events, dead letters and what was computed of that person, and their bytes from the store."""

import argparse

from jobs.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--key",
        required=True,
        metavar="K",
        help="the person, as the source's declared subject field names them; - reads it from the standard input, so that no list "
        "of processes shows it",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would go, by table; change nothing")


COMMANDS = (
    Command(
        name="erase",
        help="take a person's records out of events, dead letters and what is derived, for good",
        target="jobs.erase.stage:run",
        subject="source",
        arguments=_arguments,
    ),
)
