"""What was computed of a person: rows of feature sets by the person, and of examples, labels and predictions by the keys of
their events.

What counts many people together (a mean over a carrier's passengers) stays as it was computed.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from jobs import batches, lake
from jobs.erase import rewriting
from jobs.erase.events import TRIES, Found
from jobs.erase.person import Mask, Person, as_text, equal
from jobs.errors import RetryError
from pipelines.declare import Pipeline, Source

log = logging.getLogger(__name__)

_BY_KEY = ("examples", "labels", "predictions")


@dataclass(kw_only=True)
class Target:
    """A table, and which of its rows have to go."""

    uri: str
    column: str
    texts: set[str] = field(repr=False)
    rows: dict[str, int] = field(default_factory=dict)
    """How many of a file's rows have to go: files never change, so each is read once."""
    erased: int = 0
    commits: int = 0

    def test(self, rows: pa.Table) -> Mask:
        """Which rows have to go."""
        return equal(rows, self.column, self.texts)

    def count(self, path: str) -> int:
        """How many of a file's rows have to go."""
        if path not in self.rows:
            self.rows[path] = rewriting.count(self.uri, path, (self.column,), self.test)
        return self.rows[path]


def named_by(person: Person, pipelines: list[Pipeline]) -> tuple[str, ...]:
    """The fields of the person's source by which examples and labels are named."""
    source = person.source.name
    return tuple(
        dict.fromkeys(
            [each.spine.key for each in pipelines if each.spine.source.name == source]
            + [each.label.key for each in pipelines if each.label.source.name == source]
        )
    )


def targets(person: Person, pipelines: list[Pipeline], found: Found) -> list[Target]:
    """The derived tables that are there, after all events were looked at."""
    wanted = []
    for pipeline in pipelines:
        for one in pipeline.features:
            if one.source.name == person.source.name and person.subject in one.entity:
                wanted.append(
                    Target(uri=lake.uri(pipeline.name, f"features_{one.name}"), column=person.subject, texts={person.key})
                )
        keys = _keys(person, pipeline, found)
        wanted += [Target(uri=lake.uri(pipeline.name, name), column="key", texts=keys) for name in _BY_KEY if keys]
    return [target for target in wanted if lake.load(target.uri) is not None]


def current(target: Target) -> int:
    """How many rows of the table as it stands have to go."""
    table = lake.load(target.uri)
    return sum(target.count(file.path) for file in rewriting.held(table)) if table is not None else 0


def erase(target: Target, run_id: str) -> None:
    """Take the rows out of a table. Raises RetryError where neighbours were always first."""
    for _ in range(TRIES):
        table = lake.load(target.uri)
        assert table is not None
        doomed = [file for file in rewriting.held(table) if target.count(file.path)]
        if not doomed:
            return
        try:
            rewriting.swap(target.uri, table, doomed, target.test, metadata={"penstock_erase": run_id}, transactions={})
        except (CommitFailedError, FileNotFoundError):
            log.info("%s: an erasure was not committed: a neighbour was first", target.uri)
            continue
        except (DeltaError, OSError) as failure:
            raise RetryError(f"{target.uri}: the erasure could not be committed ({failure}). Try again.") from failure
        target.erased += sum(target.count(file.path) for file in doomed)
        target.commits += 1
        return
    raise RetryError(
        f"{target.uri}: the erasure was lost to other writers {TRIES} times. What is erased stays so; stop them, or try again."
    )


def _keys(person: Person, pipeline: Pipeline, found: Found) -> set[str]:
    """The keys of the person's examples: those of the events seen, and where the spine names the person itself, the spine's."""
    keys: set[str] = set()
    for source, key in ((pipeline.spine.source, pipeline.spine.key), (pipeline.label.source, pipeline.label.key)):
        if source.name == person.source.name:
            keys |= found.keys(key)
    spine = pipeline.spine.source
    if spine.name != person.source.name and any(one.name == person.subject for one in spine.fields):
        keys.update(_in_spine(person, spine, pipeline.spine.key))
    return keys


def _in_spine(person: Person, spine: Source, key: str) -> Iterator[str]:
    table = lake.load(batches.events_uri(spine))
    if table is None:
        return
    for file in rewriting.held(table):
        for block in rewriting.blocks(batches.events_uri(spine), file.path, (person.subject, key)):
            if key in block.column_names:
                some = block.filter(pa.array(equal(block, person.subject, {person.key})))
                yield from (text for text in as_text(some.column(key)).to_pylist() if text is not None)
