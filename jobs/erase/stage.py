"""`penstock erase SOURCE --key K`: a person's records go, and positions stay accounted for.

In this order: events and dead letters, what is derived, and last the old files that still hold any of it, those of the events at
the very end. From them a run that follows a killed one learns the keys of events that are already erased. The person's key
enters no commit, report, log or message.
"""

import logging
import sys
from typing import Any

import pipelines
from jobs import account, batches, lake
from jobs.command import Job
from jobs.erase import derived, events, leftovers, mentions, plain_files
from jobs.erase.derived import Target
from jobs.erase.events import Found
from jobs.erase.leftovers import Old
from jobs.erase.person import Person
from jobs.errors import RetryError, UsageError
from pipelines.declare import Pipeline, Source

log = logging.getLogger(__name__)


def run(job: Job) -> None:
    """Erase one person from one source. The report says rows and files by table, and which models can't be reproduced any more.

    Raises UsageError for a source that names nobody, RetryError where neighbours were always first: what was done stays done.
    """
    try:
        _run(job)
    except FileNotFoundError as failure:
        raise RetryError("another erasure, or a vacuum, deleted a file that was being read. Run this one again.") from failure


def _run(job: Job) -> None:
    source = _source(job)
    person = Person(source=source, key=_key(job.options.key))
    if lake.load(batches.events_uri(source)) is None:
        raise UsageError(f"source {source.name!r} has no events: run `penstock ingest {source.name}` first, or correct the name.")
    declared = _pipelines()
    # A run that was killed may have committed what its account does not say yet, and the first look goes by that.
    account.settle(source)
    found = Found(person=person, named_by=derived.named_by(person))
    events.look(found)
    # Also what was erased by a run that did not get to its end.
    before = _old_events(found)
    targets = derived.targets(person, found)
    if job.options.dry_run:
        _plan(job, found, targets, before)
        return
    told: dict[str, Any] = job.report.setdefault("tables", {})
    plain: dict[str, int] = {}
    try:
        events.erase(found, job.run_id)
        # Rows that came in since it was first looked at have keys too.
        targets = derived.targets(person, found)
        for target in targets:
            derived.erase(target, job.run_id)
            plain[target.uri] = plain_files.erase(target)
    finally:
        told[_name(batches.events_uri(source))] = {"good": found.good, "dead": found.dead, "commits": found.commits}
        told.update({_name(target.uri): {"rows": target.erased, "commits": target.commits} for target in targets})
        for uri, rows in plain.items():
            if rows:
                told[_name(uri)]["plain_rows"] = rows
    olds = [*(_old(target, source) for target in targets), _old_events(found)]
    names, asked = leftovers.models(declared, olds)
    job.report.update(registry=asked, models_not_reproducible=names)
    for old in olds:
        leftovers.delete(old)
        told[_name(old.uri)].update(files_deleted=len(old.doomed), files_uncommitted=len(old.uncommitted))
    for target in targets:
        told[_name(target.uri)]["commits_that_name_them"] = sum(
            mentions.count(target.uri, mark.column, mark.texts) for mark in target.marks
        )
    _tell(job, source, olds, names)


def _source(job: Job) -> Source:
    if len(job.source) != 1:
        names = ", ".join(source.name for source in job.source)
        raise UsageError(f"{job.options.subject!r} has several sources ({names}): say which one names the person.")
    source = job.source[0]
    if source.subject is None:
        raise UsageError(
            f"source {source.name!r} declares no subject, so nothing says which records are about a person: "
            f"declare subject='FIELD' with one of {', '.join(field.name for field in source.fields)}."
        )
    return source


def _key(given: str) -> str:
    key = sys.stdin.readline().rstrip("\r\n") if given == "-" else given
    if not key.strip():
        raise UsageError("--key is empty: it takes what the subject field holds for the person.")
    return key


def _pipelines() -> list[Pipeline]:
    """All pipelines: the models of each may name what goes. Raises UsageError where one can't be looked into."""
    good, broken = pipelines.load_all()
    if broken:
        raise UsageError(
            f"{next(iter(broken.values())).rstrip('.')}: which models name what is erased can't be told, so nothing was erased. "
            "Mend it."
        )
    return [*good.values()]


def _old(target: Target, source: Source) -> Old:
    return leftovers.find(target.uri, source.retention, lambda path: target.count(path) > 0)


def _old_events(found: Found) -> Old:
    """Old files of the events; what they hold of the person is remembered, keys included."""
    uri, erased = batches.events_uri(found.person.source), events.erased(found)

    def matches(path: str) -> bool:
        if not found.rows.get(path):
            found.rows[path] = events.leftovers(found, path, erased)
        return bool(found.rows[path])

    return leftovers.find(uri, found.person.source.retention, matches)


def _plan(job: Job, found: Found, targets: list[Target], before: Old) -> None:
    """Say what would go."""
    uri = batches.events_uri(found.person.source)
    rows = [row for file in events.current(found) for row in found.of(file)]
    told: dict[str, Any] = {
        _name(uri): {
            "good": sum(row.reason is None for row in rows),
            "dead": sum(row.reason is not None for row in rows),
            "old_files": len(before.doomed),
        }
    }
    olds = [before]
    for target in targets:
        olds.append(old := _old(target, found.person.source))
        told[_name(target.uri)] = {"rows": derived.current(target), "old_files": len(old.doomed)}
        if plain_rows := plain_files.count(target):
            told[_name(target.uri)]["plain_rows"] = plain_rows
    job.report.update(dry_run=True, tables=told)
    if not job.options.json:
        for name, counts in told.items():
            print(f"{name}: would erase {', '.join(f'{count} {what}' for what, count in counts.items())}")


def _tell(job: Job, source: Source, olds: list[Old], names: list[str]) -> None:
    left = sum(len(old.uncommitted) for old in olds)
    if left:
        log.warning(
            "%d files that nobody has committed hold records of the person too; if no run is about to commit them, they can go "
            "after the retention of %d days: run this erasure again then",
            *(left, source.retention.days),
        )
    if any(counts.get("commits_that_name_them") for counts in job.report["tables"].values()):
        log.warning(
            "logs of tables made by an earlier release still name the person, as the ends of files that are gone: move such a "
            "table away and compute it again"
        )
    if names:
        log.warning("these models can't be reproduced from the lake any more: %s", ", ".join(names))
    if not job.options.json:
        for name, counts in job.report["tables"].items():
            print(f"{name}: {', '.join(f'{count} {what}' for what, count in counts.items())}")


def _name(uri: str) -> str:
    return "/".join(uri.rsplit("/", 2)[-2:])
