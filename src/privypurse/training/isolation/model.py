"""A model asked while it trains: does what it computes for one record depend on others, or remain in it?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from privypurse.errors import InvalidInput
from privypurse.training.forms import leaves
from privypurse.training.gradients.expanded_parameters import EXPANDED_PARAMETER
from privypurse.training.gradients.find_layouts import bound
from privypurse.training.gradients.layout import COUNT_RECORDS, Constant, Layout
from privypurse.training.gradients.numerics import full_products, spread
from privypurse.training.gradients.refusals import goes_back
from privypurse.training.gradients.rule import Call, InParts, Rule
from privypurse.training.gradients.tape import Recorder, Tape
from privypurse.training.isolation.compared import MODEL, Seen, digest, first_changed
from privypurse.training.isolation.dropout import DropoutOff
from privypurse.training.isolation.memory import Memory, fingerprint, require_no_memory
from privypurse.training.isolation.replaced_records import (
    NO_BOUND,
    counts_records,
    first_rows,
    halves,
    other_places,
    reordered,
    turned_round,
    with_others,
)
from privypurse.training.model_inputs import Given
from privypurse.training.step_randomness import keyed, made_with, states

_LARGE = 2**1000  # as far as floats go
_LOUD = 1000.0  # instead of about 1: what a loud record's losses weigh


def require_isolated(
    recorder: Recorder,
    inputs: tuple[Any, ...],
    options: dict[str, Any],
    records: int,
    constants: frozenset[int] = frozenset(),
    followed: bool = False,
) -> None:
    """Raise if a record gives other rows in some layer when others stand beside it, or leaves something behind.

    Two records go through alone: rows are counted, and compared where nothing is drawn. Then half of the records,
    chosen at random, are kept, and the others replaced by copies of them; then the other way round. Rows that were
    kept must not change, nor what the model holds afterwards; one row that a layer gets for all of them is theirs
    too. Where nothing is drawn all go through in another order, and must not change by that. Everything is as in
    training, without gradients, but for dropout, which is off; whatever else draws, draws the same numbers each time,
    since shapes are the same. Then gradients, with dropout, whose numbers are the same each time too: what comes back
    to half of the records must not change when the losses of the others weigh more, nor when they are replaced.
    ``constants`` are the ids of inputs that are the same for all records, whatever their shape. A record that is
    alone mixes with nobody, and is only asked what it leaves behind. Where tensors are ``followed`` from the model to
    the loss, one of them may be a number for all, such as a loss of the model's own: a loss that uses it is refused.
    """
    given = inputs, options
    if records < 2:
        _require_nothing_kept(recorder, given, constants)
        return
    with torch.no_grad(), recorder.as_written(), DropoutOff() as dropout:
        trial = _Trial(recorder, records, constants, dropout, followed)
        whole, left = trial.run(given, records)
        few = min(2, records - 1)
        part, _ = trial.run(first_rows(given, few, records, constants), few)
        _require_rows(whole, part, records, few)
        if not trial.draws:
            _require_same_rows(whole, part, torch.arange(few))
        pair = halves(records)
        copies = any(_copied(rule, recorder.layouts.of(layer)) for _, layer, rule in recorder.layers)
        for kept, others in (pair, pair[::-1]):
            other, left_now = trial.run(trial.with_others(given, kept), records)
            _require_rows(other, part, records, few)
            _require_same_rows(whole, other, kept)
            require_no_memory(left.other_than(left_now))
            if copies:
                _require_own_copies(trial.back(given, others, 0.0), others)
        if not trial.draws:
            order = other_places(records)
            elsewhere, _ = trial.run(reordered(given, order, records, constants), records)
            _require_any_place(whole, _in_order(elsewhere, order.argsort()))
        with full_products():  # deep models have many units at a kink, where rounding decides what comes back
            _require_gradients_apart(trial, given, pair)


def takes_one_more(recorder: Recorder, given: Given, records: int, constants: frozenset[int]) -> bool:
    """Whether the model takes one record more beside these constants: none of them has an entry for each then."""
    more = first_rows(given, records + 1, records, constants)
    with torch.no_grad(), recorder.as_written(), DropoutOff() as dropout:
        try:
            _Trial(recorder, records + 1, constants, dropout).run(more, records + 1)
        except Exception:  # of whatever kind: shapes that do not go together
            return False
    return True


def _require_gradients_apart(trial: _Trial, given: Given, pair: tuple[Tensor, Tensor]) -> None:
    """Raise if what comes back to a record changes when others' losses weigh more, or others stand beside it."""
    nobody, (kept, others) = pair[0][:0], halves(trial.records)

    def quiet() -> Seen:
        return _came_back(trial, given, nobody, dropout)

    def loud() -> Seen:
        return _came_back(trial, given, others)

    def beside_others() -> Seen:
        return _came_back(trial, trial.with_others(given, kept), nobody, dropout)

    def elsewhere(order: Tensor) -> Seen:
        return _in_order(_came_back(trial, given, nobody, dropout, order), order.argsort())

    def both_elsewhere() -> tuple[Seen, Seen]:
        one = other_places(trial.records)
        return elsewhere(one), elsewhere(one[other_places(trial.records)])  # nobody at the same place in both

    dropout = True
    first = quiet()
    _require_same_gradients(first, loud(), kept, lambda: (quiet(), loud()))
    # How much dropout draws may hang on others, as where they are longer. What is run again cannot do without it.
    dropout = trial.runs_again
    first = first if dropout or not trial.dropped else quiet()
    for kept, _ in (pair, pair[::-1]):
        _require_same_gradients(first, beside_others(), kept, lambda: (quiet(), beside_others()))
    if not (dropout or trial.draws):
        _require_any_place(first, elsewhere(other_places(trial.records)), both_elsewhere)


def _require_nothing_kept(recorder: Recorder, given: Given, constants: frozenset[int]) -> None:
    """Raise if the model holds something else after this record than after another one."""
    with torch.no_grad(), recorder.as_written(), DropoutOff() as dropout:
        trial, before = _Trial(recorder, 1, constants, dropout), Memory(recorder.model)
        _, left = trial.run(given, 1)
        try:
            _, other = trial.run(turned_round(given), 1)
        except InvalidInput:
            raise
        except Exception:  # a model that takes no such record; then nothing at all may change
            other = before
    require_no_memory(left.other_than(other))


class _Trial:
    """Runs a model again and again from where it is now, with the same numbers whenever it draws."""

    def __init__(
        self, recorder: Recorder, records: int, constants: frozenset[int], dropout: DropoutOff, followed: bool = False
    ) -> None:
        self._recorder, self.records, self._constants, self._key = recorder, records, constants, os.urandom(32)
        self._memory, self._dropout = Memory(recorder.model), dropout
        self._parameters = list(recorder.model.named_parameters())
        self._before = fingerprint(self._parameters)
        self._device = self._parameters[0][1].device
        self._followed = followed
        self._left: dict[bool, list[Memory]] = {}
        self.draws = False
        """Whether anything but dropout drew numbers so far."""
        self.dropped = False
        """Whether anything did in a pass with dropout."""

    def run(self, given: Given, records: int) -> tuple[Seen, Memory]:
        """What the layers got and gave, and what the model held afterwards."""
        seen_now = partial(_seen, self._recorder, given, records, self._followed)
        look = partial(made_with, self._key, seen_now, self._device)
        try:
            seen, draws = self._recorder.layouts.run(look, given, records, self._constants)
            self.draws |= draws
            left = Memory(self._recorder.model)
        finally:
            self._memory.restore()
        require_no_memory(self._written())
        return seen, left

    def _written(self) -> list[str]:
        """The parameters that are not what they were."""
        same = torch.isclose(fingerprint(self._parameters), self._before, 0.0, 0.0, equal_nan=True).all(dim=1)
        return [name for (name, _), ok in zip(self._parameters, same.tolist(), strict=True) if not ok]

    def with_others(self, given: Given, kept: Tensor) -> Given:
        """The batch with the records that are not kept replaced."""
        found: Given = with_others(given, kept, self.records, self._constants)
        return found

    @property
    def runs_again(self) -> bool:
        """Whether parts of the last pass were run again in its backward pass."""
        return self._recorder.runs_again

    def back(
        self, given: Given, rows: Tensor, weight: float, dropout: bool = True, order: Tensor | None = None
    ) -> Tape:
        """A backward pass of random losses, which weigh about 1; those of these records weigh that much.

        In another ``order`` of records each has the same loss. Outputs from which nothing can come back, as the
        weights of an attention, are left out. A number for all is used by each record's loss, also by loud ones.
        """
        order = torch.arange(self.records) if order is None else order
        given = reordered(given, order, self.records, self._constants)
        recorder, tape = self._recorder, Tape(self.records, constants=self._constants)
        key, recorder.key = recorder.key, None
        try:
            drops = self._dropout.on_again() if dropout else nullcontext()
            with torch.enable_grad(), drops, keyed(self._key, self._device):
                before = states(self._device)
                output = recorder.forward(tape, *given[0], **given[1])
                self.dropped |= not all(map(torch.equal, before, states(self._device)))
                recorder.refuse_strangers(output)  # before something comes back to them
                asked = [leaf for leaf in leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
                asked = [_of_each(leaf, self.records) for leaf in asked if leaf.dim() or not self._followed]
                asked = [leaf for leaf in asked if counts_records(leaf, self.records) and goes_back(leaf)]
                weights = [torch.randn_like(leaf).index_fill_(0, rows.to(leaf.device), weight) for leaf in asked]
                weights = [weight[order.to(weight.device)] for weight in weights]
                if asked:
                    torch.autograd.backward([(leaf * w).sum() for leaf, w in zip(asked, weights, strict=True)])
                self._left[dropout] = [*self._left.get(dropout, ())[:1], Memory(recorder.model)]
        finally:
            recorder.key = key
            self._memory.restore()
        return tape

    def require_nothing_kept(self) -> None:
        """Raise if a backward pass left something else in the model than another, with dropout or without."""
        left = [name for first, *last in self._left.values() for one in last for name in first.other_than(one)]
        require_no_memory(self._written() + left, "backward")


def _came_back(
    trial: _Trial, given: Given, louder: Tensor, dropout: bool = True, order: Tensor | None = None
) -> Seen:
    """What comes back to every layer if these records' losses weigh more; nothing where it cannot be asked."""
    try:
        calls = trial.back(given, louder, _LOUD, dropout, order).finished()
    except InvalidInput:
        return []  # a loss of anything that the model gives is not what will be asked
    trial.require_nothing_kept()
    return [(call.path, digest(value)) for call in calls for value in (*call.kept.values(), call.output_gradient)]


def _require_same_gradients(quiet: Seen, other: Seen, rows: Tensor, again: Callable[[], tuple[Seen, Seen]]) -> None:
    """Raise if what comes back to these records is another in the two; ``again`` makes both once more."""
    name = first_changed(quiet, other, rows, again)
    if name is not None:
        raise InvalidInput(
            f"the gradient that comes back to layer {name} for a record changes with other records, or with what "
            f"comes back to them, {NO_BOUND}: a hook, an autograd.Function or something detached behind it is made "
            "of several, as by a norm of the whole gradient. Take it out; clipping is done here, for each person"
        )


def _copied(rule: Rule, layout: Layout) -> bool:
    """Whether every record has a copy of what all have in common."""
    return rule is EXPANDED_PARAMETER or layout.one_row


def _returned(call: Call) -> list[Tensor]:
    return list(call.kept.values()) if call.settled else [call.output_gradient]


def _not_finite(tape: Tape, calls: list[Call]) -> Tensor:
    """Of every record, whether something came back to it here that is not finite."""
    wild = torch.zeros(tape.records, dtype=torch.bool)
    for value in (value for call in calls for value in _returned(call) if len(value) == tape.records):
        wild |= ~torch.isfinite(value.reshape(len(value), -1)).all(dim=1).cpu()
    return wild


def _require_own_copies(tape: Tape, others: Tensor) -> None:
    """Raise if something came back to these records' copies of what all have in common; their losses do not count."""
    copies = [call for call in tape.finished() if _copied(call.rule, call.layout)]
    wild = _not_finite(tape, [call for call in tape.finished() if not _copied(call.rule, call.layout)])[others]
    for call in copies:
        theirs = [value[others.to(value.device)] for value in _returned(call)]
        # Of a record to which something came back elsewhere that is not finite, 0 · ∞ is its own.
        own = [~torch.isfinite(each) & spread(wild.to(each.device), each).bool() for each in theirs]
        if all(((each == 0) | mine).all() for each, mine in zip(theirs, own, strict=True)):
            continue
        if call.rule is EXPANDED_PARAMETER:
            what, has = next(iter(call.names.values())), "a parameter whose leading dimension is 1"
        else:
            what, has = f"what layer {call.path} gives", "what a layer gives that gets one row for all of them"
        raise InvalidInput(
            f"{what} is used by one record for another: while training every record has a copy of {has}, so let it "
            "broadcast over records (x + self.positions, self.token.expand(len(x), -1, -1)), and take no row of it"
        )


def _require_same_rows(whole: Seen, other: Seen, rows: Tensor) -> None:
    """Raise if a layer gives these rows otherwise in the two."""
    others = [name for (name, _), (now, _) in zip(whole, other, strict=False) if name != now]
    others += [MODEL] if len(whole) != len(other) else []  # which layers ran must be the same, too
    name = others[0] if others else first_changed(whole, other, rows)
    if name is not None:
        raise InvalidInput(
            f"{name} for a record changes with the other records in the batch, {NO_BOUND}: nothing may "
            "be computed over the first dimension, rows must keep their order, and random numbers come from the "
            "global generators. A model that gives its own mean loss, or another number for the whole batch (how "
            "many records there are), should give one for each record"
        )


def _in_order(seen: Seen, order: Tensor) -> Seen:
    return [(name, value[order.to(value.device)] if len(value) == len(order) else value) for name, value in seen]


def _require_any_place(seen: Seen, elsewhere: Seen, again: Callable[[], tuple[Seen, Seen]] | None = None) -> None:
    """Raise if records that stood at other places have other rows, or something else comes back to them.

    Each row is that of the same record in both; ``again`` makes both passes once more.
    """
    rows = torch.arange(len(seen[0][1])) if seen else torch.arange(0)
    name = first_changed(seen, elsewhere, rows, again, moved=True) if seen else None
    if name is not None:
        what = "" if again is None else "what comes back to layer "
        raise InvalidInput(
            f"{what}{name} for a record changes with its place in the batch, and so with who else was drawn, "
            f"{NO_BOUND}. Something has an entry for each place of the first dimension, as a table of positions does "
            "that is written for (tokens, records, …): let it go by tokens, x + table[: x.shape[1]]"
        )


def _require_rows(whole: Seen, part: Seen, records: int, few: int) -> None:
    for (name, one), (_, other) in zip(whole, part, strict=False):
        if one.shape[:1] != (records,) or other.shape[:1] != (few,):
            counts = [values.shape[0] if values.dim() else 0 for values in (one, other)]
            raise InvalidInput(
                f"{name} has {counts[0]} rows for {records} records and {counts[1]} for {few}: {COUNT_RECORDS}"
            )


def _seen(recorder: Recorder, called_with: Given, records: int, followed: bool) -> Seen:
    """What every layer got and gave, records first, and what the model gave at the end."""
    found: Seen = []

    def noting(name: str, rule: Rule) -> Callable[..., Any]:
        def note(module: nn.Module, inputs: Any, options: Any, output: Any) -> Any:
            recorder.layouts.require(module)
            layer, layout = f"what layer {name or 'model'} ({type(module).__name__})", recorder.layouts.of(module)
            if layout.complaint is None and not isinstance(rule, InParts):
                for value in _given(rule, layout, bound(module, inputs, options), records):
                    found.append((f"{layer} is given", digest(value)))
            output = layout.for_each(output, records)
            found.append((f"{layer} gives", digest(layout.to_front(rule.rows(module, output)))))
            return output

        return note

    with ExitStack() as undo:
        recorder.for_each(undo, records)
        for name, module, rule in recorder.layers:
            if rule is not EXPANDED_PARAMETER:
                hook = noting(name, rule)
                undo.enter_context(module.register_forward_hook(hook, prepend=True, with_kwargs=True))  # as a tape's
        output = recorder.model(*called_with[0], **called_with[1])
    return found + [(MODEL, digest(rows)) for rows in _outputs(output, records, followed)]


def _outputs(output: Any, records: int, followed: bool) -> Iterator[Tensor]:
    """What a model gives, records first; of what is complex the real and the imaginary part.

    A number for the whole batch is every record's: a loss may add it to each, or divide by it.
    """
    for leaf in leaves(output):
        value = leaf if isinstance(leaf, Tensor) else _numbers(leaf)
        if value is None or (followed and isinstance(leaf, Tensor) and not leaf.dim()):
            continue
        if not value.dim():
            value = _of_each(value if value.is_floating_point() or value.is_complex() else value.double(), records)
        yield torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _of_each(value: Tensor, records: int) -> Tensor:
    return value if value.dim() else value.expand(records)


def _numbers(leaf: Any) -> Tensor | None:
    """A number, or an array of numbers; None for words and the like."""
    if isinstance(leaf, int):
        return torch.tensor(float(max(-_LARGE, min(leaf, _LARGE))), dtype=torch.float64)
    if not isinstance(leaf, float | complex | np.ndarray | np.generic) or np.asarray(leaf).dtype.kind not in "biufc":
        return None
    kind = {"f": np.float64, "c": np.complex128}.get(np.asarray(leaf).dtype.kind, np.int64)
    return torch.from_numpy(np.array(leaf, dtype=kind))


def _given(rule: Rule, layout: Layout, given: Given, records: int) -> Iterator[Tensor]:
    """What a layer's rule takes apart by records, a row for each; what is the same for all, for each."""
    for leaf in tree_leaves(layout.marked(given)) if rule.takes_all_apart else given[0][:1]:
        if isinstance(leaf, Constant):
            yield leaf.value.expand(records, *leaf.value.shape)
        elif isinstance(leaf, Tensor):
            yield layout.for_each(layout.to_front(leaf), records)
