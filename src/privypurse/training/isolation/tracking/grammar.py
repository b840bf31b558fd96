"""What may be done between the loader and the backward pass, so that each record's loss is its own (rule 12).

Every tensor of the loader's batch and of the model's output knows whose its rows are (`tracked`). Operations that are
known to keep records apart pass; the only crossing of the record dimension is a sum or mean of what has a gradient,
which gives a total; totals can be added and be multiplied by constants. Whatever else goes over records, and whatever
is not known here, has no way back to the model: without a gradient it may be looked at (an accuracy, a printed loss),
with one it is refused. So nothing depends on what the labels hold, only on how the loss is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from privypurse.errors import InvalidInput
from privypurse.training.isolation.tracking import indexing, layers, names, pointwise, shapes
from privypurse.training.isolation.tracking.crossing import MEND
from privypurse.training.isolation.tracking.losses import LOSSES
from privypurse.training.isolation.tracking.operation import Operation
from privypurse.training.isolation.tracking.tracked import (
    Mixed,
    Rows,
    State,
    Total,
    Tracked,
    all_tracked,
    become,
    plain,
    state_of,
)
from privypurse.training.keying import keyed

Rule = Callable[[Operation], Any]
_ONE_TENSOR = 2  # uses of a storage: by the tensor, and by whoever asks


def _all(these: Iterable[str], rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(these, rule)


RULES: dict[str, Rule] = {
    **_all(names.ELEMENTWISE, pointwise.elementwise),
    "where": pointwise.where,
    **_all(names.CASTS, pointwise.like_first),
    "sum": partial(pointwise.reduced, kind="sum"),
    "mean": partial(pointwise.reduced, kind="mean"),
    **_all(names.REDUCED, pointwise.reduced),
    **_all(("norm", "linalg_norm", "linalg_vector_norm"), partial(pointwise.reduced, position=2)),
    "mode": partial(pointwise.reduced, default=-1),
    "kthvalue": partial(pointwise.reduced, position=2, default=-1),
    **_all(names.ALONG, pointwise.along),
    **_all(("sort", "argsort", "glu"), partial(pointwise.along, default=-1)),
    "gumbel_softmax": partial(pointwise.along, position=4, default=-1),
    **_all(("topk", "diff"), partial(pointwise.along, position=2, default=-1)),
    "normalize": partial(pointwise.along, position=2, default=1),
    "roll": partial(pointwise.along, position=2),
    "cosine_similarity": partial(pointwise.compared, position=2, default=1),
    "pairwise_distance": partial(pointwise.compared, position=9, default=-1),
    **_all(names.GATHERED, pointwise.gathered),
    **_all(("matmul", "mm", "bmm", "mv"), pointwise.multiplied),
    "linear": pointwise.linear,
    "einsum": pointwise.einsum,
    "scaled_dot_product_attention": layers.attention,
    "multi_head_attention_forward": layers.attention_of_heads,
    **_all(("lstm", "gru", "rnn_tanh", "rnn_relu"), layers.recurrent),
    "one_hot": pointwise.one_hot,
    "embedding": pointwise.looked_up,
    "layer_norm": pointwise.normalised,
    "batch_norm": pointwise.by_running_statistics,
    "pad": pointwise.padded,
    **_all(names.LAYERS, pointwise.by_first),
    **_all(names.REGROUPED, shapes.regrouped),
    **_all(names.PERMUTED, shapes.permuted),
    "unsqueeze": shapes.unsqueezed,
    "squeeze": shapes.squeezed,
    **_all(names.EXPANDED, shapes.expanded),
    "repeat_interleave": shapes.interleaved,
    "narrow": shapes.narrowed,
    "select": shapes.selected,
    "unbind": shapes.unbound,
    **_all(("split", "chunk", "tensor_split", "split_with_sizes"), shapes.in_pieces),
    "index_select": shapes.index_selected,
    **_all(("cat", "concat", "concatenate"), shapes.joined),
    "stack": shapes.stacked,
    "__getitem__": indexing.indexed,
}


def follow(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function on tracked tensors, and say what its result is."""
    name, in_place = _name(func)
    if name in names.READ:
        return func(*args, **kwargs)
    if name in names.SHOWN:
        return func(plain(args[0]), *args[1:], **kwargs)
    if name == "__deepcopy__":
        return all_tracked(func(plain(args[0]), *args[1:], **kwargs), state_of(args[0]) or Mixed("a copy"))
    op = Operation(name, func, args, kwargs)
    if name == "backward":
        return _backward(op)
    if kwargs.get("out") is not None or name == "__set__":
        raise op.refusal("writes into a tensor by out= or by an attribute")
    if in_place:
        return _in_place(op)
    if name in names.CONSTANT and len(list(op.tensors())) == 1:
        return func(*args, **kwargs)
    return _outcome(op)


def _name(func: Callable[..., Any]) -> tuple[str, bool]:
    """What a function is called here, and whether it writes into its first argument."""
    name = func.__name__
    if name == "__get__":
        attribute = str(func.__self__.__name__)  # type: ignore[attr-defined]
        return (attribute if attribute in names.ATTRIBUTES else "size"), False
    if name in names.OTHER_NAMES or name in names.READ:
        return names.OTHER_NAMES.get(name, name), name in names.IN_PLACE
    if name == "__setitem__":
        return name, True
    if name.startswith("__i") and name.endswith("__"):
        return name[3:-2], True
    if name.endswith("_") and not name.endswith("__"):
        return name[:-1], True
    return name, False


def _outcome(op: Operation) -> Any:
    """What a rule says; what no rule allows may be looked at as long as no gradient goes through it."""
    try:
        op.require_ours()
        _require_unmixed(op)
        states = [state_of(value) for value in op.tensors()]
        if any(isinstance(state, Total) for state in states):
            return _of_totals(op)
        rule = LOSSES.get(op.func) or RULES.get(op.name)
        if rule is None:
            raise op.refusal("is not known to keep records apart")
        return _by_rule(op, rule)
    except InvalidInput as refusal:
        return op.looked_at(refusal)


def _by_rule(op: Operation, rule: Rule) -> Any:
    if op.name not in names.RANDOM or not op.rows():
        return rule(op)
    if op.kwargs.get("generator") is not None:
        raise op.refusal("draws from a generator= of its own, by row, and rows go by who was drawn (leave it out)")
    value, state = op.rows()[0]
    with keyed(state.places.drawn.key().to_bytes(32, "big"), value.device):
        return rule(op)


def _require_unmixed(op: Operation) -> None:
    """Raise for what was made of several records; only to say which rows, it may come back."""
    if op.name in ("__getitem__", "index_select") and isinstance(state_of(op.args[0]), Rows):
        return
    mixed = next((state for state in map(state_of, op.tensors()) if isinstance(state, Mixed)), None)
    if mixed is not None:
        raise InvalidInput(
            f"{op.name}() brings what {mixed.origin} made of several records, or without a dimension of records, "
            "into a loss: a divisor or a mean made of the batch (a mask's sum, the class weights' sum, batch "
            f"statistics, a loss made inside the model) gives every record a say in the others'. {MEND}"
        )


def _of_totals(op: Operation) -> Any:
    """Totals may be added, and be multiplied by constants; anything else would make a loss of losses."""
    states = [state_of(value) for value in op.tensors()]
    totals = [state for state in states if isinstance(state, Total)]
    first = totals[0]
    if op.name in ("detach", "data"):
        return op.gives(Mixed("the loss"))
    if any(isinstance(state, Rows) for state in states) or op.name not in names.LINEAR:
        raise op.refusal("takes a sum or mean over records for something else than to add it up")
    alike = all(state.kind == first.kind for state in totals)
    if len(totals) > 1 and not (op.name in names.ADDS and alike):
        raise op.refusal("multiplies or divides sums over records, or adds a sum to a mean")
    below = not isinstance(state_of(op.args[0]), Total) or op.func.__name__ in ("__rdiv__", "__rtruediv__")
    if op.name in names.DIVIDES and below:
        raise op.refusal("divides by a sum over records")
    return op.gives(first)


def _in_place(op: Operation) -> Any:
    """Written into a tensor whose rows stay what they are; a constant that takes records in becomes theirs."""
    target = op.args[0]
    before = state_of(target)
    op.require_ours()
    if before is None or isinstance(before, Mixed):
        return _taken_in(op, target)
    if isinstance(before, Total):
        _require_unmixed(op)
        _of_totals(replace(op, func=getattr(Tensor, op.name, op.func)))  # or raise, before anything is written
        op.run()
        return target
    if op.name == "__setitem__":
        return indexing.written(op)
    if any(isinstance(state_of(each), Mixed | Total) for each in op.tensors()):
        raise op.refusal("writes what was made of several records into their rows")
    after = _rows_after(op)
    if after is None or after.dim != before.dim or not after.places.same(before.places):
        raise op.refusal("is not known to keep records apart in place")
    _by_rule(op, Operation.run)
    return target


def _rows_after(op: Operation) -> Rows | None:
    """Whose rows the first argument would have, nothing being written yet."""
    rule = RULES.get(op.name)
    if rule is pointwise.elementwise:
        return pointwise.aligned(op, list(op.tensors()))
    if rule is pointwise.gathered:
        after = state_of(rule(replace(op, func=getattr(Tensor, op.name))))
        return after if isinstance(after, Rows) else None
    return None


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
    fresh = state_of(target) is None and op.rows() and not any(isinstance(state_of(v), Mixed) for v in op.tensors())
    after = _rows_after(op) if fresh and op.name.startswith("scatter") else None
    result = op.run()
    become(target, after or Mixed(f"{op.name}()"))
    if base is not None and type(base) in (Tensor, Tracked) and not isinstance(state_of(base), Rows | Total):
        become(base, Mixed(f"{op.name}()"))  # what it is a view of holds records now
    if target.requires_grad:
        raise op.refusal("writes records into a tensor that is not theirs")
    return None if result is None else target


def _has_other_names(value: Tensor) -> bool:
    """Whether another tensor lies in the same memory: beside this one, only its storage is counted."""
    return int(torch._C._storage_Use_Count(value.untyped_storage()._cdata)) > _ONE_TENSOR


def _backward(op: Operation) -> Any:
    """loss.backward(), or torch.autograd.backward of one or several losses."""
    roots = op.args[0] if isinstance(op.args[0], list | tuple) else (op.args[0],)
    for root in roots:
        _require_root(op, state_of(root))
    given = dict(zip(("gradient", "retain_graph", "create_graph", "inputs"), op.args[1:], strict=False)) | op.kwargs
    if given.get("create_graph") or given.get("inputs") is not None or any(map(_follows, given.values())):
        raise InvalidInput(
            "backward() with gradient=, create_graph= or inputs= is not for a private step; leave them"
        )
    whole = tuple(map(plain, roots)) if isinstance(op.args[0], list | tuple) else plain(op.args[0])
    return op.func(whole, *op.args[1:], **op.kwargs)


def _follows(value: Any) -> bool:
    return any(isinstance(each, Tracked) for each in (value if isinstance(value, list | tuple) else (value,)))


def _require_root(op: Operation, state: State | None) -> None:
    if isinstance(state, Mixed):
        raise InvalidInput(
            f"backward() of what {state.origin} made without a dimension of records: a loss made inside the model, "
            f"or of several records at once, cannot be taken apart by record; let the model give one for each. {MEND}"
        )
    if not isinstance(state, Total):
        raise InvalidInput(f"backward() of losses of single records. {MEND}")
