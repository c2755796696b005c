"""The gate: the declared rule, applied to a candidate and the champion on the candidate's holdout days.

Both score the same examples in the same process. The first model is compared with the base rate of its training days.
Whatever the decision's metric is, all metrics are measured and kept.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from jobs import parts, registry
from jobs.champion import Decision
from jobs.errors import RetryError
from jobs.metrics import METRICS, Floats, Measured, draw, gain, measure
from jobs.promote import holdout
from pipelines.declare import Pipeline

SEED = 0
"""Of the resamples: the same examples and scores give the same interval."""

NEEDED = ("base_rate", "examples_version", "labels_version")
"""Tags without which a version can't be judged, beside those that the registry itself asks for."""

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class Verdict:
    """What the rule says about a candidate. It is promoted where nothing speaks against it."""

    figures: dict[str, Any] = field(default_factory=dict)
    against: list[str] = field(default_factory=list)
    """Each reason to refuse, with the value and the rule."""
    found: list[str] = field(default_factory=list)
    """What was found in its favour."""


def rule(pipeline: Pipeline) -> dict[str, Any]:
    """The thresholds of a decision, as data."""
    return {**asdict(pipeline.promotion), "embargo_days": parts.embargo(pipeline).days, "seed": SEED}


def judge(pipeline: Pipeline, candidate: registry.Version, champion: Decision | None) -> Verdict:
    """Apply the rule. Raises DataError where the champion or the tables can't be used, RetryError where a service is away."""
    verdict = Verdict(against=_by_days(pipeline, candidate, champion))
    lacking = [tag for tag in NEEDED if tag not in candidate.tags]
    if lacking:
        verdict.against.append(f"version {candidate.number} lacks the tags {', '.join(lacking)}: it can't be judged without them")
        return verdict
    if narrow := holdout.lacking(pipeline, candidate.tags):
        verdict.against.append(f"it was trained by another declaration: its examples lack {', '.join(narrow)}")
        return verdict
    guarded = Guarded(pipeline=pipeline, number=candidate.number)
    models: dict[str, holdout.Score] = {"candidate": guarded}
    if champion is not None:
        scorer = registry.load(pipeline, champion.candidate)
        if gone := scorer.undeclared:
            verdict.found.append(
                f"the champion (version {champion.candidate}) takes {', '.join(gone)}, which the pipeline no longer declares, so "
                "it can't be compared, and the base rate stands in its place"
            )
            champion = None
        else:
            models["champion"] = scorer.score
    examples = holdout.score(pipeline, candidate.holdout, candidate.tags, models)
    if guarded.failure is not None:
        verdict.against.append(guarded.failure)
    _by_figures(verdict, pipeline, candidate, champion, examples)
    return verdict


@dataclass(kw_only=True, slots=True)
class Guarded:
    """A candidate that may turn out useless: its failure is a reason to refuse it, not a failure of the gate."""

    pipeline: Pipeline
    number: int
    scorer: registry.Scorer | None = None
    failure: str | None = None

    def __call__(self, rows: pa.Table) -> Floats:
        """Its scores; NaN from its first failure on."""
        try:
            if self.failure is None:
                self.scorer = self.scorer or registry.load(self.pipeline, self.number)
                return self.scorer.score(rows)
        except (RetryError, MemoryError):
            raise
        except Exception as failure:
            log.warning("version %d of %s failed on its holdout", self.number, self.pipeline.name, exc_info=True)
            self.failure = f"it failed on its holdout: {type(failure).__name__}: {str(failure)[:500]}"
        return np.full(rows.num_rows, np.nan)


def _by_days(pipeline: Pipeline, candidate: registry.Version, champion: Decision | None) -> list[str]:
    """What the days alone say against the candidate."""
    gap = parts.embargo(pipeline)
    judged_from = candidate.holdout.start
    against = []
    if candidate.trained_through + gap >= judged_from:
        against.append(
            f"its own training reaches {candidate.trained_through}, "
            f"less than the embargo of {gap.days} days before its holdout from {judged_from}"
        )
    if champion is None:
        return against
    if candidate.trained_through < champion.trained_through:
        against.append(
            f"older data: it was trained through {candidate.trained_through}, "
            f"and the champion (version {champion.candidate}) through {champion.trained_through}"
        )
    if champion.trained_through + gap >= judged_from:
        against.append(
            f"the champion (version {champion.candidate}) was trained through {champion.trained_through}: with the embargo of "
            f"{gap.days} days it may have seen the holdout from {judged_from}, so the two can't be compared on it"
        )
    return against


def _by_figures(
    verdict: Verdict,
    pipeline: Pipeline,
    candidate: registry.Version,
    champion: Decision | None,
    examples: holdout.Holdout,
) -> None:
    """Measure all metrics, keep them in the verdict, and add what they say for and against the candidate."""
    promotion = pipeline.promotion
    rows = len(examples.labels)
    verdict.figures.update(
        holdout=[str(candidate.holdout.start), str(candidate.holdout.last)], rows=rows, days=examples.day_count
    )
    if rows < promotion.min_rows:
        verdict.against.append(f"its holdout has {rows} labelled examples, and the rule wants at least {promotion.min_rows}")
    if examples.day_count < 2:
        verdict.against.append(f"its holdout has {examples.day_count} days with labelled examples: an interval by day needs two")
    if rows == 0 or examples.day_count < 2:
        return
    base_rate = float(candidate.tags["base_rate"])
    scores = {**examples.scores, "base_rate": np.full(rows, base_rate)}
    weights = draw(examples.day_count, promotion.resamples, SEED)
    measured = {
        role: {name: measure(name, examples.labels, given, examples.days, weights) for name in METRICS}
        for role, given in scores.items()
    }
    verdict.figures.update(
        positives=float(examples.labels.mean()),
        base_rate={"rate": base_rate, **{name: _plain(each.value) for name, each in measured["base_rate"].items()}},
        **{
            role: {
                name: {"value": _plain(each.value), **_gain(name, each, measured["base_rate"][name], promotion.confidence)}
                for name, each in measured[role].items()
            }
            for role in examples.scores
        },
    )
    other = "base_rate" if champion is None else "champion"
    verdict.figures["against"] = other
    verdict.figures["gains"] = {
        name: _gain(name, measured["candidate"][name], measured[other][name], promotion.confidence) for name in METRICS
    }
    _by_gain(verdict, pipeline, "the base rate" if champion is None else f"the champion (version {champion.candidate})")


def _by_gain(verdict: Verdict, pipeline: Pipeline, other: str) -> None:
    """Whether the gain in the declared metric is enough."""
    promotion = pipeline.promotion
    figures = verdict.figures["gains"][promotion.metric]
    words = promotion.metric.replace("_", " ")
    if any(value is None for value in figures.values()):
        verdict.against.append(
            f"its {words} is not a finite number on the holdout, or on a resample of its days: it can't be compared with {other}"
        )
        return
    sentence = (
        f"{words} {verdict.figures['candidate'][promotion.metric]['value']:.5f}, a gain of {figures['gain']:+.5f} over {other}, "
        f"{promotion.confidence:.0%} interval [{figures['low']:+.5f}, {figures['high']:+.5f}]"
    )
    if min(figures["gain"], figures["low"]) > promotion.min_gain:
        verdict.found.append(f"{sentence}: above {promotion.min_gain:g}")
    else:
        verdict.against.append(f"{sentence}: it must lie above {promotion.min_gain:g}")


def _gain(name: str, model: Measured, other: Measured, confidence: float) -> Mapping[str, float | None]:
    return {key: _plain(value) for key, value in gain(name, model, other, confidence).items()}


def _plain(value: float) -> float | None:
    """A figure as JSON can hold it."""
    return value if math.isfinite(value) else None
