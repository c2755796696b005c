"""Upkeep of the lake: small files become large ones, and files that no version needs any more go."""

import argparse

from jobs.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would be compacted and deleted; change nothing")
    parser.add_argument(
        "--no-registry",
        action="store_true",
        help="vouch that no registered model names a version of these tables, where there is no registry to ask",
    )


COMMANDS = (
    Command(
        name="maintain",
        help="compact small files and delete what no version, run or registered model needs",
        target="jobs.maintain.stage:run",
        subject="source",
        arguments=_arguments,
    ),
)
