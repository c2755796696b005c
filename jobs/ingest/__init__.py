"""Kafka -> events: every record once, as a good row or as a dead letter, and the account of what each batch read."""

import argparse

from jobs.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    bound = parser.add_argument_group("how far")
    bound.add_argument(
        "--until",
        metavar="TIME",
        help="stop before the first record of each partition at or after this instant, for example 2013-04-01T06:00:00Z; "
        "such a run closes no day (default: where Kafka ends when the run begins)",
    )
    who = parser.add_argument_group("who reads")
    who.add_argument(
        "--engine",
        choices=("local", "spark"),
        default="local",
        help="local: as many processes as this machine has cores (default); spark: tasks on the executors of SPARK_MASTER. "
        "Any mix of both gives the same table",
    )
    accept = parser.add_argument_group("after a refusal (exit code 65), when a person has decided")
    accept.add_argument(
        "--accept-loss",
        action="store_true",
        help="go on where Kafka begins, though retention took records that were never read; the loss is recorded",
    )
    accept.add_argument(
        "--accept-new-topic",
        action="store_true",
        help="the topic was created again, or ends below what was read: read it from its beginning, beside what was read before",
    )
    accept.add_argument(
        "--rebuild",
        action="store_true",
        help="read all that Kafka still has again, by today's contract, and swap it in for the table when it is complete",
    )
    service = parser.add_argument_group("as a service")
    service.add_argument("--continuous", action="store_true", help="go on until SIGTERM, with a commit every so often")
    service.add_argument("--every", type=float, metavar="SECONDS", help="the longest wait for the next commit (default: 60)")
    service.add_argument("--megabytes", type=float, metavar="M", help="commit sooner once so much waits in Kafka (default: 64)")
    service.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve lag, freshness and counts to Prometheus here; without a host on loopback alone (default: nowhere)",
    )


COMMANDS = (
    Command(
        name="ingest",
        help="read what is new in Kafka into the events tables",
        target="jobs.ingest.stage:run",
        subject="source",
        arguments=_arguments,
    ),
)
