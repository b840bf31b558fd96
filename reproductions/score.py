"""How good a model is on records, one by one."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn


def predictions(outputs: Tensor) -> Tensor:
    """The preferred class; of several views of a record, [n, views, classes], the one that all of them prefer."""
    return (outputs if outputs.ndim == 2 else torch.log_softmax(outputs, dim=-1).mean(dim=1)).argmax(dim=-1)


def judged(
    model: nn.Module, x: Tensor, y: Tensor, losses: Callable[[Tensor, Tensor], Tensor], chunk: int = 2_048
) -> tuple[np.ndarray, np.ndarray]:
    """Each record's loss, and whether the model is right about it."""
    was_training = model.training
    model.eval()
    loss, right = [], []
    with torch.no_grad():
        for some, labels in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
            outputs = model(some)
            loss.append(losses(outputs, labels))
            right.append(predictions(outputs) == labels)
    model.train(was_training)
    return torch.cat(loss).cpu().numpy(), torch.cat(right).cpu().numpy()
