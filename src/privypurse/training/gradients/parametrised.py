"""Linear layers and convolutions whose weight is made of other parameters, by `torch.nn.utils.parametrize`.

Weight standardisation, weight norm: the layer multiplies with w = f(v), and v is what is trained, clipped and made
noisy. A record's gradient of v is Jᵀ g, where g is its gradient of w, which the layer's own rule gives, and J the
Jacobian of f, the same for all records. The norm of Jᵀ g does not follow from that of g. So every record's Jᵀ g is
made, and what is measured is kept for the sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from privypurse.training.gradients.numerics import as_short_as_convolutions, at_least_float32, full_precision
from privypurse.training.gradients.rule import Call, Rule, rule_of
from privypurse.training.gradients.weight_and_bias import ProductRule


class ParametrisedRule(Rule):
    """Around the rule of the layer as it was before."""

    whole_module = True

    def __init__(self, inner: ProductRule) -> None:
        self._inner = inner
        self.features, self.one_shape = inner.features, inner.one_shape
        self.takes_views, self.records_anywhere = inner.takes_views, inner.records_anywhere

    def per_record(self, call: Call) -> dict[str, Tensor]:
        places = call.output_gradient[0].numel() + call.inputs[0][0].numel()
        size = sum(value.numel() for value in call.module.parameters())
        parts = [self._some(call.rows(some)) for some in call.chunks(_COPIES * (places + size))]
        if len(parts) == 1:
            return parts[0]
        return {name: torch.cat([part[name] for part in parts]) for name in call.names}

    def _some(self, call: Call) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        made_of: Any = call.module.parametrizations
        wanted = {name.removeprefix(_WITHIN).split(".")[0] for name in call.names}  # weight, bias
        # What is measured is kept, however it was rounded.
        with full_precision(call.output_gradient.device), as_short_as_convolutions():
            found = self._inner.per_record(replace(call, names=dict.fromkeys(wanted, "")))
        for name, gradients in found.items():
            if name in made_of:
                pulled = _pulled_back(made_of[name], gradients)
                made |= {f"{_WITHIN}{name}.{local}": value for local, value in pulled.items()}
            else:
                made[name] = gradients
        return {name: made[name] for name in call.names}


_WITHIN = "parametrizations."
_COPIES = 4  # of a record's windows and gradients, that are there at once


def _pulled_back(made_of: nn.Module, gradients: Tensor) -> dict[str, Tensor]:
    """Every record's gradient of what a weight is made of, from those of the weight."""
    values = {name: at_least_float32(value.detach()) for name, value in made_of.named_parameters()}
    fixed = dict(made_of.named_buffers())

    def weight(values: dict[str, Tensor]) -> Tensor:
        found: Tensor = torch.func.functional_call(made_of, values | fixed, ())
        return found

    pull: Any = torch.func.vjp(weight, values)[1]
    found: tuple[dict[str, Tensor]] = torch.func.vmap(pull)(gradients)
    return found[0]


def parametrised_rule(layer: nn.Module) -> Rule | None:
    """The rule of a layer whose weight or bias is made of other parameters; None where that one has no such rule."""
    if not parametrize.is_parametrized(layer):
        return None
    inner = rule_of(type(layer).__bases__[0])
    made: Any = layer.parametrizations
    return ParametrisedRule(inner) if isinstance(inner, ProductRule) and {*made} <= {"weight", "bias"} else None
