"""`penstock promote PIPELINE --from D --to D --when due|never`: decide what waits, then let the alias follow.

Of the registered versions without a decision, the newest is judged and the older ones are refused as superseded, all in
one commit. A refusal is a result: exit code 0. The ledger records the decisions under the last day of the range.
"""

import getpass
import logging
import os
import time

from jobs import champion, ledger, registry, verdict
from jobs.champion import Decision, History
from jobs.command import Job
from jobs.errors import RetryError
from jobs.interval import Interval
from jobs.promote import gate
from pipelines.declare import Pipeline

log = logging.getLogger(__name__)


def run(job: Job) -> None:
    """Decide. The report has the decisions of this run, an earlier try's too, the champion and what became of the alias."""
    pipeline = job.pipeline
    assert pipeline is not None and job.interval is not None
    if job.options.when == "never":
        job.report.update(decisions=[], note="not asked to decide")
        _say(job, f"{pipeline.name}: nothing was decided, as --when never asks")
        return
    clock = time.monotonic()
    # Of the candidate's own days training has made sure.
    job.report["breaches"] = [str(row) for row in verdict.breaches(pipeline, job.interval)]
    for breach in job.report["breaches"]:
        log.warning("an expectation is broken, which the next training and scoring of the day will refuse: %s", breach)
    history = decide(pipeline, job.run_id)
    made = [decision for decision in history.decisions if decision.run_id == job.run_id]
    job.report.update(
        champion=history.champion.candidate if history.champion else None,
        decisions=[
            {"version": each.candidate, "decision": each.decision, "reasons": each.reasons, "figures": each.figures}
            for each in made
        ],
    )
    job.report["champion_alias"] = champion.mend(pipeline)
    _record(pipeline, job.interval, history, made, time.monotonic() - clock)
    for each in made:
        _say(job, f"{pipeline.name} version {each.candidate} {each.decision}: {'; '.join(each.reasons)}")
    if not made:
        _say(job, f"{pipeline.name}: no version waits for a decision; the champion is {job.report['champion'] or 'none yet'}")


def decide(pipeline: Pipeline, run_id: str) -> History:
    """Decide about each version that waits. Returns the history with the decisions.

    A commit that lost a race is planned again on what the winner left; one whose answer was lost is found in the history.
    Raises RetryError where the race is lost again and again, or the registry is away.
    """
    for _ in range(champion.TRIES):
        history = champion.history(pipeline)
        waiting = [version for version in registry.versions(pipeline) if version.number not in history.decided]
        if not waiting:
            return history
        if champion.commit(pipeline, history, plan(pipeline, history, waiting, run_id), run_id=run_id):
            return champion.history(pipeline)
    raise RetryError(f"{champion.TRIES} decisions on {pipeline.name} lost to other promotions. Run this one again.")


def plan(pipeline: Pipeline, history: History, waiting: list[registry.Version], run_id: str) -> list[Decision]:
    """The decisions about the waiting versions, of which there is one at least: the newest is judged, and comes last."""
    *older, newest = sorted(waiting, key=lambda version: (version.trained_through, version.number))
    before = history.champion
    verdict = gate.judge(pipeline, newest, before)
    decisions = []
    for version in (*older, newest):
        superseded = version is not newest
        reasons = [f"superseded by version {newest.number}"] if superseded else verdict.against or verdict.found
        decisions.append(
            Decision(
                decision="refused" if superseded or verdict.against else "promoted",
                candidate=version.number,
                champion=before.candidate if before else None,
                rule=gate.rule(pipeline),
                figures={} if superseded else verdict.figures,
                reasons=reasons,
                snapshot=version.tags,
                run_id=run_id,
                by=_who(),
            )
        )
    return decisions


def _record(pipeline: Pipeline, interval: Interval, history: History, made: list[Decision], seconds: float) -> None:
    if not made:
        return
    assert history.table is not None
    ledger.record(
        pipeline,
        [
            ledger.Entry(
                stage="promote",
                day=interval.last,
                inputs={str(each.candidate): each.decision for each in made},
                output_version=history.table.version(),
                rows=len(made),
                run_id=made[-1].run_id,
                seconds=round(seconds, 3),
            )
        ],
    )


def _who() -> str:
    """The user of this process; a container's may have a number only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def _say(job: Job, line: str) -> None:
    if not job.options.json:
        print(line)
