"""What the stage tells its children: the folder that they share, and the settings of this training.

The folder holds the encoded parts as Parquet, `plan.json`, the files of the model to be, and what each child leaves:
ranks their outcome, rank 0 the curve, the exported network and its scores, the baselines theirs.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.errors import Exit, JobError

MODELS = ("network", "logistic_regression", "gradient_boosting")
"""The network, and the baselines beside it."""
CHECKPOINTS = "checkpoints"
"""In the shared folder, a link to where the run's checkpoints are kept; not there where none are."""
JUDGED = ("validation", "holdout")
"""The parts on which every model is judged. No model chooses anything by the holdout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of one training, as `plan.json` keeps them. Most are the declaration's, see `pipelines.declare.Training`."""

    numbers: int
    """Columns of the encoded numbers, indicators of missing ones among them."""
    indicators: tuple[tuple[int, int], ...]
    """(number's column, column of the indicator that it is missing)."""
    categories: tuple[int, ...]
    """The size of each category's vocabulary, the unknown included."""
    number_weights: tuple[float, ...]
    """What the network multiplies each encoded number by, see `jobs.train.weights`."""
    category_weights: tuple[float, ...]
    """The same for each category."""
    base_rate: float
    """The share of positives in the training part."""
    model: str
    cross_layers: int
    hidden: tuple[int, ...]
    embedding: int
    dropout: float
    batch_size: int
    epochs: int
    patience: int
    learning_rate: float
    linear_learning_rate: float
    averaging: float
    weight_decay: float
    optimizer: str
    schedule: str
    warmup_steps: int
    rate_scaling: str
    reference_batch: int
    clip: float | None
    class_weights: str | tuple[float, float] | None
    accumulate: int
    precision: str
    compress: bool
    compile: bool
    shards: int
    seed: int
    checkpoint_every: int
    """Steps."""
    checkpoints_kept: int

    def write(self, folder: Path) -> None:
        """Put it into the shared folder."""
        (folder / "plan.json").write_text(json.dumps(asdict(self), indent=2))

    @classmethod
    def read(cls, folder: Path) -> "Plan":
        """The plan of the shared folder."""
        values: dict[str, Any] = json.loads((folder / "plan.json").read_text())
        values["indicators"] = [tuple(pair) for pair in values["indicators"]]
        plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**plain)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a child ended, by its own word: torchrun loses exit codes. A child that was killed leaves none."""

    code: int
    message: str

    def write(self, folder: Path, name: str) -> None:
        """Leave it in the shared folder, whole or not at all."""
        part = folder / f"{name}.outcome.part"
        part.write_text(json.dumps(asdict(self)))
        part.rename(folder / f"{name}.outcome")

    @classmethod
    def read(cls, folder: Path, name: str) -> "Outcome | None":
        """A child's outcome, or None where it left none."""
        try:
            return cls(**json.loads((folder / f"{name}.outcome").read_text()))
        except FileNotFoundError:
            return None

    @classmethod
    def of(cls, failure: BaseException) -> "Outcome":
        """The outcome of a child that ends with `failure`."""
        if isinstance(failure, JobError):
            return cls(code=int(failure.exit_code), message=str(failure))
        return cls(code=int(Exit.BUG), message=f"{type(failure).__name__}: {failure}")


def write_scores(folder: Path, model: str, part: str, scores: npt.NDArray[np.float64]) -> None:
    """Leave a model's probabilities for the rows of an encoded part, in their order."""
    pq.write_table(pa.table({"score": scores}), folder / f"scores-{model}-{part}.parquet")


def read_scores(folder: Path, model: str, part: str) -> npt.NDArray[np.float64]:
    """The probabilities that a model left for a part."""
    return pq.read_table(folder / f"scores-{model}-{part}.parquet")["score"].to_numpy()  # type: ignore[no-any-return]
