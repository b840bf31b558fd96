"""Before the first step: does every trainable parameter get the gradient in a private step that autograd gives it?

A parameter whose gradient nobody sees gets noise alone: the loss falls by what the others learn, ε is counted, and it
never learns (opacus#820, where those were the weights of LoRA). So one step is made on made-up records, and compared.
Never on people's: noise moves every weight, and an error about their gradients would tell something that nobody paid
for. And not with the weights at hand: the first matrix of a fresh LoRA has no gradient while the second is 0.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.training.forms import leaves
from privypurse.training.gradients.clipping import clip_factors, norms, sums
from privypurse.training.gradients.made_up_records import WAYS, MadeUp
from privypurse.training.gradients.tape import Recorder, Tape
from privypurse.training.isolation.dropout import DropoutOff
from privypurse.training.isolation.memory import Memory
from privypurse.training.isolation.replaced_records import counts_records
from privypurse.training.model_inputs import Given
from privypurse.training.step_randomness import keyed

_LOG = logging.getLogger(__name__)
_FEW = 2  # made-up records: one that is clipped, and one that is not
_KEY = bytes(32)  # everything here is public, and the same in every process
_MOVED = 0.1  # of its own size, by which a weight is perturbed
_LEAST = 0.02  # and the size that one counts as at least: zeros are moved too

# By which two sums may differ: shares of the parameter's own sum and of that of all parameters, whose rounding the
# former cannot be free of (the bias of keys in an attention has a gradient of rounding alone). First in full floats.
_SAME = {True: (1e-2, 1e-5), False: (0.1, 1e-2)}

_TRY = "Try privypurse.training.gradients.check_rule on layers of your own (docs/own-layers.md)"

Gradients = dict[str, Tensor | None]
"""By parameter; None where a loss does not hang on it."""


def require_true_gradients(
    recorder: Recorder, given: Given, records: int, constants: frozenset[int] = frozenset()
) -> None:
    """Raise if a clipped sum of made-up records is another than by autograd; warn of what has no gradient at all.

    ``given`` is the form of what the model is called with, for so many ``records``; ``constants`` are the ids of
    tensors in it that are the same for all, whatever their shape. Weights, buffers and generators
    are afterwards what they were, to the bit. Where a model takes no made-up records, nothing is said but in the log.
    """
    device = next(iter(recorder.trainable.values())).device
    lowest = any(isinstance(layer, nn.Embedding) and layer.num_embeddings < 2 for layer in recorder.model.modules())
    with _aside(recorder, device), DropoutOff():
        for way in range(WAYS):
            rows = _FEW * recorder.views
            maker = MadeUp(records, rows, way, constants, lowest, torch.Generator().manual_seed(way))
            trial = _tried(recorder, given, maker, device)
            if trial is not None:
                _compare(recorder, trial)
                return
    _LOG.info("gradients were not compared with autograd's before the first step: the model takes no made-up records")


@dataclass(frozen=True)
class _Trial:
    """The same made-up records both ways."""

    truth: list[Gradients]
    """By autograd, of each record."""
    norms: Tensor
    factors: Tensor
    ours: dict[str, Tensor]
    """What a step adds up, each record with its factor."""


@contextmanager
def _aside(recorder: Recorder, device: torch.device) -> Iterator[None]:
    """Weights are perturbed inside; afterwards they, and all that the model holds, are what they were."""
    key, memory = recorder.key, Memory(recorder.model)
    generator = torch.Generator(device).manual_seed(0)
    values = [value.data for value in recorder.trainable.values()]  # written to without autograd's knowing
    before = [value.clone() for value in values]
    recorder.key = None
    try:
        for value in values:
            size = torch.linalg.vector_norm(value.float()) / max(value.numel(), 1) ** 0.5
            noise = torch.randn(value.shape, generator=generator, device=device)
            value.add_((noise * size.clamp(min=_LEAST) * _MOVED).to(value.dtype))
        torch.clear_autocast_cache()  # it holds weights in short floats, as they were
        yield
    finally:
        torch.clear_autocast_cache()
        recorder.key = key
        for value, copy in zip(values, before, strict=True):
            value.copy_(copy)
        memory.restore()


def _tried(recorder: Recorder, given: Given, maker: MadeUp, device: torch.device) -> _Trial | None:
    """Both passes; None if the model does not take these records."""
    tape = Tape(_FEW, constants=maker.constants, views=recorder.views)
    try:
        inputs, options = maker.like(given)
        with torch.enable_grad(), keyed(_KEY, device):
            losses = _losses(recorder.model(*inputs, **options), tape)
            truth = [] if losses is None else _by_autograd(recorder, losses)
        values = [value for each in truth for value in each.values() if value is not None]
        if not values or not all(torch.isfinite(value).all() for value in values):
            return None
        with torch.enable_grad(), keyed(_KEY, device):
            output = recorder.forward(tape, *inputs, **options)
            recorder.refuse_strangers(output)  # before something comes back to them
            losses = _losses(output, tape)
            if losses is not None:
                torch.autograd.backward(losses.sum())
        found = norms(tape) if tape.finished() else torch.ones(_FEW, device=device)
    except Exception:  # whatever a model has to say of such records is no matter: real ones will be refused by name
        return None
    factors = clip_factors(found, found * torch.linspace(0.5, 2.0, _FEW).to(found))
    ours: dict[str, Tensor] = {}
    for name, part in sums(tape, factors, found) if tape.finished() else ():
        ours[name] = ours[name] + part if name in ours else part
    return _Trial(truth, found, factors, ours)


def _losses(output: Any, tape: Tape) -> Tensor | None:
    """A loss for each record, of all that the model gives, weighed at random; None if no gradient goes through it."""
    asked = [leaf for leaf in leaves(output) if counts_records(leaf, tape.rows) and leaf.requires_grad]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(leaf.shape, generator=generator).to(leaf.device) for leaf in asked]
    each = [(leaf * weight).reshape(_FEW, -1).sum(dim=1) for leaf, weight in zip(asked, weights, strict=True)]
    return torch.stack(each).sum(dim=0) if each else None


def _by_autograd(recorder: Recorder, losses: Tensor) -> list[Gradients]:
    """The gradient of each loss; None for a parameter that it does not hang on."""
    parameters = list(recorder.trainable.values())
    found: list[Gradients] = []
    for number, loss in enumerate(losses):
        more = number < len(losses) - 1
        each = torch.autograd.grad(loss, parameters, retain_graph=more, allow_unused=True)
        found.append(dict(zip(recorder.trainable, each, strict=True)))
    return found


def _compare(recorder: Recorder, trial: _Trial) -> None:
    device = trial.norms.device.type
    full = all(value.dtype in (torch.float32, torch.float64) for value in recorder.model.parameters())
    share, of_all = _SAME[full and device == "cpu" and not torch.is_autocast_enabled(device)]
    exact = torch.stack([_norm_of(each) for each in trial.truth])
    unused = []
    for name in recorder.trainable:
        each = [gradients[name] for gradients in trial.truth]
        if name not in trial.ours and all(value is None for value in each):
            unused.append(name)
        else:
            _require_same(recorder, name, _weighted(each, trial.factors), trial, share, of_all * float(exact.max()))
    if trial.ours and bool((trial.norms.double() < exact * (1 - share)).any()):
        raise InvalidInput(
            "on made-up records the norms that clipping goes by are below autograd's, so that records would pass "
            f"their clip norms: the rule of a layer is wrong. {_TRY}"
        )
    if unused:
        warnings.warn(
            f"{_listed(unused)} got no gradient on made-up records, by plain autograd neither: nothing that the "
            "model gives hangs on them. Steps will move them by noise alone; if they are not meant to be trained, "
            "freeze them (requires_grad_(False)) and make the optimizer anew",
            PrivyPurseWarning,
            stacklevel=2,
        )


def _norm_of(gradients: Gradients) -> Tensor:
    found = [
        torch.linalg.vector_norm(value, dtype=torch.float64) for value in gradients.values() if value is not None
    ]
    return torch.stack(found).square().sum().sqrt()


def _weighted(each: list[Tensor | None], factors: Tensor) -> Tensor | None:
    """Σ factor · gradient, as autograd has it."""
    parts = [value * factor for value, factor in zip(each, factors, strict=True) if value is not None]
    return torch.stack(parts).sum(dim=0) if parts else None


def _require_same(
    recorder: Recorder, name: str, expected: Tensor | None, trial: _Trial, share: float, rounding: float
) -> None:
    found = trial.ours.get(name)
    size = 0.0 if expected is None else float(torch.linalg.vector_norm(expected, dtype=torch.float64))
    if found is None:
        if size > 0:
            raise InvalidInput(_unseen(recorder, name))
        return
    apart = found if expected is None else found - expected
    if float(torch.linalg.vector_norm(apart, dtype=torch.float64)) > share * size + rounding:
        path = name.rpartition(".")[0]
        layer = type(recorder.model.get_submodule(path)).__name__
        raise InvalidInput(
            f"{name} gets another clipped sum in a private step than by autograd, on made-up records: the rule of "
            f"{layer}, or of the module around it, gives another gradient, or the layer is also used in a way that "
            f"no rule sees (F.linear(x, layer.weight)), or the model mixes records (a mean over the batch). {_TRY}"
        )


def _unseen(recorder: Recorder, name: str) -> str:
    path, _, local = name.rpartition(".")
    layer = type(recorder.model.get_submodule(path)).__name__
    return (
        f"{name} would get noise alone in private steps, though by autograd it has a gradient, on made-up records: "
        f"the {layer} that holds it is not called itself, so that no rule sees it. Call the layer, as "
        f"{path or 'it'}(x), instead of using its {local}, or freeze it (requires_grad_(False))"
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more parameters" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
