"""Checkpoints of a training: written beside the training by the ranks together, whole or not there, and found again by a retry.

`<lake>/<pipeline>/checkpoints/<run>/<epoch>-<step>/`, by torch's distributed checkpoint, which loads on any number of ranks. A
folder under that name is complete: it is written as `.part` and renamed.
"""

import copy
import logging
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from jobs.errors import RetryError
from jobs.train.process_group import Group
from jobs.train.state import RANDOM, State

log = logging.getLogger(__name__)

KEEP = 2
"""The newest that are kept: of one that a disk has spoiled, the one before is there."""


class Checkpoints:
    """The checkpoints of one run, in a folder that all ranks see; without one nothing is kept."""

    def __init__(self, folder: Path | None, group: Group) -> None:
        self._folder = folder
        self._group = group
        # Of its own, since a save goes on while the ranks' gradients travel.
        self._own = dist.new_group(backend="gloo") if folder is not None else None
        self._running: tuple[Future[Any], Path] | None = None
        self._last = ""

    def load(self, state: State) -> bool:
        """Go on from the newest checkpoint that can be read. Returns whether there is one.

        Raises RetryError where there are some, and none can be read.
        """
        found = self._complete()
        for path in reversed(found):
            wanted = state.saved(self._group)
            try:
                there = {key.partition(".")[0] for key in dcp.FileSystemReader(path).read_metadata().state_dict_metadata}
                saved = {name: value for name, value in wanted.items() if name in there}
                dcp.load(saved, checkpoint_id=path, process_group=self._own)
            except (Exception, dcp.api.CheckpointException) as failure:
                log.warning("the checkpoint %s can't be read (%s: %s)", path, type(failure).__name__, failure)
                continue
            ranks = sum(name.startswith(RANDOM) for name in there)
            state.restore(saved, self._group, as_before=ranks == self._group.ranks)
            return True
        if found:
            raise RetryError(
                f"none of the checkpoints in {self._folder} can be read. Is the disk whole? Delete the folder to begin anew."
            )
        return False

    def save(self, state: State) -> None:
        """Begin to save: what the state is now, however it goes on. Of a save before, the end is waited for."""
        self.finish()
        progress = state.progress
        name = f"{progress.epoch:06}-{progress.step:09}"
        if self._folder is None or name == self._last:
            return
        self._last = name
        final = self._folder / name
        kept = copy.deepcopy(state.saved(self._group))
        self._running = dcp.async_save(kept, checkpoint_id=final.with_suffix(".part"), process_group=self._own), final

    def finish(self) -> None:
        """Wait for the save that runs, and have it count. Raises RetryError where it failed."""
        if self._running is None:
            return
        saving, final = self._running
        self._running = None
        try:
            saving.result()
            # Rank 0 has heard from all others that theirs is written.
            if self._group.rank == 0:
                if final.exists():
                    shutil.rmtree(final)  # It could not be read.
                final.with_suffix(".part").rename(final)
        except (Exception, dcp.api.CheckpointException) as failure:
            raise RetryError(f"the checkpoint {final} could not be written ({failure}). Has the disk room?") from failure
        if self._group.rank == 0:
            for old in self._complete()[:-KEEP]:
                shutil.rmtree(old, ignore_errors=True)

    def _complete(self) -> list[Path]:
        if self._folder is None:
            return []
        return sorted(path for path in self._folder.glob("*-*") if path.is_dir() and path.suffix != ".part")
