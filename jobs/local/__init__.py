"""The embedded services for a laptop, a Kafka broker, an MLflow server and Airflow: `penstock up`, `down` and `demo`."""

import argparse

from jobs.command import Command


def _up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", default="kafka,mlflow,airflow", help="the services to start, with commas (default: %(default)s)"
    )


COMMANDS = (
    Command(name="up", help="start the embedded services and leave them running", target="jobs.local.run:up", arguments=_up),
    Command(name="down", help="stop what `up` started", target="jobs.local.run:down"),
    Command(name="demo", help="replay real flights and run the whole path", target="jobs.local.demo:run"),
)
