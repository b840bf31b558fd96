"""The middle of an ordinary loop on a GPU as CUDA graphs: the forward pass, the backward pass, the clipped sum.

Python takes longer over the many calls of a small model than a GPU over its work. So where a batch of some size has
gone through the model as it is, its passes are captured for that size, and replayed. The loss between them stays the
loop's own. What a graph holds is what `PrivateRun.add` does, so that what is released is the same.

A graph reads nothing of Python any more. What it took as given is compared at every batch (`Surroundings`), and a
model that draws from Python's generators, asks the device for a value, or changes itself on the way is not captured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from privypurse.errors import InvalidInput
from privypurse.training.cuda_graphs import NotCapturable, capturing, require_one_pass, warmed_up
from privypurse.training.gradients import Tape
from privypurse.training.isolation.tracking.structures import mapped
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
    def forward(ctx: Any, anchor: Tensor, replay: Replay, output: Tensor) -> Tensor:
        ctx.replay = replay
        return output.clone()  # the next replay writes into the graph's own

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.replay.back(gradient)
        return None, None, None


class Replay:
    """One pass of a batch through the graphs."""

    def __init__(self, graphs: Graphs, graph: _Graph) -> None:
        self._graphs, self._graph, self.came_back = graphs, graph, False
        self.draws = graph.draws
        """Whether the pass drew numbers at random."""

    def back(self, gradient: Tensor) -> None:
        if self.came_back:
            raise InvalidInput("backward was run twice through one forward pass; run the forward pass again")
        if self._graphs.last is not self:
            raise InvalidInput("backward was run for a batch that another followed; run it before the next batch")
        self._graph.back(gradient)
        self.came_back = True

    def finished(self) -> bool:
        """Whether its gradient came back."""
        return self.came_back

    def add(self, units: Tensor) -> None:
        """Clip, and add to the step's sum; ``units`` as `PrivateRun.add` has them, one for each record."""
        assert self._graphs.last is self
        self._graph.add(units)
        self._graphs.last = None


class _Graph:
    """The passes of batches of one form, captured."""

    def __init__(self, run: PrivateRun, given: Given, records: int, pool: Any) -> None:
        self._run = run
        leaves, self._form = tree_flatten(given)
        self._leaves = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._units = torch.full((records,), run.plan.people, dtype=torch.int64, device=run.device)
        self._anchor = torch.zeros((), device=run.device, requires_grad=True)
        with torch.enable_grad(), keyed(os.urandom(32), run.device):
            with run.recorder.captured():
                self.draws = self._warm_up(records)
            with run.recorder.captured(), capturing(pool) as graph:
                self._capture(records, graph)

    def _pass(self, records: int) -> tuple[Tape, Any, Tensor]:
        """A forward pass onto a tape: what the model gives, and what of it asks for a gradient."""
        inputs, options = tree_unflatten(self._leaves, self._form)
        tape = Tape(records)
        output = self._run.recorder.forward(tape, *inputs, **options)
        require_one_pass(self._run.recorder)
        given: list[Tensor] = []

        def note(value: Tensor) -> Tensor:
            given.append(value)
            return value

        mapped(note, output)
        asking = [value for value in given if value.requires_grad]
        if len(asking) != 1:
            raise NotCapturable("the model gives several tensors to which gradients may come back, or none")
        return tape, output, asking[0]

    def _warm_up(self, records: int) -> bool:
        """Passes outside of a graph, with nobody's gradients; whether numbers are drawn on the device."""

        def both_ways() -> Tape:
            tape, _, asking = self._pass(records)
            torch.autograd.backward(asking, torch.zeros_like(asking))
            return tape

        tape, draws = warmed_up(self._run.device, both_ways)
        self._run.add(tape, self._units)
        return draws

    def _capture(self, records: int, graph: Callable[[], Any]) -> None:
        """Three graphs over the same memory: replayed in this order, each finds what the one before left there."""
        with graph() as forward:
            tape, output, asking = self._pass(records)
        self._gradient = torch.zeros_like(asking)
        with graph() as back:
            torch.autograd.backward(asking, self._gradient)
        with graph() as add:
            self._run.add(tape, self._units)
        # What the passes held is free for those of other sizes: nothing but what the model gave is kept.
        self._asking = asking.detach()
        self._output = mapped(lambda value: self._asking if value is asking else value.detach(), output)
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

        def fresh(value: Tensor) -> Tensor:
            if value is not self._asking:
                return value.clone()
            return _Back.apply(self._anchor, replay, self._asking)  # type: ignore[no-untyped-call,no-any-return]

        return mapped(fresh, self._output)

    def back(self, gradient: Tensor) -> None:
        self._gradient.copy_(gradient)
        self._graphs[1].replay()

    def add(self, units: Tensor) -> None:
        self._units.copy_(units)
        self._graphs[2].replay()


class Graphs:
    """The graphs of a run, for each form of a batch; and which batches go through them."""

    def __init__(self, run: PrivateRun, asked: bool | None) -> None:
        alone = run.accounting is None and run.processes.size == 1
        self._run, self.on = run, run.device.type == "cuda" and alone and asked is not False
        self.last: Replay | None = None
        """The pass that the memory of the graphs belongs to, until it is added up."""
        self._eager, self._changes = 0, 0
        self._pool: Any = None
        self._made: dict[Hashable, _Graph] = {}
        self._taken: Surroundings | None = None

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
        for mine, theirs in zip(tree_leaves(output), tree_leaves(now), strict=False):
            if not isinstance(theirs, Tensor) or not theirs.is_floating_point():
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
            if len(self._made) == _MOST_SIZES:
                return None
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
                self._run.stay_in_place()
            self._made[form] = _Graph(self._run, given, records, self._pool)
            if not self._taken.same():
                raise NotCapturable("the forward pass changes what it goes by")
        return self._made[form]
