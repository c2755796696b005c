"""What the rows of a table were made of, as a property of the table itself: `penstock erase` finds a person in tables of earlier
declarations too, and of pipelines that read the source no more.

Features and tiles hold the values of entities in columns. Examples and labels have `key` instead: a field of the spine's event,
or the entity as text, of several fields as a JSON array.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Self

from deltalake import DeltaTable

from pipelines.declare import DailySpine, Dimension, FeatureSet, Pipeline, Source

PROPERTY = "penstock.made-of"


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeOf:
    """What the rows of one table were made of."""

    named: tuple[tuple[str, str, str], ...]
    """Where a source's field names whose rows these are: source, field, and what it is called here. In features and tiles that is
    a column; in examples and labels a field of the spine."""
    spine: str | None = None
    """Of examples and labels: the spine's source."""
    event: str | None = None
    """Of these, where `key` names an event: the field of the spine's source that it is."""
    entity: tuple[str, ...] = ()
    """Of these, where `key` names an entity: the fields of the spine that it is made of."""
    outcome: tuple[str, str] | None = None
    """Of these: the label's source and its field that holds `key`, where there is one."""

    def names(self, source: str, field: str) -> list[str]:
        """What a source's field is called here."""
        return list(dict.fromkeys(here for other, name, here in self.named if (other, name) == (source, field)))

    def text(self) -> str:
        """As the property holds it."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, table: DeltaTable) -> Self | None:
        """What a table says; None for tables that are not made of events, or by a release that did not write it down."""
        text = table.metadata().configuration.get(PROPERTY)
        if text is None:
            return None
        said = json.loads(text)
        return cls(
            named=tuple((source, field, here) for source, field, here in said["named"]),
            spine=said["spine"],
            event=said["event"],
            entity=tuple(said["entity"]),
            outcome=None if said["outcome"] is None else (said["outcome"][0], said["outcome"][1]),
        )


def of(pipeline: Pipeline, table: str) -> MadeOf:
    """What the rows of a pipeline's table are made of, as it is declared now."""
    if table not in ("examples", "labels"):
        declared = next(one for one in pipeline.features if one.name == table.partition("_")[2])
        return MadeOf(named=_unique(_of_set(declared, declared.entity)))
    spine, label = pipeline.spine, pipeline.label
    named = [(spine.source.name, name, name) for name in spine.fields]
    named += [pair for one in pipeline.features for pair in _of_set(one, one.on_spine)]
    named += _of_dimensions(pipeline.dimensions)
    named += [(label.source.name, name, name) for name in label.entity]
    return MadeOf(
        named=_unique(named),
        spine=spine.source.name,
        event=None if isinstance(spine, DailySpine) else spine.key,
        entity=spine.entity if isinstance(spine, DailySpine) else (),
        outcome=None if label.key is None else (label.source.name, label.key),
    )


def _of_set(declared: FeatureSet, here: tuple[str, ...]) -> Iterable[tuple[str, str, str]]:
    called = dict(zip(declared.entity, here, strict=True))
    yield from ((declared.source.name, name, called[name]) for name in declared.entity)
    yield from ((source, name, called[name]) for source, name, _ in _of_dimensions(declared.lookups) if name in called)


def _of_dimensions(dimensions: Iterable[Dimension]) -> Iterable[tuple[str, str, str]]:
    return ((one.source.name, name, name) for one in dimensions if isinstance(one.source, Source) for name in one.entity)


def _unique(named: Iterable[tuple[str, str, str]]) -> tuple[tuple[str, str, str], ...]:
    return tuple(dict.fromkeys(named))
