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
    max_physical_batch: int | None = None,
) -> None:
    """Shuffled batches of the same size, as everybody does it: no clipping, no noise, and no promise to anybody.

    ``max_physical_batch``: how many records go through the model at once; the gradient is that of the whole batch.
    """
    inputs, labels = tensors
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if order.numel() < batch_size:
            order = torch.randperm(len(labels))
        some, order = order[:batch_size].to(inputs.device), order[batch_size:]
        optimizer.zero_grad()
        for part in torch.split(some, max_physical_batch or batch_size):
            torch.autograd.backward(losses(model(inputs[part]), labels[part]).sum() / len(some))
        optimizer.step()
