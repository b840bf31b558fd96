"""One call of a torch function on tracked tensors, with what rules ask of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from privypurse.errors import InvalidInput
from privypurse.training.isolation.tracking.record_sum import FOREIGN, HINT, Known
from privypurse.training.isolation.tracking.states import Mixed, Places, Rows, state_of


@dataclass(frozen=True)
class Operation:
    """A function by its name (``add`` for ``+``, ``torch.add`` and ``add_`` alike), and its arguments."""

    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @cached_property
    def result(self) -> Any:
        """What the function gives: run once, when it is first asked for."""
        return self.func(*self.args, **self.kwargs)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments, also those in lists."""
        found: list[Tensor] = []
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, list | tuple):
                found += [each for each in value if isinstance(each, Tensor)]
        return found

    def rows(self) -> list[tuple[Tensor, Rows]]:
        """The tensors that have a record dimension."""
        found = [(value, state_of(value)) for value in self.tensors]
        return [(value, state) for value, state in found if isinstance(state, Rows)]

    def public(self) -> list[Tensor]:
        """The tensors that nothing is known of: constants of the loop."""
        return [value for value in self.tensors if state_of(value) is None]

    def first(self, alone: bool = True) -> tuple[Tensor, Rows]:
        """The first argument, which has to be the only one with a record dimension, or else lends its shape alone."""
        value = self.argument(0, "input")
        state = state_of(value)
        if not isinstance(value, Tensor) or not isinstance(state, Rows) or (alone and len(self.rows()) > 1):
            raise self.refusal("takes rows of records where they cannot be followed")
        return value, state

    def argument(self, position: int, *names: str, default: Any = None) -> Any:
        """An argument by its place or one of its names."""
        if position < len(self.args):
            return self.args[position]
        return next((self.kwargs[name] for name in names if name in self.kwargs), default)

    def dims(self, position: int, tensor: Tensor, default: Any = None) -> tuple[int, ...] | None:
        """The dimensions that are named, counted from the front; None for all of them."""
        given = self.argument(position, "dim", "axis", "dims", default=default)
        if given is None or (isinstance(given, list | tuple) and not given) or isinstance(given, bool):
            return None
        if isinstance(given, int) and self.name == "flip":
            given = self.args[position:]
        return tuple(
            int(dim) % max(tensor.dim(), 1) for dim in (given if isinstance(given, list | tuple) else (given,))
        )

    def integers(self, position: int, *names: str) -> tuple[int, ...]:
        """Whole numbers that come one by one or as one tuple."""
        given = self.argument(position, *names, default=())
        return tuple(given) if isinstance(given, list | tuple | torch.Size) else tuple(self.args[position:])

    def refusal(self, what: str) -> InvalidInput:
        return InvalidInput(f"{self.name}() {what}, so a record's loss would hang on other records. {HINT}")

    def one_place(self) -> Places:
        """Whose the rows of all tracked tensors are, if they agree."""
        (_, first), *others = self.rows()
        if any(not first.places.same(state.places) for _, state in others):
            raise self.refusal("brings rows of different records together")
        return first.places

    def one_dim(self) -> int:
        """The record dimension of all tracked tensors, if it is the same."""
        dims = {state.dim for _, state in self.rows()}
        if len(dims) > 1:
            raise self.refusal("takes tensors whose record dimensions differ")
        return dims.pop()

    def require_ours(self) -> None:
        if torch.is_grad_enabled() and any(value.requires_grad for value in self.public()):
            raise InvalidInput(FOREIGN)

    def only_read(self, refusal: InvalidInput) -> Known:
        """What may be read, but not be trained on: raises where a gradient would go through."""
        if self.name.startswith("register"):
            raise refusal  # a hook may change what comes back
        found = self.result if isinstance(self.result, list | tuple) else (self.result,)
        if any(isinstance(value, Tensor) and value.requires_grad for value in found):
            raise refusal
        origin = next((s.origin for s in map(state_of, self.tensors) if isinstance(s, Mixed)), f"{self.name}()")
        return Known(self.result, Mixed(origin))


Propagation = Callable[[Operation], Rows | Known]
"""Says whose rows the result has, or makes a result of its own; raises where records would mix."""


def require_constant(taker: str, value: Tensor, dim: int) -> None:
    """Raise unless an untracked tensor is the same for every record: one by position moves with who was drawn.

    ``taker`` is what takes it, in the words of the error: "add()", "the model".
    """
    if value.shape[dim] <= 1 or value.stride(dim) == 0:
        return
    if not bool((value == value.narrow(dim, 0, 1)).all()):
        raise InvalidInput(
            f"{taker} takes a tensor of shape {tuple(value.shape)} with an entry for each record that is not "
            "from the loader: what a record meets would hang on its place in the batch, and so on who else was "
            "drawn. Let the dataset give it, make it of the loader's tensors (torch.rand_like, weights[labels]), "
            "register it as a buffer if it is a constant of the model, or keep to torch: values that went through "
            "NumPy or Python lists are not followed"
        )
