"""Spark's own Kafka source as one process: `python -m benchmarks.spark_source TOPIC JVM`.

A batch into a table partitioned by day. Two cores, the session's settings as Penstock's jobs have them. `JVM` is `short` for
Penstock's flags, made for short jobs, or `long` for the JVM's own defaults, whose second compiler pays where much is read. Prints
what it took, as JSON.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from jobs import jars
from jobs.spark import EVERYWHERE, JVM


def main() -> None:
    """Read all that the topic holds, decode it, write it."""
    began = time.monotonic()
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as fn

    topic, flags = sys.argv[1], JVM if sys.argv[2] == "short" else ()
    with tempfile.TemporaryDirectory() as scratch:
        files = [str(path) for name in ("spark", "spark-kafka") for path in jars.fetch(name)]
        settings = EVERYWHERE | {
            "spark.master": "local[2]",
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            "spark.local.dir": scratch,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.driver.extraClassPath": ":".join(files),
            "spark.driver.extraJavaOptions": " ".join((*flags, f"-Dderby.system.home={scratch}")),
            "spark.sql.shuffle.partitions": "2",
        }
        builder = SparkSession.builder.appName("spark-source")
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        opened = time.monotonic()
        records = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", os.environ["KAFKA_BOOTSTRAP_SERVERS"])
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("endingOffsets", "latest")
            .load()
        )
        schema = "id string, at timestamp, count bigint, ratio double, kind string"
        event = fn.from_json(fn.col("value").cast("string"), schema)
        table = Path(os.environ["PENSTOCK_LAKE"]) / "spark"
        (
            records.select(event.alias("e"), "timestamp", "partition", "offset")
            .select("e.*", "timestamp", "partition", "offset")
            .withColumn("event_date", fn.to_date("at"))
            .write.format("delta")
            .partitionBy("event_date")
            .save(str(table))
        )
        done = time.monotonic()
        spark.stop()
    print(json.dumps({"session": opened - began, "work": done - opened}))


if __name__ == "__main__":
    main()
