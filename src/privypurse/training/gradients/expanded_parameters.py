"""Bare parameters with a leading dimension of 1 (positions, a class token) of a module whose layers have rules.

While a forward pass is recorded each record has a copy of the parameter: (1, tokens, features) becomes (records,
tokens, features). What comes back to a record's copy is its gradient. That no record uses another's is checked in
`isolation/model.py`.
"""

from __future__ import annotations

from torch import Tensor, nn

from privypurse.training.gradients.generic import GenericRule, draws_inside
from privypurse.training.gradients.numerics import at_least_float32
from privypurse.training.gradients.rule import Call


class ExpandedParameterRule(GenericRule):
    """The module's own parameters alone."""

    whole_module = False

    def per_record(self, call: Call) -> dict[str, Tensor]:
        return {name: at_least_float32(call.output_gradient).unsqueeze(1) for name in call.names}


def takes_expanded_parameters(module: nn.Module, own: list[nn.Parameter]) -> bool:
    """Whether this is a container with such parameters, beside layers that draw, which cannot be run once more."""
    leading = all(parameter.dim() > 1 and parameter.shape[0] == 1 for parameter in own)
    return leading and any(True for _ in module.children()) and draws_inside(module) is not None


EXPANDED_PARAMETER = ExpandedParameterRule()
