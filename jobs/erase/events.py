"""A person's events and dead letters: found, and taken out in commits that say which positions went.

A position goes as a whole: a dead letter that was replayed and the event that it became. Each commit is complete, its account
included; `penstock ingest --rebuild` reads there which offsets never to read again.
"""

import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from jobs import account, batches, lake, letters
from jobs.account import METADATA, Account, Partition
from jobs.commit import is_committed
from jobs.erase import positions, rewriting
from jobs.erase.person import Person, as_text
from jobs.erase.positions import Place, Positions, spans_of
from jobs.erase.rewriting import Held, Test, held
from jobs.errors import RetryError

log = logging.getLogger(__name__)

TRIES = 10

_COLUMNS = (*positions.COLUMNS, "known_time", "batch", "rejected_reason", "raw_key", "raw_value", "headers")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of events that has to go."""

    place: Place
    offset: int
    known: date
    batch: str
    reason: str | None
    """Of a dead letter."""
    keys: dict[str, str]
    """The values of the fields by which what is derived names it."""


@dataclass(kw_only=True, slots=True)
class Found:
    """What is known of each file: files never change, so each is read once."""

    person: Person
    named_by: tuple[str, ...]
    """Fields by which what is derived names an event."""
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """The person's rows by file."""
    twins: list[Row] = field(default_factory=list)
    """Rows that went because they lay where one of the person's did."""
    good: int = 0
    dead: int = 0
    commits: int = 0

    def of(self, path: str) -> list[Row]:
        """The person's rows in a file."""
        if path not in self.rows:
            self.rows[path] = list(_rows(self.person, path, self.named_by, self.person.events))
        return self.rows[path]

    def keys(self, name: str) -> set[str]:
        """The values of a field in all the rows seen."""
        return {row.keys[name] for rows in (*self.rows.values(), self.twins) for row in rows if name in row.keys}


def current(found: Found) -> list[str]:
    """The files of the table as it stands."""
    table = lake.load(batches.events_uri(found.person.source))
    return [file.path for file in held(table)] if table is not None else []


def look(found: Found) -> None:
    """Read the table as it stands."""
    for path in current(found):
        found.of(path)


def erase(found: Found, run_id: str) -> None:
    """Take all that is found out of the table.

    Raises RetryError where neighbours were always first.
    """
    source, lost = found.person.source, 0
    while lost < TRIES:
        # In this order: what others commit after the handle is seen by the compare-and-set.
        table = lake.load(batches.events_uri(source))
        assert table is not None
        account.settle(source)
        files = held(table)
        rows = [row for file in files for row in found.of(file.path)]
        if not rows:
            return
        # One commit is about one topic and epoch, as its account is.
        first = rows[0].place[:2]
        if _commit(found, table, files, [row for row in rows if row.place[:2] == first], run_id):
            found.commits += 1
            account.settle(source)
        else:
            lost += 1
    raise RetryError(
        f"{source.name}: the erasure was lost to other writers {TRIES} times. What is erased stays so; stop them, or try again."
    )


def _commit(found: Found, table: DeltaTable, files: list[Held], rows: list[Row], run_id: str) -> bool:
    """Take one epoch's rows out. False where a neighbour was first."""
    source = found.person.source
    wanted = _positions(rows)
    replayed = _spans(found, "replay", "replayed")
    whole = {file.path: found.of(file.path) for file in files}
    twice = _positions(row for row in rows if replayed.has(row.place, row.offset))
    if twice:
        # The letter may name the person where the event that it became does not, or the other way round.
        others = {path: _others(found, path, own, twice) for path, own in whole.items()}
        found.twins += [row for some in others.values() for row in some]
        whole = {path: [*own, *others[path]] for path, own in whole.items()}
    doomed = [file for file in files if any(wanted.has(row.place, row.offset) for row in whole[file.path])]
    gone = [
        (row, date.fromisoformat(day) if (day := file.partition["event_date"]) else None)
        for file in doomed
        for row in whole[file.path]
        if wanted.has(row.place, row.offset)
    ]
    told = _account(found, gone, replayed, run_id)
    rewrites = table.transaction_version(batches.REWRITE) or 0
    try:
        rewriting.swap(
            batches.events_uri(source),
            table,
            doomed,
            wanted.mask,
            metadata={METADATA: told.metadata()},
            transactions={batches.REWRITE: rewrites + 1},
        )
    except (DeltaError, OSError) as failure:
        if not is_committed(source, table.version(), told.batch):
            if not isinstance(failure, CommitFailedError | FileNotFoundError):
                raise RetryError(f"{source.name}: the erasure could not be committed ({failure}). Try again.") from failure
            log.info("%s: an erasure was not committed: a neighbour was first", source.name)
            return False
    found.good += sum(one.good for one in told.partitions)
    found.dead += sum(one.dead for one in told.partitions)
    return True


def _others(found: Found, path: str, own: list[Row], positions: Positions) -> list[Row]:
    """A file's rows at the positions that are not among its own."""
    seen = {(row.place, row.offset) for row in own}
    return [row for row in _rows(found.person, path, found.named_by, positions.mask) if (row.place, row.offset) not in seen]


def _account(found: Found, gone: list[tuple[Row, date | None]], replayed: Positions, run_id: str) -> Account:
    source = found.person.source
    topic, epoch, _ = gone[0][0].place
    known = batches.ranges(
        source, "topic_id, version, kafka_partition, start_offset", f"topic = '{topic}' and topic_epoch = {epoch}"
    )
    partitions: dict[int, Partition] = {}
    offsets: dict[int, set[int]] = defaultdict(set)
    acknowledged: dict[tuple[date, str], int] = defaultdict(int)
    looked_at = _looked_at(found)
    for row, day in gone:
        number = row.place[2]
        told = partitions.setdefault(number, Partition(partition=number))
        offsets[number].add(row.offset)
        if row.reason is None:
            assert day is not None
            told.good += 1
            told.counts[day, row.known] += 1
            continue
        told.dead += 1
        if not replayed.has(row.place, row.offset):
            # A letter that was replayed is counted as dead no more.
            told.dead_counts[row.known, row.reason] += 1
            acknowledged[row.known, row.reason] += row.batch in looked_at.get(row.known, ())
    for number, told in partitions.items():
        told.spans = [(start, end, "erased") for start, end in spans_of(offsets[number])]
    note = [[str(day), reason, count] for (day, reason), count in sorted(acknowledged.items()) if count]
    return Account(
        kind="erase",
        batch=uuid.uuid4().hex[:16],
        run_id=run_id,
        topic=topic,
        topic_id=str(known.column("topic_id")[-1].as_py()),
        epoch=epoch,
        partitions=[told for _, told in sorted(partitions.items())],
        note={letters.ACKNOWLEDGED: note} if note else None,
    )


def erased(found: Found) -> Positions:
    """All positions of the source that were ever erased, whoever they were about."""
    return _spans(found, "erase", "erased")


def leftovers(found: Found, path: str, before: Positions) -> list[Row]:
    """Rows of a file that the table no longer holds: the person's, and those at positions that were erased before."""
    return list(
        _rows(found.person, path, found.named_by, lambda block: np.logical_or(found.person.events(block), before.mask(block)))
    )


def _rows(person: Person, path: str, named_by: Iterable[str], test: Test) -> Iterable[Row]:
    names = (*_COLUMNS, person.subject, *named_by)
    for block in rewriting.blocks(batches.events_uri(person.source), path, tuple(dict.fromkeys(names))):
        mask = test(block)
        if not mask.any():
            continue
        some = block.filter(pa.array(mask))
        texts = {name: as_text(some.column(name)).to_pylist() for name in named_by if name in some.column_names}
        days = some.column("known_time").cast(pa.date32()).to_pylist()
        for number, row in enumerate(some.select([*positions.COLUMNS, "batch", "rejected_reason"]).to_pylist()):
            yield Row(
                place=(row["topic"], row["topic_epoch"], row["kafka_partition"]),
                offset=row["kafka_offset"],
                known=days[number],
                batch=row["batch"],
                reason=row["rejected_reason"],
                keys={name: values[number] for name, values in texts.items() if values[number] is not None},
            )


def _positions(rows: Iterable[Row]) -> Positions:
    spans: dict[Place, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        spans[row.place].append((row.offset, row.offset + 1))
    return Positions(spans)


def _spans(found: Found, kind: str, reason: str) -> Positions:
    """The spans of a reason in the account of a kind of commit, those that a rebuild voids too."""
    ranges = lake.load(batches.ranges_uri(found.person.source))
    spans: dict[Place, list[tuple[int, int]]] = defaultdict(list)
    columns = "topic, topic_epoch, kafka_partition, spans"
    rows = lake.query(ranges, f"select {columns} from t where kind = '{kind}'").to_pylist() if ranges is not None else []
    for row in rows:
        place = (row["topic"], row["topic_epoch"], row["kafka_partition"])
        spans[place] += [(span["start"], span["end"]) for span in row["spans"] or () if span["reason"] == reason]
    return Positions(spans)


def _looked_at(found: Found) -> dict[date, set[str]]:
    """By known day, the batches whose letters of that day somebody has acknowledged."""
    looked = letters.acknowledgements(found.person.source)
    if not looked:
        return {}
    columns = "batch, version, kafka_partition, start_offset"
    rows = batches.ranges(found.person.source, columns, "dead_counts <> '[]' and kind in ('ingest', 'rebuild')").to_pylist()
    return {day: {row["batch"] for row in rows if row["version"] <= at} for day, at in looked.items()}
