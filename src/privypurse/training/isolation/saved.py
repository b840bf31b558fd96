"""What is saved with a model: does anything write to it where nothing may?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from privypurse.training.isolation.memory import Memory, fingerprint

Mark = tuple[Any, ...]


def mark(value: Tensor) -> Mark:
    """Which tensor it is, how often it was written to, and where its values lie: `.data =` changes that alone."""
    try:
        where: Mark = value.data_ptr(), value.shape, value.stride()
    except RuntimeError:  # one whose values are spread over other tensors
        where = ()
    return id(value), value._version, *where


class Saved:
    """Parameters and buffers as they are now; with ``contents`` also their values, and all of ``state_dict``.

    Versions and addresses cost nothing. What is written in place through `.data`, or by NumPy, shows in the values
    alone; so do entries that a module saves beside its tensors (`get_extra_state`).
    """

    def __init__(self, model: nn.Module, contents: bool = False) -> None:
        self._model = model
        self._marks = {name: mark(value) for name, value in _held(model)}
        self._alive = {name: value.detach() for name, value in _held(model)}  # nobody gets their addresses meanwhile
        self._contents = _Contents(model) if contents else None

    def written(self) -> list[str]:
        """The names of what is not what it was."""
        now = dict(_held(self._model))
        changed = [name for name in self._marks | now if name not in now or not self._same(name, now[name])]
        return changed if changed or self._contents is None else self._contents.other_than(_Contents(self._model))

    def _same(self, name: str, value: Tensor) -> bool:
        """Whether it was not written to. It may lie elsewhere as it was: cuDNN gathers the weights of an LSTM."""
        if name not in self._marks or mark(value)[:2] != self._marks[name][:2]:
            return False
        return mark(value) == self._marks[name] or torch.equal(self._alive[name], value.detach())


def _held(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, module in model.named_modules():
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None:
                yield f"{path}.{name}" if path else name, value


class _Contents:
    """Of every tensor two numbers, and a copy of what else is saved."""

    def __init__(self, model: nn.Module) -> None:
        state, tensors = model.state_dict(), dict(_held(model))
        entries = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        others = [name for name, value in entries.items() if _new(value, tensors.get(name))]
        tensors |= {f"{name} of state_dict": entries[name] for name in others}
        judged = [(name, value) for name, value in tensors.items() if _judged(value)]
        self._names, self._numbers = [name for name, _ in judged], fingerprint(judged)
        self._others = Memory({name: value for name, value in state.items() if name not in entries})

    def other_than(self, now: _Contents) -> list[str]:
        if self._names != now._names:
            return sorted({*self._names} ^ {*now._names}) or self._names
        same = torch.isclose(self._numbers, now._numbers, 0.0, 0.0, equal_nan=True).all(dim=1).tolist()
        changed = [name for name, alike in zip(self._names, same, strict=True) if not alike]
        return changed + self._others.other_than(now._others)


def _new(entry: Tensor, held: Tensor | None) -> bool:
    """Whether an entry of ``state_dict`` is another tensor than the one that the model has under this name."""
    return held is None or mark(entry)[2:] != mark(held)[2:]


def _judged(value: Tensor) -> bool:
    return value.layout == torch.strided and not (value.is_meta or value.is_quantized)
