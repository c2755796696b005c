"""Kafka against the events tables, position by position: is every record there once, and what has become of the others?"""

import argparse

from jobs.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--read-kafka",
        action="store_true",
        help="also read every record that Kafka still holds, and compare its position "
        "(default: where each partition begins and ends)",
    )


COMMANDS = (
    Command(
        name="audit",
        help="prove that each Kafka position is one row, or accounted for: no gap, no overlap (65 otherwise)",
        target="jobs.audit.stage:run",
        subject="source",
        arguments=_arguments,
    ),
)
