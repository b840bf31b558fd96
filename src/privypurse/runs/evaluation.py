"""How good a model is on people who took no part in its training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from privypurse.runs.inputs import Part


@dataclass(frozen=True)
class Score:
    """Right answers as a share, and the mean cross-entropy, over so many records."""

    records: int
    accuracy: float
    loss: float


def score(model: nn.Module, part: Part, batch: int = 4096) -> Score:
    """Of a part that was not trained on. On records that were, either figure would be sensitive (rule 6)."""
    device = next(model.parameters()).device
    before = model.training
    model.eval()
    right, loss = 0, 0.0
    with torch.no_grad():
        for begin in range(0, len(part), batch):
            labels = torch.as_tensor(part.labels[begin : begin + batch], device=device)
            out = model(torch.as_tensor(part.inputs[begin : begin + batch], device=device))
            right += int((out.argmax(1) == labels).sum())
            loss += float(F.cross_entropy(out, labels, reduction="sum"))
    model.train(before)
    return Score(len(part), right / len(part), loss / len(part))
