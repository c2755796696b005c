"""A real data set -> Kafka, with its own timestamps, so that every clock behind it sees history as it was."""

import argparse

from jobs.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", choices=("flights",), help="the data set: flights (out of New York, 2013)")
    parser.add_argument(
        "--broken-every",
        type=int,
        default=0,
        metavar="N",
        help="after every N records of a topic send one that is damaged (default: none)",
    )
    parser.add_argument("--again", action="store_true", help="send also what Kafka holds already")


COMMANDS = (
    Command(
        name="replay",
        help="send the days of a real data set to Kafka, by when each record was known",
        target="jobs.replay.stage:run",
        interval=True,
        arguments=_arguments,
    ),
)
