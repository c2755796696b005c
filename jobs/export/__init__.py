"""From the lake to a SQL warehouse, for whoever asks by SQL: daily metrics and labels.

Each day that is exported replaces what the warehouse had of it, so it can be repeated at any time.
"""

from jobs.command import Command

COMMANDS = (
    Command(
        name="export",
        help="write the daily metrics and labels of a range of days to the SQL warehouse of PENSTOCK_WAREHOUSE",
        target="jobs.export.stage:run",
        subject="pipeline",
        interval=True,
    ),
)
