"""A real Kafka broker: one node that is its own controller (KRaft), in one small JVM, on loopback."""

import base64
import logging
import os
import socket
import subprocess
import uuid
from pathlib import Path

from jobs import jars
from jobs.errors import RetryError, UsageError
from jobs.local.java import java
from jobs.local.ports import HOST, Ports

# At most about 400 MB in all: the heap, and what the JVM itself needs. C1 alone makes the start cheaper, and a laptop's broker is
# never busy long enough for C2 to pay.
JVM = (
    "-Xms128m",
    "-Xmx256m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxMetaspaceSize=128m",
    "-XX:MaxDirectMemorySize=64m",
)


def command(main: str, *arguments: str) -> list[str]:
    """A call of one of Kafka's main classes, with the small JVM's options."""
    # Spark's resolver leaves Scala's library out, so the wheel's serves.
    class_path = [*jars.fetch("kafka"), *jars.wheel_jars().glob("scala-library-*.jar")]
    dated = ("-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS")
    return [java(), *JVM, *dated, "-Djava.awt.headless=true", "-cp", os.pathsep.join(map(str, class_path)), main, *arguments]


def prepare(state: Path, ports: Ports) -> list[str]:
    """Writes the broker's settings, formats its storage the first time, and returns the command that runs it.

    Raises UsageError for a folder that Kafka can't name, RetryError where the storage can't be formatted.
    """
    home = state / "kafka"
    if "," in str(home):
        raise UsageError(
            f"The state folder {state} has a comma in its path, where Kafka sees two folders: set PENSTOCK_STATE to another."
        )
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "server.properties"
    settings.write_text("".join(f"{key}={_escaped(str(value))}\n" for key, value in properties(home / "data", ports).items()))
    if not (home / "data" / "meta.properties").exists():
        cluster = _cluster_id()
        done = subprocess.run(
            command("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RetryError(
                f"Kafka's storage in {home / 'data'} can't be formatted: {(done.stdout + done.stderr)[-600:].strip()}"
            )
    return command("kafka.Kafka", str(settings))


def properties(data: Path, ports: Ports) -> dict[str, object]:
    """The broker's settings."""
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{ports.controller}",
        "listeners": f"PLAINTEXT://{HOST}:{ports.kafka},CONTROLLER://{HOST}:{ports.controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{ports.kafka}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data,
        # A misspelt topic is an error, not an empty topic. One partition where nobody says more.
        "auto.create.topics.enable": "false",
        "num.partitions": 1,
        # A single node: what Kafka keeps for itself has one copy, in few partitions, since each costs files and time.
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        # Replayed history carries its own old timestamps, and the default of seven days would delete it within a minute.
        "log.retention.ms": -1,
        # Segments are preallocated in memory maps: small ones do for a laptop.
        "log.segment.bytes": 256 * 1024 * 1024,
        "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "background.threads": 2,
        "num.recovery.threads.per.data.dir": 1,
    }


def ready(port: int) -> bool:
    """Whether the broker answers for itself as a member of its cluster."""
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex((HOST, port)) != 0:
            return False
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    logging.getLogger("kafka").setLevel(logging.WARNING)  # At the level "info" it tells of each connection.
    try:
        admin = KafkaAdminClient(bootstrap_servers=f"{HOST}:{port}", request_timeout_ms=3000, bootstrap_timeout_ms=2000)
    except (KafkaError, OSError):
        return False
    try:
        return bool(admin.describe_cluster()["brokers"])
    except (KafkaError, OSError):
        return False
    finally:
        admin.close()


def _escaped(value: str) -> str:
    """A value as Java reads it from a file of properties, which is Latin-1 with escapes."""
    return "".join(letter if letter.isascii() else f"\\u{ord(letter):04x}" for letter in value.replace("\\", "\\\\"))


def _cluster_id() -> str:
    """A random id in Kafka's form: 16 bytes in URL-safe base64, without padding, and no leading dash."""
    return "p" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
