"""All that a training carries from one step to the next: what a checkpoint holds, and nothing else does."""

import copy
import json
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim.swa_utils import AveragedModel

from jobs.train.network import Network
from jobs.train.process_group import Group

RANDOM = "random "
"""A rank's random numbers are saved under this and its number."""

Optimizers = tuple[torch.optim.Optimizer, ...]


@dataclass(kw_only=True, slots=True)
class Progress:
    """Where a training stands."""

    epoch: int = 0
    step: int = 0
    """The next step of the epoch."""
    lowest: float = float("inf")
    """The best validation loss so far."""
    since: int = 0
    """Epochs without a better one."""
    curve: list[dict[str, float]] = field(default_factory=list)
    """By epoch: `training_loss`, `validation_loss`, `seconds`."""
    seconds: float = 0.0
    """What the epoch's steps took so far."""


@dataclass(kw_only=True, slots=True)
class State:
    """A training, alike on all ranks but for the losses and the random numbers."""

    network: Network
    optimizers: Optimizers
    averaged: AveragedModel
    best: nn.Module
    """The averaged network with the best validation loss so far: each checkpoint has it."""
    losses: Tensor
    """The sum of the losses of each of the epoch's steps, of this rank's examples."""
    progress: Progress = field(default_factory=Progress)

    @classmethod
    def begin(cls, network: Network, optimizers: Optimizers, averaged: AveragedModel, losses: Tensor) -> "State":
        """Before the first step."""
        return cls(network=network, optimizers=optimizers, averaged=averaged, best=copy.deepcopy(averaged.module), losses=losses)

    def saved(self, group: Group) -> dict[str, Any]:
        """What is saved: what all ranks have alike, the losses over all ranks, each rank's random numbers under its own name."""
        network, optimizers = get_state_dict(self.network, self.optimizers)
        return {
            "network": network,
            "optimizers": optimizers,
            "averaged": self.averaged.state_dict(),
            "best": self.best.state_dict(),
            "losses": group.sum(self.losses.clone()),
            "progress": json.dumps(asdict(self.progress)),
            f"{RANDOM}{group.rank}": _random(group.device),
        }

    def restore(self, saved: dict[str, Any], group: Group, *, as_before: bool) -> None:
        """Go on from what `saved` gave. `as_before`: as many ranks train as did, so each takes its random numbers up; else they
        draw new ones."""
        set_state_dict(self.network, self.optimizers, model_state_dict=saved["network"], optim_state_dict=saved["optimizers"])
        self.averaged.load_state_dict(saved["averaged"])
        self.best.load_state_dict(saved["best"])
        # They are summed over the ranks at the epoch's end.
        self.losses.copy_(saved["losses"] if group.rank == 0 else torch.zeros_like(self.losses))
        self.progress = Progress(**json.loads(saved["progress"]))
        if as_before:
            _draw_from(saved[f"{RANDOM}{group.rank}"], group.device)
        else:
            torch.manual_seed(hash((self.progress.epoch, self.progress.step, group.rank)))


def _random(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _draw_from(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
