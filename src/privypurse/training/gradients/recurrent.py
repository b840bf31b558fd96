"""Recurrent layers and their cells: each is run here in parts, which are linear layers over time.

The gates of one direction of one layer are the sum of two linear layers, one of the inputs and one of the states
before, each over all places of a record. `recurrent_steps` tells what comes back to the gates; norms and sums are
those of linear layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from privypurse.errors import InvalidInput
from privypurse.training.gradients.linear import LinearRule
from privypurse.training.gradients.numerics import at_least_float32, from_made, square_sum
from privypurse.training.gradients.recurrent_steps import (
    Elman,
    Gated,
    LongShort,
    Rectified,
    Recurrence,
    Steps,
    Walk,
    Weights,
)
from privypurse.training.gradients.rule import Call, InParts, Part, Rule, handles


class OwnPlacesRule(LinearRule):
    """A linear layer over the places that a record has, so many as its second input says; what is beyond is zero.

    Bounds of rounding, and the way to a norm, go by the record's own places: how many others have changes nothing.
    """

    one_shape = False
    takes_views = False

    def joined(self, calls: list[Call]) -> Call:
        whole = super().joined(calls)
        return replace(whole, inputs=(*whole.inputs, torch.stack([call.inputs[1] for call in calls]).sum(dim=0)))

    def weight_squares(self, call: Call) -> Tensor:
        squares = []
        for some in call.chunks(2 * call.inputs[0].shape[-1] * call.output_gradient.shape[-1]):
            theirs = call.rows(some)
            a, g = (square_sum(values) for values in theirs.input_and_gradient())
            squares.append(from_made(square_sum(self.weight(theirs)), a, g, self.summands(theirs)))
        return torch.cat(squares)

    def summands(self, call: Call) -> Tensor:
        places: Tensor = call.inputs[1]
        return places


_LINEAR, _OWN_PLACES = LinearRule(), OwnPlacesRule()


@dataclass(frozen=True)
class Sequences:
    """What a layer goes through: (places, records, features), longer records first where they differ in length."""

    values: Tensor
    counts: list[int]
    """How many records have each place: the first so many."""
    packed: PackedSequence | None = None
    """What they were given as, if so."""
    present: Tensor | None = None
    """Then also whether a record has a place: bool[places, records, 1]."""

    @classmethod
    def of(cls, module: Any, given: Any) -> Sequences:
        """What a recurrent layer was given."""
        if isinstance(given, PackedSequence):
            present = _present(given)
            values = given.data.new_zeros((present.numel(), *given.data.shape[1:]))
            values = values.index_copy(0, _rows_of(given), given.data).reshape(*present.shape, -1)
            return cls(values, given.batch_sizes.tolist(), given, present.unsqueeze(2).to(values.device))
        if given.dim() != 3:
            raise InvalidInput(
                f"a {type(module).__name__} was given a tensor of shape {tuple(given.shape)}, one sequence alone; "
                "give it all records of the batch at once: (records, time, features) with batch_first=True, else "
                "(time, records, features)"
            )
        values = given.transpose(0, 1) if module.batch_first else given
        return cls(values, [values.shape[1]] * values.shape[0])

    def given_back(self, module: Any) -> Any:
        """These in the form in which the first were given."""
        if self.packed is None:
            return self.values.transpose(0, 1) if module.batch_first else self.values
        data = self.values.flatten(0, 1).index_select(0, _rows_of(self.packed))
        return PackedSequence(data, *self.packed[1:])

    def in_order(self, values: Tensor) -> Tensor:
        """Whatever has records second, in the order of the model's records."""
        order = None if self.packed is None else self.packed.unsorted_indices
        return values if order is None else values.index_select(1, order)

    def by_record(self, values: Tensor) -> Tensor:
        """As (records, places, features), in the order of the model's records."""
        return self.in_order(values).transpose(0, 1)

    def own(self, values: Tensor) -> Tensor:
        """The values with zeros where a record has no place."""
        return values if self.present is None else values.masked_fill(~self.present, 0.0)

    @property
    def rule(self) -> Rule:
        """By which rule linear layers over these are handled."""
        return _LINEAR if self.present is None else _OWN_PLACES

    def inputs(self, values: Tensor) -> tuple[Tensor, ...]:
        """What that rule is given where a linear layer was given these values."""
        seen = self.by_record(self.own(values.detach()))
        return (seen,) if self.present is None else (seen, self.by_record(self.present).sum(dim=(1, 2)).to(seen))


def _present(packed: PackedSequence) -> Tensor:
    """Whether a record has a place: bool[places, records]. Sizes lie on the CPU, and so does this."""
    return torch.arange(int(packed.batch_sizes[0])) < packed.batch_sizes.unsqueeze(1)


def _rows_of(packed: PackedSequence) -> Tensor:
    """Where each of its rows stands among all (place, record)."""
    return _present(packed).flatten().nonzero().flatten().to(packed.data.device)


def _kind(module: nn.Module) -> type[Steps]:
    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return LongShort
    if isinstance(module, nn.GRU | nn.GRUCell):
        return Gated
    return Rectified if getattr(module, "nonlinearity", None) == "relu" else Elman


@dataclass(frozen=True)
class Direction:
    """One direction of one layer: its parameters by what they multiply ("ih", "hh", "hr") and how names end."""

    module: nn.Module
    end: str
    backwards: bool = False

    def names(self, of: str) -> dict[str, str]:
        """The names that a linear layer would have for them → their names."""
        names = {"weight": f"weight_{of}{self.end}", "bias": f"bias_{of}{self.end}"}
        return {local: name for local, name in names.items() if hasattr(self.module, name)}

    def value(self, name: str, like: Tensor) -> Tensor | None:
        """A parameter in the floats of another tensor, None if there is none."""
        own = f"{name}{self.end}"
        return self.module.get_parameter(own).detach().to(like.dtype) if hasattr(self.module, own) else None

    def run(self, part: Part, sequences: Sequences, first: list[Tensor]) -> tuple[Tensor, ...]:
        """All states, the last one and, of an LSTM, the last cell state."""
        kind, walk = _kind(self.module), Walk(sequences.counts, self.backwards)
        weight = self.module.get_parameter(f"weight_ih{self.end}").detach()
        bias, other = self.value("bias_ih", weight), self.value("bias_hh", weight)
        if bias is not None and other is not None and kind is not Gated:  # there the reset gate comes between
            bias, other = bias + other, None
        linear = F.linear(sequences.values, weight, bias)
        gates = at_least_float32(linear).contiguous()
        places, records, width = gates.shape
        nothing = gates.new_zeros(()).expand(records, places, width)  # what comes back to it is of gates by states
        hidden, projection = (self.value(f"weight_{of}", gates) for of in ("hh", "hr"))
        assert hidden is not None
        watched = {"ih": sequences.by_record(gates), "hh": nothing, "hr": nothing[..., : hidden.shape[1]]}
        calls: dict[str, Call | None] = {}
        for of, output in watched.items():
            watched[of], calls[of] = part(sequences.rule, self.names(of), output)
        weights = Weights(hidden, None if other is None else other.to(gates.dtype), projection)
        states = (state.detach().to(gates.dtype) for state in first)
        steps = kind(walk, weights, sequences.values.detach(), gates.detach(), *states)
        form = replace(sequences, values=gates.new_empty(0))  # which is all that is kept of them here

        def tell(steps: Steps) -> None:
            seen = {"ih": steps.inputs, "hh": walk.before(steps.states), "hr": steps.shown}
            for of, call in calls.items():
                if call is not None:
                    call.inputs = form.inputs(seen[of])

        every, *last = Recurrence.apply(steps, form.by_record, tell, *watched.values(), *first)  # type: ignore[no-untyped-call]
        return tuple(state.to(linear.dtype) for state in (every, *last))


@handles(nn.LSTM, nn.GRU, nn.RNN)
class RecurrentRule(InParts):
    """Layer by layer, each forwards and, where asked for, backwards; dropout between them as the layer's own."""

    def run(self, module: Any, part: Part, input: Any, hx: Any = None) -> Any:
        sequences = Sequences.of(module, input)
        first = _first_states(module, sequences, hx)
        packed = sequences.packed
        given = (input, None) if packed is None else (packed.data, packed.batch_sizes)
        module.check_forward_args(given[0], first if len(first) > 1 else first[0], given[1])
        ends: list[list[Tensor]] = []
        for layer in range(module.num_layers):
            outputs = []
            for backwards in (False, True)[: 1 + module.bidirectional]:
                direction = Direction(module, f"_l{layer}{'_reverse' * backwards}", backwards)
                output, *last = direction.run(part, sequences, [states[len(ends)] for states in first])
                outputs.append(output)
                ends.append(last)
            values = sequences.own(torch.cat(outputs, dim=2))
            if layer < module.num_layers - 1:
                values = F.dropout(values, module.dropout, module.training)
            sequences = replace(sequences, values=values)
        states = tuple(sequences.in_order(torch.stack(each)) for each in zip(*ends, strict=True))
        return sequences.given_back(module), states if len(states) > 1 else states[0]

    def rows(self, module: Any, output: Any) -> Tensor:
        """Of packed sequences the last states: they follow from all places of a record."""
        values, last = output
        if isinstance(values, PackedSequence):
            states: Tensor = last[0] if isinstance(last, tuple) else last
            return states.transpose(0, 1)
        first: Tensor = values if module.batch_first else values.transpose(0, 1)
        return first


def _first_states(module: Any, sequences: Sequences, hx: Any) -> tuple[Tensor, ...]:
    """The states before the first place, of all layers and directions: as given, or zeros."""
    if hx is not None:
        hx = module.permute_hidden(hx, None if sequences.packed is None else sequences.packed.sorted_indices)
        return hx if isinstance(hx, tuple) else (hx,)
    rows = module.num_layers * (1 + module.bidirectional), sequences.values.shape[1]
    sizes = [getattr(module, "proj_size", 0) or module.hidden_size]
    sizes += [module.hidden_size] if isinstance(module, nn.LSTM) else []
    return tuple(sequences.values.new_zeros((*rows, size)) for size in sizes)


@handles(nn.LSTMCell, nn.GRUCell, nn.RNNCell)
class CellRule(InParts):
    """A recurrent layer over one place."""

    def run(self, module: Any, part: Part, input: Tensor, hx: Any = None) -> Any:
        if input.dim() != 2:
            raise InvalidInput(
                f"a {type(module).__name__} was given a tensor of shape {tuple(input.shape)}; give it all records of "
                "the batch at once: (records, features)"
            )
        several = isinstance(module, nn.LSTMCell)
        if hx is None:
            hx = (input.new_zeros((len(input), module.hidden_size)),) * (1 + several)
        first = list(hx) if several else [hx] if isinstance(hx, Tensor) else list(hx)
        _, *last = Direction(module, "").run(part, Sequences(input.unsqueeze(0), [len(input)]), first)
        return tuple(last) if several else last[0]
