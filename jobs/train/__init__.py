"""Examples and labels -> a candidate: a registered model version that waits for the promotion's decision."""

import argparse

from jobs.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--when",
        choices=("due", "always", "never"),
        default="due",
        help="due: as often as the pipeline declares (default); always: now; never: only say so",
    )
    parser.add_argument("--ranks", type=int, metavar="N", help="processes that train together (default: as declared)")
    parser.add_argument("--epochs", type=int, metavar="N", help="the most passes over the training days (default: as declared)")


COMMANDS = (
    Command(
        name="train",
        help="train a candidate at the end of the range's last day, and register it",
        target="jobs.train.stage:run",
        subject="pipeline",
        interval=True,
        arguments=_arguments,
    ),
)
