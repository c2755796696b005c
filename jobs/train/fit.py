"""The training loop: the same on every rank, and with the same result on any number of them, up to rounding.

A step's loss is the sum over the global batch divided by its size, whatever each rank's part of it. Early stopping looks
at the sum of the validation losses over all ranks. All ranks take as many steps, so none waits for one that has ended.
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

from jobs.errors import DataError
from jobs.train.export import export
from jobs.train.network import Network
from jobs.train.order import Order
from jobs.train.plan import Plan
from jobs.train.process_group import Group
from jobs.train.stream import Batch, Part, batches

log = logging.getLogger(__name__)


def train(plan: Plan, folder: Path, group: Group) -> None:
    """Train to the best validation loss. Rank 0 leaves `curve.json` and what `export` writes.

    Raises DataError, on all ranks alike, where a loss is no number.
    """
    training, validation = Part(folder / "training.parquet"), Part(folder / "validation.parquet")
    order = Order(rows=training.rows, shards=plan.shards, batch=plan.batch_size, seed=plan.seed)
    torch.manual_seed(plan.seed)
    network = Network(plan).to(group.device)
    torch.manual_seed(plan.seed + 1 + group.rank)  # Alike in what they begin with, the ranks differ in what they drop out.
    wrapped = DistributedDataParallel(network)
    optimizer = _optimizer(network, plan)
    best, lowest, since = copy.deepcopy(network.state_dict()), float("inf"), 0
    curve = []
    for epoch in range(plan.epochs):
        began = time.monotonic()
        losses = _epoch(wrapped, optimizer, training, order, epoch, group)
        validated = _validation_loss(network, validation, group)
        _require_finite(losses, validated, epoch)
        mean = float(losses.sum()) / sum(training.rows)
        curve.append({"training_loss": mean, "validation_loss": validated, "seconds": time.monotonic() - began})
        if group.rank == 0:
            log.info("epoch %d: training loss %.4f, validation loss %.4f", epoch, mean, validated)
        since = 0 if validated < lowest else since + 1
        if since == 0:
            best, lowest = copy.deepcopy(network.state_dict()), validated
        if since >= plan.patience:
            break
    if group.rank == 0:
        (folder / "curve.json").write_text(json.dumps(curve))
        network.load_state_dict(best)
        export(network.cpu().eval(), plan, folder)


def _epoch(network: nn.Module, optimizer: torch.optim.Optimizer, part: Part, order: Order, epoch: int, group: Group) -> Tensor:
    """One pass over the training part. Returns the sum of the losses of each step's examples, over all ranks."""
    network.train()
    losses = torch.zeros(order.steps, dtype=torch.float64, device=group.device)
    for step, batch in enumerate(batches(part, order, epoch=epoch, rank=group.rank, ranks=group.ranks)):
        loss = _loss(network, batch, group)
        optimizer.zero_grad(set_to_none=True)
        # DistributedDataParallel takes the mean of the ranks' gradients; what is wanted is that of the global batch.
        (loss * (group.ranks / order.size(step))).backward()
        optimizer.step()
        losses[step] = loss.detach()
    return group.sum(losses)


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
    """The sum of a batch's losses; 0, with a gradient of zeros, for an empty one."""
    numbers, ids, labels = (torch.from_numpy(array).to(group.device) for array in (batch.numbers, batch.ids, batch.labels))
    return binary_cross_entropy_with_logits(network(numbers, ids), labels, reduction="sum")


def _optimizer(network: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """AdamW; what is added rather than multiplied has no decay."""
    added = [parameter for name, parameter in network.named_parameters() if name.endswith(".bias")]
    multiplied = [parameter for name, parameter in network.named_parameters() if not name.endswith(".bias")]
    groups = [{"params": multiplied, "weight_decay": plan.weight_decay}, {"params": added, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=plan.learning_rate)


def _require_finite(losses: Tensor, validated: float, epoch: int) -> None:
    wrong = torch.nonzero(~torch.isfinite(losses))
    if len(wrong) or not torch.isfinite(torch.tensor(validated)):
        where = f"step {int(wrong[0])} of epoch {epoch}" if len(wrong) else f"the validation after epoch {epoch}"
        raise DataError(
            f"the training diverged: the loss is no finite number at {where}. Nothing is registered. "
            "Lower the learning_rate of the pipeline's training, or look for numbers out of all proportion among the examples."
        )
