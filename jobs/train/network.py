"""The network: a linear part beside a multi-layer perceptron, over standardized numbers and embedded categories.

"Wide and deep" (Cheng et al. 2016, arXiv:1606.07792): what is additive is learned by the linear part, which starts at
the base rate, so that the perceptron only has to add what is not.
"""

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from jobs.train.plan import Plan


class Network(nn.Module):  # type: ignore[misc]
    """(numbers: rows x numbers, ids: rows x categories) -> logits: rows."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.register_buffer("number_weights", torch.tensor(plan.number_weights, dtype=torch.float32))
        self.category_weights = plan.category_weights
        self.linear = nn.Linear(plan.numbers, 1)
        self.biases = nn.ModuleList(nn.Embedding(size, 1) for size in plan.categories)
        self.embeddings = nn.ModuleList(nn.Embedding(size, plan.embedding) for size in plan.categories)
        layers: list[nn.Module] = []
        width = plan.numbers + plan.embedding * len(plan.categories)
        for hidden in plan.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(plan.dropout)]
            width = hidden
        self.deep = nn.Sequential(*layers, nn.Linear(width, 1, bias=False))
        self._begin_at(math.log(plan.base_rate / (1 - plan.base_rate)))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Log-odds; the sigmoid is left to the loss, and to whoever wants probabilities."""
        numbers = numbers * self.number_weights
        columns = [(ids[:, column], weight) for column, weight in enumerate(self.category_weights)]
        embedded = [embedding(each) * weight for embedding, (each, weight) in zip(self.embeddings, columns, strict=True)]
        logits = self.linear(numbers) + self.deep(torch.cat([numbers, *embedded], dim=1))
        for bias, (each, weight) in zip(self.biases, columns, strict=True):
            logits = logits + bias(each) * weight
        return logits[:, 0]  # type: ignore[no-any-return]

    def linear_part(self) -> Iterator[nn.Parameter]:
        """The parameters of the linear part."""
        return itertools.chain(self.linear.parameters(), self.biases.parameters())

    def deep_part(self) -> Iterator[nn.Parameter]:
        """The parameters of the perceptron and of the embeddings."""
        return itertools.chain(self.embeddings.parameters(), self.deep.parameters())

    def _begin_at(self, log_odds: float) -> None:
        """Start as the base rate: all zero but the bias, and small embeddings."""
        nn.init.zeros_(self.linear.weight)
        nn.init.constant_(self.linear.bias, log_odds)
        for bias in self.biases:
            nn.init.zeros_(bias.weight)  # type: ignore[arg-type]
        for embedding in self.embeddings:
            nn.init.normal_(embedding.weight, std=0.05)  # type: ignore[arg-type]
        nn.init.zeros_(self.deep[-1].weight)  # type: ignore[arg-type]
