"""Scoring: the champion and the coming day's examples become predictions."""

from jobs.command import Command

COMMANDS = (
    Command(
        name="score",
        help="score the examples of the days that follow each day of the range",
        target="jobs.score.stage:run",
        subject="pipeline",
        interval=True,
    ),
)
