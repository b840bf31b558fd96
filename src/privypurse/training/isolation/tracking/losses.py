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

from privypurse.training.isolation.tracking.crossing import by_record, cross, over_records, own_counts, per_record
from privypurse.training.isolation.tracking.operation import Operation, require_constant
from privypurse.training.isolation.tracking.pointwise import aligned
from privypurse.training.isolation.tracking.tracked import Rows, state_of, tracked

_OF_CLASSES = ("weight", "pos_weight")
"""Arguments that have an entry for each class, not for each record."""


_signature = cache(inspect.signature)


def _given(op: Operation) -> dict[str, Any]:
    bound = _signature(op.func).bind(*op.args, **op.kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


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


def entries(op: Operation) -> Any:
    """Losses of each entry by itself: mse_loss, binary_cross_entropy …"""
    given = _given(op)
    state = aligned(op, list(op.tensors()))
    return _finished(op, given, tracked(_each(op, given), state), state)


def by_row(op: Operation) -> Any:
    """Losses of each row: records come first, in outputs and in labels."""
    given = _given(op)
    if op.func in _BROADCAST:  # torch does not mind (records, 1) beside (records,), which pairs all with all
        aligned(op, [given["input"], given["target"]])
    losses, state = _rows(op, given)
    return _finished(op, given, tracked(losses, state), state)


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
            require_constant(op, value, 0)
    losses = _each(op, given)
    if losses.dim() == 0 or losses.shape[0] != places.size:
        raise op.refusal("gives other rows than one for each that it was given")
    return losses, Rows(places, 0)


def _finished(op: Operation, given: dict[str, Any], losses: Tensor, state: Rows) -> Any:
    kind = _reduction_of(given)
    if kind == "none":
        return losses
    _require_gradient(op, losses)
    others = tuple(dim for dim in range(losses.dim()) if dim != state.dim)
    if kind == "batchmean":
        if state.dim != 0:
            raise op.refusal("takes records first")
        own = per_record(losses.as_subclass(Tensor), state, others, "sum")
        return over_records(own / own_counts(state.places, own), state.places, "mean")
    return cross(losses.as_subclass(Tensor), state, others, kind)


def _require_gradient(op: Operation, losses: Tensor) -> None:
    """A loss without a gradient is only looked at."""
    if not (torch.is_grad_enabled() and losses.requires_grad):
        raise op.refusal("goes over records")


def classes(op: Operation) -> Any:
    """cross_entropy, nll_loss: ignored labels count zero; class weights multiply and are not divided by their sum."""
    given = _given(op)
    values, target = given["input"], given["target"]
    if not isinstance(state_of(values), Rows) or values.dim() < 2:
        raise op.refusal("takes outputs of records (records, classes, ...)")
    losses, state = _rows(op, given)
    kind = _reduction_of(given)
    if kind == "none":
        return tracked(losses, state)
    _require_gradient(op, losses)
    own = by_record(losses.flatten(1).sum(dim=1) if losses.dim() > 1 else losses, state.places)
    if kind == "mean":
        own = own / _counted(given, target, state).to(own.dtype)
    return over_records(own, state.places, kind)


def _counted(given: dict[str, Any], target: Tensor, state: Rows) -> Tensor:
    """How many labels of each record are not to be ignored, at least 1."""
    if target.is_floating_point():  # probabilities: every place counts
        places = target[:, 0] if target.dim() > 1 else target
        counts = torch.ones_like(places, dtype=torch.float32)
    else:
        counts = (target != given.get("ignore_index", -100)).to(torch.float32)
    counts = counts.as_subclass(Tensor)
    return by_record(counts.flatten(1).sum(dim=1) if counts.dim() > 1 else counts, state.places).clamp(min=1)


ENTRIES = (
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.hinge_embedding_loss,
    F.huber_loss,
    F.kl_div,
    F.l1_loss,
    F.mse_loss,
    F.poisson_nll_loss,
    F.smooth_l1_loss,
    F.soft_margin_loss,
)
BY_ROW = (
    F.cosine_embedding_loss,
    F.gaussian_nll_loss,
    F.margin_ranking_loss,
    F.multi_margin_loss,
    F.multilabel_margin_loss,
    F.multilabel_soft_margin_loss,
    F.triplet_margin_loss,
)
_BROADCAST = (F.gaussian_nll_loss, F.multilabel_soft_margin_loss)
LOSSES: dict[Any, Callable[[Operation], Any]] = {
    F.cross_entropy: classes,
    F.nll_loss: classes,
    **dict.fromkeys(ENTRIES, entries),
    **dict.fromkeys(BY_ROW, by_row),
}
