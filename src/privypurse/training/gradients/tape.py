"""The tape: what each layer saw and what came back to it, for every record, from one backward pass.

A trainable layer's output passes through a tap. On the way back the tap keeps the gradient of the layer's output;
with the layer's input that is all one needs for per-record norms and for the clip-weighted sum (book-keeping, Bu et
al. 2023). Parameters enter the forward pass detached, so the ordinary weight gradient is never computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from privypurse.errors import InvalidInput
from privypurse.training.gradients import registry
from privypurse.training.gradients.registry import Call, Rule


class _Tap(torch.autograd.Function):
    """The identity; its backward leaves the gradient with the call."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, call: Call) -> Tensor:
        ctx.call = call
        ctx.mark_dirty(output)  # handed on as it is, not as a view: layers behind may work in place
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.call.gradient is not None:
            raise InvalidInput("backward was run twice through one forward pass; run the forward pass again")
        ctx.call.gradient = gradient.detach()
        return gradient, None, None


@dataclass
class Tape:
    """The calls of one forward pass, and which parameters they concern."""

    calls: list[Call] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        return self.finished()[0].back.device

    def finished(self) -> list[Call]:
        """The calls through which a gradient came back."""
        return [call for call in self.calls if call.gradient is not None]


class Recorder:
    """Watches a model: which layers are trainable, by which rule each is handled, under which name."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.units: list[tuple[str, nn.Module, Rule]] = list(registry.units(model))
        self._tape: Tape | None = None

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters to be trained, by name; a shared one once."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad}

    @contextmanager
    def recording(self, tape: Tape) -> Iterator[None]:
        """Every forward pass inside is written onto ``tape``."""
        handles = [
            module.register_forward_hook(self._hook(tape, module, rule), with_kwargs=True)
            for _, module, rule in self.units
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, tape: Tape, module: nn.Module, rule: Rule) -> Callable[..., Any]:
        names = {
            local: self._names[id(parameter)]
            for local, parameter in module.named_parameters(recurse=rule.whole_module)
            if parameter.requires_grad
        }

        def hook(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
            call = Call(module, rule, names, tuple(_detached(value) for value in inputs), options)
            tape.calls.append(call)
            first = output[0] if isinstance(output, tuple) else output
            anchor = torch.zeros((), device=first.device, requires_grad=True)
            tapped = _Tap.apply(first, anchor, call)  # type: ignore[no-untyped-call]
            return (tapped, *output[1:]) if isinstance(output, tuple) else tapped

        return hook

    def forward(self, tape: Tape, *inputs: Any, **options: Any) -> Any:
        """The model's output, with its trainable layers on the tape and no weight gradient asked for."""
        detached = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        before = self._versions()
        with self.recording(tape):
            output = torch.func.functional_call(self.model, detached, inputs, options)
        changed = [name for name, version in self._versions().items() if before.get(name) != version]
        if changed:
            raise InvalidInput(
                f"the forward pass wrote into {', '.join(changed[:3])}: a layer that remembers records (running "
                "statistics, a queue) lets them out without clipping and noise. Turn that off, e.g. "
                "track_running_stats=False, or put the layer into evaluation mode"
            )
        return output

    def _versions(self) -> dict[str, tuple[int, int]]:
        """Of every buffer which tensor it is, and how often that was written to."""
        return {name: (id(buffer), buffer._version) for name, buffer in self.model.named_buffers()}


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
