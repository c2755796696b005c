"""The logged model: this one file, the vocabularies, the numbers' scales and the exported network. Nothing else of the project.

MLflow keeps a copy of this script beside the artifacts ("models from code") and runs it to load the model, so it imports
nothing of the project, and there is no pickle. Training encodes its examples with the same `Encoder`.
"""

from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

UNKNOWN = 0
"""The id of a value that the vocabulary doesn't have, and of null."""


class Encoder:
    """Strings into ids and numbers into standardized floats, as fitted on the training days."""

    def __init__(self, vocabularies: pa.Table, numbers: pa.Table) -> None:
        """`vocabularies`: `field`, `value`, `id`, one row for each id, the unknown as null; `numbers`: one row for each
        number with its `name`, the `mean` and `scale` to standardize by, the `limit` beyond which a standardized value is
        cut off, and whether an indicator tells that it is `missing`."""
        self.vocabularies: dict[str, pa.Array] = {}
        for field in pc.unique(vocabularies["field"]).to_pylist():
            of_field = vocabularies.filter(pc.equal(vocabularies["field"], field)).sort_by("id")
            self.vocabularies[field] = of_field["value"].combine_chunks().slice(1)
        self.numbers: list[str] = numbers["name"].to_pylist()
        self.mean, self.scale, self.limit = (numbers[name].to_numpy() for name in ("mean", "scale", "limit"))
        self.indicated = np.flatnonzero(numbers["missing"].to_numpy())

    @classmethod
    def read(cls, folder: Path) -> "Encoder":
        """From the two Parquet files in a folder."""
        return cls(pq.read_table(folder / "vocabularies.parquet"), pq.read_table(folder / "numbers.parquet"))

    def encode(self, rows: pa.Table) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The numbers (rows x (numbers + indicators)) and the ids (rows x categories) of `rows`, which may be none.

        A number that is null, NaN or infinite is missing: it becomes 0, the mean.
        """
        values = np.empty((rows.num_rows, len(self.numbers)), dtype=np.float64)
        for column, name in enumerate(self.numbers):
            values[:, column] = rows[name].cast(pa.float64()).to_numpy()
        known = np.isfinite(values)
        standardized = np.clip((values - self.mean) / self.scale, -self.limit, self.limit)
        numbers = np.hstack([np.where(known, standardized, 0.0), ~known[:, self.indicated]]).astype(np.float32)
        ids = np.empty((rows.num_rows, len(self.vocabularies)), dtype=np.int64)
        for column, (name, vocabulary) in enumerate(self.vocabularies.items()):
            found = pc.index_in(rows[name].cast(vocabulary.type), value_set=vocabulary)
            ids[:, column] = pc.add(pc.fill_null(found, UNKNOWN - 1), 1).to_numpy()
        return numbers, ids


class Model(mlflow.pyfunc.PythonModel):  # type: ignore[misc]
    """A data frame of the pipeline's categories and numbers -> a data frame with one column, `score`, in [0, 1]."""

    def load_context(self, context: Any) -> None:
        """Read the artifacts."""
        import torch

        folder = Path(context.artifacts["model"])
        self.encoder = Encoder.read(folder)
        self.network = torch.export.load(folder / "network.pt2").module()

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """The probability for each row, in order, as float64. Any number of rows, none as well."""
        names = [*self.encoder.vocabularies, *self.encoder.numbers]
        numbers, ids = self.encoder.encode(pa.Table.from_pandas(model_input[names], preserve_index=False))
        return pd.DataFrame({"score": self._score(numbers, ids)}, index=model_input.index)

    def _score(self, numbers: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        import torch

        if not len(numbers):
            return np.empty(0, dtype=np.float64)
        with torch.inference_mode():
            logits = self.network(torch.from_numpy(numbers), torch.from_numpy(ids))
        return torch.sigmoid(logits.double()).numpy()  # type: ignore[no-any-return]


mlflow.models.set_model(Model())
