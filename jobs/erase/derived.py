"""What was computed of a person: rows of feature sets and tiles by the person, and of examples, labels and predictions by the
keys of their events, or of the person where an example is an entity on a day. Each table says itself what its rows are made of,
so tables of earlier declarations are found too, and those of pipelines that read the source no more.

What counts many people together (a mean over a carrier's passengers) stays as it was computed.
"""

import functools
import json
import logging
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import CommitFailedError, DeltaError

from jobs import lake, store
from jobs.erase import rewriting
from jobs.erase.events import TRIES, Found
from jobs.erase.person import Mask, Person, as_text, equal
from jobs.errors import RetryError, UsageError
from jobs.made_of import MadeOf

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class Mark:
    """By what a table's rows are told that have to go."""

    column: str
    texts: set[str] = field(repr=False)
    place: int | None = None
    """Where the column holds JSON arrays, which of their values the texts are."""

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
            return False  # Predictions have keys of all the declarations that there were.
        return (value if isinstance(value, str) else json.dumps(value)) in self.texts


@dataclass(kw_only=True)
class Target:
    """A table, and which of its rows have to go."""

    uri: str
    marks: list[Mark]
    rows: dict[str, int] = field(default_factory=dict)
    """How many of a file's rows have to go: files never change, so each is read once."""
    erased: int = 0
    commits: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that tell."""
        return tuple(dict.fromkeys(mark.column for mark in self.marks))

    def test(self, rows: pa.Table) -> Mask:
        """Which rows have to go: those of any mark."""
        return functools.reduce(operator.or_, (mark.test(rows) for mark in self.marks))

    def count(self, path: str) -> int:
        """How many of a file's rows have to go."""
        if path not in self.rows:
            self.rows[path] = rewriting.count(self.uri, path, self.columns, self.test)
        return self.rows[path]


@dataclass(frozen=True, kw_only=True, slots=True)
class Derived:
    """A table that was computed of events, and what its rows are made of. Of predictions, which have no declaration of their own:
    what each of the examples is made of."""

    uri: str
    made_of: tuple[MadeOf, ...]


def tables() -> list[Derived]:
    """All tables of the lake that were computed of events, whatever declared them.

    Raises UsageError where one doesn't say of what.
    """
    found: list[Derived] = []
    silent = []
    for folder in store.folders(lake.uri()):
        examples = []
        for name in store.folders(lake.uri(folder)):
            uri = lake.uri(folder, name)
            table = lake.load(uri) if re.match(r"features_|tiles_|(examples|labels)(_v[0-9]+)?$", name) else None
            if table is None:
                continue
            made_of = MadeOf.read(table)
            if made_of is None:
                silent.append(f"{folder}/{name}")
                continue
            found.append(Derived(uri=uri, made_of=(made_of,)))
            if made_of.spine is not None:
                examples.append(made_of)
        predictions = lake.uri(folder, "predictions")
        if examples and lake.load(predictions) is not None:
            found.append(Derived(uri=predictions, made_of=tuple(dict.fromkeys(examples))))
    if silent:
        raise UsageError(
            f"these tables were made by an earlier release and don't say of what, so nothing was erased: {', '.join(silent)}. "
            "Move them out of the lake, and compute their days again where they are needed."
        )
    return found


def named_by(person: Person) -> tuple[str, ...]:
    """The fields of the person's source by which examples and labels are or were named."""
    source, fields = person.source.name, []
    for one in (one for table in tables() for one in table.made_of):
        fields += [one.event] if one.event is not None and one.spine == source else []
        fields += [one.outcome[1]] if one.outcome is not None and one.outcome[0] == source else []
    return tuple(dict.fromkeys(fields))


def targets(person: Person, found: Found) -> list[Target]:
    """The tables that may hold rows of the person, after all events were looked at."""
    looked = (
        Target(uri=table.uri, marks=[mark for one in table.made_of for mark in _marks(one, person, found)]) for table in tables()
    )
    return [target for target in looked if target.marks]


def _marks(made_of: MadeOf, person: Person, found: Found) -> Iterator[Mark]:
    here = made_of.names(person.source.name, person.subject)
    if made_of.spine is None:
        yield from (Mark(column=name, texts={person.key}) for name in here)
        return
    if made_of.entity:
        several = len(made_of.entity) > 1
        places = (made_of.entity.index(name) for name in here if name in made_of.entity)
        yield from (Mark(column="key", texts={person.key}, place=place if several else None) for place in places)
    if keys := _keys(made_of, here, person, found):
        yield Mark(column="key", texts=keys)


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


def _keys(made_of: MadeOf, here: list[str], person: Person, found: Found) -> set[str]:
    """The keys of the person's examples: those of the events seen, and those of the spine's events that name the person."""
    keys: set[str] = set()
    if made_of.outcome is not None and made_of.outcome[0] == person.source.name:
        keys |= found.keys(made_of.outcome[1])
    if made_of.event is None or made_of.spine is None:
        return keys
    own = made_of.spine == person.source.name
    if own:
        keys |= found.keys(made_of.event)
    for name in here:
        if not own or name != person.subject:
            keys.update(_in_spine(person, made_of.spine, name, made_of.event))
    return keys


def _in_spine(person: Person, spine: str, name: str, key: str) -> Iterator[str]:
    """The keys of a spine's events whose field `name` holds the person."""
    uri = lake.uri("events", spine)
    table = lake.load(uri)
    if table is None:
        return
    for file in rewriting.held(table):
        for block in rewriting.blocks(uri, file.path, (name, key)):
            if key in block.column_names:
                some = block.filter(pa.array(equal(block, name, {person.key})))
                yield from (text for text in as_text(some.column(key)).to_pylist() if text is not None)
