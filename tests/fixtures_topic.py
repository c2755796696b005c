"""A source of its own for a test that asks for one, on the broker of the test run."""

from pathlib import Path

import pytest
import small_topic

from pipelines.declare import Source


@pytest.fixture
def source(kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A source on a topic of two partitions of its own, and a lake of its own."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka)
    monkeypatch.setenv("PENSTOCK_LAKE", str(tmp_path / "lake"))
    declared = small_topic.declare()
    small_topic.create(declared.topic)
    return declared
