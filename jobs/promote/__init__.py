"""Promotion: is the newest candidate better than the champion on the same days? The decision, kept for ever."""

import argparse

from jobs.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--when",
        choices=("due", "never"),
        default="due",
        help="due: decide what waits for a decision (default); never: decide nothing, as a backfill does",
    )


COMMANDS = (
    Command(
        name="promote",
        help="decide about each registered version that waits, and let the alias follow",
        target="jobs.promote.stage:run",
        subject="pipeline",
        interval=True,
        arguments=_arguments,
    ),
)
