"""A layer's rule against autograd, one record at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from privypurse.errors import InvalidInput
from privypurse.training.gradients.clipping import norms, sums, uses_of
from privypurse.training.gradients.rule import RULES, rule_of
from privypurse.training.gradients.tape import Recorder, Tape
from privypurse.training.isolation.replaced_records import counts_records

_SHARE = 1e-3  # a norm may be too large, and a gradient off, by that: far more than rounding, far less than an error
_ROUNDING = 1e-5  # by which autograd itself may be off, in float32


def check_rule(layer: nn.Module, *inputs: Any, **options: Any) -> None:
    """Raise InvalidInput if the rule of this layer gives something else than autograd, one record at a time.

    ``inputs`` are a batch for the layer, records first. Its output, the first one of several, is weighed at random;
    then each record's gradient must be the true one, its norm at least the true one and at most a thousandth more,
    and the sum over records, each with a weight of its own, the true sum. A check on some numbers is no proof: try
    the shapes and options in use.
    A layer without a rule is refused: it would be handled by the way for any layer, and that would be checked.
    """
    _require_a_rule(type(layer))
    compare_with_autograd(layer, *inputs, **options)


def _require_a_rule(kind: type[nn.Module]) -> None:
    if rule_of(kind) is not None:
        return
    above = next((base.__name__ for base in kind.__mro__ if base in RULES), None)
    why = f"; that of {above} is not used for its subclasses" if above else ""
    raise InvalidInput(
        f"layer is of the kind {kind.__name__}, for which no rule is registered{why}. It is handled as any other "
        f"layer, by torch.func. Register a rule with @handles({kind.__name__}) first (docs/own-layers.md)"
    )


def compare_with_autograd(layer: nn.Module, *inputs: Any, **options: Any) -> None:
    """As `check_rule`, for whatever handles the layer and those inside."""
    records = next(leaf.shape[0] for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor))
    tape = Tape(records)
    output = _first(Recorder(layer).forward(tape, *inputs, **options))
    weighing = torch.randn_like(output)
    torch.autograd.backward((output * weighing).sum())
    truth = _one_by_one(layer, (inputs, options), weighing)
    for name, calls in uses_of(tape).items():
        made = torch.stack([call.rule.made(call)[local] for call, local in calls]).sum(dim=0)
        _require(layer, f"per_record gives another gradient of {name}", made, truth[name])
    found = norms(tape)
    exact = torch.stack([value.unsqueeze(-1).flatten(1).norm(dim=1) for value in truth.values()]).norm(dim=0)
    _require(layer, "squared_norms gives other norms", found, exact)
    if bool((found < exact * (1 - _ROUNDING)).any()):
        raise _refusal(layer, "squared_norms gives less than the norm, which lets a record past its clip norm")
    weights = torch.rand_like(found)
    total = {name: torch.zeros_like(value[0]) for name, value in truth.items()}
    for name, part in sums(tape, weights, found):
        total[name] = total[name] + part
    for name, value in truth.items():
        expected = torch.tensordot(weights.to(value), value, dims=1)
        _require(layer, f"weighted_sum gives another sum of {name}", total[name], expected)


def _one_by_one(layer: nn.Module, given: Any, weighing: Tensor) -> dict[str, Tensor]:
    """For each trainable parameter every record's gradient, each from a pass of its own."""
    trained = {name: value for name, value in layer.named_parameters() if value.requires_grad}
    found = []
    for i, weight in enumerate(weighing):

        def alone(value: Any, i: int = i) -> Any:
            return value.detach()[i : i + 1] if counts_records(value, len(weighing)) else value

        inputs, options = tree_map(alone, given)
        loss = (_first(layer(*inputs, **options)) * weight).sum()
        found.append(torch.autograd.grad(loss, list(trained.values()), materialize_grads=True))
    return {name: torch.stack(each) for name, each in zip(trained, zip(*found, strict=True), strict=True)}


def _first(output: Any) -> Tensor:
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return first


def _require(layer: nn.Module, what: str, found: Tensor, expected: Tensor) -> None:
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    if found.shape != expected.shape or not torch.allclose(found.to(expected), expected, _SHARE, _SHARE * scale):
        raise _refusal(layer, f"{what} than autograd, one record at a time")


def _refusal(layer: nn.Module, what: str) -> InvalidInput:
    return InvalidInput(
        f"the rule of {type(layer).__name__}: {what}. See docs/own-layers.md for what a rule must give"
    )
