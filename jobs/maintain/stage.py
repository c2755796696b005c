"""`penstock maintain SOURCE|PIPELINE`: small files become large ones, and files that nothing needs any more go.

In this order: what would make it wrong is refused, all tables are compacted, the registry is asked which versions its models
name, and only when each of them can be loaded anything is deleted.
"""

import logging
from collections.abc import Iterator
from datetime import timedelta

import pipelines
from jobs import batches, lake, named, settings, versions
from jobs.command import Job
from jobs.errors import UsageError
from jobs.maintain import retention, tables
from jobs.maintain.tables import Kept
from jobs.named import Named
from pipelines.declare import Pipeline

log = logging.getLogger(__name__)

_OWN = ("predictions", "ledger", "promotions")
_KEPT_LOG = "delta.enableExpiredLogCleanup"


def run(job: Job) -> None:
    """Maintain the tables of the subject. The report says, for each, files and bytes before and after, and what was deleted.

    Raises UsageError for a retention that is too short and for a registry that nobody set, RetryError where the registry is away,
    DataError where a version that a model names can't be loaded. The compaction stands then.
    """
    dry_run = job.options.dry_run
    readers = _readers(job)
    found = list(_tables(job))
    _require_retention(job, readers)
    if not job.options.no_registry:
        _require_registry()
    told = job.report["tables"] = {table.name: tables.compact(table, dry_run=dry_run) for table in found}
    names = [] if job.options.no_registry else named.of(readers)
    for table in found:
        reasons = {one.version: str(one) for one in names if one.table == table.uri}
        table.versions.update(reasons)
        tables.require_loadable(table, reasons)
    _keep_logs(names, found, dry_run=dry_run)
    for table in found:
        told[table.name].update(tables.vacuum(table, dry_run=dry_run))
        if not dry_run:
            tables.checkpoint(table)
        if not job.options.json:
            print(_line(table, told[table.name], dry_run=dry_run))


def _line(table: Kept, told: dict[str, int], *, dry_run: bool) -> str:
    if dry_run:
        return (
            f"{table.name}: would compact {told['partitions_to_compact']} partitions of {told['files_before']} files "
            f"and delete {told['deleted_files']} files ({told['deleted_bytes']:,} bytes)"
        )
    return (
        f"{table.name}: {told['files_before']} files became {told['files_after']}; "
        f"{told['deleted_files']} files ({told['deleted_bytes']:,} bytes) were deleted"
    )


def _pipeline(job: Job) -> Pipeline | None:
    """The pipeline that the subject names, unless it names a source."""
    name = job.options.subject
    if any(source.name == name for source in job.source):
        return None
    return pipelines.load(name)


def _readers(job: Job) -> list[Pipeline]:
    """The pipelines that read one of the sources: their models may name its versions.

    Raises UsageError where one can't be looked into.
    """
    good, broken = pipelines.load_all()
    if broken and not job.options.no_registry:
        raise UsageError(
            f"{next(iter(broken.values())).rstrip('.')}: what its models name can't be told, so nothing may be deleted. Mend it."
        )
    names = {source.name for source in job.source}
    return [pipeline for pipeline in good.values() if names & {source.name for source in pipeline.sources}]


def _tables(job: Job) -> Iterator[Kept]:
    """The tables that are there, those of the sources first."""
    wanted: list[tuple[str, timedelta]] = []
    for source in job.source:
        wanted += [(batches.events_uri(source), source.retention), (batches.ranges_uri(source), source.retention)]
    pipeline = _pipeline(job)
    if pipeline is not None:
        longest = max(source.retention for source in pipeline.sources)
        # Those of earlier declarations too: models may name them.
        made = [uri for name in (*versions.tables(pipeline), *versions.tiles(pipeline)) for uri in versions.every(pipeline, name)]
        wanted += [(uri, longest) for uri in (*made, *(lake.uri(pipeline.name, name) for name in _OWN))]
    for uri, kept in wanted:
        if lake.load(uri) is not None:
            yield Kept(uri=uri, retention=kept)


def _require_retention(job: Job, readers: list[Pipeline]) -> None:
    """Raise UsageError where a source's retention is too short for what reads it or writes it."""
    for source in job.source:
        own = [each for each in readers if source.name in {one.name for one in each.sources}]
        # An ingest of a pipeline's sources is reported under the pipeline's name.
        subjects = [source.name, *(pipeline.name for pipeline in own)]
        run_ = retention.longest(subjects)
        job.report.setdefault("longest_run_seconds", {})[source.name] = run_.seconds
        retention.require(f"source {source.name!r}", source.retention, run_)


def _require_registry() -> None:
    try:
        settings.endpoint("MLFLOW_TRACKING_URI")
    except UsageError as unset:
        raise UsageError(
            "MLFLOW_TRACKING_URI is not set, so which versions registered models name can't be asked, and their files must "
            "not go. Export it, or say --no-registry to vouch that no model names any."
        ) from unset


def _keep_logs(names: list[Named], found: list[Kept], *, dry_run: bool) -> None:
    """Let the tables that models name keep their logs: Spark would clear old commits away, and their versions with them."""
    ours = {one.table for one in names} & {table.uri for table in found}
    for uri in sorted(ours):
        handle = lake.load(uri)
        assert handle is not None
        if not dry_run and handle.metadata().configuration.get(_KEPT_LOG) != "false":
            log.info("%s keeps its log from now on", uri)
            handle.alter.set_table_properties({_KEPT_LOG: "false"})
