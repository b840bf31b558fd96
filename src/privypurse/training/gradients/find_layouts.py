"""Where layers have their records, found by passes with different numbers of them.

A dimension that counts records changes as their number does, and no other dimension does. So whatever lengths happen
to be equal, and though a batch has one record alone, nothing is taken for records that is not. Of a layer that did
not run in these passes (one that is left out at random, or used later) nothing is known, and nothing is supposed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from privypurse.errors import InvalidInput
from privypurse.training.gradients.layout import RECORDS_FIRST, Layout, form
from privypurse.training.gradients.refusals import require_tensors
from privypurse.training.gradients.rule import Rule
from privypurse.training.isolation.dropout import DropoutOff
from privypurse.training.isolation.memory import Memory
from privypurse.training.isolation.replaced_records import first_rows
from privypurse.training.model_inputs import Given
from privypurse.training.step_randomness import made_with

_MANY, _FEW = 3, 2  # records in the two passes; a single one may be squeezed away
_TURNS = 16  # of two passes, where some layers have not run and others may run next time

Layouts = dict[nn.Module, Layout]


Run = TypeVar("Run")


class _NotSeen(InvalidInput):
    """A layer runs of which nobody knows where it has its records."""


class KnownLayouts:
    """Where the layers of a model have their records, as far as they have run."""

    def __init__(
        self,
        model: nn.Module,
        layers: list[tuple[nn.Module, Rule]],
        prepare: Callable[[ExitStack, int], None],
    ) -> None:
        """``prepare`` has the model run for so many records, and leaves the undoing with the stack."""
        self._model, self._layers, self._prepare = model, layers, prepare
        self._found: Layouts | None = None

    def run(self, run: Callable[[], Run], given: Given, records: int, constants: frozenset[int]) -> Run:
        """What a pass of so many records gives; begun anew once a layer that had not been seen has been."""
        if self._found is None and records:
            self._find(given, records, constants)
        try:
            return run()
        except _NotSeen:
            self._find(given, records, constants)
            return run()

    def _find(self, given: Given, records: int, constants: frozenset[int]) -> None:
        known = self._found or {}
        self._found = find_layouts(self._model, self._layers, given, records, constants, self._prepare, known)

    def of(self, layer: nn.Module) -> Layout:
        """Where this layer has its records; first if it never ran."""
        return (self._found or {}).get(layer, RECORDS_FIRST)

    def require(self, layer: nn.Module) -> None:
        """Raise for a layer that runs now and did not when it was asked for; but not where there are no records."""
        if self._found is not None and layer not in self._found and layer in dict(self._layers):
            name = next(name for name, each in self._model.named_modules() if each is layer) or "model"
            raise _NotSeen(
                f"layer {name} ({type(layer).__name__}) runs now, and did not in passes of a few records, so that "
                "nobody knows which of its dimensions counts records: it is left out at random nearly always "
                "(LayerDrop), or by what is in the records. Let it run in every pass: set that rate to 0, or choose "
                "by a mask (torch.where)"
            )


@dataclass(frozen=True)
class _Shapes:
    """Of one call of a layer: of what its rule takes apart by records, and of its output."""

    inputs: tuple[torch.Size, ...]
    output: torch.Size
    form: str


def bound(layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Given:
    """By position what was given by keyword alone, as in linear(input=x)."""
    if inputs or not options:
        return inputs, options
    found = inspect.signature(layer.forward).bind(**options)
    return found.args, found.kwargs


def find_layouts(
    model: nn.Module,
    layers: Iterable[tuple[nn.Module, Rule]],
    given: Given,
    records: int,
    constants: frozenset[int],
    prepare: Callable[[ExitStack, int], None],
    known: Layouts,
) -> Layouts:
    """Those that are known, and of each layer that runs in passes of some of these records. The model stays as it is.

    ``constants`` are the ids of inputs that are the same for all records; ``prepare`` has the model run for so many
    records, and leaves the undoing with the stack. Where layers give one row for all, the
    layers behind them get one for each record while training; so these are asked again, as it will be then. So are
    layers that have not run, while something but dropout is drawn at random: it may be which of them run.
    """
    rules, found, memory, turn = dict(layers), dict(known), Memory(model), 0
    device = next(model.parameters()).device
    with torch.no_grad(), DropoutOff():
        while True:
            noted, draws = [], False
            for some in (_MANY, _FEW):
                with ExitStack() as undo:
                    undo.callback(memory.restore)
                    prepare(undo, some)
                    rows = first_rows(given, some, records, constants)
                    run = partial(_noted, model, rules, found, rows, some)
                    each, drew = made_with(bytes([turn]) * 32, run, device)
                    noted.append(each)
                    draws |= drew
            many, few = noted
            now = {layer: _layout(rules[layer], calls, few[layer]) for layer, calls in many.items() if layer in few}
            spread = {layer for layer, each in found.items() if each.one_row}
            found |= {layer: replace(each, one_row=each.one_row or layer in spread) for layer, each in now.items()}
            if {layer for layer, each in found.items() if each.one_row} - spread:
                found = {layer: each for layer, each in found.items() if each.one_row}
                continue
            turn += 1
            if not draws or turn == _TURNS or found.keys() >= rules.keys():
                return found


def _noted(
    model: nn.Module, rules: dict[nn.Module, Rule], known: Layouts, given: Given, records: int
) -> dict[nn.Module, list[_Shapes]]:
    """The shapes of every layer's calls, each with a row for each record where it is known to give one for all."""
    noted: dict[nn.Module, list[_Shapes]] = {}

    def note(layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
        given = bound(layer, inputs, options)
        require_tensors(layer, given[0], output)
        first: Tensor = output[0] if isinstance(output, tuple) else output
        shapes = _Shapes(_taken_apart(rules[layer], given), first.shape, form(given))
        noted.setdefault(layer, []).append(shapes)
        return known.get(layer, RECORDS_FIRST).for_each(output, records)

    with ExitStack() as undo:
        for layer in rules:
            undo.enter_context(layer.register_forward_hook(note, prepend=True, with_kwargs=True))  # as a tape's
        try:
            model(*given[0], **given[1])
        except Exception as error:
            if not known or isinstance(error, InvalidInput):
                raise
            spread = [name for name, layer in model.named_modules() if layer in known and known[layer].one_row]
            raise InvalidInput(
                f"{', '.join(spread[:3])}: such a layer gives one row for all records, and while training a row for "
                "each, (records, ...) instead of (1, ...). The model does not go on from there, as the error above "
                "says: let what it gives broadcast over records (x + output, output.expand(len(x), -1, -1)), without "
                "repeat and without taking a row of it"
            ) from error
    return noted


def _taken_apart(rule: Rule, given: Given) -> tuple[torch.Size, ...]:
    """The shapes of all tensors that the layer is given, or of the first where its rule asks for no other."""
    some = tree_leaves(given) if rule.takes_all_apart else given[0][:1]
    return tuple(value.shape for value in some if isinstance(value, Tensor))


def _layout(rule: Rule, many: list[_Shapes], few: list[_Shapes]) -> Layout:
    """Of a layer, from its calls in the two passes."""
    found = {_of_call(rule, *pair) for pair in zip(many, few, strict=False)}
    refused = [each for each in found if each.complaint is not None]
    if refused:
        return refused[0]
    dims, one_row = {each.dim for each in found}, any(each.one_row for each in found)
    constants = frozenset(each for layout in found for each in layout.constants)
    if len(dims) > 1 or len(dict(constants)) < len(constants) or (one_row and dims != {0}):
        return Layout(complaint="has records in different places in several calls")
    return Layout(max(dims, default=0), one_row, constants)


def _of_call(rule: Rule, many: _Shapes, few: _Shapes) -> Layout:
    pairs = list(zip(many.inputs, few.inputs, strict=False))
    inputs, output = [_counting(*pair) for pair in pairs], _counting(many.output, few.output)
    # The same whatever the number of records: (1, records, ...) is not, though it has one row.
    alike = {number for number, (one, other) in enumerate(pairs) if one == other}
    one_row = many.output == few.output and many.output[:1] == (1,)
    if rule.takes_all_apart:
        taken = [dims for number, dims in enumerate(inputs) if number not in alike]
        constants = frozenset({(many.form, frozenset(alike))})
    else:
        taken = [] if one_row and all(one[:1] == (1,) for one in many.inputs) else inputs
        constants = frozenset()
    common = {0} if one_row else output
    common = common.intersection(*taken) if taken or not rule.takes_all_apart or one_row else set()
    if common and (0 in common or rule.records_anywhere):
        return Layout(min(common), one_row, constants)
    rows = [shape[0] if shape else 0 for shape in (many.output, few.output)]
    given = " and ".join(str(tuple(shape)) for shape in many.inputs) or "no tensor"
    return Layout(complaint=f"gives {rows[0]} rows for {_MANY} records and {rows[1]} for {_FEW}, of {given}")


def _counting(many: torch.Size, few: torch.Size) -> set[int]:
    """The dimensions that count records."""
    if len(many) != len(few):
        return set()
    return {dim for dim, pair in enumerate(zip(many, few, strict=True)) if pair == (_MANY, _FEW)}
