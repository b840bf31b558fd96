"""make_private: the ordinary PyTorch loop, with everyone's own rate and clip norm."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from privypurse._validate import integer
from privypurse.errors import InvalidInput, Unsupported
from privypurse.plans import Plan, Promise
from privypurse.training.distributed import unwrapped
from privypurse.training.execution import DEFAULT, Execution
from privypurse.training.gradients import Tape
from privypurse.training.individual.accounting import Individual, follow
from privypurse.training.individual.norm_passes import Looks
from privypurse.training.individual.spending import Spending
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.isolation.model import require_isolated
from privypurse.training.isolation.tracking import (
    FOREIGN,
    Drawn,
    Places,
    Rows,
    handed,
    leave_to_python,
    mixed,
    over_records,
    place_of,
    plain,
    state_of,
    untracked,
)
from privypurse.training.loader import Batch, Draws, PrivateLoader
from privypurse.training.mechanism import PrivateRun


@dataclass
class Pass:
    """A forward pass of some records of the batch at hand."""

    places: Places
    tape: Tape
    returned: list[bool] = field(default_factory=list)
    """Something for each gradient that came back to the model's output."""


class Attendance:
    """Which records of the batch at hand went through the model, between the loader and the optimizer's step."""

    def __init__(self, run: PrivateRun, loss_reduction: str) -> None:
        self.run, self._reduction = run, loss_reduction
        self._released: dict[str, tuple[Tensor, int]] = {}
        self._batch: Batch | None = None
        self._drawn: Drawn | None = None
        self._passes: list[Pass] = []
        self._constants: set[torch.Size] = set()

    def begin(self, batch: Batch) -> None:
        """The loader hands a batch out."""
        self.require_stepped()
        if batch.first:
            self.run.clear()  # what a step that was broken off left behind belongs to no other step
        self._batch, self._drawn = batch, Drawn(batch.records.size, self._reduction, self._keys())

    def hand_out(self, data: Any) -> Any:
        """The batch at hand, each tensor knowing whose its rows are."""
        assert self._drawn is not None
        return handed(data, Places(self._drawn))

    def _keys(self) -> Callable[[], int]:
        """Fresh secret numbers for what the loop draws for each record between loader and loss."""
        return lambda: int.from_bytes(self.run.keys.next(), "big")  # the same if the step is begun again

    def prepare(self) -> bool:
        """A step is about to begin; False if the run ends here."""
        self.require_stepped()
        return self.run.prepare()

    def finish(self) -> None:
        """The loader has no more batches."""
        self.run.finish()

    def restart(self) -> None:
        """The loader begins anew; a batch that was left by ``break`` is forgotten."""
        self._batch, self._drawn, self._passes = None, None, []

    def require_stepped(self) -> None:
        """Raise if the batch at hand has not been stepped on."""
        if self._batch is not None:
            raise InvalidInput(
                "a batch was left without a step of the private optimizer. Use the model and the optimizer that "
                "make_private gave back, and take a step for every batch, whatever its loss: skipping one tells what "
                "was in it. For larger steps make a plan with a larger batch_size"
            )

    def watch(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A forward pass of the model on (a part of) the batch at hand."""
        places = self._attending(inputs, options)
        inputs, options = untracked(inputs), untracked(options)
        due = places.size > 1 and self.run.keys.due("model")
        if due:
            require_isolated(self.run.recorder, inputs, options, places.size)
        drawn = places.drawn
        this = Pass(places, Tape(places.size, open=lambda: drawn.crossed))
        output = self.run.recorder.forward(this.tape, *inputs, **options)
        if due:
            self.run.recorder.refuse_strangers(output)
        self._passes.append(this)
        return handed(output, places, this.returned)

    def _attending(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Places:
        """Whose rows the inputs are; raises unless they are of the batch at hand, and for the first time."""
        places, others = place_of((inputs, options))
        if places is None or self._drawn is None or places.drawn is not self._drawn:
            raise InvalidInput(
                "the model was run in training mode on a batch that is not from the private loader, or not the one "
                "at hand: give it tensors of the loader's batch, or what torch makes of them (values that went "
                "through NumPy, lists or other tensors are not followed). To measure it, call model.eval() first"
            )
        for value in others:
            if value.requires_grad:
                raise InvalidInput(FOREIGN)
            self._require_constant(value, places.size)
        return places

    def _require_constant(self, value: Tensor, records: int) -> None:
        """Raise for an input with an entry for each record that is not from the loader: it goes by position."""
        if value.dim() == 0 or value.shape[0] != records or records < 2:
            self._constants.add(value.shape)
        elif value.shape not in self._constants and not bool((value == value[:1]).all()):
            raise InvalidInput(
                f"an input of the model of shape {tuple(value.shape)} has an entry for each record and is not from "
                "the loader: what a record meets would hang on its place in the batch. Let the dataset give it, make "
                "it of the loader's tensors (torch.randn_like(x)), or, if it is a constant, register it as a buffer"
            )

    def evaluate(self, model: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The model itself, on whatever it is given; records of the loader stay known."""
        output = model(*untracked(inputs), **untracked(options))
        try:
            places, _ = place_of((inputs, options))
        except InvalidInput:
            return mixed(output, "the model")
        return output if places is None else handed(output, places)

    def backward(self, losses: Tensor) -> None:
        """The backward pass of one loss for each record that went through the model."""
        state = state_of(losses)
        own = isinstance(state, Rows) and losses.dim() == 1
        last = self._passes[-1].places if self._passes else None
        if not own or not isinstance(state, Rows) or not any(state.places.same(each.places) for each in self._passes):
            of = "" if last is None else f" of the {last.size} records"
            raise InvalidInput(
                f"losses has shape {tuple(losses.shape)}; optimizer.backward(losses) needs one loss for each{of} "
                "that went through the model, in their order, made of the model's output and the loader's labels: "
                'reduction="none", then the mean or sum over everything but the first dimension'
            )
        torch.autograd.backward(plain(over_records(plain(losses), state.places, self._reduction)))

    def forget(self) -> None:
        """Gradients that came back since the last step do not count (zero_grad)."""
        self._passes = [each for each in self._passes if not each.tape.finished()]

    def clip(self) -> bool:
        """Add the clipped gradients of the batch at hand to the step's sum; True if the step is complete."""
        self.run.require_step()
        batch, passes = self._batch, [each for each in self._passes if each.tape.finished()]
        if batch is None or not passes:
            raise InvalidInput("optimizer.step() needs a batch of the private loader and a loss.backward() before it")
        self._require_once(passes, batch.records.size)
        self._require_nothing_else()
        self._batch, self._drawn, self._passes = None, None, []
        if batch.units.size:
            self._add(batch, passes)
        return batch.last

    @staticmethod
    def _require_once(passes: list[Pass], records: int) -> None:
        """Raise unless every record of the batch went through the model once, and its loss came back."""
        if not all(each.returned for each in passes):
            raise InvalidInput("a gradient came back to the model past its output; use what the model gives alone")
        whole = len(passes) == 1 and passes[0].places.whole
        if not whole and not np.all(sum(each.places.counts() for each in passes) == 1):
            raise InvalidInput(
                f"{sum(each.places.size for each in passes)} records went through the model, but the batch has "
                f"{records}, and each has to go through once; run each batch of the loader through the model once, "
                "whole or in parts"
            )

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

    def _add(self, batch: Batch, passes: list[Pass]) -> None:
        if not batch.one_each and not (len(passes) == 1 and passes[0].places.whole):
            raise InvalidInput(
                "a batch with several records of one person must go through the model whole and in the loader's "
                "order, not in parts"
            )
        units, owner = batch.places(self.run)
        for each in (each for each in passes if each.places.size):
            self.run.add(each.tape, units if each.places.whole else self._some(units, each.places), owner)

    @staticmethod
    def _some(units: Tensor, places: Places) -> Tensor:
        return units[torch.as_tensor(places.rows(), device=units.device)]


class PrivateModel(nn.Module):
    """The model, watched while it trains. In evaluation mode, or without gradients, it is the model itself."""

    def __init__(self, model: nn.Module, attendance: Attendance) -> None:
        super().__init__()
        self.inner = model
        object.__setattr__(self, "_attendance", attendance)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *inputs: Any, **options: Any) -> Any:
        if self.inner.training and torch.is_grad_enabled():
            return self._attendance.watch(inputs, options)
        return self._attendance.evaluate(self.inner, inputs, options)

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


class TrackedLoader(PrivateLoader):
    """Hands out batches that know whose their rows are."""

    def __iter__(self) -> Iterator[Any]:
        assert isinstance(self._attendance, Attendance)
        return map(self._attendance.hand_out, super().__iter__())


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
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler asks first."""
        raise InvalidInput(
            "a GradScaler scales losses up, and gradients would be clipped as if they were so large; leave it out: "
            "call loss.backward() and optimizer.step(), and autocast in bfloat16, which needs none"
        )

    @property
    def steps_taken(self) -> int:
        """Steps of the plan that were released."""
        return self._attendance.run.steps_taken

    @property
    def left_out(self) -> int:
        """How often somebody was drawn and left out, since their gradient was not finite. Internal (rule 6)."""
        return self._attendance.run.left_out

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._attendance.forget()
        self.inner.zero_grad(set_to_none)
        self._attendance.note_gradients()

    def backward(self, losses: Tensor) -> None:
        """The backward pass of these losses, one for each record: for whatever loss, instead of loss.backward().

        As many as went through the model, in their order; another shape raises.
        """
        self._attendance.backward(losses)

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
    person: Any = None,
    loss_reduction: str = "mean",
    max_records_per_person: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    individual: Individual | None = None,
    loss_fn: Loss | None = None,
    journal: str | Path | None = None,
    execution: Execution = DEFAULT,
    seed: int | None = None,
    wide_sums: bool = False,
) -> tuple[PrivateModel, PrivateOptimizer, PrivateLoader]:
    """The model, the optimizer and a loader, so that the ordinary loop trains by the plan.

    ``person`` holds the id of each record's owner, in the order of ``dataset``, for a plan that was made with ids: it
    is applied by id, whatever the order (`Plan.applied_to`). Without ids ``dataset`` has the plan's records in the
    plan's order. ``loss_reduction`` says what your loss does over the
    batch: "mean" (the default) or "sum"; a record's loss must not depend on other records, and what makes it so is
    refused (see docs/soundness.md, rule 12). Not seen are numbers read off the batch (``.item()``, ``.numpy()``,
    ``len``) and used as constants, parts of a batch that are weighed differently, and memory shared with NumPy.
    ``optimizer.backward(losses)`` takes any loss, one for each record. One pass over the loader is the whole run.
    ``execution`` holds what cannot change the guarantee (see `Execution`). Its ``max_physical_batch`` cuts large
    draws into several batches of the loop with the same result; ``optimizer.steps_taken`` says when a step is
    complete (a scheduler wants to be stepped then). ``journal`` names a file
    in which steps are counted before they are released: a run that is killed and started again with it goes on
    counting from there.
    ``individual`` follows what each person really spends (see `Individual`); that needs ``loss_fn(output, y)`` with
    one loss for each record, and ``optimizer.spending()`` is the outcome. A plan with extra steps always needs it.
    ``seed`` makes a run repeatable, and therefore not private.
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
    plan = plan.for_records(person)
    check(dataset, plan, execution, max_records_per_person=max_records_per_person)
    if execution.capture:
        raise InvalidInput("capture=True is for pp.train: here the loop is yours; leave capture out")
    max_physical_batch, num_workers = execution.max_physical_batch, execution.num_workers
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
    leave_to_python()
    attendance = Attendance(run, loss_reduction)
    on_device = isinstance(dataset, TensorDataset) and dataset.tensors[0].device.type != "cpu"
    multiple = 64 if on_device and max_physical_batch is None else 1
    draws = Draws(run, max_physical_batch, max_records_per_person, multiple)
    loader = TrackedLoader(dataset, draws, attendance, num_workers, options, execution.progress)
    return PrivateModel(bare, attendance), PrivateOptimizer(optimizer, attendance), loader


def check(dataset: Dataset[Any], plan: Plan, execution: Execution, **limits: int | None) -> None:
    """Raise unless the plan fits the data, spends what it promises, and limits are positive."""
    if not isinstance(execution, Execution):
        raise InvalidInput(f"execution is {execution!r}; give pp.Execution(…)")
    if isinstance(dataset, DataLoader | list | tuple) and not (
        isinstance(dataset, list) and len(dataset) == plan.records
    ):
        raise InvalidInput(
            f"dataset is a {type(dataset).__name__}; give the Dataset itself (for tensors: TensorDataset(x, y)); "
            "batches are drawn from it by the plan"
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise Unsupported(
            f"dataset is a {type(dataset).__name__}, which cannot be asked for one record: each step draws records "
            "by number. Give a map-style Dataset with __len__ and __getitem__"
        )
    size = len(dataset)
    if size != plan.records:
        raise InvalidInput(
            f"dataset has {size:,} records but the plan is for {plan.records:,}; they must be the same"
        )
    if plan.promise is Promise.NONE:
        raise InvalidInput(f"method {plan.method} is for comparison only and keeps no budget; choose another")
    plan.require_kept()  # a plan is a file, and may have been altered
    for name, value in limits.items():
        if value is not None:
            integer(value, name)
