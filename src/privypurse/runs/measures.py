"""How good a model is on people who took no part in its training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from privypurse.arrays import AnyArray, FloatArray
from privypurse.datasets.targets import Classes, Target, known
from privypurse.runs.objectives import losses_of
from privypurse.runs.records import Records
from privypurse.training.setup import modes_kept


@dataclass(frozen=True, eq=False)
class Measured:
    """A model's outputs for the records that have a target, and these targets."""

    target: Target
    outputs: FloatArray
    targets: AnyArray
    loss: float
    """The mean of the loss that is trained by."""

    @property
    def records(self) -> int:
        return int(self.targets.shape[0])

    @property
    def accuracy(self) -> float | None:
        """Right answers as a share; None where a target is not one of several classes."""
        if not isinstance(self.target, Classes):
            return None
        return float((self.outputs.argmax(1) == self.targets).mean())


def measured(model: nn.Module, records: Records, target: Target, batch: int = 4096) -> Measured | None:
    """Of records that were not trained on; on records that were, all of it is sensitive (rule 6).

    None where no record has a target.
    """
    some = np.flatnonzero(known(records.labels))
    if not some.size:
        return None
    device = next(model.parameters()).device
    losses, outputs, loss = losses_of(target), [], 0.0
    with modes_kept(model), torch.no_grad():
        model.eval()
        for part in np.split(some, range(batch, some.size, batch)):
            out = model(torch.as_tensor(records.inputs[part], device=device))
            loss += float(losses(out, torch.as_tensor(records.labels[part], device=device)).sum())
            outputs.append(out.double().cpu().numpy())
    return Measured(target, np.concatenate(outputs), records.labels[some], loss / some.size)
