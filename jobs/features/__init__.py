"""From events to features, examples and labels: `penstock features PIPELINE --from D --to D`.

Days that stand as they are are left alone. The others are computed in chunks of consecutive days, each in one pass, and a range
gives what its days give one by one. What a day may know is decided by two clocks, when an event happened and when it reached
Kafka; see `windows.py` for the method.
"""

import argparse
from typing import Any

from jobs.command import Command


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="compute all days, also those that stand as they are")
    parser.add_argument(
        "--chunk-days",
        type=int,
        default=92,
        metavar="N",
        help="the most days that are computed together; a killed run goes on after its last whole chunk (default: 92)",
    )
    parser.add_argument(
        "--preview",
        action=_Preview,
        metavar="DAY",
        help="write nothing: show an entity's values at the end of DAY, and the events they came from, to the Kafka offset",
    )
    parser.add_argument(
        "--entity",
        metavar="K",
        help="with --preview, whose: the value of its field, or each field, as user=ann,shop=3 or as JSON, "
        """'{"user": "a,b", "shop": 3}'""",
    )


class _Preview(argparse.Action):
    """A preview is about one day, which is its interval."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: str | None = None) -> None:
        if namespace.first or namespace.last:
            raise argparse.ArgumentError(self, "it is about one day: leave --from and --to out")
        namespace.preview = namespace.first = namespace.last = values


COMMANDS = (
    Command(
        name="features",
        help="compute the features, examples and labels of a range of days",
        target="jobs.features.stage:run",
        subject="pipeline",
        interval=True,
        arguments=_arguments,
    ),
)
