"""Convolutions with scaled weight standardisation and a gain (De et al. 2022), and what each record's gradient is.

After Brock et al. (2021, arXiv 2101.08692, eq. 1) the layer multiplies with (w − μ) · gain / √max(N σ², 1e-4), for a
filter w of N entries with mean μ and variance σ². What is clipped and made noisy is w as it was before, and the gain.

`torch.nn.utils.parametrize` says the same and needs no rule, but there every record's gradient goes through the
formula's backward pass, one large operation after the other. Here norms are taken without, and the sum goes through
once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privypurse.training.gradients import Call, Rule, handles
from privypurse.training.gradients.convolution import ConvolutionRule
from privypurse.training.gradients.numerics import (
    as_short_as_convolutions,
    at_least_float32,
    full_precision,
    rounding,
    square_sum,
    weighted_rows,
)

_LEAST = 1e-4  # what N σ² counts as at least


class StandardisedConv2d(nn.Conv2d):
    """Padded so that places stay. Standardised filters have the length of their gain."""

    def __init__(self, inside: int, outside: int, side: int, stride: int = 1) -> None:
        super().__init__(inside, outside, side, stride, side // 2)
        self.gain = nn.Parameter(torch.ones(outside))
        deviation = (inside * side * side) ** -0.5
        nn.init.trunc_normal_(self.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]

    def standardised(self) -> Tensor:
        """The weight that the layer multiplies with."""
        flat = self.weight.flatten(1)
        centred = flat - flat.mean(dim=1, keepdim=True)
        lengths = centred.square().sum(dim=1, keepdim=True)
        made: Tensor = centred * lengths.clamp(min=_LEAST).rsqrt() * self.gain.unsqueeze(1)
        return made.view_as(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._conv_forward(x, self.standardised(), self.bias)
        return out


@dataclass(frozen=True, eq=False)
class _PullBack:
    """From the gradient g of a standardised filter to those of its weight and its gain.

    With c = w − μ and s = max(‖c‖², 1e-4)^−½ they are gain · s · (g − ⟨g, e⟩ e − ⟨g, u⟩ u) and ⟨g, u⟩, where e is the
    constant of length 1 and u = s c. The last of the three terms is not there where ‖c‖² < 1e-4.
    """

    scale: Tensor
    """gain · s, (filters,), in float64 as the others."""
    constant: Tensor
    """e and u of each filter, (filters, entries)."""
    turned: Tensor
    turns: Tensor
    """1 where a filter's length is taken away, 0 elsewhere, (filters,)."""

    @classmethod
    def of(cls, call: Call) -> "_PullBack":
        layer: StandardisedConv2d = call.module  # type: ignore[assignment]
        flat = layer.weight.detach().flatten(1).double()
        centred = flat - flat.mean(dim=1, keepdim=True)
        lengths = centred.square().sum(dim=1)
        short = lengths.clamp(min=_LEAST).rsqrt()
        constant = torch.full_like(flat, flat.shape[1] ** -0.5)
        scale = layer.gain.detach().double() * short
        return cls(scale, constant, centred * short.unsqueeze(1), (lengths >= _LEAST).double())

    def along(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """⟨g, e⟩ and ⟨g, u⟩ of every record and filter, read once; ``g`` is (records, filters, entries)."""
        both = torch.stack([self.constant, self.turned], dim=2).to(g)
        found = torch.bmm(g.transpose(0, 1), both).transpose(0, 1)
        return found[..., 0].contiguous(), found[..., 1].contiguous()

    def weight(self, g: Tensor) -> Tensor:
        """The weight's gradient, for g of any number of records, or of their sum."""
        wide = g.double()
        level, length = ((wide * each).sum(dim=-1, keepdim=True) for each in (self.constant, self.turned))
        left = wide - level * self.constant - length * self.turns.unsqueeze(1) * self.turned
        return (self.scale.unsqueeze(1) * left).to(g)

    def squares(self, g: Tensor, level: Tensor, length: Tensor) -> Tensor:
        """The squared norm of the weight's gradient, ‖g‖² − ⟨g, e⟩² − ⟨g, u⟩² by filter, never too small.

        Each of the three is off by a share of ‖g‖² at most, in whatever order it was added up (the two products by
        twice that share); it is counted on top.
        """
        whole = square_sum(g.flatten(0, 1)).view(g.shape[:2])
        left = (whole - level.square() - self.turns.to(g) * length.square()).clamp(min=0)
        left = left + 6 * rounding(float(g.shape[2]), g.dtype) * whole
        scale = self.scale.to(g).square() * (1 + 4 * torch.finfo(g.dtype).eps)
        return (scale * left).sum(dim=1)


@handles(StandardisedConv2d)
class StandardisedRule(Rule):
    """Keeps each record's gradient of the standardised filters ("weight"), of the gains, and ⟨g, e⟩ ("level")."""

    features = ConvolutionRule.features
    takes_views = True
    _inner = ConvolutionRule()

    def settle(self, call: Call) -> None:
        with full_precision(call.output_gradient.device):
            made = {"bias": self._inner.bias(call)}
            with as_short_as_convolutions():  # what is measured is kept, however it was rounded
                made["weight"] = at_least_float32(self._inner.weight(call).flatten(2))
            made["level"], made["gain"] = _PullBack.of(call).along(made["weight"])
        call.keep(made)

    def per_record(self, call: Call) -> dict[str, Tensor]:
        weight = _PullBack.of(call).weight(call.kept["weight"])
        shape = call.module.get_parameter("weight").shape
        made = {**call.kept, "weight": weight.view(len(weight), *shape)}
        return {name: made[name] for name in call.names}

    def made(self, call: Call) -> dict[str, Tensor]:
        return self.per_record(call)

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        found = {name: square_sum(call.kept[name]) for name in call.names if name != "weight"}
        if "weight" in call.names:
            kept = (call.kept[name] for name in ("weight", "level", "gain"))
            found["weight"] = _PullBack.of(call).squares(*kept)
        return found

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        found = {name: weighted_rows(call.kept[name].flatten(1), weights) for name in call.names}
        if "weight" in found:
            shape = call.module.get_parameter("weight").shape
            found["weight"] = _PullBack.of(call).weight(found["weight"].view(shape[0], -1)).view(shape)
        return found

    def term_norms(self, call: Call) -> dict[str, Tensor]:
        """A record's gradient of the weight is no longer than what was kept, scaled, and rounds by a share of it."""
        found = {name: square_sum(call.kept[name]).sqrt() for name in call.names}
        if "weight" in found:
            found["weight"] = found["weight"] * _PullBack.of(call).scale.abs().max().to(found["weight"])
        return found
