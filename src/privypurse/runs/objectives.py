"""One loss a record for each kind of target; a record without a target has a loss, and so a gradient, of zero."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from privypurse.datasets.targets import NO_CLASS, Classes, Flags, Number, Target

Losses = Callable[[Tensor, Tensor], Tensor]

class_losses: Losses = partial(F.cross_entropy, reduction="none", ignore_index=NO_CLASS)
"""Cross-entropy of class scores [n, classes] and classes [n]."""


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of outputs [n, 1] and targets [n, 1], both on the scale of the target's range."""
    none, targets = _filled(targets)
    return _without(none, (outputs - targets).square())


def flag_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Sum over the flags of the binary cross-entropy of logits [n, flags] and truths [n, flags]."""
    none, targets = _filled(targets)
    return _without(none, F.binary_cross_entropy_with_logits(outputs, targets, reduction="none"))


def _filled(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Where there is no target, and targets with 0 in such places: no NaN enters a product, since 0 · NaN is none."""
    none = torch.isnan(targets)
    return none, torch.where(none, torch.zeros_like(targets), targets)


def _without(none: Tensor, losses: Tensor) -> Tensor:
    return torch.where(none, torch.zeros_like(losses), losses).sum(1)


def losses_of(target: Target) -> Losses:
    """What training by a plan needs for this target."""
    return {Classes: class_losses, Number: squared_errors, Flags: flag_losses}[type(target)]
