"""The records of the benchmarks, and the topics that hold them."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.kafka import Cluster
from pipelines.declare import Field, Source

PARTITIONS = 4
START = datetime(2013, 4, 1, tzinfo=UTC)
FIELDS = (
    Field("id", required=True),
    Field("at", "timestamp", required=True),
    Field("count", "int64"),
    Field("ratio", "float64"),
    Field("kind"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A topic's worth of records."""

    records: int
    days: int = 1
    """Over so many days the event times are spread, in order."""
    broken_every: int | None = None
    """One in so many can't be decoded; None: all can."""

    @property
    def topic(self) -> str:
        """Its topic's name, which tells it all."""
        return f"load-{self.records}-{self.days}d-{self.broken_every or 'clean'}"

    @property
    def broken(self) -> int:
        """How many can't be decoded."""
        return len(range(0, self.records, self.broken_every)) if self.broken_every else 0

    @property
    def source(self) -> Source:
        """The source that reads it."""
        return Source(name="load", topic=self.topic, event_time="at", event_id="id", fields=FIELDS)

    def fill(self) -> None:
        """Create the topic and send the records, of about 100 bytes each, with their event times as Kafka's timestamps."""
        from confluent_kafka import Producer

        from jobs.kafka import client_settings

        keeping = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
        Cluster().create(self.topic, partitions=PARTITIONS, configuration=keeping)
        producer = Producer(
            client_settings() | {"linger.ms": 20, "batch.size": 1 << 20, "compression.type": "lz4", "acks": "all"}
        )
        step = timedelta(days=self.days) / self.records
        for number in range(self.records):
            at = START + number * step
            value = (
                f'{{"id":"e{number:012d}","at":"{at.isoformat()}","count":{number % 1000},'
                f'"ratio":{number % 9973 / 9973:.6f},"kind":"k{number % 17}"}}'
            )
            if self.broken_every and number % self.broken_every == 0:
                value = value[:-9]
            while True:
                try:
                    milliseconds = int(at.timestamp() * 1000)
                    producer.produce(self.topic, value, partition=number % PARTITIONS, timestamp=milliseconds)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 10_000 == 0:
                producer.poll(0)
        if left := producer.flush(120):
            raise SystemExit(f"benchmarks: Kafka did not take {left} of the {self.records} records of {self.topic}.")
        # What the broker still does with them is not the readers' time.
        time.sleep(min(5.0, self.records / 200_000))
