"""Running a pipeline: its stages in order without Airflow, the interval of an Airflow run, and what is declared."""

import argparse

from jobs.command import Command


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--train", choices=("due", "always", "never"), default="due", help="when to train and promote (default: due)"
    )


def _resolve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="first", default="", metavar="DAY", help="the first day that a person gave, or nothing")
    parser.add_argument("--to", dest="last", default="", metavar="DAY", help="the last day that a person gave, or nothing")
    parser.add_argument("--run-start", default="", metavar="INSTANT", help="where the Airflow run's data interval starts")
    parser.add_argument("--run-end", default="", metavar="INSTANT", help="where it ends")
    parser.add_argument("--run-type", default="manual", help="how Airflow started the run: scheduled, manual, backfill, …")
    parser.add_argument("--train", choices=("due", "always", "never"), default="due", help="what a person asked for")


COMMANDS = (
    Command(name="pipelines", help="list the declared pipelines and their sources", target="jobs.run.catalog:run"),
    Command(
        name="resolve",
        help="the days of an Airflow run, and whether it trains",
        target="jobs.run.resolve:run",
        subject="pipeline",
        arguments=_resolve,
    ),
    Command(
        name="run",
        help="all stages over a range of days, without Airflow",
        target="jobs.run.chain:run",
        subject="pipeline",
        interval=True,
        arguments=_run,
    ),
)
