"""What the declared expectations said of each day: see it, or take responsibility for a breach."""

import argparse

from jobs.command import Command


def _accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--by", required=True, metavar="NAME", help="who takes responsibility; kept in the table")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why the data is right as it is; kept too")


COMMANDS = (
    Command(
        name="quality show",
        help="what each expectation measured, day by day",
        target="jobs.quality.stage:show",
        subject="pipeline",
        interval=True,
    ),
    Command(
        name="quality accept",
        help="accept the breaches of a range of days by name and reason, so that later stages go on",
        target="jobs.quality.stage:accept",
        subject="pipeline",
        interval=True,
        arguments=_accept,
    ),
)
