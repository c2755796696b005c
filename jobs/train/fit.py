"""The training loop, the same on every rank.

On any number of ranks a step's set of examples is the same. Without dropout the weights are then equal up to rounding;
with it they are not, since each rank draws its own.

A step's loss is the sum over the global batch divided by its size, whatever each rank's part of it. Early stopping looks
at the sum of the validation losses over all ranks, and at the running average of the weights, which is what is kept. All
ranks take as many steps, so none waits for one that has ended.
"""

import copy
import json
import logging
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from jobs.errors import DataError, RetryError
from jobs.train import ending
from jobs.train.checkpoints import Checkpoints
from jobs.train.export import export
from jobs.train.network import Network
from jobs.train.order import Order
from jobs.train.plan import CHECKPOINTS, Plan
from jobs.train.process_group import Group
from jobs.train.state import Optimizers, State
from jobs.train.stream import Batch, Part, batches

log = logging.getLogger(__name__)


def train(plan: Plan, folder: Path, group: Group) -> None:
    """Train to the best validation loss, from where the newest checkpoint stands. Rank 0 leaves `curve.json` and what `export`
    writes.

    Raises DataError, on all ranks alike, where a loss is no number; RetryError where it was asked to end, after saving.
    """
    training, validation = Part(folder / "training.parquet"), Part(folder / "validation.parquet")
    order = Order(rows=training.rows, shards=plan.shards, batch=plan.batch_size, seed=plan.seed)
    torch.manual_seed(plan.seed)
    network = Network(plan).to(group.device)
    torch.manual_seed(plan.seed + 1 + group.rank)  # Alike in what they begin with, the ranks differ in what they drop out.
    averaged = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(plan.averaging))
    losses = torch.zeros(order.steps, dtype=torch.float64, device=group.device)
    state = State.begin(network, _optimizers(network, plan), averaged, losses)
    kept = folder / CHECKPOINTS
    checkpoints = Checkpoints(kept.resolve() if kept.exists() else None, group)
    resumed = checkpoints.load(state)
    progress = state.progress
    if resumed and group.rank == 0:
        log.info("training goes on at step %d of epoch %d", progress.step, progress.epoch)
    wrapped = DistributedDataParallel(network)
    while progress.epoch < plan.epochs and progress.since < plan.patience:
        _epoch(wrapped, state, training, order, plan, group, checkpoints)
        summed = group.sum(state.losses.clone())
        validated = _validation_loss(averaged.module, validation, group)
        _require_finite(summed, validated, progress.epoch)
        mean = float(summed.sum()) / sum(training.rows)
        progress.curve.append({"training_loss": mean, "validation_loss": validated, "seconds": progress.seconds})
        if group.rank == 0:
            log.info("epoch %d: training loss %.4f, validation loss %.4f", progress.epoch, mean, validated)
        progress.since = 0 if validated < progress.lowest else progress.since + 1
        if progress.since == 0:
            state.best, progress.lowest = copy.deepcopy(averaged.module), validated
        progress.epoch, progress.step, progress.seconds = progress.epoch + 1, 0, 0.0
        state.losses.zero_()
    checkpoints.save(state)
    checkpoints.finish()
    if group.rank == 0:
        (folder / "curve.json").write_text(json.dumps(progress.curve))
        export(state.best.cpu().eval(), plan, folder)


def _epoch(
    network: DistributedDataParallel,
    state: State,
    part: Part,
    order: Order,
    plan: Plan,
    group: Group,
    checkpoints: Checkpoints,
) -> None:
    """One pass over the training part, from the step that comes next on. Saves every so many steps, and when asked to end."""
    network.train()
    progress = state.progress
    began = time.monotonic()
    first = progress.step
    for step, batch in enumerate(
        batches(part, order, epoch=progress.epoch, rank=group.rank, ranks=group.ranks, first=first), first
    ):
        loss = _loss(network, batch, group)
        network.zero_grad()
        # DistributedDataParallel takes the mean of the ranks' gradients; what is wanted is that of the global batch.
        (loss * (group.ranks / order.size(step))).backward()
        for optimizer in state.optimizers:
            optimizer.step()
        state.averaged.update_parameters(network.module)
        state.losses[step] = loss.detach()
        progress.step = step + 1
        now = time.monotonic()
        progress.seconds, began = progress.seconds + now - began, now
        if ending.agreed(step, group):
            checkpoints.save(state)
            checkpoints.finish()
            raise RetryError(f"asked to end after step {step} of epoch {progress.epoch}, which is saved")
        if (progress.epoch * order.steps + progress.step) % plan.checkpoint_every == 0:
            checkpoints.save(state)


def _validation_loss(network: nn.Module, part: Part, group: Group) -> float:
    """The mean loss over the validation part, each rank taking every so many row groups of it."""
    network.eval()
    total = torch.zeros(1, dtype=torch.float64, device=group.device)
    with torch.inference_mode():
        for row_group in range(group.rank, len(part.rows), group.ranks):
            total += _loss(network, part.group(row_group), group)
    mean: float = group.sum(total).item() / sum(part.rows)
    return mean


def _loss(network: nn.Module, batch: Batch, group: Group) -> Tensor:
    """The sum of a batch's losses, each with its weight; 0, with a gradient of zeros, for an empty one."""
    arrays = (batch.numbers, batch.ids, batch.labels, batch.weights)
    numbers, ids, labels, weights = (torch.from_numpy(array).to(group.device) for array in arrays)
    return binary_cross_entropy_with_logits(network(numbers, ids), labels, weight=weights, reduction="sum")


def _optimizers(network: Network, plan: Plan) -> Optimizers:
    """Gradient descent with momentum for the linear part, AdamW for the rest.

    Descent from zero that stops early is close to a ridge penalty chosen by the validation days (Ali, Kolter and Tibshirani
    2019, arXiv:1810.10082), which the same steps for all weights, as Adam takes them, are not.
    """
    linear = torch.optim.SGD(network.linear_part(), lr=plan.linear_learning_rate, momentum=0.9, nesterov=True)
    deep = torch.optim.AdamW(network.deep_part(), lr=plan.learning_rate, weight_decay=plan.weight_decay)
    return linear, deep


def _require_finite(losses: Tensor, validated: float, epoch: int) -> None:
    wrong = torch.nonzero(~torch.isfinite(losses))
    if len(wrong) or not torch.isfinite(torch.tensor(validated)):
        where = f"step {int(wrong[0])} of epoch {epoch}" if len(wrong) else f"the validation after epoch {epoch}"
        raise DataError(
            f"the training diverged: the loss is no finite number at {where}. Nothing is registered. "
            "Lower the learning_rate of the pipeline's training, or look for numbers out of all proportion among the examples."
        )
