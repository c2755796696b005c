"""An ingest of several sources: each is complete by itself, and what is wrong with one hides nothing of the others."""

from argparse import Namespace
from typing import Any

import pytest
from small_topic import assert_accounted, create, declare, offsets, order, produce

from jobs.command import Job
from jobs.errors import DataError, RetryError
from jobs.ingest import catch_up, stage
from pipelines.declare import Source

pytestmark = pytest.mark.kafka


def together(*sources: Source) -> Job:
    return Job(command="ingest", options=Namespace(json=True), run_id="run", source=sources)


def bills(**more: Any) -> Source:
    made = declare(name="bills", **more)
    create(made.topic)
    return made


def test_a_commit_that_fails_leaves_the_others_in_the_report(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = bills()
    for one in (failing, source):
        produce(one, [order(n) for n in range(10)])
    commit = catch_up.commit

    def fail(of: Source, *arguments: Any, **options: Any) -> bool:
        if of.name == failing.name:
            raise RetryError("the store went away")
        return commit(of, *arguments, **options)

    monkeypatch.setattr(catch_up, "commit", fail)
    job = together(failing, source)
    with pytest.raises(RetryError, match="the store went away"):
        stage.run(job)
    assert {name: told["good"] for name, told in job.report["sources"].items()} == {"bills": 0, "orders": 10}
    assert len(offsets(source)) == 10
    assert_accounted(source)


def test_all_sources_with_too_many_dead_letters_are_told(source: Source) -> None:
    first, fine, last = bills(dead_letter_limit=0.1), source, declare(name="calls", dead_letter_limit=0.1)
    create(last.topic)
    for one in (first, fine, last):
        produce(one, [order(0), b"{", b"["])
    with pytest.raises(DataError) as refused:
        stage.run(together(first, fine, last))
    text = str(refused.value)
    assert "bills, 2013-04-01: 2 of 3" in text and "calls, 2013-04-01: 2 of 3" in text and "orders, " not in text
