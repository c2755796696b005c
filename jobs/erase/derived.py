"""What was computed of a person: rows of feature sets and tiles by the person, and of examples, labels and predictions by the
keys of their events, or of the person where an example is an entity on a day. Of each table all versions, whatever declared them.

What counts many people together (a mean over a carrier's passengers) stays as it was computed.
"""

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import CommitFailedError, DeltaError

from jobs import batches, lake, versions
from jobs.erase import rewriting
from jobs.erase.events import TRIES, Found
from jobs.erase.person import Mask, Person, as_text, equal
from jobs.errors import RetryError
from pipelines.declare import DailySpine, Pipeline, Source, Spine

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Target:
    """A table, and which of its rows have to go."""

    uri: str
    column: str
    texts: set[str] = field(repr=False)
    place: int | None = None
    """Where the column holds JSON arrays, which of their values the texts are."""
    rows: dict[str, int] = field(default_factory=dict)
    """How many of a file's rows have to go: files never change, so each is read once."""
    erased: int = 0
    commits: int = 0

    def test(self, rows: pa.Table) -> Mask:
        """Which rows have to go."""
        if self.place is None or self.column not in rows.column_names:
            return equal(rows, self.column, self.texts)
        whole = {text for text in pc.unique(rows.column(self.column)).to_pylist() if text is not None}
        return equal(rows, self.column, {text for text in whole if self._says(text)})

    def _says(self, text: str) -> bool:
        try:
            value = json.loads(text)[self.place]
        except (ValueError, TypeError, IndexError, KeyError):
            return False  # Of an earlier declaration, which made its keys otherwise.
        return (value if isinstance(value, str) else json.dumps(value)) in self.texts

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
            [each.spine.key for each in pipelines if isinstance(each.spine, Spine) and each.spine.source.name == source]
            + [each.label.key for each in pipelines if each.label.key is not None and each.label.source.name == source]
        )
    )


def targets(person: Person, pipelines: list[Pipeline], found: Found) -> list[Target]:
    """The derived tables that are there, after all events were looked at."""
    wanted = []
    for pipeline in pipelines:
        for one in pipeline.features:
            if one.source.name == person.source.name:
                places = (uri for kind in ("features", "tiles") for uri in versions.every(pipeline, f"{kind}_{one.name}"))
                wanted += [Target(uri=uri, column=person.subject, texts={person.key}) for uri in places]
        # Of which source these were, nothing says any more: rows by a field of this name are taken for the person's.
        wanted += [Target(uri=uri, column=person.subject, texts={person.key}) for uri in versions.undeclared(pipeline)]
        predictions = lake.uri(pipeline.name, "predictions")
        places_by_key = [*versions.every(pipeline, "examples"), *versions.every(pipeline, "labels"), predictions]
        spine = pipeline.spine
        if isinstance(spine, DailySpine) and person.subject in spine.entity:
            place = spine.entity.index(person.subject) if len(spine.entity) > 1 else None
            wanted += [Target(uri=uri, column="key", texts={person.key}, place=place) for uri in places_by_key]
        if keys := _keys(person, pipeline, found):
            wanted += [Target(uri=uri, column="key", texts=keys) for uri in places_by_key]
    # An earlier declaration may have had another entity, or none of the person.
    return [target for target in wanted if target.column in _columns(target.uri)]


def _columns(uri: str) -> set[str]:
    """The columns of a table; none where there is no table."""
    table = lake.load(uri)
    return set() if table is None else {column.name for column in table.schema().fields}


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
    spine, label = pipeline.spine, pipeline.label
    if label.key is not None and label.source.name == person.source.name:
        keys |= found.keys(label.key)
    if not isinstance(spine, Spine):
        return keys
    if spine.source.name == person.source.name:
        keys |= found.keys(spine.key)
    elif any(one.name == person.subject for one in spine.source.fields):
        keys.update(_in_spine(person, spine.source, spine.key))
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
