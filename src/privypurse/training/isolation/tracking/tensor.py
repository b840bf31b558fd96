"""What may be done between the loader and the backward pass, so that each record's loss is its own.

Every tensor of the loader's batch and of the model's output knows what its rows are (`states`). Operations that are
known to keep records apart pass (`table`); the only crossing of the record dimension is a sum or mean of what has a
gradient, which gives a total (`record_sum`); totals can be added and be multiplied by constants. Whatever else goes
over records, and whatever is not known, has no way back to the model: without a gradient it may be read (an
accuracy, a printed loss), with one it is refused. So nothing depends on what the labels hold, only on how the loss is
written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from privypurse.errors import InvalidInput
from privypurse.training.isolation.tracking import elementwise, indexing, table
from privypurse.training.isolation.tracking.losses import LOSSES
from privypurse.training.isolation.tracking.operation import Operation
from privypurse.training.isolation.tracking.record_sum import HINT, Known
from privypurse.training.isolation.tracking.states import Mixed, Rows, State, Total, plain, require_rows, state_of
from privypurse.training.step_randomness import keyed

_ONE_TENSOR = 2  # uses of a storage: by the tensor, and by whoever asks


class Tracked(Tensor):
    """A tensor in all respects, that knows what its rows are; whatever is made of it is followed."""

    _state: State = Mixed("a copy that was not followed")

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _follow(func, args, kwargs or {})

    def as_subclass(self, cls: type[Tensor]) -> Any:
        """A tensor that knows what it is stays one; torch hands this call to nobody."""
        if cls is not Tensor:
            raise InvalidInput(f"as_subclass({cls.__name__}) makes a tensor that is not followed to the loss")
        return self


def leave_to_python() -> None:
    """torch.compile runs code that meets tracked tensors as it is: what it would trace is not followed."""
    torch._dynamo.config.nontraceable_tensor_subclasses.add(Tracked)


def tracked(value: Tensor, state: State) -> Tensor:
    """The same values, known to be this."""
    require_rows(value, state)
    with torch._C.DisableTorchFunctionSubclass():
        return _become(Tensor.as_subclass(value, Tracked), state)


def _become(value: Tensor, state: State) -> Tensor:
    """The very same tensor, known to be this from now on."""
    value.__class__ = Tracked
    value._state = state  # type: ignore[attr-defined]
    return value


def _attached(value: Any, state: State | tuple[State, ...] | None) -> Any:
    """A result with every tensor known to be this."""
    if state is None:
        return value
    if isinstance(state, tuple):
        return tuple(map(_attached, value, state))
    if isinstance(value, Tensor):
        return tracked(value, state)
    return tree_map_only(Tensor, lambda each: tracked(each, state), value)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _follow(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function on tracked tensors, and say what its result is."""
    with torch._C.DisableTorchFunctionSubclass():
        name, in_place = table.named(func)
        if name in table.READ:
            return func(*args, **kwargs)
        if name in table.COPIED:
            return _attached(func(plain(args[0]), *args[1:], **kwargs), state_of(args[0]))
        op = Operation(name, func, args, kwargs)
        if name == "backward":
            return _backward(op)
        if kwargs.get("out") is not None or name == "__set__":
            raise op.refusal("writes into a tensor by out= or by an attribute")
        if in_place:
            return _in_place(op)
        if name in table.CONSTANT and len(op.tensors) == 1:
            return op.result
        try:
            found = _by_rule(op)
        except InvalidInput as refusal:
            found = op.only_read(refusal)  # as long as no gradient goes through it
        return _attached(found.value, found.state)


def _by_rule(op: Operation) -> Known:
    """What a rule says; raises where none allows it."""
    op.require_ours()
    _require_unmixed(op)
    if any(isinstance(state_of(value), Total) for value in op.tensors):
        return Known(op.result, _of_totals(op))
    rule = LOSSES.get(op.func) or table.PROPAGATIONS.get(op.name)
    if rule is None:
        raise op.refusal("is not known to keep records apart")
    with _own_randomness(op):
        found = rule(op)
        return found if isinstance(found, Known) else Known(op.result, found)


def _own_randomness(op: Operation) -> AbstractContextManager[None]:
    """What is drawn for each record is drawn from the run's own source."""
    if op.name not in table.RANDOM or not op.rows():
        return nullcontext()
    if op.kwargs.get("generator") is not None:
        raise op.refusal("draws from a generator= of its own, by row, and rows go by who was drawn (leave it out)")
    value, state = op.rows()[0]
    return keyed(state.places.drawn.key(), value.device)


def _require_unmixed(op: Operation) -> None:
    """Raise for what was made of several records; only to say which rows, it may come back."""
    if op.name in ("__getitem__", "index_select") and isinstance(state_of(op.args[0]), Rows):
        return
    mixed = next((state for state in map(state_of, op.tensors) if isinstance(state, Mixed)), None)
    if mixed is not None:
        raise InvalidInput(
            f"{op.name}() brings what {mixed.origin} made of several records, or without a dimension of records, "
            "into a loss: a divisor or a mean made of the batch (a mask's sum, the class weights' sum, batch "
            f"statistics, a loss made inside the model) gives every record a say in the others'. {HINT}"
        )


def _of_totals(op: Operation) -> State:
    """Totals may be added, and be multiplied by constants; anything else would make a loss of losses."""
    states = [state_of(value) for value in op.tensors]
    totals = [state for state in states if isinstance(state, Total)]
    if op.name in ("detach", "data"):
        return Mixed("the loss")
    if any(isinstance(state, Rows) for state in states) or op.name not in table.LINEAR:
        raise op.refusal("takes a sum or mean over records for something else than to add it up")
    alike = all(state.kind == totals[0].kind for state in totals)
    if len(totals) > 1 and not (op.name in table.ADDS and alike):
        raise op.refusal("multiplies or divides sums over records, or adds a sum to a mean")
    below = not isinstance(state_of(op.args[0]), Total) or op.func.__name__ in ("__rdiv__", "__rtruediv__")
    if op.name in table.DIVIDES and below:
        raise op.refusal("divides by a sum over records")
    return totals[0]


def _in_place(op: Operation) -> Any:
    """Written into a tensor whose rows stay what they are; a constant that takes records in becomes theirs."""
    target = op.args[0]
    before = state_of(target)
    op.require_ours()
    if before is None or isinstance(before, Mixed):
        return _taken_in(op, target)
    if isinstance(before, Total):
        _require_unmixed(op)
        _of_totals(op)
    elif op.name == "__setitem__":
        indexing.require_own_rows(op)
        return op.result
    else:
        if any(isinstance(state_of(each), Mixed | Total) for each in op.tensors):
            raise op.refusal("writes what was made of several records into their rows")
        after = _rows_after(op)
        if after is None or after.dim != before.dim or not after.places.same(before.places):
            raise op.refusal("is not known to keep records apart in place")
    with _own_randomness(op):
        op.result  # noqa: B018
    return target


def _rows_after(op: Operation) -> Rows | None:
    """Whose rows the first argument would have; nothing is written yet."""
    rules = (elementwise.elementwise, elementwise.gathered)
    return next((rule(op) for rule in rules if rule is table.PROPAGATIONS.get(op.name)), None)


def _taken_in(op: Operation, target: Tensor) -> Any:
    """A running mean of losses, a table of ones: it is known from now on as made of records."""
    if type(target) not in (Tensor, Tracked) or target.requires_grad:
        raise op.refusal(f"writes records into a {type(target).__name__} that is not theirs")
    base = target._base
    if state_of(target) is None and base is None and _has_other_names(target):
        raise op.refusal(
            "writes records into memory that another tensor has too (.data, .detach()), which would pass for a "
            "constant from then on (write into the tensor itself)"
        )
    fresh = state_of(target) is None and op.rows() and not any(isinstance(state_of(v), Mixed) for v in op.tensors)
    after = _rows_after(op) if fresh and op.name.startswith("scatter") else None
    result = op.result
    _become(target, after or Mixed(f"{op.name}()"))
    if base is not None and type(base) in (Tensor, Tracked) and not isinstance(state_of(base), Rows | Total):
        _become(base, Mixed(f"{op.name}()"))  # what it is a view of holds records now
    if target.requires_grad:
        raise op.refusal("writes records into a tensor that is not theirs")
    return None if result is None else target


def _has_other_names(value: Tensor) -> bool:
    """Whether another tensor lies in the same memory: beside this one, only its storage is counted."""
    return int(torch._C._storage_Use_Count(value.untyped_storage()._cdata)) > _ONE_TENSOR


def _backward(op: Operation) -> Any:
    """loss.backward(), or torch.autograd.backward of one or several losses."""
    several = isinstance(op.args[0], list | tuple)
    roots = tuple(op.args[0]) if several else (op.args[0],)
    for state in map(state_of, roots):
        if isinstance(state, Mixed):
            raise InvalidInput(
                f"backward() of what {state.origin} made without a dimension of records: a loss made inside the "
                "model, or of several records at once, cannot be taken apart by record. Of a Hugging Face model "
                "leave labels= out: optimizer.backward(pp.losses.for_model(model)(output, labels)). "
                f"Let one of your own give a loss for each record. {HINT}"
            )
        if not isinstance(state, Total):
            raise InvalidInput(f"backward() of losses of single records. {HINT}")
    given = dict(zip(("gradient", "retain_graph", "create_graph", "inputs"), op.args[1:], strict=False)) | op.kwargs
    follows = any(isinstance(value, Tracked) for value in tree_leaves(given))
    if given.get("create_graph") or given.get("inputs") is not None or follows:
        raise InvalidInput(
            "backward() with gradient=, create_graph= or inputs= is not for a private step; leave them"
        )
    whole = tuple(map(plain, roots)) if several else plain(roots[0])
    return op.func(whole, *op.args[1:], **op.kwargs)
