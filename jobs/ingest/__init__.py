"""Kafka -> events: every record once, as a good row or as a dead letter, and the account of what each batch read."""

from jobs.command import Command

COMMANDS = (
    Command(
        name="ingest",
        help="read what is new in Kafka into the events tables",
        target="jobs.ingest.stage:run",
        subject="source",
    ),
)
