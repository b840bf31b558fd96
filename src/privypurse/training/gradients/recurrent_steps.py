"""One direction of one recurrent layer, step by step and back, so that what comes back to its gates is known.

Kernels for whole sequences keep that to themselves. Here a step is a product and a few operations on all records at
once. What does not hang on the step before, such as the slopes of all gates, is made for all places at once, so that
a step back is little more than its product.

Sequences are (places, records, features). Of states there is one more than of places: forwards the states before and
after place t are t and t + 1, backwards t + 1 and t.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privypurse.errors import InvalidInput

_sigmoid_slope = torch.ops.aten.sigmoid_backward  # (a, s) → a · s · (1 − s)
_tanh_slope = torch.ops.aten.tanh_backward  # (a, t) → a · (1 − t²)


@dataclass(frozen=True)
class Walk:
    """In which order places are gone through, and how many records have each: the first so many."""

    counts: list[int]
    backwards: bool = False

    @property
    def places(self) -> list[int]:
        """Places in the order in which they are gone through."""
        forwards = list(range(len(self.counts)))
        return forwards[::-1] if self.backwards else forwards

    @property
    def ends(self) -> tuple[int, int]:
        """The first state and the last."""
        return (len(self.counts), 0) if self.backwards else (0, len(self.counts))

    def before(self, states: Tensor) -> Tensor:
        """The state before each place."""
        return states[1:] if self.backwards else states[:-1]

    def after(self, states: Tensor) -> Tensor:
        """The state after each place."""
        return states[:-1] if self.backwards else states[1:]

    def rows(self, values: Tensor) -> list[Tensor]:
        """Of each place the rows of those records that have it."""
        every, records = values.unbind(0), values.shape[1]
        return [row if n == records else row[:n] for row, n in zip(every, self.counts, strict=True)]

    def begun(self, first: Tensor) -> Tensor:
        """Room for all states, with the first one in its place."""
        states = first.new_empty((len(self.counts) + 1, *first.shape))
        states[self.ends[0]] = first
        return states

    def stay(self, states: Tensor, place: int) -> None:
        """The states of records that do not have this place stay what they were."""
        n = self.counts[place]
        if n < states.shape[1]:
            self.after(states)[place, n:] = self.before(states)[place, n:]

    def pass_back(self, gradients: Tensor, place: int) -> None:
        """So what comes back to them goes on to the state before."""
        n = self.counts[place]
        if n < gradients.shape[1]:
            self.before(gradients)[place, n:] += self.after(gradients)[place, n:]

    def cleared(self, values: Tensor) -> Tensor:
        """The values with zeros, written into them, in all places that a record does not have."""
        for place, n in enumerate(self.counts):
            if n < values.shape[1]:
                values[place, n:] = 0
        return values


@dataclass(frozen=True)
class Weights:
    """What is learnt in one direction of one layer, beside what multiplies its inputs."""

    hidden: Tensor
    """weight_hh."""
    bias: Tensor | None = None
    """bias_hh, where it is not added to the gates beforehand."""
    projection: Tensor | None = None
    """weight_hr."""


class Steps(ABC):
    """A kind of recurrent layer, at work.

    ``gates`` hold the products with the inputs, and after `run` what became of them. ``states`` are the hidden ones.
    """

    def __init__(
        self, walk: Walk, weights: Weights, inputs: Tensor, gates: Tensor, hidden: Tensor, *cell: Tensor
    ) -> None:
        self.walk, self.weights, self.inputs, self.gates = walk, weights, inputs, gates
        self.states = walk.begun(hidden)
        self.cells = walk.begun(cell[0]) if cell else None
        self.shown = walk.after(self.states)
        """The states before a projection, where there is one."""

    @abstractmethod
    def run(self) -> None:
        """Fill in all states."""

    @abstractmethod
    def back(self, gradients: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
        """What comes back to the gates by inputs, and by states.

        ``gradients`` are those of all states as the outputs bring them, to which those by later states are added;
        ``cell`` is that of the last cell state, and becomes that of the first.
        """


class Elman(Steps):
    """h′ = tanh(x + W h), where x is the product with the input, and the biases."""

    def run(self) -> None:
        walk, hidden = self.walk, self.weights.hidden.t()
        gates = walk.rows(self.gates)
        before, after = walk.rows(walk.before(self.states)), walk.rows(walk.after(self.states))
        for t in walk.places:
            self.activate(torch.addmm(gates[t], before[t], hidden, out=after[t]))
            walk.stay(self.states, t)

    def activate(self, gates: Tensor) -> None:
        gates.tanh_()

    def slopes(self, states: Tensor) -> Tensor:
        return _tanh_slope(torch.ones_like(states), states)  # type: ignore[no-any-return]

    def back(self, gradients: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
        walk, hidden = self.walk, self.weights.hidden
        came = self.slopes(walk.after(self.states))
        each = walk.rows(came)
        before, after = walk.rows(walk.before(gradients)), walk.rows(walk.after(gradients))
        for t in reversed(walk.places):
            before[t].addmm_(each[t].mul_(after[t]), hidden)
            walk.pass_back(gradients, t)
        return came, came


class Rectified(Elman):
    """h′ = max(0, x + W h)."""

    def activate(self, gates: Tensor) -> None:
        gates.relu_()

    def slopes(self, states: Tensor) -> Tensor:
        return (states > 0).to(states.dtype)


class Gated(Steps):
    """GRU: r, z = σ(x + W h + b) and n = tanh(x + r · (W h + b)), each with its rows; h′ = n + z · (h − n)."""

    def run(self) -> None:
        walk, size = self.walk, self.states.shape[2]
        hidden, bias = self.weights.hidden.t(), self.weights.bias
        self.by_states = torch.empty_like(self.gates)  # W h + b
        by_states = walk.rows(self.by_states)
        soft, new = walk.rows(self.gates[..., : 2 * size]), walk.rows(self.gates[..., 2 * size :])
        before, after = walk.rows(walk.before(self.states)), walk.rows(walk.after(self.states))
        for t in walk.places:
            if bias is None:
                made = torch.mm(before[t], hidden, out=by_states[t])
            else:
                made = torch.addmm(bias, before[t], hidden, out=by_states[t])
            r, z = soft[t].add_(made[:, : 2 * size]).sigmoid_().chunk(2, dim=1)
            torch.lerp(new[t].addcmul_(r, made[:, 2 * size :]).tanh_(), before[t], z, out=after[t])
            walk.stay(self.states, t)

    def back(self, gradients: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
        walk, hidden = self.walk, self.weights.hidden
        r, z, n = self.gates.chunk(3, dim=2)
        by_new = _tanh_slope(1 - z, n)  # h′ by x of n
        slopes = self.by_states.view(*z.shape[:2], 3, -1)  # h′ by W h + b; written where that was
        torch.mul(by_new, slopes[:, :, 2], out=slopes[:, :, 0])
        slopes[:, :, 0].copy_(_sigmoid_slope(slopes[:, :, 0], r))
        slopes[:, :, 1].copy_(_sigmoid_slope(walk.before(self.states) - n, z))
        torch.mul(by_new, r, out=slopes[:, :, 2])
        came, keep = walk.rows(slopes), walk.rows(z)
        before, after = walk.rows(walk.before(gradients)), walk.rows(walk.after(gradients))
        for t in reversed(walk.places):
            came[t].mul_(after[t].unsqueeze(1))
            before[t].addcmul_(after[t], keep[t]).addmm_(came[t].flatten(1), hidden)
            walk.pass_back(gradients, t)
        by_states = slopes.flatten(2)
        by_inputs = by_states.clone()
        by_inputs[..., -n.shape[2] :] = by_new.mul_(walk.after(gradients))
        return by_inputs, by_states


class LongShort(Steps):
    """LSTM: i, f, o = σ(x + W h), g = tanh(x + W h), each with its rows; c′ = f · c + i · g, h′ = P (o · tanh c′)."""

    def run(self) -> None:
        assert self.cells is not None
        walk, hidden, projection = self.walk, self.weights.hidden.t(), self.weights.projection
        self.tanh = torch.empty_like(walk.before(self.cells))  # of c′
        if projection is not None:
            self.shown = torch.empty_like(self.tanh)
        gates, tanh, shown = walk.rows(self.gates), walk.rows(self.tanh), walk.rows(self.shown)
        before, after = walk.rows(walk.before(self.states)), walk.rows(walk.after(self.states))
        c_before, c_after = walk.rows(walk.before(self.cells)), walk.rows(walk.after(self.cells))
        size = self.cells.shape[2]
        for t in walk.places:
            each = gates[t].addmm_(before[t], hidden)
            i, f = each[:, : 2 * size].sigmoid_().chunk(2, dim=1)
            g, o = each[:, 2 * size : 3 * size].tanh_(), each[:, 3 * size :].sigmoid_()
            torch.mul(f, c_before[t], out=c_after[t]).addcmul_(i, g)
            torch.mul(o, torch.tanh(c_after[t], out=tanh[t]), out=shown[t])
            if projection is not None:
                torch.mm(shown[t], projection.t(), out=after[t])
            walk.stay(self.states, t)
            walk.stay(self.cells, t)

    def back(self, gradients: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor]:
        assert self.cells is not None
        assert cell is not None
        walk, hidden, projection = self.walk, self.weights.hidden, self.weights.projection
        i, f, g, o = self.gates.chunk(4, dim=2)
        by_tanh = _tanh_slope(o, self.tanh)  # h′ by c′
        came = torch.empty_like(self.gates).view(*i.shape[:2], 4, -1)
        for k, (times, gate) in enumerate([(g, i), (walk.before(self.cells), f), (i, g), (self.tanh, o)]):
            slope = _tanh_slope if gate is g else _sigmoid_slope
            slope(times, gate, grad_input=came[:, :, k])
        by_cell, by_shown = walk.rows(came[:, :, :3]), walk.rows(came[:, :, 3])
        every, forget, opened = walk.rows(came.flatten(2)), walk.rows(f), walk.rows(by_tanh)
        before, after = walk.rows(walk.before(gradients)), walk.rows(walk.after(gradients))
        for t in reversed(walk.places):
            shown = after[t] if projection is None else after[t] @ projection
            c = cell[: shown.shape[0]].addcmul_(shown, opened[t])
            by_cell[t].mul_(c.unsqueeze(1))
            by_shown[t].mul_(shown)
            before[t].addmm_(every[t], hidden)
            c.mul_(forget[t])
            walk.pass_back(gradients, t)
        return came.flatten(2), came.flatten(2)


class Recurrence(torch.autograd.Function):
    """From gates to states, (all of them, the last one, the last cell state), by whatever the kind's steps are.

    ``steps`` hold all that the forward pass reads. The others are there for what comes back to them: ``by_inputs``
    and ``by_states`` the gradients of the gates, ``projected`` that of what a projection gave, all three turned by
    ``turned`` into the form in which they are watched; ``hidden`` and ``cell`` those of the first states. Before,
    ``tell`` is given the steps once more. Tensors are left to autograd in between, which may have others keep them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        steps: Steps,
        turned: Callable[[Tensor], Tensor],
        tell: Callable[[Steps], None],
        by_inputs: Tensor,
        by_states: Tensor,
        projected: Tensor,
        hidden: Tensor,
        cell: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        steps.run()
        last = steps.walk.ends[1]
        found = [steps.walk.after(steps.states), steps.states[last]]
        found += [] if steps.cells is None else [steps.cells[last]]
        ctx.set_materialize_grads(False)
        ctx.steps, ctx.turned, ctx.tell = steps, turned, tell
        held = {name: value for name, value in vars(steps).items() if isinstance(value, Tensor)}
        ctx.names = list(held)
        for name in held:
            delattr(steps, name)
        ctx.save_for_backward(*held.values())
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, every: Tensor | None, last: Tensor | None, cell: Tensor | None = None) -> Any:
        steps: Steps | None = ctx.steps
        if steps is None:
            raise InvalidInput("backward was run twice through one forward pass; run the forward pass again")
        for name, value in zip(ctx.names, ctx.saved_tensors, strict=True):
            setattr(steps, name, value)
        ctx.tell(steps)
        walk, gradients = steps.walk, torch.zeros_like(steps.states)
        if every is not None:
            walk.after(gradients).copy_(every)
        if last is not None:
            gradients[walk.ends[1]] += last
        if steps.cells is not None:
            cell = torch.zeros_like(steps.cells[0]) if cell is None else cell.clone()
        by_inputs, by_states = steps.back(gradients, cell)
        first = gradients[walk.ends[0]].clone()
        came = (ctx.turned(walk.cleared(each)) for each in (by_inputs, by_states, walk.after(gradients)))
        found = None, None, None, *came, first, cell
        ctx.steps = None  # what it holds is not needed again
        return tuple(each if asked else None for each, asked in zip(found, ctx.needs_input_grad, strict=False))
