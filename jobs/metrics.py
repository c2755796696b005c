"""The metrics of training and promotion, as they are and resampled by day.

Examples of one day have the weather and the delays of that day in common, so days are what is drawn, with replacement
(the cluster bootstrap; Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8). A resample is a
row of weights, how often each day was drawn. A metric takes all resamples at once and never copies an example.

Throughout: `labels` int (n,) of 0 and 1, `scores` float64 (n,), `days` int (n,) in [0, d), `weights` float64 (r, d). A metric
returns float64 (r,), NaN where it is not defined.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

EPSILON = float(np.finfo(np.float64).eps)
"""How near to 0 and 1 a score may count in the log loss, as scikit-learn clips it."""

_BLOCK = 4096
"""Distinct positive scores taken at once: with 1,000 resamples, three arrays of 32 MB."""


def draw(days: int, resamples: int, seed: int) -> Floats:
    """The weights of `resamples` resamples of so many days, (resamples, days); each row sums to `days`."""
    return np.random.default_rng(seed).multinomial(days, np.full(days, 1 / days), size=resamples).astype(np.float64)


def log_loss(labels: Ints, scores: Floats, days: Ints, weights: Floats) -> Floats:
    """The mean negative log likelihood, in nats, from each day's sum."""
    clipped = np.clip(scores, EPSILON, 1 - EPSILON)
    losses = -np.where(labels == 1, np.log(clipped), np.log1p(-clipped))
    count = weights.shape[1]
    sums = np.bincount(days, weights=losses, minlength=count)
    rows = np.bincount(days, minlength=count).astype(np.float64)
    return _divide(weights @ sums, weights @ rows)


def average_precision(labels: Ints, scores: Floats, days: Ints, weights: Floats) -> Floats:
    """The sum over thresholds of (recall gained) times precision, equal scores being one threshold, as in scikit-learn.

    Only thresholds at which a positive lies add to the sum. How many examples and how many positives each day has at or above
    such a threshold is counted once, (thresholds, d); weighted by the resamples, that is a matrix product.
    """
    count = weights.shape[1]
    order = np.argsort(-scores, kind="stable")
    scores, positive, days = scores[order], labels[order] == 1, days[order]
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    positives = np.cumsum(positive)[last]
    ends = last[np.diff(positives, prepend=0) > 0]
    # Each example belongs to the first such threshold that takes it in; those below the last one to none.
    threshold = np.searchsorted(ends, np.arange(len(scores)), side="left")
    reached = threshold < len(ends)
    cell = threshold * count + days
    taken = np.bincount(cell[reached], minlength=len(ends) * count).reshape(len(ends), count)
    gained = np.bincount(cell[reached & positive], minlength=len(ends) * count).reshape(len(ends), count)
    taken_above = np.cumsum(taken, axis=0).astype(np.float64)
    gained_above = np.cumsum(gained, axis=0).astype(np.float64)
    total = np.zeros(len(weights))
    drawn = np.ascontiguousarray(weights.T)
    for start in range(0, len(ends), _BLOCK):
        block = slice(start, start + _BLOCK)
        examples = taken_above[block] @ drawn
        precision = gained_above[block] @ drawn
        np.divide(precision, examples, out=precision, where=examples > 0)
        total += np.einsum("ij,ij->j", gained[block].astype(np.float64) @ drawn, precision)
    return _divide(total, weights @ np.bincount(days[positive], minlength=count))


METRICS: dict[str, tuple[Callable[[Ints, Floats, Ints, Floats], Floats], int]] = {
    "log_loss": (log_loss, -1),
    "average_precision": (average_precision, 1),
}
"""Each metric a declaration can name, and 1 where more is better, -1 where less is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One metric of one model: its value, and its value in each resample."""

    value: float
    resampled: Floats


def value(name: str, labels: Ints, scores: Floats) -> float:
    """The metric over the examples as they are."""
    function, _ = METRICS[name]
    return float(function(labels, scores, np.zeros(len(labels), dtype=np.int64), np.ones((1, 1)))[0])


def measure(name: str, labels: Ints, scores: Floats, days: Ints, weights: Floats) -> Measured:
    """The metric over the examples as they are, and over each resample of their days."""
    function, _ = METRICS[name]
    return Measured(value=value(name, labels, scores), resampled=function(labels, scores, days, weights))


def gain(name: str, model: Measured, other: Measured, confidence: float) -> dict[str, float]:
    """How much better the model is than the other: `gain`, and the `low` and `high` of its two-sided percentile interval.

    Positive is better, whichever way the metric points. Both models were measured on the same resamples (paired).
    """
    sign = METRICS[name][1]
    differences = sign * (model.resampled - other.resampled)
    tail = (1 - confidence) / 2
    low, high = np.quantile(differences, [tail, 1 - tail])
    return {"gain": sign * (model.value - other.value), "low": float(low), "high": float(high)}


def _divide(above: Floats, below: Floats) -> Floats:
    """Above over below, NaN where that is 0."""
    quotient = np.full(above.shape, np.nan)
    np.divide(above, below, out=quotient, where=below > 0)
    return quotient
