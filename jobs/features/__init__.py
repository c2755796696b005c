"""From events to features, examples and labels: `penstock features PIPELINE --from D --to D`.

All days of a range are computed in one pass, and a range gives what its days give one by one. What a day may know is
decided by two clocks, when an event happened and when it reached Kafka; see `windows.py` for the method.
"""

from jobs.command import Command

COMMANDS = (
    Command(
        name="features",
        help="compute the features, examples and labels of a range of days",
        target="jobs.features.stage:run",
        subject="pipeline",
        interval=True,
    ),
)
