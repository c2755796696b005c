"""What a network has to stand beside: scikit-learn's logistic regression and gradient boosting, on the same examples.

`python -m jobs.train.baselines FOLDER`, started by the stage while the ranks train. Like the network, each chooses what it
must by the validation days and leaves its scores for them and for the holdout.
"""

import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs import lifeline
from jobs.metrics import value
from jobs.train.plan import JUDGED, MODELS, Outcome, Plan, write_scores
from jobs.train.stream import Batch, Part

PENALTIES = (0.001, 0.01, 0.03, 0.1)
"""The inverse strengths of the regression's penalty that the validation days choose from."""
TREES = 100
"""The most trees; the validation days say how many are used."""
BINS = 255
"""scikit-learn's most values of a category. One with more enters as a number: its rank by frequency."""

Scores = dict[str, npt.NDArray[np.float64]]


def run(folder: Path) -> None:
    """Fit both, and leave their scores."""
    plan = Plan.read(folder)
    parts = {name: _read(folder / f"{name}.parquet") for name in ("training", *JUDGED)}
    for name, fit in zip(MODELS[1:], (_logistic_regression, _gradient_boosting), strict=True):
        for part, scores in fit(plan, parts).items():
            write_scores(folder, name, part, scores)


def _logistic_regression(plan: Plan, parts: dict[str, Batch]) -> Scores:
    """Standardized numbers and one-hot categories."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    def inputs(batch: Batch) -> Any:
        rows = np.arange(len(batch.labels))
        hot = [
            sparse.csr_matrix((np.ones(len(rows), dtype=np.float32), (rows, batch.ids[:, column])), shape=(len(rows), size))
            for column, size in enumerate(plan.categories)
        ]
        return sparse.hstack([sparse.csr_matrix(batch.numbers), *hot], format="csr", dtype=np.float64)

    encoded = {name: inputs(batch) for name, batch in parts.items()}
    tried = []
    for penalty in PENALTIES:
        model = LogisticRegression(C=penalty, max_iter=200).fit(
            encoded["training"], parts["training"].labels, sample_weight=parts["training"].weights
        )
        tried.append({name: model.predict_proba(encoded[name])[:, 1] for name in JUDGED})
    return min(tried, key=lambda scores: _loss(parts["validation"], scores["validation"]))


def _gradient_boosting(plan: Plan, parts: dict[str, Batch]) -> Scores:
    """Numbers with what is missing as NaN, categories by their ids."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    def inputs(batch: Batch) -> npt.NDArray[np.float32]:
        numbers = batch.numbers.copy()
        for column, indicator in plan.indicators:
            numbers[numbers[:, indicator] == 1, column] = np.nan
        return np.hstack([numbers, batch.ids.astype(np.float32)])

    categorical = [plan.numbers + column for column, size in enumerate(plan.categories) if size <= BINS]
    model = HistGradientBoostingClassifier(
        max_iter=TREES, max_leaf_nodes=15, categorical_features=categorical, early_stopping=False, random_state=plan.seed
    ).fit(inputs(parts["training"]), parts["training"].labels, sample_weight=parts["training"].weights)
    staged = {name: [scores[:, 1] for scores in model.staged_predict_proba(inputs(parts[name]))] for name in JUDGED}
    losses = [_loss(parts["validation"], scores) for scores in staged["validation"]]
    return {name: scores[int(np.argmin(losses))] for name, scores in staged.items()}


def _loss(part: Batch, scores: npt.NDArray[np.float64]) -> float:
    return value("log_loss", part.labels.astype(np.int64), scores)


def _read(path: Path) -> Batch:
    part = Part(path)
    return part.groups(range(len(part.rows)))


if __name__ == "__main__":
    lifeline.hold()
    shared = Path(sys.argv[1])
    try:
        run(shared)
    except Exception as failure:
        traceback.print_exc()
        Outcome.of(failure).write(shared, "baselines")
        sys.exit(Outcome.of(failure).code)
