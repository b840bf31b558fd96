"""Which rule handles which layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_map

from privypurse.errors import InvalidInput


@dataclass
class Room:
    """How many elements of per-record gradients may still be kept, by all layers together."""

    left: int = 0

    def take(self, elements: int) -> bool:
        """Whether there is room for so many; then it is taken."""
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
    gradient: Tensor | None = None
    others: tuple[Tensor, ...] = ()
    """The gradients of further outputs that are watched."""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """Per-record gradients that the norms had to materialise, so that the sum need not make them again."""
    room: Room = field(default_factory=Room)
    way: Any = None
    """How the rule took the norms, where the sum has to know."""
    open: Callable[[], bool] | None = None
    """Whether a gradient may come back now; without, it always may."""

    @property
    def back(self) -> Tensor:
        """The gradient of the layer's output; the first dimension counts records."""
        assert self.gradient is not None
        return self.gradient

    @property
    def path(self) -> str:
        """Where the layer is in the model."""
        local, name = next(iter(self.names.items()))
        return name.removesuffix(local).removesuffix(".") or "model"

    def rows(self, some: slice | Tensor) -> Call:
        """The same call for some of the records."""
        inputs = tree_map(lambda value: value[some] if isinstance(value, Tensor) else value, self.inputs)
        kept = {name: value[some] for name, value in self.kept.items()}
        return Call(self.module, self.rule, self.names, inputs, self.options, self.back[some], kept=kept)

    def keep(self, gradients: dict[str, Tensor]) -> None:
        """Go on with per-record gradients alone. Of inputs and output gradient only the shapes stay."""
        self.kept = gradients
        self.inputs = tree_map(lambda value: _shape_of(value) if isinstance(value, Tensor) else value, self.inputs)
        self.gradient, self.others = _shape_of(self.back), ()


def _shape_of(value: Tensor) -> Tensor:
    """A tensor of that shape which takes no memory."""
    return value.new_zeros(()).expand(value.shape)


class Rule(Protocol):
    """How the per-record gradients of one kind of layer follow from a call. All by local parameter name."""

    whole_module: bool
    """Whether the rule answers for the parameters of all submodules too."""

    def settle(self, call: Call) -> None:
        """Called once the output's gradient is there: a rule may let go of what it does not need any more."""
        ...

    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        """For each parameter the squared norm of every record's gradient, in float32 or better."""
        ...

    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        """For each parameter Σ weights[i] · (gradient of record i)."""
        ...

    def per_record(self, call: Call) -> dict[str, Tensor]:
        """For each parameter every record's gradient, materialised."""
        ...

    def terms(self, call: Call) -> dict[str, Tensor]:
        """For each parameter at least Σ‖terms‖ of what adds up to every record's gradient: what rounding is of."""
        ...


_RULES: dict[type[nn.Module], Rule] = {}
_REFUSED: dict[type[nn.Module], Callable[[nn.Module], str | None]] = {}


def handles(*kinds: type[nn.Module]) -> Callable[[type[Any]], type[Any]]:
    """Class decorator: an instance of the rule handles these layers."""

    def register(rule: type[Any]) -> type[Any]:
        for kind in kinds:
            _RULES[kind] = rule()
        return rule

    return register


def refuse(kind: type[nn.Module], why: Callable[[nn.Module], str | None]) -> None:
    """``why`` says of a layer of this kind why it cannot be trained privately, if so."""
    _REFUSED[kind] = why


def complaint(module: nn.Module) -> str | None:
    """Why this layer cannot be trained privately, if so."""
    reasons = (why(module) for kind, why in _REFUSED.items() if isinstance(module, kind))
    return next((reason for reason in reasons if reason is not None), None)


def units(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module, Rule]]:
    """The layers to be watched: each handled by its rule, or as a whole where no rule knows it."""
    why = complaint(model)
    if why is not None:
        raise InvalidInput(f"layer {prefix or 'model'} ({type(model).__name__}): {why}")
    whole = parametrize.is_parametrized(model)  # its weight is made of what lies in modules inside
    own = [parameter for parameter in model.parameters(recurse=whole) if parameter.requires_grad]
    rule = _RULES.get(type(model))
    if own and rule is None:
        from privypurse.training.gradients.bare import BARE, is_bare
        from privypurse.training.gradients.generic import GENERIC

        if not is_bare(model, own):
            GENERIC.check(model, prefix)
            yield prefix, model, GENERIC
            return
        yield prefix, model, BARE
    if own and rule is not None:
        yield prefix, model, rule
    for name, child in model.named_children():
        yield from units(child, f"{prefix}.{name}" if prefix else name)
