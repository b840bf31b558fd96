"""A tensor that knows what its rows are: of single records, a total over records, or made of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from privypurse.errors import InvalidInput
from privypurse.training.isolation.tracking.places import Drawn, Places


@dataclass(frozen=True, eq=False)
class Rows:
    """Along ``dim`` every row is of one record, and of no other."""

    places: Places
    dim: int


@dataclass(frozen=True, eq=False)
class Total:
    """Per-record losses, added up over records: what a backward pass may begin at."""

    drawn: Drawn
    kind: str
    """"mean" or "sum", as the loop wrote it. The gradient is that of the sum either way (rule 2)."""


@dataclass(frozen=True, eq=False)
class Mixed:
    """Made of several records, by ``origin``: to be looked at, but not to be trained on."""

    origin: str


State = Rows | Total | Mixed


class Tracked(Tensor):
    """A tensor in all respects; whatever is made of it, `grammar` says whose it is."""

    _state: State

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _follow(func, args, kwargs or {})


def leave_to_python() -> None:
    """torch.compile runs code that meets tracked tensors as it is: what it would trace is not followed."""
    torch._dynamo.config.nontraceable_tensor_subclasses.add(Tracked)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _follow(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from privypurse.training.isolation.tracking.grammar import follow

    with torch._C.DisableTorchFunctionSubclass():
        return follow(func, args, kwargs)


def state_of(value: Any) -> State | None:
    """What a tensor's rows are; None for one that nothing is known of: a constant of the loop."""
    if not isinstance(value, Tracked):
        return None
    return getattr(value, "_state", None) or Mixed("a copy that was not followed")


def tracked(value: Tensor, state: State) -> Tensor:
    """The same values, known to be this."""
    if isinstance(state, Rows) and value.shape[state.dim] != state.places.size:
        raise InvalidInput("a tensor has lost or won rows on the way; records cannot be followed through it")
    with torch._C.DisableTorchFunctionSubclass():
        found = value.as_subclass(Tracked)
    found._state = state
    return found


def all_tracked(result: Any, state: State) -> Any:
    """Every tensor of a result, known to be this."""
    if isinstance(result, Tensor):
        return tracked(result, state)
    return tree_map_only(Tensor, lambda value: tracked(value, state), result)


def become(value: Tensor, state: State) -> Tensor:
    """The very same tensor, known to be this from now on."""
    value.__class__ = Tracked
    value._state = state  # type: ignore[attr-defined]
    return value


def plain(value: Tensor) -> Tensor:
    """The same values as an ordinary tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(Tensor)
