"""make_private: the ordinary PyTorch loop, with everyone's own rate and clip norm."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from privypurse.errors import InvalidInput
from privypurse.plans import Plan, Promise
from privypurse.spending import Spending
from privypurse.training.following import Individual, follow
from privypurse.training.gradients import Tape, look
from privypurse.training.gradients.clipped import Loss
from privypurse.training.loader import Batch, Draws, PrivateLoader
from privypurse.training.looks import Looks
from privypurse.training.outputs import watched
from privypurse.training.processes import unwrapped
from privypurse.training.run import PlanExhausted, PrivateRun

__all__ = ["PlanExhausted", "PrivateModel", "PrivateOptimizer", "make_private"]


class Attendance:
    """Which records of the batch at hand went through the model, between the loader and the optimizer's step."""

    def __init__(self, run: PrivateRun, loss_reduction: str) -> None:
        self.run, self._reduction = run, loss_reduction
        self._released: dict[str, tuple[Tensor, int]] = {}
        self._batch: Batch | None = None
        self._looked = False
        self._tapes: list[tuple[Tape, int]] = []

    def begin(self, batch: Batch) -> None:
        """The loader hands a batch out."""
        self.require_stepped()
        if batch.first:
            self.run.clear()  # what a step that was broken off left behind belongs to no other step
        self._batch = batch

    def prepare(self) -> bool:
        """A step is about to begin; False if the run ends here."""
        self.require_stepped()
        return self.run.prepare()

    def finish(self) -> None:
        """The loader has no more batches."""
        self.run.finish()

    def restart(self) -> None:
        """The loader begins anew; a batch that was left by ``break`` is forgotten."""
        self._batch, self._tapes = None, []

    def require_stepped(self) -> None:
        """Raise if the batch at hand has not been stepped on."""
        if self._batch is not None:
            raise InvalidInput(
                "a batch was left without a step of the private optimizer. Use the model and the optimizer that "
                "make_private gave back, and take a step for every batch, whatever its loss: skipping one tells what "
                "was in it. For larger steps make a plan with a larger batch_size"
            )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def watch(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A forward pass of the model on (a part of) the batch at hand."""
        if self._batch is None:
            raise InvalidInput(
                "the model was run in training mode on a batch that is not from the private loader; to measure it, "
                "call model.eval() first"
            )
        first = next((value for value in (*inputs, *options.values()) if isinstance(value, Tensor)), None)
        if first is None or first.dim() == 0:
            raise InvalidInput("the model needs a tensor whose first dimension counts records among its inputs")
        if not self._looked and first.shape[0] > 1:
            look(self.run.recorder, inputs, options, first.shape[0])
            self._looked = True
        tape = Tape(first.shape[0])
        self._tapes.append((tape, first.shape[0]))
        return watched(self.run.recorder.forward(tape, *inputs, **options), self._reduction)

    def forget(self) -> None:
        """Gradients that came back since the last step do not count (zero_grad)."""
        self._tapes = [(tape, size) for tape, size in self._tapes if not tape.finished()]

    def clip(self) -> bool:
        """Add the clipped gradients of the batch at hand to the step's sum; True if the step is complete."""
        self.run.require_step()
        batch, tapes = self._batch, [(tape, size) for tape, size in self._tapes if tape.finished()]
        if batch is None or not tapes:
            raise InvalidInput("optimizer.step() needs a batch of the private loader and a loss.backward() before it")
        if sum(size for _, size in tapes) != batch.records.size:
            raise InvalidInput(
                f"{sum(size for _, size in tapes)} records went through the model, but the batch has "
                f"{batch.records.size}; run each batch of the loader through the model once, whole or in parts"
            )
        self._require_nothing_else()
        self._batch, self._tapes = None, []
        if batch.units.size:
            self._add(batch, tapes)
        return batch.last

    def note_gradients(self) -> None:
        """What is in the parameters' gradients now is known, and nothing to complain about."""
        gradients = {name: parameter.grad for name, parameter in self.run.parameters.items()}
        self._released = {name: (grad, grad._version) for name, grad in gradients.items() if grad is not None}

    def _require_nothing_else(self) -> None:
        """Raise if something besides this class wrote a gradient: it would be lost, or was never private."""
        for name, parameter in self.run.parameters.items():
            ours, version = self._released.get(name, (None, 0))
            if parameter.grad is not None and (parameter.grad is not ours or parameter.grad._version != version):
                raise InvalidInput(
                    f"{name}.grad was written by something else than the private step: a penalty on parameters in "
                    "the loss (use the optimizer's weight_decay), clip_grad_norm_ (clipping is done here), or a "
                    "backward pass through the model inside of the private one"
                )

    def _add(self, batch: Batch, tapes: list[tuple[Tape, int]]) -> None:
        if len(tapes) > 1 and not batch.one_each:
            raise InvalidInput(
                "a batch with several records of one person must go through the model whole, not in parts"
            )
        units, owner = batch.places(self.run)
        begin = 0
        for tape, size in tapes:
            part = units[begin : begin + size] if owner is None else units
            self.run.add(tape, part, owner, self._scale(size))
            begin += size

    def _scale(self, size: int) -> float:
        """Undoes the division by the number of records in a mean loss."""
        return float(size) if self._reduction == "mean" else 1.0


class PrivateModel(nn.Module):
    """The model, watched while it trains. In evaluation mode, or without gradients, it is the model itself."""

    def __init__(self, model: nn.Module, attendance: Attendance) -> None:
        super().__init__()
        self.inner = model
        object.__setattr__(self, "_attendance", attendance)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        if self.inner.training and torch.is_grad_enabled():
            return self._attendance.watch(inputs, options)
        return self.inner(*inputs, **options)

    def train(self, mode: bool = True) -> PrivateModel:
        super().train(mode)
        return self

    # Copies, pickles and checkpoints of the model are those of the plain model, which ``inner`` is.
    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        return copy.deepcopy(self.inner, memo)

    def __reduce__(self) -> Any:
        return _itself, (self.inner,)

    def __getitem__(self, place: Any) -> Any:
        return self.inner[place]  # type: ignore[index]

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.inner.state_dict(*arguments, **options)

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.inner.load_state_dict(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


def _itself(model: nn.Module) -> nn.Module:
    return model


class PrivateOptimizer(torch.optim.Optimizer):
    """The user's optimizer; its step clips, adds noise and divides first. Schedulers take it as the optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, attendance: Attendance) -> None:
        self.inner, self._attendance = optimizer, attendance
        self._step_count = 0

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        return self.inner.defaults

    @property
    def steps_taken(self) -> int:
        """Steps of the plan that were released."""
        return self._attendance.run.steps_taken

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._attendance.forget()
        self.inner.zero_grad(set_to_none)
        self._attendance.note_gradients()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One private step, or, where a step is cut into physical batches, its part of one."""
        if closure is not None:
            raise InvalidInput("closures run the model several times for one step; call step() without one")
        if not self._attendance.clip():
            return None
        self._attendance.run.release()
        result = self.inner.step()
        self._attendance.note_gradients()
        return result

    def spending(self) -> Spending:
        """What each person has spent so far, if that is followed. Sensitive."""
        following = self._attendance.run.following
        if following is None:
            raise InvalidInput("each person's spending was not followed; give make_private individual=")
        now = following.spending()
        return replace(now, meter=copy.deepcopy(now.meter))  # a reading stays as it was read

    def close(self) -> None:
        """Let go of the journal, so that another run may go on with it."""
        self._attendance.run.close()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise InvalidInput("add parameters before make_private: the plan's noise covers all of them at once")

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and under "private" where the run is. It holds no state of any generator."""
        return {**self.inner.state_dict(), "private": self._attendance.run.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state. Steps that a journal counted since then stay counted."""
        state = dict(state_dict)
        private = state.pop("private", None)
        if private is None:
            raise InvalidInput(
                "this state is that of an ordinary optimizer and says nothing of steps taken; load it into the "
                "optimizer before make_private"
            )
        self._attendance.run.load_state_dict(private)
        self._attendance.forget()
        self.inner.load_state_dict(state)

    def __repr__(self) -> str:
        return f"PrivateOptimizer({self.inner!r})"

    def __getstate__(self) -> Any:
        raise InvalidInput("a private optimizer cannot be copied or pickled: its steps would be counted twice")


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Dataset[Any],
    plan: Plan,
    *,
    loss_reduction: str = "mean",
    max_physical_batch: int | None = None,
    max_records_per_person: int | None = None,
    num_workers: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    individual: Individual | None = None,
    loss_fn: Loss | None = None,
    journal: str | Path | None = None,
    progress: bool = False,
    seed: int | None = None,
    wide_sums: bool = False,
) -> tuple[PrivateModel, PrivateOptimizer, PrivateLoader]:
    """The model, the optimizer and a loader, so that the ordinary loop trains by the plan.

    ``dataset`` has the plan's records in the plan's order. ``loss_reduction`` says what your loss does over the
    batch: "mean" (the default) or "sum"; a record's loss must not depend on other records. One pass over the loader
    is the whole run. ``max_physical_batch`` cuts large draws into several batches of the loop with the same result;
    ``optimizer.steps_taken`` says when a step is complete (a scheduler wants to be stepped then). ``journal`` names a
    file in which steps are counted before they are released: a run that is killed and started again with it goes on
    counting from there.
    ``individual`` follows what each person really spends (see `Individual`); that needs ``loss_fn(output, y)`` with
    one loss for each record, and ``optimizer.spending()`` is the outcome. A plan with extra steps always needs it.
    ``progress`` shows a bar with the ε spent. ``seed`` makes a run repeatable, and therefore not private.
    ``wide_sums`` adds records up in float64 (see `train`). ``collate_fn`` has to pad to a public length, not to the
    longest record of a batch, which would decide about others. A batch may go through the model in parts, each with
    its own backward pass; do not divide their losses by the number of parts, which hangs on who was drawn.

    Under ``torchrun`` (an initialised ``torch.distributed``) every process calls this with the same arguments; each
    draws from its share of the people, and the noise is added once in total.

    Guarantee: each step draws every person with exactly their rate, bounds what they contribute by their clip norm,
    adds noise of noise_multiplier · clip_norm from a cryptographic generator and divides by the public batch size; a
    step that draws nobody is noise alone; more steps than the plan has are refused. So what the optimizer sees after
    all steps costs everyone at most ``plan.spent()`` or, with extra steps, the ε promised.
    """
    if loss_reduction not in ("mean", "sum"):
        raise InvalidInput(f"loss_reduction is {loss_reduction!r}; it must be 'mean' or 'sum'")
    check(dataset, plan, max_physical_batch=max_physical_batch, max_records_per_person=max_records_per_person)
    if isinstance(model, PrivateModel) or isinstance(optimizer, PrivateOptimizer):
        raise InvalidInput("this model or optimizer is private already; give make_private the ones inside: .inner")
    followed = individual is not None or plan.filter is not None
    if followed and loss_fn is None:
        raise InvalidInput(
            "following each person's spending looks at everybody's gradient norm between steps: give loss_fn=, "
            "with one loss for each record, such as functools.partial(F.cross_entropy, reduction='none')"
        )
    bare = unwrapped(model)
    run = PrivateRun(plan, bare, optimizer, seed, journal)
    if wide_sums:
        run.widen()
    options = {} if collate_fn is None else {"collate_fn": collate_fn}
    if followed and loss_fn is not None:
        look = Looks(run, dataset, loss_fn, max_physical_batch, max_records_per_person, num_workers, options)
        try:
            follow(run, individual, look)
        except BaseException:
            run.close()  # the journal is free for another try
            raise
    attendance = Attendance(run, loss_reduction)
    on_device = isinstance(dataset, TensorDataset) and dataset.tensors[0].device.type != "cpu"
    multiple = 64 if on_device and max_physical_batch is None else 1
    draws = Draws(run, max_physical_batch, max_records_per_person, multiple)
    loader = PrivateLoader(dataset, draws, attendance, num_workers, options, progress)
    return PrivateModel(bare, attendance), PrivateOptimizer(optimizer, attendance), loader


def check(dataset: Dataset[Any], plan: Plan, **limits: int | None) -> None:
    """Raise unless the plan fits the data, keeps budgets, and limits are positive."""
    if isinstance(dataset, DataLoader | list | tuple) and not (
        isinstance(dataset, list) and len(dataset) == plan.records
    ):
        raise InvalidInput(
            f"dataset is a {type(dataset).__name__}; give the Dataset itself (for tensors: TensorDataset(x, y)); "
            "batches are drawn from it by the plan"
        )
    size = len(dataset)  # type: ignore[arg-type]
    if size != plan.records:
        raise InvalidInput(
            f"dataset has {size:,} records but the plan is for {plan.records:,}; they must be the same"
        )
    if plan.promise is Promise.NONE:
        raise InvalidInput(f"method {plan.method} is for comparison only and keeps no budget; choose another")
    for name, value in limits.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
            raise InvalidInput(f"{name} is {value!r}; it must be a whole number, at least 1")
