"""The gate's metrics and their bootstrap, against scikit-learn over copied examples."""

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, log_loss

from jobs.metrics import METRICS, draw, gain, measure

SCIKIT: dict[str, Callable[..., float]] = {"log_loss": log_loss, "average_precision": average_precision_score}


@pytest.mark.parametrize("name", METRICS)
def test_the_bootstrap_equals_a_plain_loop_over_copied_examples(name: str) -> None:
    random = np.random.default_rng(3)
    days = np.repeat(np.arange(5), [40, 90, 10, 60, 70])
    labels = random.integers(0, 2, len(days))
    # Two digits make many equal scores, across labels and days.
    scores = [np.round(np.clip(random.normal(0.4 + 0.1 * labels, 0.2), 0, 1), 2), np.full(len(days), 0.3)]
    weights = draw(5, 60, seed=1)
    assert weights.sum(axis=1).tolist() == [5.0] * 60
    first, second = (measure(name, labels, each, days, weights) for each in scores)
    plain: list[list[float]] = [[], []]
    for drawn in weights.astype(int):
        copied = np.concatenate([np.flatnonzero(days == day) for day in range(5) for _ in range(drawn[day])])
        for found, each in zip(plain, scores, strict=True):
            found.append(SCIKIT[name](labels[copied], each[copied]))
    np.testing.assert_allclose(first.resampled, plain[0], rtol=1e-12)
    np.testing.assert_allclose(second.resampled, plain[1], rtol=1e-12)
    assert first.value == pytest.approx(SCIKIT[name](labels, scores[0]), rel=1e-12)
    better = gain(name, first, second, 0.9)
    differences = (np.array(plain[0]) - plain[1]) * (-1 if name == "log_loss" else 1)
    assert [better["low"], better["high"]] == pytest.approx(np.quantile(differences, [0.05, 0.95]).tolist(), rel=1e-9)
    assert better["low"] < better["gain"] < better["high"]


def test_without_a_positive_average_precision_is_not_a_number() -> None:
    nothing = measure("average_precision", np.zeros(6, int), np.full(6, 0.5), np.arange(6), draw(6, 10, 0))
    assert np.isnan(nothing.value)
    assert np.isnan(nothing.resampled).all()
