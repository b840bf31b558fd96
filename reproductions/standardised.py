"""Convolutions with scaled weight standardisation and a gain (De et al. 2022), and what each record's gradient is.

After Brock et al. (2021, arXiv 2101.08692, eq. 1) the layer multiplies with (w − μ) · gain / √max(N σ², 1e-4), for a
filter w of N entries with mean μ and variance σ². What is clipped and made noisy is w as it was before, and the gain.

`torch.nn.utils.parametrize` says the same and needs no rule, but there every record's gradient goes through the
formula's backward pass, one large operation after the other. Here it takes two, on a GPU one, and nothing is copied.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from privypurse.training.gradients import Call, Rule, handles
from privypurse.training.gradients.convolution import ConvolutionRule, Way, as_weight
from privypurse.training.gradients.numerics import (
    as_short_as_convolutions,
    at_least_float32,
    full_precision,
    has_kernels,
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


class Kept(NamedTuple):
    """How a call's weight gradients are kept, as it was when they came back."""

    order: Way
    """That in which products left them."""
    factor: Tensor
    """What each filter's is still to be multiplied with."""


def _projected(g: Tensor, directions: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Take mean and direction off each filter's gradient, in place.

    ``g`` is (records, steps, filters, entries), directions (steps, filters, entries) of length 1 over steps and
    entries; where a filter is not ``inside``, its direction stays. Gives what was along the directions, and the
    squared length of what is left, or a little more: both (records, filters).
    """
    if has_kernels(g):
        from reproductions import kernels

        if kernels.holds_filter(g):
            return kernels.projected(g, directions, inside)
    entries = directions[:, 0].numel()
    rows = g.flatten(1, 2).transpose(0, 1)  # (steps · filters, records, entries)
    both = torch.stack([torch.full_like(directions, entries**-0.5), directions], dim=2).flatten(0, 1)
    found = torch.bmm(rows, both.transpose(1, 2))
    found = found.view(*directions.shape[:2], *found.shape[1:]).sum(dim=0)
    taken = torch.stack([found[..., 0], found[..., 1] * inside.unsqueeze(1)], dim=2)
    rows.baddbmm_(taken.repeat(len(directions), 1, 1), both, alpha=-1)  # in g itself, which is large
    return found[..., 1].T.contiguous(), square_sum(g.flatten(0, 2)).view(g.shape[:3]).sum(dim=1)


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
        lengths = centred.square().sum(dim=1, keepdim=True)
        short = lengths.clamp(min=_LEAST).rsqrt()
        with full_precision(call.output_gradient.device):
            bias = self._inner.bias(call)
            with as_short_as_convolutions():
                g, order = self._inner.by_steps(call)
            g = at_least_float32(g)  # (records, steps of the kernel, filters, entries of a step)
            place = torch.arange(g[0].numel(), device=g.device).view_as(g[:1])
            place = as_weight(layer, place, order).flatten()  # where each entry of the weight lies in g
            u = torch.empty_like(g[0])
            u.view(-1).index_copy_(0, place, (centred * short).to(g).flatten())
            along, squares = _projected(g, u, (lengths >= _LEAST).squeeze(1))
        call.way = Kept(order, (layer.gain.detach().double() * short.squeeze(1)).to(g))
        call.keep({"weight": g, "gain": along, "bias": bias, "squares": squares})

    def per_record(self, call: Call) -> dict[str, Tensor]:
        found = {name: call.kept[name] for name in call.names}
        if "weight" in found:
            found["weight"] = self._in_order(call, found["weight"])
        return found

    def _in_order(self, call: Call, kept: Tensor) -> Tensor:
        """Gradients as they are kept, (records, …), as the weight has them."""
        layer: StandardisedConv2d = call.module  # type: ignore[assignment]
        factor: Tensor = call.way.factor.to(kept)
        return as_weight(layer, kept, call.way.order) * factor[:, None, None, None]

    def made(self, call: Call) -> dict[str, Tensor]:
        return self.per_record(call)

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        found = {name: square_sum(call.kept[name]) for name in call.names if name != "weight"}
        if "weight" in call.names:
            squares = call.kept["squares"]
            parts = square_sum(squares.sqrt() * call.way.factor.abs())
            found["weight"] = parts * (1 + 8 * torch.finfo(squares.dtype).eps)
        return found

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        found = {name: weighted_rows(call.kept[name].flatten(1), weights) for name in call.names}
        if "weight" in found:
            total = found["weight"].view(1, *call.kept["weight"].shape[1:])
            found["weight"] = self._in_order(call, total)[0]
        return found
