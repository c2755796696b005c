"""`penstock train`: a candidate from the examples and labels that have matured by the end of the interval's last day.

Pins the tables, splits the days, prepares the parts, has the ranks train with the baselines beside them, and registers
the candidate. Each step is a module of its own; this one only tells the story.
"""

import dataclasses
import tempfile
import time
from pathlib import Path

from jobs import ledger, registry, verdict
from jobs.cadence import not_due_until
from jobs.command import Job
from jobs.errors import DataError, UsageError
from jobs.parts import Parts, split
from jobs.train import resume, snapshot
from jobs.train.figures import judge
from jobs.train.launch import supervise
from jobs.train.plan import CHECKPOINTS
from jobs.train.snapshot import Pinned
from pipelines.declare import Training


def run(job: Job) -> None:
    """Train where it is due, once for each run id. The report says what was trained on, how good it is, or why it was not due."""
    assert job.pipeline is not None and job.interval is not None
    if job.options.when == "never":
        _not_trained(job, "not asked for: --when never")
        return
    settings = _settings(job)
    versions = registry.versions(job.pipeline)
    earlier = next((version for version in versions if version.tags["run_id"] == job.run_id), None)
    if earlier is not None:
        job.report["version"] = earlier.number
        _not_trained(job, f"this run has already registered version {earlier.number}")
        return
    # The next attempt of a run reads what the first one read.
    kept = resume.folder(job.pipeline, job.run_id)
    pinned = Pinned.at(job.pipeline, resume.versions(kept) or {})
    parts, reason = _parts(job, pinned, versions)
    if parts is None:
        _not_trained(job, reason)
        return
    _train(job, settings, pinned, parts, kept)


def _parts(job: Job, pinned: Pinned, versions: list[registry.Version]) -> tuple[Parts | None, str]:
    """The days to train on; None with the reason where it is not due. What is asked for and can't be done is a DataError."""
    assert job.pipeline is not None and job.interval is not None
    last = job.interval.last
    try:
        parts = split(job.pipeline, last, pinned.oldest())
    except DataError as failure:
        if job.options.when == "always":
            raise
        return None, f"not due: {failure}"
    through = [version.trained_through for version in versions]
    if job.options.when == "due" and (due := not_due_until(job.pipeline, through, parts, last)):
        return None, f"not due until the run over {due}: a model is trained every {job.pipeline.training.every.days} days"
    return parts, ""


def _train(job: Job, settings: Training, pinned: Pinned, parts: Parts, kept: Path | None) -> None:
    from jobs.train.prepare import prepare
    from jobs.train.track import Account, publish

    pipeline = job.pipeline
    assert pipeline is not None and job.interval is not None
    days = (parts.training, parts.validation, parts.holdout)
    verdict.require_passed(pipeline, *(verdict.behind(pipeline, each) for each in days))
    clock = _Clock()
    described = snapshot.describe(pipeline, pinned, parts)
    with tempfile.TemporaryDirectory(prefix="penstock-train-") as scratch:
        folder = Path(scratch)
        prepared = prepare(pipeline, pinned, parts, settings, folder)
        job.report.update(
            trained_from=parts.training.start, trained_through=parts.trained_through, rows=prepared.rows, ranks=settings.ranks
        )
        resume.begin(kept, pipeline, described, prepared.plan)
        if kept is not None:
            (folder / CHECKPOINTS).symlink_to(kept)
        clock.lap("prepare")
        supervise(folder, settings.ranks)
        clock.lap("train")
        figures = judge(folder)
        job.report.update(figures=figures, base_rate=prepared.plan.base_rate)
        tags = _tags(described, parts, prepared.plan.base_rate, job.run_id)
        account = Account(prepared=prepared, snapshot=described, figures=figures, seconds=clock.seconds, tags=tags)
        number = publish(pipeline, account, folder)
        clock.lap("publish")
    resume.end(kept)
    job.report.update(trained=True, version=number, seconds_of=clock.seconds)
    inputs = {name: table["version"] for name, table in described["tables"].items()}
    ledger.record(
        pipeline,
        [
            ledger.Entry(
                stage="train",
                day=job.interval.last,
                inputs=inputs,
                output_version=number,
                rows=prepared.rows["training"],
                run_id=job.run_id,
                seconds=round(sum(clock.seconds.values()), 3),
            )
        ],
    )
    _say(job, f"{pipeline.name} version {number}: {_rows(prepared.rows)}; holdout {_short(figures['holdout']['network'])}")


def _settings(job: Job) -> Training:
    """The declared training, with what the command line asks for instead."""
    assert job.pipeline is not None
    asked = {name: value for name in ("ranks", "epochs") if (value := getattr(job.options, name)) is not None}
    try:
        return dataclasses.replace(job.pipeline.training, **asked)
    except ValueError as wrong:
        raise UsageError(f"{', '.join(f'--{name} {value}' for name, value in asked.items())}: {wrong}") from wrong


def _tags(described: dict[str, object], parts: Parts, base_rate: float, run_id: str) -> dict[str, str]:
    """What the version says of itself, to promotion, scoring and whoever builds it again."""
    tables = described["tables"]
    assert isinstance(tables, dict)
    return {
        "trained_from": str(parts.training.start),
        "training_to": str(parts.training.last),
        "trained_through": str(parts.trained_through),
        "holdout_from": str(parts.holdout.start),
        "holdout_to": str(parts.holdout.last),
        "examples_version": str(tables["examples"]["version"]),
        "labels_version": str(tables["labels"]["version"]),
        "examples_table": str(tables["examples"]["table"]),
        "labels_table": str(tables["labels"]["table"]),
        "declaration": str(described["declaration"]),
        "fingerprint": str(described["fingerprint"]),
        "snapshot_digest": snapshot.digest(described),
        "base_rate": repr(base_rate),
        "run_id": run_id,
    }


def _not_trained(job: Job, reason: str) -> None:
    assert job.pipeline is not None
    job.report.update(trained=False, reason=reason)
    _say(job, f"{job.pipeline.name}: nothing was trained: {reason}")


def _rows(rows: dict[str, int]) -> str:
    return ", ".join(f"{part} {count}" for part, count in rows.items()) + " rows"


def _short(figures: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())


def _say(job: Job, line: str) -> None:
    if not job.options.json:
        print(line)


class _Clock:
    """The seconds that each step took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, step: str) -> None:
        now = time.monotonic()
        self.seconds[step], self._last = round(now - self._last, 3), now
