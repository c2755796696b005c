"""The rows of a table at a version, as a frame."""

import json
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from jobs import lake
from jobs.interval import Interval

_PATTERNS = frozenset("*?[]{}")
"""What Spark takes for a pattern in the name of a file."""


def stored(spark: SparkSession, uri: str, version: int, partition: str, days: Interval) -> DataFrame:
    """The rows of some days, by the column that a table is partitioned by.

    On a disk, Spark is told the files by name: it asks the log anew for each frame that is made of the rows, by a job of its own,
    and a day's features are many frames. In an object store each name would cost a request, of which the log saves all.
    """
    table = lake.load(uri, version)
    assert table is not None
    within = fn.col(partition).between(fn.lit(days.start), fn.lit(days.last))
    # What files don't show by themselves: rows that are marked as deleted, columns under other names.
    plain = not table.protocol().reader_features and table.protocol().min_reader_version == 1
    if "://" in uri or not plain or _PATTERNS & set(uri):
        return spark.read.format("delta").option("versionAsOf", version).load(uri).where(within)
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    # Delta writes places as URLs.
    names = [unquote(name) for name in table.file_uris([(partition, ">=", str(days.start)), (partition, "<=", str(days.last))])]
    if not names:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", uri).parquet(*names).where(within)
