"""Training without privacy, to compare with."""

from __future__ import annotations

import torch
from torch import nn

from privypurse.training.isolation.loss_fn import Loss


def train_ordinarily(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: tuple[torch.Tensor, ...],
    losses: Loss,
    *,
    steps: int,
    batch_size: int,
) -> None:
    """Shuffled batches of the same size, as everybody does it: no clipping, no noise, and no promise to anybody."""
    inputs, labels = tensors
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if order.numel() < batch_size:
            order = torch.randperm(len(labels))
        some, order = order[:batch_size].to(inputs.device), order[batch_size:]
        optimizer.zero_grad()
        torch.autograd.backward(losses(model(inputs[some]), labels[some]).mean())
        optimizer.step()
