"""The middle of an ordinary loop on a GPU as CUDA graphs: the forward pass, the backward pass, the clipped sum.

Python takes longer over the many calls of a small model than a GPU over its work. So where a batch of some size has
gone through the model as it is, its passes are captured for that size, and replayed. The loss between them stays the
loop's own. What a graph holds is what `PrivateRun.add` does, so that what is released is the same.

A graph reads nothing of Python any more. What it took as given is compared at every batch (`Surroundings`), and a
model that draws from Python's generators, asks the device for a value, or changes itself on the way is not captured.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from privypurse.errors import InvalidInput
from privypurse.training.cuda_graphs import NotCapturable, capturing, require_one_pass, warmed_up
from privypurse.training.forms import mapped, tensors
from privypurse.training.gradients import Tape
from privypurse.training.mechanism import PrivateRun
from privypurse.training.model_inputs import Given
from privypurse.training.step_randomness import borrowed, key_cuda, keyed

_EAGER_FIRST = 3  # passes as they are, in which a model is checked and libraries settle
_MOST_SIZES = 32
_MOST_CHANGES = 3  # of what graphs took as given; a model that changes more often is run as it is
_SAME = 0.02  # of the largest entry: by no more does a replay differ from the model as it is
_SCALARS = (bool, int, float, str, type(None))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")


class Surroundings:
    """What a captured pass took as given: numbers in modules, where tensors lie, how torch computes."""

    def __init__(self, model: nn.Module) -> None:
        held = [module.__dict__ for module in model.modules()]
        self._numbers = [
            (owner, name, value) for owner in held for name, value in owner.items() if isinstance(value, _SCALARS)
        ]
        owners = [each for owner in held for each in (owner, owner["_parameters"], owner["_buffers"])]
        found = [(owner, name, value) for owner in owners for name, value in owner.items()]
        self._tensors = [
            (owner, name, value, value.data_ptr()) for owner, name, value in found if isinstance(value, Tensor)
        ]
        hooks = [owner.get(name) for owner in held for name in _HOOKS]
        self._hooks = [*hooks, *(getattr(modules, name, None) for name in _GLOBAL_HOOKS)]
        self._computing = _computing()

    @property
    def hooked(self) -> bool:
        """Whether somebody looks on while the model runs: a replay would pass them by."""
        return any(self._hooks)

    def same(self) -> bool:
        return (
            not self.hooked
            and all(owner.get(name) is value or owner.get(name) == value for owner, name, value in self._numbers)
            and all(owner.get(name) is value and value.data_ptr() == at for owner, name, value, at in self._tensors)
            and _computing() == self._computing
        )


def _computing() -> tuple[Any, ...]:
    """How torch computes now: autocast, short floats inside of products, determinism."""
    backends: Any = torch.backends
    products = (getattr(backends.cuda.matmul, "fp32_precision", None), backends.cudnn.deterministic)
    convolutions = getattr(getattr(backends.cudnn, "conv", None), "fp32_precision", None)
    cast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return (*cast, *products, convolutions, torch.are_deterministic_algorithms_enabled())


class _Back(torch.autograd.Function):
    """What the model gave; what comes back goes into the graph of its backward pass."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, replay: Replay, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.replay = replay
        return tuple(output.clone() for output in outputs)  # the next replay writes into the graph's own

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.replay.back(gradients)
        return None, None, *[None] * len(gradients)


class _NotBack(torch.autograd.Function):
    """What the model gave beside, to which nothing came back while its passes were run as they are."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise InvalidInput(
            "the loss is made of another output of the model than in the first steps, after which the model's passes "
            "were captured as CUDA graphs; give execution=pp.Execution(capture=False)"
        )


class Replay:
    """One pass of a batch through the graphs."""

    def __init__(self, graphs: Graphs, graph: _Graph) -> None:
        self._graphs, self._graph, self.came_back = graphs, graph, False
        self.draws = graph.draws
        """Whether the pass drew numbers at random."""

    def back(self, gradients: tuple[Tensor, ...]) -> None:
        if self.came_back:
            raise InvalidInput("backward was run twice through one forward pass; run the forward pass again")
        if self._graphs.last is not self:
            raise InvalidInput("backward was run for a batch that another followed; run it before the next batch")
        self._graph.back(gradients)
        self.came_back = True

    def finished(self) -> bool:
        """Whether its gradient came back."""
        return self.came_back

    def add(self, units: Tensor) -> None:
        """Clip, and add to the step's sum; ``units`` as `PrivateRun.add` has them, one for each record."""
        assert self._graphs.last is self
        self._graph.add(units)
        self._graphs.last = None


class _Rows:
    """Memory for what goes into graphs and comes out of them, the same for batches of all sizes."""

    def __init__(self, room: int) -> None:
        self.room = room
        """The most records of a batch."""
        self._held: dict[Hashable, Tensor] = {}

    def like(self, value: Tensor, what: Hashable, records: int) -> Tensor:
        """A tensor of this form; of what has a row for each record, one after the other, the first of more rows."""
        if value.dim() == 0 or value.shape[0] != records or not value.is_contiguous():
            return torch.empty_like(value)
        form = what, value.shape[1:], value.dtype
        if form not in self._held:
            self._held[form] = value.new_empty((self.room, *value.shape[1:]))
        return self._held[form][:records]


class _Graph:
    """The passes of batches of one form, captured."""

    def __init__(
        self, run: PrivateRun, given: Given, records: int, pool: Any, used: frozenset[int], rows: _Rows
    ) -> None:
        """``used`` are the outputs to which gradients come back, by their numbers among those that ask for one."""
        self._run, self._used, self._rows = run, used, rows
        leaves, self._form = tree_flatten(given)
        self._leaves = [
            rows.like(leaf, ("in", n), records).copy_(leaf) if isinstance(leaf, Tensor) else leaf
            for n, leaf in enumerate(leaves)
        ]
        self._units = torch.full((records,), run.plan.people, dtype=torch.int64, device=run.device)
        self._anchor = torch.zeros((), device=run.device, requires_grad=True)
        with torch.enable_grad(), keyed(os.urandom(32), run.device):
            with run.recorder.captured():
                self.draws = self._warm_up(records)
            with run.recorder.captured(), capturing(pool) as graph:
                self._capture(records, graph)

    def _pass(self, records: int) -> tuple[Tape, Any, list[Tensor]]:
        """A forward pass onto a tape: what the model gives, and to what of it a gradient comes back."""
        inputs, options = tree_unflatten(self._leaves, self._form)
        tape = Tape(records)
        output = self._run.recorder.forward(tape, *inputs, **options)
        require_one_pass(self._run.recorder)
        asking = [value for value in tensors(output) if value.requires_grad]
        if not self._used or max(self._used) >= len(asking):
            raise NotCapturable("the model gives other tensors than it did, or nothing came back to any")
        return tape, output, list({id(value): value for value in (asking[n] for n in sorted(self._used))}.values())

    def _warm_up(self, records: int) -> bool:
        """Passes outside of a graph, with nobody's gradients; whether numbers are drawn on the device."""

        def both_ways() -> Tape:
            tape, output, asking = self._pass(records)
            self._gave = [self._rows.like(value, n, records) for n, value in enumerate(tensors(output))]
            self._gradients = [self._rows.like(value, ("back", n), records) for n, value in enumerate(asking)]
            torch.autograd.backward(asking, [each.zero_() for each in self._gradients])
            return tape

        tape, draws = warmed_up(self._run.device, both_ways)
        self._run.add(tape, self._units)
        return draws

    def _capture(self, records: int, graph: Callable[[], Any]) -> None:
        """Three graphs over the same memory: replayed in this order, each finds what the one before left there."""
        with graph() as forward:
            tape, output, asking = self._pass(records)
            given = tensors(output)
            for mine, theirs in zip(self._gave, given, strict=True):
                mine.copy_(theirs.detach())
        with graph() as back:
            torch.autograd.backward(asking, self._gradients)
        with graph() as add:
            self._run.add(tape, self._units)
        # What the passes held is free for those of other sizes.
        at, gave = [id(value) for value in given], iter(self._gave)
        self._back = [self._gave[at.index(id(value))] for value in asking]
        numbers = {id(value): number for number, value in enumerate(asking)}
        self._back_to = [numbers.get(one) for one in at]
        self._beside = [n for n, value in enumerate(given) if value.requires_grad and self._back_to[n] is None]
        self._output = mapped(lambda _: next(gave), output)
        self._graphs = forward, back, add

    def forward(self, given: Given, replay: Replay) -> Any:
        """What the model gives for these inputs, of the form that was captured."""
        for mine, theirs in zip(self._leaves, tree_leaves(given), strict=True):
            if isinstance(mine, Tensor):
                mine.copy_(theirs, non_blocking=True)
        if self.draws:
            with borrowed(self._run.device, everything=False):
                key_cuda(self._run.keys.next(), self._run.device)  # masks of dropout: a replay reads the seed
                self._graphs[0].replay()
        else:
            self._graphs[0].replay()

        back: tuple[Tensor, ...] = _Back.apply(self._anchor, replay, *self._back)  # type: ignore[no-untyped-call]
        fresh: dict[int, Tensor] = {}
        if self._beside:
            rest = (self._gave[number] for number in self._beside)
            fresh = dict(zip(self._beside, _NotBack.apply(self._anchor, *rest), strict=True))  # type: ignore[no-untyped-call]
        number = count()

        def handed_out(value: Tensor) -> Tensor:
            this = next(number)
            to = self._back_to[this]
            return back[to] if to is not None else fresh[this] if this in fresh else value.clone()

        return mapped(handed_out, self._output)

    def back(self, gradients: tuple[Tensor, ...]) -> None:
        for mine, theirs in zip(self._gradients, gradients, strict=True):
            mine.copy_(theirs)
        self._graphs[1].replay()

    def add(self, units: Tensor) -> None:
        self._units.copy_(units)
        self._graphs[2].replay()


class Graphs:
    """The graphs of a run, for each form of a batch; and which batches go through them."""

    def __init__(self, run: PrivateRun, asked: bool | None, most: int | None = None) -> None:
        """``most`` records go through the model at once; without, a step's people are about its plan's."""
        alone = run.accounting is None and run.processes.size == 1
        self._run, self.on = run, run.device.type == "cuda" and alone and asked is not False
        self.last: Replay | None = None
        """The pass that the memory of the graphs belongs to, until it is added up."""
        self._eager, self._changes = 0, 0
        self._used: set[int] = set()
        drawn = run.plan.batch_size
        self._rows = _Rows(math.ceil(drawn + 3 * math.sqrt(drawn)) if most is None else most)
        self._pool: Any = None
        self._made: dict[Hashable, _Graph] = {}
        self._taken: Surroundings | None = None

    def learn(self, returned: list[int]) -> None:
        """Gradients came back to these outputs of the model, run as it is."""
        if not self._used.issuperset(returned):
            self._used.update(returned)
            self._made = {}

    def forward(self, given: Given, records: int, first: bool) -> tuple[Replay, Any] | None:
        """The pass through a graph, and what the model gives; None for a batch that goes through as it is.

        ``first`` says whether nothing was added to the step's sum yet.
        """
        self._eager += 1
        if not self.on or self._eager <= _EAGER_FIRST or (self._pool is None and not first):
            return None
        leaves, form = tree_flatten(given)
        where = self._run.device
        if any(isinstance(leaf, Tensor) and leaf.device != where for leaf in leaves):
            return None
        shapes = [(leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        try:
            graph = self._graph((form, *shapes), given, records)
        except (
            NotCapturable,
            TypeError,
            torch.OutOfMemoryError,
        ):  # no graph can hold it, its form has no hash, no room
            self.on, self._made = False, {}
            return None
        if graph is None:
            return None
        self.last = Replay(self, graph)
        return self.last, graph.forward(given, self.last)

    def require_same(self, output: Any, given: Given) -> None:
        """Raise if the model as it is now gives something else than its graph just did."""
        if self.last is None or self.last.draws:
            return
        inputs, options = given
        with torch.no_grad():
            now = self._run.recorder.model(*inputs, **options)
        for mine, theirs in zip(tensors(output), tensors(now), strict=False):
            if not theirs.is_floating_point():
                continue
            apart = torch.where(torch.isfinite(theirs), (mine - theirs).abs(), 0.0)
            if apart.numel() and apart.max() > _SAME * theirs[torch.isfinite(theirs)].abs().max():
                raise InvalidInput(
                    "the model gives something else now than when its passes were captured as CUDA graphs: it goes "
                    "by something in Python that changed (a global, a list, a schedule). Keep it in a buffer or a "
                    "number of the module, or give execution=pp.Execution(capture=False)"
                )

    def _graph(self, form: Hashable, given: Given, records: int) -> _Graph | None:
        if self._taken is None or not self._taken.same():
            self._made, self._taken = {}, Surroundings(self._run.recorder.model)
            self._changes += 1
            if self._taken.hooked or self._changes > _MOST_CHANGES:
                raise NotCapturable("somebody looks on while the model runs, or it changes again and again")
        if form not in self._made:
            if records > self._rows.room:
                self._make_room(records + records // 4)
            if len(self._made) == _MOST_SIZES:
                return None
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
                self._run.stay_in_place()
            self._made[form] = _Graph(self._run, given, records, self._pool, frozenset(self._used), self._rows)
            if not self._taken.same():
                raise NotCapturable("the forward pass changes what it goes by")
        return self._made[form]

    def _make_room(self, records: int) -> None:
        """For batches of so many. Graphs of smaller ones would keep as much memory again: they are captured anew."""
        torch.cuda.synchronize(self._run.device)  # one of them may be under way
        self._made, self._rows = {}, _Rows(records)
        self._pool = None if self._pool is None else torch.cuda.graph_pool_handle()
