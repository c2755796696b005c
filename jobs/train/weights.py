"""How far each input is trusted: what is alike for a whole day counts as a few days, not as thousands of examples.

The design effect of a cluster sample (Kish, Survey Sampling, 1965, section 5.4) says how many times more examples than
independent ones an average over them rests on: 1 for what varies within the day as much as between days, the examples
of a day for what is the same in all of them, as the weather. Descent from small inputs learns slower, so an input is
multiplied by a negative power of its design effect.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def weights_of_numbers(numbers: npt.NDArray[np.float32], days: Ints, discount: float) -> tuple[float, ...]:
    """For each column of `numbers`, its design effect to the power of minus half the discount. `days`: for each row, from 0."""
    return tuple(
        float(_design_effect(*_variances(numbers[:, column], days), days) ** (-discount / 2))
        for column in range(numbers.shape[1])
    )


def weights_of_categories(ids: Ints, days: Ints, discount: float) -> tuple[float, ...]:
    """The same for each column of `ids` (rows x categories), over the variances of all of its values together."""
    found = []
    for column in range(ids.shape[1]):
        sums = [_variances(ids[:, column] == value, days) for value in np.unique(ids[:, column])]
        between, total = np.sum(sums, axis=0)
        found.append(float(_design_effect(between, total, days) ** (-discount / 2)))
    return tuple(found)


def _variances(values: npt.NDArray[Any], days: Ints) -> tuple[float, float]:
    """The sums of squares of the days' means, each example counting, and of the values themselves, about the mean."""
    about = values.astype(np.float64) - np.mean(values, dtype=np.float64)
    sums, rows = np.bincount(days, weights=about), np.bincount(days)
    return float((sums[rows > 0] ** 2 / rows[rows > 0]).sum()), float((about**2).sum())


def _design_effect(between: float, total: float, days: Ints) -> float:
    """At least 1; 1 too where nothing varies, or where there is one day."""
    count = len(np.unique(days))
    return max(1.0, between / (count - 1) / (total / len(days))) if count > 1 and total > 0 else 1.0
