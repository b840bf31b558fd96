"""One loss a record, and how good a model is on people who took no part in its training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from privypurse.arrays import AnyArray
from privypurse.training.setup import modes_kept

losses = partial(F.cross_entropy, reduction="none")
"""One loss for each record: what training by a plan needs."""


@dataclass(frozen=True)
class Score:
    """Right answers as a share, and the mean cross-entropy, over so many records."""

    records: int
    accuracy: float
    loss: float


def score(
    model: nn.Module, inputs: AnyArray | torch.Tensor, labels: AnyArray | torch.Tensor, batch: int = 4096
) -> Score:
    """Of records that were not trained on; on records that were, either figure is sensitive (rule 6)."""
    device = next(model.parameters()).device
    right, loss = 0, 0.0
    with modes_kept(model), torch.no_grad():
        model.eval()
        for begin in range(0, len(labels), batch):
            truth = torch.as_tensor(labels[begin : begin + batch], device=device)
            out = model(torch.as_tensor(inputs[begin : begin + batch], device=device))
            right += int((out.argmax(1) == truth).sum())
            loss += float(F.cross_entropy(out, truth, reduction="sum"))
    return Score(len(labels), right / len(labels), loss / len(labels))
