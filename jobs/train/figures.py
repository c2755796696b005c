"""How good every model of a training is, on the parts that it is judged by."""

from pathlib import Path

import numpy as np

from jobs.metrics import METRICS, value
from jobs.train.plan import JUDGED, MODELS, Plan, read_scores
from jobs.train.stream import Part


def judge(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Part -> model -> `log_loss` and `average_precision`; the base rate of the training days stands among the models."""
    base_rate = Plan.read(folder).base_rate
    figures = {}
    for name in JUDGED:
        part = Part(folder / f"{name}.parquet")
        labels = part.groups(range(len(part.rows))).labels.astype(np.int64)
        scores = {model: read_scores(folder, model, name) for model in MODELS} | {"base_rate": np.full(len(labels), base_rate)}
        figures[name] = {model: {metric: value(metric, labels, each) for metric in METRICS} for model, each in scores.items()}
    return figures
