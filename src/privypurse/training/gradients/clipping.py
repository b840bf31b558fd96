"""From a tape to norms, clip factors and the clipped sum; and the functional face for researchers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from privypurse.errors import InvalidInput
from privypurse.training.gradients.layout import COUNT_RECORDS
from privypurse.training.gradients.numerics import full_precision, never_too_small, square_sum, total_of
from privypurse.training.gradients.rule import Call, GradientCache
from privypurse.training.gradients.silenced import Silence
from privypurse.training.gradients.tape import Recorder, Tape
from privypurse.training.gradients.tied import squares_of_tied
from privypurse.training.gradients.views import by_record, repeated
from privypurse.training.isolation.loss_fn import Loss, require_own_losses
from privypurse.training.model_inputs import arguments

MARGIN = 1e-4
"""Norms are taken in float32; a contribution is scaled to its clip norm less this share, so as never to exceed it."""
_MATERIALISED = 2**26  # elements of per-example gradients held at once where they cannot be avoided

Uses = dict[str, list[tuple[Call, str]]]
"""For each parameter of the model the calls that use it, and its name there."""


def uses_of(tape: Tape) -> Uses:
    uses: Uses = defaultdict(list)
    for call in tape.finished():
        for local, name in call.names.items():
            uses[name].append((call, local))
    return dict(uses)


def _join(tape: Tape) -> None:
    """Several uses of the same parameters become one where their rule can say it as one: a cell in a loop."""
    alike: dict[Any, list[Call]] = defaultdict(list)
    for call in tape.finished():
        alike[call.rule, *sorted(call.names.items())].append(call)
    for calls in alike.values():
        whole = calls[0].rule.joined(calls) if len(calls) > 1 else None
        if whole is not None:
            taken = set(map(id, calls))
            tape.calls = [whole, *(call for call in tape.calls if id(call) not in taken)]


def norms(tape: Tape, owner: Tensor | None = None, units: int | None = None) -> Tensor:
    """The gradient norm of every record, or of every unit where ``owner`` says which unit a record belongs to."""
    _require_rows(tape)
    _join(tape)
    uses = uses_of(tape)
    if not uses:
        raise InvalidInput("no gradient came back to any trainable layer; was loss.backward() called?")
    with full_precision(tape.device):
        if owner is None:
            return _norms(tape, uses)
        assert units is not None
        return _of_units(tape, uses, owner, units)


def _require_rows(tape: Tape) -> None:
    for call in tape.finished():
        if call.output_gradient.shape[0] != tape.records:
            raise InvalidInput(
                f"layer {call.path} ({type(call.module).__name__}) gave {call.output_gradient.shape[0]} rows for "
                f"{tape.records} records: {COUNT_RECORDS}"
            )


def _of_units(tape: Tape, uses: Uses, owner: Tensor, units: int) -> Tensor:
    """The norm of each unit's summed gradient.

    A unit is whose contribution is clipped: a person with all their records in the batch. Where a unit has one
    record, its norm is that record's, and only units with several records are summed up. Both are upper bounds of the
    true norm, by slightly different margins for rounding; which of them a unit gets must depend on its own number of
    records alone, since a unit's norm must not change with who else is in the batch.
    """
    counts = torch.bincount(owner, minlength=units)
    several = torch.nonzero(counts > 1).flatten()
    # Taken even if nobody has one record alone: rules keep what they made for the norm, and the sum is made of that.
    each = _norms(tape, uses)
    found = torch.zeros(units, dtype=each.dtype, device=each.device).index_copy_(0, owner, each)
    if not several.numel():
        return found
    rows = torch.nonzero(counts[owner] > 1).flatten()
    place = torch.searchsorted(several, owner[rows])
    theirs = {id(call): call if rows.numel() == tape.records else call.rows(rows) for call in tape.finished()}
    calls = ([(theirs[id(call)], local) for call, local in uses[name]] for name in sorted(uses))
    total = total_of(_squares_of_units(each, place, counts[several]) for each in calls)
    wider = torch.promote_types(found.dtype, total.dtype)
    return found.to(wider).index_copy_(0, several, total.sqrt().to(wider))


def _norms(tape: Tape, uses: Uses) -> Tensor:
    """Of every record, and alike whether or not others in the batch have several."""
    # A GPU has the memory of the forward pass free again by now, and making gradients twice costs it more.
    on_gpu = tape.device.type == "cuda"
    cache = GradientCache(sum(call.held for call in tape.finished()) * 3 // 2 if on_gpu else 0)
    apart = {name for name, calls in uses.items() if len(calls) > 1}
    for call in tape.finished():
        call.cache = cache
        call.kept_is_measured = apart.isdisjoint(call.names.values())

    def squares() -> Iterator[Tensor]:
        for call in tape.finished():
            if set(call.names.values()) - apart:
                found = call.rule.squared_norms(call)
                yield from (each for local, each in found.items() if call.names[local] not in apart)
        yield from (_squares_of_uses(uses[name]) for name in sorted(apart))

    if tape.device.type == "cpu":
        return total_of(squares()).sqrt()
    found = list(squares())  # added up at once: a GPU has much to do before each of many small sums
    kind = reduce(torch.promote_types, (each.dtype for each in found))
    return torch.stack([each.to(kind) for each in found]).sum(dim=0).sqrt()


def _squares_of_uses(calls: list[tuple[Call, str]]) -> Tensor:
    """‖Σ of a record's gradients‖² where several uses add up before the norm is taken."""
    tied = squares_of_tied(calls)
    if tied is not None:
        return tied
    size, terms, added = _terms(calls)
    chunk = max(1, _MATERIALISED // size)
    pieces = range(0, terms.shape[0], chunk)
    parts = [square_sum(_added(calls, slice(begin, begin + chunk))) for begin in pieces]
    return never_too_small(torch.cat(parts), terms, added)


def _squares_of_units(calls: list[tuple[Call, str]], owner: Tensor, counts: Tensor) -> Tensor:
    """‖Σ of a unit's gradients‖² where several records add up before the norm is taken. A unit's lie together."""
    size, of_records, added = _terms(calls)
    terms = torch.zeros(len(counts), dtype=of_records.dtype, device=owner.device).index_add_(0, owner, of_records)
    piece = (counts.cumsum(0) - 1) * size // _MATERIALISED  # by where a unit's last record falls
    parts, begin, unit = [], 0, 0
    for sizes in torch.split(counts, torch.unique_consecutive(piece, return_counts=True)[1].tolist()):
        end = begin + int(sizes.sum())
        full = _added(calls, slice(begin, end)).unsqueeze(-1).flatten(1)
        sums = torch.zeros((len(sizes), size), dtype=full.dtype, device=full.device)
        parts.append(square_sum(sums.index_add_(0, owner[begin:end] - unit, full)))
        begin, unit = end, unit + len(sizes)
    theirs = torch.zeros_like(terms).index_add_(0, owner, added)
    return never_too_small(torch.cat(parts), terms, theirs)


def _terms(calls: list[tuple[Call, str]]) -> tuple[int, Tensor, Tensor]:
    """Of a parameter: its size, each record's `Rule.term_norms`, and how many terms each has at most."""
    size = calls[0][0].module.get_parameter(calls[0][1]).numel()
    terms = torch.stack([call.rule.term_norms(call)[local] for call, local in calls]).sum(dim=0)
    return size, terms, torch.zeros_like(terms) + sum(call.rule.summands(call) for call, _ in calls)


def _added(calls: list[tuple[Call, str]], some: slice) -> Tensor:
    return total_of(call.rule.made(call.rows(some))[local] for call, local in calls)


def clip_factors(norms: Tensor, clip_norms: Tensor) -> Tensor:
    """What each unit's gradient is multiplied with: at most 1, and 0 where the norm is not finite."""
    limit = clip_norms.to(norms) * (1 - MARGIN)
    tiny = torch.finfo(norms.dtype).tiny
    factors = torch.clamp(limit / norms.clamp(min=tiny), max=1.0)
    # Among the subnormals a factor keeps so few digits that it may be twice what it should be: it counts as 0.
    usable = torch.isfinite(norms) & ((factors >= tiny) | (limit == 0))
    return torch.where(usable, factors, torch.zeros_like(factors))


def sums(tape: Tape, factors: Tensor, norms: Tensor, wide: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Σ factor · gradient over records, by parameter name; one that is used several times comes in several parts.

    Records whose norm is not finite are left out. The tape is used up on the way, so that its memory is free again.
    ``wide`` adds up in float64, whatever the gradients are in: then who is left out does not shift how others round.
    """
    if wide:
        factors = factors.double()  # every rule adds up in what the factors are in
    calls, tape.calls = tape.finished(), []
    device = calls[0].output_gradient.device
    silence = Silence(~torch.isfinite(norms))
    while calls:
        call = silence(calls.pop(0))
        with full_precision(device):
            parts = call.rule.weighted_sum(call, factors)
        names = call.names
        del call  # what it held is free before the parts are used
        for local in list(parts):
            yield names[local], parts.pop(local)


def recorded(recorder: Recorder, loss_fn: Loss, x: Any, y: Any, check: bool = True) -> tuple[Tape, Tensor]:
    """One forward and one backward pass: the tape, and the losses.

    A loss that mixes records is refused; without ``check`` nobody asks, for a loop that has asked before. Where
    records have several views (``recorder.views``), a record's loss is the mean over its own.
    """
    given = arguments(x)
    records = next(leaf.shape[0] for leaf in tree_leaves(given) if isinstance(leaf, Tensor))
    tape = Tape(records, views=recorder.views)
    (inputs, options), y = repeated((given, y), records, tape.views)
    output = recorder.forward(tape, *inputs, **options)
    losses = loss_fn(output, y)
    if losses.shape != (tape.rows,):
        raise InvalidInput(
            f"loss_fn must give one loss for each record; it gave {losses.dim()} dimensions, where one is needed, as "
            'long as the batch. Use reduction="none" and sum over everything but the first dimension'
        )
    if check:
        recorder.refuse_strangers(output)
        require_own_losses(loss_fn, output, y, tape.rows)
    if not losses.requires_grad:
        raise InvalidInput("no gradient would come back to any trainable layer: the losses hang on none of them")
    losses = by_record(losses, tape.views).mean(dim=1)
    torch.autograd.backward(losses.sum())
    return tape, losses.detach()


def per_record_norms(model: nn.Module, loss_fn: Loss, x: Any, y: Any) -> Tensor:
    """The gradient norm of every record's loss with respect to all trainable parameters: float[B].

    ``x`` is the model's input, a tuple of several, or a dictionary by name; ``loss_fn(output, y)`` gives one loss a
    record. No parameter's ``.grad`` is touched. That the model keeps records apart is not asked here, as `train` and
    `make_private` do.
    """
    return norms(recorded(Recorder(model), loss_fn, x, y)[0])


def clipped_sum(
    model: nn.Module, loss_fn: Loss, x: Any, y: Any, clip_norms: Tensor | float
) -> tuple[dict[str, Tensor], Tensor]:
    """Σᵢ gᵢ · min(1, cᵢ/‖gᵢ‖) by parameter name, and the norms ‖gᵢ‖.

    Guarantee: no record contributes more than its clip norm (in float64 too: factors leave a margin), and a record
    whose gradient is not finite contributes nothing; if the model keeps records apart, which is not asked here.
    """
    tape, _ = recorded(Recorder(model), loss_fn, x, y)
    found = norms(tape)
    limits = torch.as_tensor(clip_norms, dtype=found.dtype, device=found.device).expand_as(found)
    total: dict[str, Tensor] = {}
    for name, part in sums(tape, clip_factors(found, limits), found):
        total[name] = total[name] + part if name in total else part
    return total, found
