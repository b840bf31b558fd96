"""torch's own losses, one record at a time: a record's loss is the mean over its own places that count."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction
from torch.nn import functional as F

from privypurse.training.isolation.tracking.elementwise import aligned
from privypurse.training.isolation.tracking.operation import Operation, Propagation, require_constant
from privypurse.training.isolation.tracking.record_sum import Known, by_record, over_records, own_counts, per_record
from privypurse.training.isolation.tracking.states import Rows, plain, require_rows, state_of

_OF_CLASSES = ("weight", "pos_weight")
"""Arguments that have an entry for each class, not for each record."""


@cache
def _defaults(func: Callable[..., Any]) -> dict[str, Any]:
    """Its arguments in their order, each with its default."""
    return {name: one.default for name, one in inspect.signature(func).parameters.items()}


def _given(op: Operation) -> dict[str, Any]:
    """Every argument by its name. They are complete: these losses are Python's functions, which ask from inside."""
    defaults = _defaults(op.func)
    return {**defaults, **dict(zip(defaults, op.args, strict=False)), **op.kwargs}


def _reduction_of(given: dict[str, Any]) -> str:
    legacy = given.get("size_average"), given.get("reduce")
    if legacy != (None, None):
        return str(_reduction.legacy_get_string(*legacy))
    return str(given["reduction"])


def _each(op: Operation, given: dict[str, Any]) -> Tensor:
    """The loss of every entry."""
    values = {**given, "reduction": "none"}
    values.update({name: None for name in ("size_average", "reduce") if name in values})
    found: Tensor = op.func(**values)
    return found


def by_entry(op: Operation) -> Known:
    """Losses of each entry by itself: mse_loss, binary_cross_entropy …"""
    given, state = _given(op), aligned(op, op.tensors)
    return _finished(op, given, _each(op, given), state)


def by_row(op: Operation) -> Known:
    """Losses of each row: records come first, in outputs and in labels."""
    given = _given(op)
    if op.func in _BROADCAST:  # torch does not mind (records, 1) beside (records,), which pairs all with all
        aligned(op, [given["input"], given["target"]])
    return _finished(op, given, *_rows(op, given))


def _rows(op: Operation, given: dict[str, Any]) -> tuple[Tensor, Rows]:
    """The loss of every row, and whose it is."""
    places = op.one_place()
    if any(state.dim != 0 for _, state in op.rows()):
        raise op.refusal("takes records first")
    for name, value in given.items():
        of_rows = isinstance(value, Tensor) and value.dim() > 0 and name not in _OF_CLASSES
        if of_rows and state_of(value) is None and value.shape[0] != 1:
            if value.shape[0] != places.size:
                raise op.refusal(f"takes {name} of {value.shape[0]} rows for {places.size}")
            require_constant(f"{op.name}()", value, 0)
    losses = _each(op, given)
    if losses.dim() == 0 or losses.shape[0] != places.size:
        raise op.refusal("gives other rows than one for each that it was given")
    return losses, Rows(places, 0)


def _finished(
    op: Operation, given: dict[str, Any], losses: Tensor, state: Rows, counted: Callable[[], Tensor] | None = None
) -> Known:
    """As the loss was asked for; ``counted`` is what a record's mean divides by, if not by all of its entries."""
    kind = _reduction_of(given)
    require_rows(losses, state)
    if kind == "none":
        return Known(losses, state)
    if not (torch.is_grad_enabled() and losses.requires_grad):
        raise op.refusal("goes over records")  # without a gradient it is only read
    if losses.dim() == 1 and state.places.regular and state.places.each == 1:  # one entry is its own sum and mean
        return over_records(losses, state.places, "mean" if kind == "batchmean" else kind)
    others = tuple(dim for dim in range(losses.dim()) if dim != state.dim)
    if kind != "batchmean" and (kind != "mean" or counted is None):
        return over_records(per_record(losses, state, others, kind), state.places, kind)
    if state.dim != 0:
        raise op.refusal("takes records first")
    own = per_record(losses, state, others, "sum")
    divisor = own_counts(state.places, own) if counted is None else counted().to(own.dtype)
    return over_records(own / divisor, state.places, "mean")


def by_class(op: Operation) -> Known:
    """cross_entropy, nll_loss: ignored labels count zero; class weights multiply and are not divided by their sum."""
    given = _given(op)
    if not isinstance(state_of(given["input"]), Rows) or given["input"].dim() < 2:
        raise op.refusal("takes outputs of records (records, classes, ...)")
    losses, state = _rows(op, given)
    return _finished(op, given, losses, state, lambda: _counted(given, state))


def _counted(given: dict[str, Any], state: Rows) -> Tensor:
    """How many labels of each record are not to be ignored, at least 1."""
    target = given["target"]
    if target.is_floating_point():  # probabilities: every place counts
        places = target[:, 0] if target.dim() > 1 else target
        counts = torch.ones_like(places, dtype=torch.float32)
    else:
        counts = (target != given.get("ignore_index", -100)).to(torch.float32)
    counts = plain(counts)
    return by_record(counts.flatten(1).sum(dim=1) if counts.dim() > 1 else counts, state.places).clamp(min=1)


_BROADCAST = (F.gaussian_nll_loss, F.multilabel_soft_margin_loss)
_KINDS: dict[Propagation, str] = {
    by_class: "cross_entropy nll_loss",
    by_entry: """
        binary_cross_entropy binary_cross_entropy_with_logits hinge_embedding_loss huber_loss kl_div l1_loss mse_loss
        poisson_nll_loss smooth_l1_loss soft_margin_loss
    """,
    by_row: """
        cosine_embedding_loss gaussian_nll_loss margin_ranking_loss multi_margin_loss multilabel_margin_loss
        multilabel_soft_margin_loss triplet_margin_loss
    """,
}
LOSSES: dict[Any, Propagation] = {getattr(F, name): rule for rule, names in _KINDS.items() for name in names.split()}
