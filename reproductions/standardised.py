"""Convolutions with scaled weight standardisation and a gain (De et al. 2022), and what each record's gradient is.

After Brock et al. (2021, arXiv 2101.08692, eq. 1) the layer multiplies with (w − μ) · gain / √max(N σ², 1e-4), for a
filter w of N entries with mean μ and variance σ². What is clipped and made noisy is w as it was before, and the gain.

`torch.nn.utils.parametrize` says the same and needs no rule, but there every record's gradient goes through the
formula's backward pass, one large operation after the other. Here it takes two, and nothing is copied.
"""

import torch
from torch import Tensor, nn

from privypurse.training.gradients import Call, Rule, handles
from privypurse.training.gradients.convolution import ConvolutionRule
from privypurse.training.gradients.numerics import (
    as_short_as_convolutions,
    at_least_float32,
    full_precision,
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


@handles(StandardisedConv2d)
class StandardisedRule(Rule):
    """From each record's gradient g of a standardised filter to those of its weight and its gain.

    With c = w − μ and s = max(‖c‖², 1e-4)^−½ they are gain · s · (g − ⟨g, e⟩ e − ⟨g, u⟩ u) and ⟨g, u⟩, where e is the
    constant of length 1 and u = s c. The last of the three terms is not there where ‖c‖² < 1e-4. What stands in the
    brackets is kept as "weight", its factor as ``call.way``: so what is measured is what is added up later.
    """

    features = ConvolutionRule.features
    takes_views = True
    _inner = ConvolutionRule()

    def settle(self, call: Call) -> None:
        layer: StandardisedConv2d = call.module  # type: ignore[assignment]
        flat = layer.weight.detach().flatten(1).double()
        centred = flat - flat.mean(dim=1, keepdim=True)
        lengths = centred.square().sum(dim=1)
        short = lengths.clamp(min=_LEAST).rsqrt()
        directions = torch.stack([torch.full_like(flat, flat.shape[1] ** -0.5), centred * short.unsqueeze(1)], dim=1)
        with full_precision(call.output_gradient.device):
            bias = self._inner.bias(call)
            with as_short_as_convolutions():
                g = at_least_float32(self._inner.weight(call).flatten(2))
            by_filter, directions = g.transpose(0, 1), directions.to(g)
            along = torch.bmm(by_filter, directions.transpose(1, 2))  # (filters, records, two)
            taken = torch.stack([along[..., 0], along[..., 1] * (lengths >= _LEAST).unsqueeze(1)], dim=2)
            by_filter.baddbmm_(taken, directions, alpha=-1)  # in g itself, which is large
        call.way = (layer.gain.detach().double() * short).to(g)
        call.keep({"weight": g, "gain": along[..., 1].T.contiguous(), "bias": bias})

    def per_record(self, call: Call) -> dict[str, Tensor]:
        weight = call.kept["weight"] * call.way.unsqueeze(1)
        full = {**call.kept, "weight": weight.view(len(weight), *call.module.get_parameter("weight").shape)}
        return {name: full[name] for name in call.names}

    def made(self, call: Call) -> dict[str, Tensor]:
        return self.per_record(call)

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        found = {name: square_sum(call.kept[name]) for name in call.names if name != "weight"}
        if "weight" in call.names:
            kept = call.kept["weight"]
            lengths = square_sum(kept.flatten(0, 1)).sqrt().view(kept.shape[:2])
            found["weight"] = square_sum(lengths * call.way.abs()) * (1 + 8 * torch.finfo(kept.dtype).eps)
        return found

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        found = {name: weighted_rows(call.kept[name].flatten(1), weights) for name in call.names}
        if "weight" in found:
            shape = call.module.get_parameter("weight").shape
            found["weight"] = (found["weight"].view(len(call.way), -1) * call.way.unsqueeze(1)).view(shape)
        return found
