"""Data sets -> Kafka, with their own timestamps, so that every clock behind it sees history as it was."""

import argparse
from pathlib import Path

from jobs.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    """What each data set takes."""
    parser.add_argument(
        "--broken-every",
        type=int,
        default=0,
        metavar="N",
        help="after every N records of a topic send one that is damaged (default: none)",
    )
    parser.add_argument("--again", action="store_true", help="send also what Kafka holds already")


def _days(parser: argparse.ArgumentParser) -> None:
    """The days of a data set that is sent whole where none are given."""
    parser.add_argument("--from", dest="first", metavar="DAY", help="the first day, in UTC (default: the data set's)")
    parser.add_argument("--to", dest="last", metavar="DAY", help="the last day; it is included (default: the data set's)")
    _arguments(parser)


def _purchases(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="of all that is left to chance (default: 7)")
    parser.add_argument("--users", type=int, default=2_000, metavar="N", help="who may buy (default: 2000)")
    parser.add_argument("--days", type=int, default=100, metavar="N", help="days from 2024-01-01 on (default: 100)")
    parser.add_argument("--events", type=int, default=50_000, metavar="N", help="purchases on all the days (default: 50000)")
    _days(parser)


def _retail(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", type=Path, required=True, metavar="PATH", help="Parquet with the columns of Online Retail")
    _days(parser)


COMMANDS = (
    Command(
        name="replay flights",
        help="send the flights out of New York in 2013, by when each record was known",
        target="jobs.replay.stage:run",
        interval=True,
        arguments=_arguments,
    ),
    Command(
        name="replay purchases",
        help="send the purchases of a shop that is made out of a seed",
        target="jobs.replay.stage:purchases_made",
        arguments=_purchases,
    ),
    Command(
        name="replay retail",
        help="send a real shop's transactions as purchases",
        target="jobs.replay.stage:retail_read",
        arguments=_retail,
    ),
)
