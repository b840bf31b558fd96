"""A layer's rule: how the per-example gradients of one kind of layer follow from what went in and what came back.

One file of this room holds one kind's rule. A layer of one's own gets one in the same way::

    @handles(MyLayer)
    class MyRule(Rule):
        def per_record(self, call):
            return {"weight": call.output_gradient * call.inputs[0]}

`check_rule` compares it with autograd, one record at a time. docs/own-layers.md tells the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from privypurse.errors import InvalidInput
from privypurse.training.gradients.layout import RECORDS_FIRST, Layout
from privypurse.training.gradients.numerics import (
    at_least_float32,
    square_sum,
    takes_short,
    weighted_rows,
    weighted_total,
)

_ROUNDED = frozenset(
    {"torch.nn.modules.linear.Linear", "transformers.pytorch_utils.Conv1D"}
    | {f"torch.nn.modules.conv.Conv{dimensions}d" for dimensions in (1, 2, 3)}
)
"""Layers that give bfloat16 for float32 under autocast only, and round what they are given; subclasses may differ."""
_AT_ONCE = 2**28  # elements of temporaries at once on a GPU, which idles between pieces: a gigabyte
_IN_CACHE = 2**20  # the same on a CPU: more than its nearer caches hold is no faster


@dataclass
class GradientCache:
    """What may be kept of per-example gradients: how many more elements, by all layers together."""

    left: int = 0
    last_gram: tuple[Any, Tensor] | None = None
    """Of which input the last Gram matrix was taken, and it: layers side by side, as in attention, get the same."""

    def take(self, elements: int) -> bool:
        """Whether so many fit; then their space is taken."""
        if elements > self.left:
            return False
        self.left -= elements
        return True


@dataclass
class Call:
    """One use of a layer in a forward pass: its inputs and, after the backward pass, its output's gradient."""

    module: nn.Module
    rule: Rule
    names: dict[str, str]
    """The layer's trainable parameters: local name → name in the model."""
    inputs: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    """What the layer was given by keyword."""
    gradient: Tensor | None = None
    other_output_gradients: tuple[Tensor, ...] = ()
    """The gradients of further outputs that are watched."""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """Per-example gradients that the norms had to materialise, so that the sum need not make them again."""
    settled: bool = False
    """Whether all per-example gradients are kept, and nothing else is."""
    cache: GradientCache = field(default_factory=GradientCache)
    kept_is_measured: bool = False
    """Whether norms are taken of what is kept, as it was kept: no other use adds to these parameters."""
    way: Any = None
    """How the rule took the norms, where the sum has to know."""
    open: Callable[[], bool] | None = None
    """Whether a gradient may come back now; without, it always may."""
    lent: bool = False
    """Whether inputs were left to autograd until the backward pass, for parts that run again there."""
    layout: Layout = RECORDS_FIRST
    """Where the layer has its records. Here they are always first."""
    views: int = 1
    """How often each record went through the layer, each time as a row; its gradient is the sum over these."""

    @property
    def output_gradient(self) -> Tensor:
        """The gradient of the loss with respect to the layer's output; the first dimension counts records."""
        assert self.gradient is not None
        return self.gradient

    @property
    def path(self) -> str:
        """Where the layer is in the model."""
        local, name = next(iter(self.names.items()))
        return name.removesuffix(local).removesuffix(".") or "model"

    @property
    def held(self) -> int:
        """Elements that the tape holds for this call."""
        tensors = [value for value in tree_leaves(self.inputs) if isinstance(value, Tensor)]
        return sum(value.numel() for value in (*tensors, self.output_gradient))

    def input_and_gradient(self, some: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """The first input and the output's gradient of some of the records, in float32 or better."""
        return at_least_float32(self.inputs[0][some]), at_least_float32(self.output_gradient[some])

    def round_as_autocast(self) -> None:
        """Go on with the input as the layer met it: autocast rounds it to what the output is in.

        Only for layers of which that is known. Before any rule sees the call: norm and sum are both of what is left.
        """
        kind = type(self.module)
        short = self.output_gradient.dtype == torch.bfloat16
        if short and f"{kind.__module__}.{kind.__qualname__}" in _ROUNDED and self.inputs[0].dtype == torch.float32:
            self.inputs = self.inputs[0].to(torch.bfloat16), *self.inputs[1:]

    def operands(self, some: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """The same as `products` takes them, which may be bfloat16."""
        a, g = self.inputs[0][some], self.output_gradient[some]
        return (a, g) if takes_short(a) and takes_short(g) else (at_least_float32(a), at_least_float32(g))

    def rows(self, some: slice | Tensor) -> Call:
        """The same call for some of the records."""
        inputs = tree_map(lambda value: value[some] if isinstance(value, Tensor) else value, self.inputs)
        kept = {name: value[some] for name, value in self.kept.items()}
        return replace(self, inputs=inputs, gradient=self.output_gradient[some], other_output_gradients=(), kept=kept)

    def keep(self, gradients: dict[str, Tensor]) -> None:
        """Go on with per-example gradients alone. Of inputs and output gradient only the shapes stay."""
        self.kept, self.settled = gradients, True
        self.inputs = tree_map(lambda value: _shape_of(value) if isinstance(value, Tensor) else value, self.inputs)
        self.gradient, self.other_output_gradients, self.options = _shape_of(self.output_gradient), (), {}

    def worth_keeping(self, size: int) -> bool:
        """Whether per-example gradients of ``size`` elements are small beside what the tape holds for this call."""
        return 2 * size * self.output_gradient.shape[0] <= self.held

    def chunks(self, each: int) -> list[slice]:
        """The records in runs, so that temporaries of ``each`` elements a record stay small at once.

        On a CPU as much as its caches hold. A GPU wants work in one piece: as much as a quarter of what the tape
        holds for this call anyway. Depends on shapes alone, so a captured graph may hold it.
        """
        records, most = self.output_gradient.shape[0], _IN_CACHE
        if self.output_gradient.device.type != "cpu":
            most = max(_AT_ONCE, self.held // 4)
        size = max(1, min(records, most // max(1, each)))
        pieces = -(-records // size)
        size = -(-records // max(1, pieces))  # even pieces: a small rest would cost as much as a whole
        return [slice(begin, min(begin + size, records)) for begin in range(0, records, size)]


def _shape_of(value: Tensor) -> Tensor:
    """A tensor of that shape which takes no memory."""
    return value.new_zeros(()).expand(value.shape)


class Rule(ABC):
    """How the per-example gradients of one kind of layer follow from a `Call`.

    A rule must give `per_record`; the other methods follow from it, and may be written anew where norms and sums can
    be had without each record's gradient. Everything is by local parameter name ("weight"), for exactly the names in
    ``call.names``, in float32 or better.

    The contract, which clipping relies on:

    - The gradient of record i is made of row i of ``call.inputs`` and of ``call.output_gradient`` alone.
    - `squared_norms` is never below the squared norm of what `weighted_sum` adds up for that record, rounding
      included: a norm too small lets a record contribute more than its clip norm. A little too large is sound.
    - `weighted_sum` adds up in what the weights are in, float64 where they are. What is not finite was made 0 before.
    - The same call gives the same numbers each time: a rule draws nothing at random.
    """

    whole_module = False
    """Whether the rule answers for the parameters of all submodules too."""
    takes_all_apart = False
    """Whether the layer is run again for each record alone; so all tensors that it is given are taken apart."""
    records_anywhere = False
    """Whether the layer treats all dimensions but its features alike, so that any of them may count records."""
    one_shape = True
    """Whether shapes are the same for every batch of so many records, so that a captured graph may hold them."""
    takes_views = False
    """Whether the rule takes (records, views, ...) where records have several views: as more tokens or places."""
    features: int | None = None
    """The dimension of the output that counts features, over which no gradient's entry is a sum; None: not known."""

    @abstractmethod
    def per_record(self, call: Call) -> dict[str, Tensor]:
        """For each parameter every record's gradient: (records, *shape of the parameter)."""

    def made(self, call: Call) -> dict[str, Tensor]:
        """Every record's gradient, as it was kept or made now."""
        return call.kept if call.settled else self.per_record(call)

    def settle(self, call: Call) -> None:
        """Called once the output's gradient is there: every record's gradient is made, and takes its place.

        So what is measured is, to the bit, what is added up later. A rule that does without overrides this.
        """
        call.keep(self.required(call))

    def required(self, call: Call) -> dict[str, Tensor]:
        """Every record's gradient, of all the parameters that it is asked of."""
        made = self.per_record(call)
        if made.keys() != call.names.keys():
            raise InvalidInput(
                f"the rule of {type(call.module).__name__} gives gradients of {', '.join(made) or 'nothing'}; it "
                f"must give those of {', '.join(call.names)} (docs/own-layers.md)"
            )
        return {name: at_least_float32(value) for name, value in made.items()}

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        """For each parameter the squared norm of every record's gradient, or a little more."""
        return {name: square_sum(value) for name, value in self.made(call).items()}

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        """For each parameter Σ weights[i] · (gradient of record i)."""
        if not call.settled:  # a gradient that is made now need not be finite, whatever it is made of
            return {name: weighted_total(value, weights) for name, value in self.per_record(call).items()}
        rows = {name: value.unsqueeze(-1).flatten(1) for name, value in call.kept.items()}
        return {name: weighted_rows(rows[name], weights).view(call.kept[name].shape[1:]) for name in rows}

    def term_norms(self, call: Call) -> dict[str, Tensor]:
        """For each parameter and record an upper bound of Σ_t ‖g_t‖, where Σ_t g_t is the record's gradient.

        The terms g_t are what the layer adds up: one for each token or place. The rounding error of that sum is a
        share of Σ_t ‖g_t‖, not of ‖Σ_t g_t‖, which may be far smaller where terms cancel.
        """
        return {name: square_sum(value).sqrt() for name, value in self.made(call).items()}

    def summands(self, call: Call) -> int | Tensor:
        """How many numbers at most add up to one entry of a record's gradient: one for each token or place.

        One number for all records, or one for each.
        """
        shape = call.output_gradient.shape
        if self.features is None or len(shape) < 2:
            return max(1, shape[1:].numel())
        width = shape[self.features + (call.views > 1 and self.features > 0)]
        return max(1, shape[1:].numel() // max(1, width))

    def joined(self, calls: list[Call]) -> Call | None:
        """Several uses of the same parameters as one, over the terms of all of them; None if that cannot be said."""
        return None

    def rows(self, module: nn.Module, output: Any) -> Tensor:
        """What the layer gives, or the first of it, records first."""
        first: Tensor = output[0] if isinstance(output, tuple) else output
        return first


Part = Callable[[Rule, dict[str, str], Tensor], tuple[Tensor, Call | None]]
"""(rule, its names of parameters → the layer's, output) → the output watched, and its call.

Whoever runs the layer gives the call its inputs before the output's gradient is there.
"""


class InParts(Rule):
    """A layer that is run here, in parts which have rules: for kernels that do not tell what comes back inside."""

    @abstractmethod
    def run(self, module: nn.Module, part: Part, *inputs: Any, **options: Any) -> Any:
        """The forward pass in place of the layer's own, with every use of a parameter watched by ``part``."""

    def per_record(self, call: Call) -> dict[str, Tensor]:
        raise AssertionError("the calls on the tape are those of the parts")


RULES: dict[type[nn.Module], Rule] = {}

Made = TypeVar("Made", bound=type[Rule])


_NAMED: dict[str, Rule] = {}


def rule_of(kind: type[nn.Module]) -> Rule | None:
    """The rule of this kind of layer, if there is one."""
    return RULES.get(kind) or _NAMED.get(f"{kind.__module__}.{kind.__qualname__}")


def handles_named(*names: str) -> Callable[[Made], Made]:
    """As `handles`, for layers of packages that are not imported, by where they are defined."""

    def register(rule: Made) -> Made:
        _NAMED.update({name: rule() for name in names})
        return rule

    return register


def handles(*kinds: type[nn.Module]) -> Callable[[Made], Made]:
    """Class decorator: an instance of the rule handles these layers, not their subclasses. The latest one counts."""

    def register(rule: Made) -> Made:
        if not (isinstance(rule, type) and issubclass(rule, Rule)):
            raise InvalidInput(
                f"{rule!r} is no rule of a layer: make a subclass of privypurse.training.gradients.Rule"
            )
        RULES.update({kind: rule() for kind in kinds})
        return rule

    return register
