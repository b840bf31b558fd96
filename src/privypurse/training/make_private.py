"""make_private: the ordinary PyTorch loop, with everyone's own rate and clip norm."""

from __future__ import annotations

import copy
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from privypurse._totals import say_not_kept
from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.plans import Plan
from privypurse.training.current_batch import CurrentBatch
from privypurse.training.distributed import unwrapped
from privypurse.training.execution import DEFAULT, Execution
from privypurse.training.individual.accounting import Individual, accounting_of
from privypurse.training.individual.spending import Spending
from privypurse.training.isolation.batches import Collate
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.isolation.tracking.tensor import leave_to_python
from privypurse.training.ledger_account import require_ledger
from privypurse.training.mechanism import PrivateRun
from privypurse.training.physical_batches import few_shapes
from privypurse.training.planned_records import PlannedRecords
from privypurse.training.poisson_loader import Draws
from privypurse.training.progress import shown
from privypurse.training.setup import Setup

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger


class PrivateModel(nn.Module):
    """The model, watched while it trains. In evaluation mode, or without gradients, it is the model itself."""

    def __init__(self, model: nn.Module, current_batch: CurrentBatch) -> None:
        super().__init__()
        self.inner = model
        object.__setattr__(self, "_current_batch", current_batch)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *inputs: Any, **options: Any) -> Any:
        if self.inner.training and torch.is_grad_enabled():
            return self._current_batch.watch(inputs, options)
        return self._current_batch.evaluate(self.inner, inputs, options)

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


class PrivateLoader:
    """Batches of the plan's remaining steps. Their tensors know whose their rows are, and tell nobody who was drawn.

    While a batch is in the loop's hands, the global generators of Python, NumPy and torch give secret numbers (of the
    seed, in a seeded run); afterwards they are what they were. Seeding them inside of the loop undoes that.
    """

    def __init__(self, draws: Draws, current_batch: CurrentBatch) -> None:
        self._draws, self._current_batch, self._passes = draws, current_batch, 0
        self.ends_step = False
        """Whether the batch at hand is the last of its step. Internal: a step's number of batches tells the draw."""

    def __len__(self) -> int:
        """Steps that are left. A step may be several batches with ``max_physical_batch``: how many tells the draw."""
        return self._draws.run.steps_left

    def __iter__(self) -> Iterator[Any]:
        run, current_batch = self._draws.run, self._current_batch
        run.require_step()
        current_batch.restart()
        self._passes = this = self._passes + 1
        with shown(run.plan, run.processes.first and self._draws.records.execution.progress) as show:
            for batch, data in self._draws:
                if batch.first and not current_batch.prepare():
                    break
                self.ends_step = batch.last
                yield current_batch.hand_out(batch, data)
                if this != self._passes:
                    raise InvalidInput(
                        "another pass over the loader has begun; parts of two passes would make up one step, and "
                        "somebody might be in both"
                    )
                show(run.steps_taken)
            current_batch.require_stepped()
            run.finish()


class _Settings(UserDict[str, Any]):
    """Those of a group of parameters, as they lie in the user's optimizer. What is written to them is noted."""

    def __init__(self, group: dict[str, Any], note: Callable[[], None]) -> None:
        self.data, self._note = group, note

    def __setitem__(self, name: str, value: Any) -> None:
        self._note()
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._note()
        super().__delitem__(name)

    def __ior__(self, others: Any) -> Self:  # type: ignore[override, misc]
        self.update(others)
        return self


class PrivateOptimizer(torch.optim.Optimizer):
    """The user's optimizer; its step clips, adds noise and divides first. Schedulers take it as the optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, current_batch: CurrentBatch) -> None:
        self.inner, self._current_batch = optimizer, current_batch
        self._step_count = 0
        self._writes = 0
        self._began_with: list[Any] | None = None
        """The settings at the first part of a step, until its last."""

    param_groups = property(lambda self: [_Settings(group, self._note_write) for group in self.inner.param_groups])
    state = property(lambda self: self.inner.state)
    defaults = property(lambda self: self.inner.defaults)

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
        return self._current_batch.run.steps_taken

    @property
    def left_out(self) -> int:
        """How often somebody was drawn and left out, since their gradient was not finite. Internal (rule 6)."""
        return self._current_batch.run.left_out

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._current_batch.forget()
        self.inner.zero_grad(set_to_none)
        self._current_batch.note_gradients()

    def backward(self, losses: Tensor) -> None:
        """The backward pass of these losses, one for each record: for whatever loss, instead of loss.backward().

        As many as went through the model, in their order; another shape raises.
        """
        self._current_batch.backward(losses)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One private step, or, where a step is cut into physical batches, its part of one.

        A ``closure`` is run once, before it: ``zero_grad``, the forward pass and the backward pass.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        if not self._current_batch.is_step:
            self._require_settings_of_step()
        if self._current_batch.clip():
            self._began_with = None
            self._current_batch.run.release()
            self.inner.step()
            self._current_batch.note_gradients()
        return result

    def _require_settings_of_step(self) -> None:
        """Raise if something changed the learning rate, say, between two physical batches of one step.

        How many there are follows from who was drawn, so a learning rate that goes by them tells it (rule 15). Also
        one that was written anew as it was: it will be another one day.
        """
        held = [each for each in self.state.values() if isinstance(each, Mapping)]
        held += [{**group, "params": None} for group in self.inner.param_groups]
        values = [value for each in held for value in each.values()]
        parameters = [value for group in self.inner.param_groups for value in group["params"]]
        versions = [(id(value), value._version) for value in (*values, *parameters) if isinstance(value, Tensor)]
        plain = [value for value in values if not isinstance(value, Tensor)]
        others = [list(value) if isinstance(value, list) else value for value in plain]  # an object equals itself
        settings = [self._writes, versions, others]
        if self._began_with is None or self._current_batch.begins_step:
            self._began_with = settings
        elif settings != self._began_with:
            raise InvalidInput(
                "the optimizer's settings, its state or the parameters changed between two batches of one "
                "step: with max_physical_batch a step is as many batches as were drawn for it, and a learning rate "
                "that goes by them tells who was drawn. Call scheduler.step(), and whatever else goes by steps, only "
                "where loader.ends_step is True"
            )

    def _note_write(self) -> None:
        self._writes += 1

    def spending(self) -> Spending:
        """What each person has spent so far, if that is followed. Sensitive."""
        accounting = self._current_batch.run.accounting
        if accounting is None:
            raise InvalidInput("each person's spending was not followed; give make_private individual=")
        now = accounting.spending()
        return replace(now, meter=copy.deepcopy(now.meter))  # a reading stays as it was read

    def close(self) -> None:
        """Let go of the journal, so that another run may go on with it."""
        self._current_batch.run.close()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise InvalidInput("add parameters before make_private: the plan's noise covers all of them at once")

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and under "private" where the run is. It holds no state of any generator."""
        return {**self.inner.state_dict(), "private": self._current_batch.run.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state. Steps that a journal counted since then stay counted."""
        state = dict(state_dict)
        private = state.pop("private", None)
        if private is None:
            raise InvalidInput(
                "this state is that of an ordinary optimizer and says nothing of steps taken; load it into the "
                "optimizer before make_private"
            )
        run = self._current_batch.run
        run.load_state_dict(private)
        counted = not run.source.secure or run.account is not None or run.journal is not None
        another = private["steps_taken"] and private["run"] != run.name  # this one counts its own steps
        if another and run.steps_left and not counted:
            warnings.warn(
                f"This state is of step {private['steps_taken']:,}, and there is no journal: steps that were taken "
                "after it was saved are not counted, and somebody may have seen them; give make_private journal=",
                PrivyPurseWarning,
                stacklevel=2,
            )
        self._current_batch.forget()
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
    collate_fn: Collate | None = None,
    individual: Individual | None = None,
    loss_fn: Loss | None = None,
    journal: str | Path | None = None,
    ledger: Ledger | None = None,
    purpose: str = "",
    execution: Execution = DEFAULT,
    seed: int | None = None,
    wide_sums: bool = False,
) -> tuple[PrivateModel, PrivateOptimizer, PrivateLoader]:
    """The model, the optimizer and a loader, so that the ordinary loop trains by the plan.

    ``person, max_records_per_person, collate_fn, individual, execution, seed, wide_sums`` are those of `train`.
    ``loss_reduction`` says what your loss does over the batch, "mean" or "sum"; a record's loss must not depend on
    other records, and what makes it so is refused (docs/soundness.md#isolation says what is not seen).
    ``optimizer.backward(losses)`` takes any loss, one for each record. ``loss_fn(output, y)``, one loss for each
    record, is for ``individual`` and for plans with extra steps; ``optimizer.spending()`` is the outcome. ``journal``
    names a file in which steps are counted before they are released: a run that is killed and started again with it
    goes on counting from there. One pass over the loader is the whole run, and settles it in the ``ledger``, which,
    with ``purpose``, is that of `train`; ``optimizer.close()`` settles what a run without a journal took so far.

    Under ``torchrun`` (an initialised ``torch.distributed``) every process calls this with the same arguments; each
    draws from its share of the people, and the noise is added once in total.

    Guarantee: each step draws every person with exactly their rate, bounds what they contribute by their clip norm,
    adds noise of noise_multiplier · clip_norm from a cryptographic generator and divides by the public batch size; a
    step that draws nobody is noise alone; more steps than the plan has are refused. So what the optimizer sees after
    all steps costs everyone at most ``plan.spent()`` or, with extra steps, the ε promised.
    """
    if loss_reduction not in ("mean", "sum"):
        raise InvalidInput(f"loss_reduction is {loss_reduction!r}; it must be 'mean' or 'sum'")
    require_ledger(plan, ledger, seed)
    if ledger is None:
        say_not_kept(seed)
    records = PlannedRecords(dataset, plan.for_records(person), execution, max_records_per_person, collate_fn)
    if execution.capture:
        raise InvalidInput(
            "capture=True is for pp.train; in a loop of your own the model's passes are captured on a GPU where they "
            "can be: leave capture out, or give False for never"
        )
    if isinstance(model, PrivateModel) or isinstance(optimizer, PrivateOptimizer):
        raise InvalidInput("this model or optimizer is private already; give make_private the ones inside: .inner")
    setup = Setup(records.plan, unwrapped(model), optimizer, seed)
    run = PrivateRun(setup, accounting_of(setup, records, loss_fn, individual), journal, wide_sums)
    run.charge_to(ledger, purpose)
    run.require_open()
    leave_to_python()
    sizes = (None, 1) if setup.device.type == "cpu" else few_shapes(plan.batch_size, execution.max_physical_batch)
    current_batch = CurrentBatch(run, loss_reduction, execution.capture, sizes[0])
    loader = PrivateLoader(Draws(run, records, *sizes), current_batch)
    return PrivateModel(setup.recorder.model, current_batch), PrivateOptimizer(optimizer, current_batch), loader
