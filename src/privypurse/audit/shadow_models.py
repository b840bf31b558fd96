"""Shadow models: private trainings by one plan, each on its own half of the records, and what they say about all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from privypurse.arrays import AnyArray, FloatArray
from privypurse.audit.lira import scaled_confidence
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.training.evaluation import losses
from privypurse.training.execution import DEFAULT, Execution
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.loop import train
from privypurse.training.setup import modes_kept
from privypurse.training.without_privacy import train_ordinarily

_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class ShadowTraining:
    """How one model is trained, as the audited plan says; noise multiplier, rates and clip norms are the plan's."""

    plan: Plan
    """Of which only levels count here: who is in which is ``level_of``."""
    level_of: AnyArray
    """The level of each record that there is, in the models or not; one record each."""
    inputs: Tensor
    labels: Tensor
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    loss_fn: Loss = losses
    device: str = "cpu"
    execution: Execution = DEFAULT

    def __post_init__(self) -> None:
        if not len(self.inputs) == len(self.labels) == np.size(self.level_of):
            raise InvalidInput(
                f"there are {len(self.inputs):,} inputs, {len(self.labels):,} labels and {np.size(self.level_of):,} "
                "levels; give one of each for every record"
            )

    def trained(
        self, member: AnyArray, seed: int | None = None, private: bool = True, steps: int | None = None
    ) -> nn.Module:
        """A model that had the records marked by ``member``, after ``steps`` (default: all of the plan's).

        ``private=False``: as everybody trains, to compare.
        """
        rows = torch.from_numpy(np.flatnonzero(member))
        model = self.model().to(self.device)
        optimizer = self.optimizer(model)
        some = TensorDataset(self.inputs[rows].to(self.device), self.labels[rows].to(self.device))
        if private:
            own = self.plan.for_nobody(self.level_of[member])
            train(model, optimizer, some, own, self.loss_fn, steps=steps, execution=self.execution, seed=seed)
        else:
            batch_size = min(self.plan.batch_size, len(rows))
            train_ordinarily(
                model,
                optimizer,
                some.tensors,
                self.loss_fn,
                steps=self.plan.steps if steps is None else steps,
                batch_size=batch_size,
            )
        return model

    def confidence(self, model: nn.Module) -> FloatArray:
        """The model's scaled confidence in the label of every record (`lira.scaled_confidence`)."""
        with modes_kept(model), torch.no_grad():
            model.eval()
            logits = [model(part.to(self.device)).double().cpu() for part in torch.split(self.inputs, _AT_ONCE)]
        return scaled_confidence(torch.cat(logits).numpy(), self.labels.cpu().numpy())


def loss_of(confidence: AnyArray) -> FloatArray:
    """The cross-entropy of a scaled confidence φ: -log p = log(1 + e^-φ)."""
    return np.logaddexp(0.0, -np.asarray(confidence, dtype=np.float64))
