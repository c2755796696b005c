"""The process group of the ranks: opened and closed in one place, nccl where each rank has a GPU, else gloo."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from jobs.errors import Exit
from jobs.train.plan import Outcome

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for the others in one collective call. torchrun ends it sooner where another has died."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """This rank's place."""

    rank: int
    ranks: int
    device: torch.device

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a tensor over all ranks, in place."""
        dist.all_reduce(values)
        return values


def rank() -> int:
    """This process's rank, as torchrun says."""
    return int(os.environ["RANK"])


@contextlib.contextmanager
def joined() -> Iterator[Group]:
    """Within, this rank belongs to the group that torchrun's environment describes."""
    local = int(os.environ["LOCAL_RANK"])
    gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo", timeout=TIMEOUT)
    try:
        yield Group(rank=dist.get_rank(), ranks=dist.get_world_size(), device=device)
    finally:
        dist.destroy_process_group()


def outcome(failure: Exception) -> Outcome:
    """How a rank ends that failed. One that only lost its neighbour may be tried again: the neighbour's own word counts."""
    lost = isinstance(failure, dist.DistError) or any(sign in str(failure) for sign in ("gloo", "NCCL", "closed by peer"))
    if lost and isinstance(failure, RuntimeError):
        return Outcome(code=int(Exit.RETRY), message=f"lost the other ranks: {failure}")
    return Outcome.of(failure)
