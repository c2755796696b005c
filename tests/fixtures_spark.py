"""One Spark session for a whole test run. A test that asks for it carries the mark `spark`."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from jobs.spark import session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that jobs find open, and leave open."""
    with session("penstock-tests") as opened:
        yield opened
