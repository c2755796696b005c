"""What rank 0 leaves of the best network: the exported graph, and what it says about the validation and holdout days."""

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from jobs.train.plan import JUDGED, Plan, write_scores
from jobs.train.stream import Part


def export(network: nn.Module, plan: Plan, folder: Path) -> None:
    """Write `model/network.pt2`, which takes any number of rows but 0, and its scores.

    The network is on the CPU and in evaluation mode.
    """
    rows = torch.export.Dim("rows")
    example = torch.zeros(2, plan.numbers), torch.zeros(2, len(plan.categories), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(network, example, dynamic_shapes=({0: rows}, {0: rows}))
        torch.export.save(exported, folder / "model" / "network.pt2")
    for name in JUDGED:
        write_scores(folder, "network", name, _scores(network, Part(folder / f"{name}.parquet")))


def _scores(network: nn.Module, part: Part) -> npt.NDArray[np.float64]:
    found = []
    with torch.inference_mode():
        for group in range(len(part.rows)):
            batch = part.group(group)
            logits = network(torch.from_numpy(batch.numbers), torch.from_numpy(batch.ids))
            found.append(torch.sigmoid(logits.double()).numpy())
    return np.concatenate(found)
