"""SIGTERM to a rank: it is taken for a wish that all ranks grant together, between two steps."""

import signal
from types import FrameType

import torch

from jobs.train.process_group import Group

EVERY = 8
"""Steps between two looks: to agree, the ranks have to talk."""

_asked = False


def listen() -> None:
    """From now on SIGTERM is only noted. Call it in the main thread."""
    signal.signal(signal.SIGTERM, _note)


def agreed(step: int, group: Group) -> bool:
    """Whether any rank was asked to end: the same answer on all ranks. It is asked every EVERY steps."""
    if step % EVERY:
        return False
    if group.ranks == 1:
        return _asked
    return bool(group.sum(torch.tensor([float(_asked)], device=group.device)).item())


def _note(_: int, __: FrameType | None) -> None:
    global _asked
    _asked = True
