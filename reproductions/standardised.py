"""Convolutions with scaled weight standardisation and a gain (De et al. 2022), and what each record's gradient is.

After Brock et al. (2021, arXiv 2101.08692, eq. 1) the layer multiplies with (w − μ) · gain / √max(N σ², 1e-4), for a
filter w of N entries with mean μ and variance σ². What is clipped and made noisy is w as it was before, and the gain.

`torch.nn.utils.parametrize` says the same and needs no rule, but there every record's gradient goes through the
formula's backward pass, one large operation after the other. Here each is read once, and only their sum goes through.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from privypurse.training.gradients import Call, Rule, handles
from privypurse.training.gradients.convolution import ConvolutionRule, as_weight
from privypurse.training.gradients.numerics import (
    as_short_as_convolutions,
    at_least_float32,
    full_precision,
    has_kernels,
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


class Projection(NamedTuple):
    """What becomes of a filter's gradient, as it was when the gradient came back."""

    place: Tensor
    """Where each entry of the weight lies in what is kept."""
    directions: Tensor
    """Those that a filter's gradient loses: (filters, two, entries)."""
    factor: Tensor
    """What is left is multiplied with: (filters)."""

    def __call__(self, kept: Tensor) -> Tensor:
        """Of gradients as they are kept, records first: (records, *shape of the weight)."""
        g = kept.flatten(1)[:, self.place.flatten()].view(len(kept), *self.place.shape).flatten(2)
        directions, factor = self.directions.to(g), self.factor.to(g)
        by_filter = g.transpose(0, 1)
        along = torch.bmm(by_filter, directions.transpose(1, 2))
        left = torch.baddbmm(by_filter, along, directions, alpha=-1) * factor[:, None, None]
        return left.transpose(0, 1).reshape(-1, *self.place.shape)


def _three_sums(g: Tensor, directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ g², Σ g and Σ g · direction over the last dimension; records come first in g."""
    if has_kernels(g):
        from reproductions import kernels

        return kernels.three_sums(g, directions)
    rows = g.flatten(1, -2)
    along = torch.bmm(rows.transpose(0, 1), directions.flatten(0, -2).unsqueeze(2)).squeeze(2).T.reshape(g.shape[:-1])
    return square_sum(rows.flatten(0, 1)).view(g.shape[:-1]), g.sum(dim=-1), along


@handles(StandardisedConv2d)
class StandardisedRule(Rule):
    """From each record's gradient g of a standardised filter to those of its weight and its gain.

    With c = w − μ and s = max(‖c‖², 1e-4)^−½ they are gain · s · (g − ⟨g, e⟩ e − ⟨g, u⟩ u) and ⟨g, u⟩, where e is the
    constant of length 1 and u = s c. The last of the three terms is not there where ‖c‖² < 1e-4. As e and u are
    orthogonal, what stands in the brackets has the squared length ‖g‖² − ⟨g, e⟩² − ⟨g, u⟩². So g itself is kept as
    "weight", in the order in which products leave it, and the projection, which is the same for all records, goes
    through their sum.

    Where nearly all of g is taken away, those three are nearly equal, and rounding decides. So a share of ‖g‖² is
    added that is no less: of a sum of so many products, whatever the order of its additions, for each of the three
    and for directions that are rounded. The sum's own rounding before it is projected is a share of ‖g‖ as well, and
    with that share in the norm far below the margin of the clip norm.
    """

    features = ConvolutionRule.features
    takes_views = True
    _inner = ConvolutionRule()

    def settle(self, call: Call) -> None:
        layer: StandardisedConv2d = call.module  # type: ignore[assignment]
        flat = layer.weight.detach().flatten(1).double()
        centred = flat - flat.mean(dim=1, keepdim=True)
        lengths = centred.square().sum(dim=1, keepdim=True)
        short, entries = lengths.clamp(min=_LEAST).rsqrt(), flat.shape[1]
        with full_precision(call.output_gradient.device):
            bias = self._inner.bias(call)
            with as_short_as_convolutions():
                g, way = self._inner.by_steps(call)
            g = at_least_float32(g)  # (records, steps of the kernel, filters, entries of a step)
            u = (centred * short).to(g)
            place = torch.arange(g[0].numel(), device=g.device).view_as(g[:1])
            place = as_weight(layer, place, way)[0]
            by_step = torch.empty_like(u).flatten().index_copy_(0, place.flatten(), u.flatten()).view_as(g[0])
            squares, sums, along = (each.sum(dim=1) for each in _three_sums(g, by_step))
        inside = lengths.squeeze(1) >= _LEAST
        left = (squares - sums.square() / entries - (along * inside).square()).clamp(min=0)
        left += 4 * rounding(entries, g.dtype) * squares
        directions = torch.stack([torch.full_like(u, entries**-0.5), u * inside.unsqueeze(1)], dim=1)
        call.way = Projection(place, directions, (layer.gain.detach().double() * short.squeeze(1)).to(g))
        call.keep({"weight": g, "gain": along, "bias": bias, "left": left * call.way.factor.square()})

    def per_record(self, call: Call) -> dict[str, Tensor]:
        found = {name: call.kept[name] for name in call.names}
        if "weight" in found:
            with full_precision(found["weight"].device):
                found["weight"] = call.way(found["weight"])
        return found

    def made(self, call: Call) -> dict[str, Tensor]:
        return self.per_record(call)

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        found = {name: square_sum(call.kept[name]) for name in call.names if name != "weight"}
        if "weight" in call.names:
            left = call.kept["left"]
            found["weight"] = left.sum(dim=1) * (1 + 2 * rounding(left.shape[1], left.dtype))
        return found

    def term_norms(self, call: Call) -> dict[str, Tensor]:
        """Of "weight" before it is projected: its rounding is a share of that."""
        found = {name: square_sum(call.kept[name]).sqrt() for name in call.names}
        if "weight" in found:
            found["weight"] = found["weight"] * call.way.factor.abs().max()
        return found

    def summands(self, call: Call) -> int | Tensor:
        return super().summands(call) + 4 * int(call.way.directions.shape[2])

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        found = {name: weighted_rows(call.kept[name].flatten(1), weights) for name in call.names}
        if "weight" in found:
            found["weight"] = call.way(found["weight"].unsqueeze(0))[0]
        return found
