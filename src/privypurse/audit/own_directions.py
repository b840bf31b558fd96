"""Canaries in the network's own coordinates: whether the noise covers every parameter that people's gradients go to.

Such a canary's loss is one number of the network's own parameters, times its gradient; nobody else's canary has that
number. It enters before clipping as every record does: the parameter is used twice, by its layer and here, and both
uses are added up before a norm is taken. Others have gradients there too. The attacker, who knows all of them and who
of them was drawn, subtracts their clipped sum.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from privypurse.arrays import IntArray
from privypurse.plans import Plan
from privypurse.randomness import Randomness
from privypurse.training.gradients import Call, Recorder, Rule, clip_factors, handles, norms, recorded, sums
from privypurse.training.gradients.numerics import as_wide, at_least_float32
from privypurse.training.isolation.loss_fn import Loss

SHARE = 4
"""At most one of so many of the network's numbers has a canary: the network stays much the same network."""
NOWHERE = -1


def trained(network: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def places(network: nn.Module, canaries: int, source: Randomness) -> IntArray:
    """For each canary a number of the network's own that is nobody else's, at random, counted over all parameters.

    NOWHERE for those beyond the quarter of the numbers: they need a coordinate that is appended. Which canaries these
    are is at random too, so that each group has its part.
    """
    numbers = sum(parameter.numel() for parameter in trained(network))
    found = np.full(canaries, NOWHERE, dtype=np.int64)
    inside = min(canaries, numbers // SHARE)
    found[_some(canaries, inside, source)] = _some(numbers, inside, source)
    return found


def _some(of: int, count: int, source: Randomness) -> IntArray:
    """So many different ones of 0 … of - 1, in random order."""
    return np.asarray(np.argsort(source.uniform(of), kind="stable")[:count], dtype=np.int64)


class Numbers(nn.Module):
    """Looks up single numbers of a parameter that is a layer's of the network, by their places in it."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, place: Tensor) -> Tensor:
        return self.weight.reshape(-1)[place]


@handles(Numbers)
class NumbersRule(Rule):
    """A record's gradient is one number at its place."""

    def settle(self, call: Call) -> None:
        """Nothing is made: norms and sums follow from places and the output's gradient."""

    def per_record(self, call: Call) -> dict[str, Tensor]:
        gradient = at_least_float32(call.output_gradient).unsqueeze(1)
        shape = call.module.get_parameter("weight").shape
        rows = gradient.new_zeros((gradient.shape[0], shape.numel()))
        return {"weight": rows.scatter_(1, call.inputs[0].unsqueeze(1), gradient).reshape(-1, *shape)}

    def term_norms(self, call: Call) -> dict[str, Tensor]:
        return {"weight": at_least_float32(call.output_gradient).abs()}

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        gradient = as_wide(at_least_float32(call.output_gradient), weights)
        shape = call.module.get_parameter("weight").shape
        total = gradient.new_zeros(shape.numel())
        return {"weight": total.index_add_(0, call.inputs[0], gradient * weights.to(gradient.dtype)).reshape(shape)}


class OwnDirections(nn.Module):
    """For each canary its number of the network's own parameters."""

    def __init__(self, network: nn.Module, place: IntArray) -> None:
        super().__init__()
        self._parts = [Numbers(parameter) for parameter in trained(network)]
        self.parts = nn.ModuleList(self._parts)
        self.place: Tensor
        self.register_buffer("place", torch.from_numpy(place))

    def forward(self, canary: Tensor) -> Tensor:
        place, begin = self.place[canary], 0
        found = torch.zeros_like(place, dtype=torch.get_default_dtype())
        for part in self._parts:
            size = part.weight.numel()
            here = (place >= begin) & (place < begin + size)
            found = torch.where(here, part((place - begin).clamp(0, size - 1)), found)
            begin += size
        return found

    @property
    def gradient(self) -> Tensor:
        """The released gradient of the network's own parameters, one after the other."""
        found = [part.weight.grad for part in self._parts]
        return _flat([each for each in found if each is not None])


def _flat(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


class Others:
    """What the real records contribute to a step: an attacker who knows them, and who was drawn, subtracts it.

    They are the first so many records of the plan. Of a network that draws at random inside (dropout) it is another
    draw: this attacker then knows less than one might.
    """

    def __init__(self, network: nn.Module, loss_fn: Loss, plan: Plan, records: TensorDataset, real: int) -> None:
        self._recorder, self._loss_fn, self._real = Recorder(network), loss_fn, real
        self._x, _, self._label = records.tensors
        self._limits = torch.as_tensor(plan.levels.clip_norm[plan.level_of], device=self._x.device)

    def clipped_sum(self, drawn: Tensor) -> Tensor:
        """Over the network's own parameters, one after the other, in float64; ``drawn`` may count a record twice."""
        who = torch.unique(drawn[drawn < self._real]).to(self._x.device)  # padding on a GPU is a copy of somebody
        total = {name: torch.zeros_like(each, dtype=torch.float64) for name, each in self._recorder.trainable.items()}
        if len(who):
            tape, _ = recorded(self._recorder, self._loss_fn, self._x[who], self._label[who], check=False)
            found = norms(tape)
            factors = clip_factors(found, self._limits[who].to(found))
            for name, part in sums(tape, factors, found, wide=True):
                total[name] += part
        return _flat(list(total.values()))
