"""Records that did not fit their source's contract: see them, read them again once it is mended, or take responsibility."""

import argparse

from jobs.command import Command


def _which(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--day", metavar="DAY", help="only letters that reached Kafka on this UTC day (default: all days)")
    parser.add_argument("--reason", metavar="TEXT", help="only letters whose reason contains this text (default: all reasons)")


def _list(parser: argparse.ArgumentParser) -> None:
    _which(parser)
    parser.add_argument(
        "--samples",
        type=int,
        default=3,
        metavar="N",
        help="so many letters of each reason, with what looks secret masked; 0 shows none (default: 3)",
    )


def _replay(parser: argparse.ArgumentParser) -> None:
    _which(parser)
    parser.add_argument("--dry-run", action="store_true", help="only count what would fit now, and change nothing")


def _acknowledge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--day", required=True, metavar="DAY", help="the UTC day on which the letters reached Kafka")
    parser.add_argument("--to", dest="last", metavar="DAY", help="the last day, where it is several; it is included")
    parser.add_argument("--by", required=True, metavar="NAME", help="who takes responsibility; kept with the table for ever")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why the letters do no harm; kept too")


COMMANDS = (
    Command(
        name="dead-letters list",
        help="count the letters that are still dead, by reason, day and partition, and show some",
        target="jobs.dead_letters.show:run",
        subject="source",
        arguments=_list,
    ),
    Command(
        name="dead-letters replay",
        help="read dead letters again by today's contract; what fits becomes good rows, once",
        target="jobs.dead_letters.replay:run",
        subject="source",
        arguments=_replay,
    ),
    Command(
        name="dead-letters acknowledge",
        help="accept the dead letters of a day by name and reason, so that its features are no longer refused",
        target="jobs.dead_letters.acknowledge:run",
        subject="source",
        arguments=_acknowledge,
    ),
)
