"""How good probabilities are, in NumPy: the stage needs two figures, not scikit-learn's import."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from jobs.train.plan import JUDGED, MODELS, Plan, read_scores
from jobs.train.stream import Part

Floats = npt.NDArray[np.float64]
SMALLEST = float(np.finfo(np.float64).eps)


def log_loss(labels: npt.NDArray[np.generic], scores: Floats) -> float:
    """The mean negative log-likelihood, in nats; probabilities of 0 and 1 are moved by the float's precision."""
    likely = np.clip(np.where(labels == 1, scores, 1 - scores), SMALLEST, 1)
    return float(-np.log(likely).mean())


def average_precision(labels: npt.NDArray[np.generic], scores: Floats) -> float:
    """The sum of precision times the gain in recall over all thresholds, without interpolation; ties are one threshold.

    NaN where no label is positive.
    """
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order] == 1)
    last_of_tie = np.append(np.diff(scores[order]) != 0, True)
    found, taken = hits[last_of_tie], np.flatnonzero(last_of_tie) + 1
    gains = np.diff(found, prepend=0)
    return float((gains * found / taken).sum() / hits[-1]) if hits[-1] else float("nan")


def judge(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Part -> model -> `log_loss` and `average_precision`; the base rate of the training days stands among the models."""
    base_rate = Plan.read(folder).base_rate
    figures = {}
    for name in JUDGED:
        part = Part(folder / f"{name}.parquet")
        labels = part.groups(range(len(part.rows))).labels
        scores = {model: read_scores(folder, model, name) for model in MODELS} | {"base_rate": np.full(len(labels), base_rate)}
        figures[name] = {
            model: {"log_loss": log_loss(labels, each), "average_precision": average_precision(labels, each)}
            for model, each in scores.items()
        }
    return figures
