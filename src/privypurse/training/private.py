"""make_private: the ordinary PyTorch loop, with everyone's own rate and clip norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from privypurse.errors import InvalidInput, PrivyPurseError
from privypurse.plans import Plan, Promise
from privypurse.training.gradients import Recorder, Tape, clip_factors, norms, summed
from privypurse.training.loader import Batch, Draws, PrivateLoader
from privypurse.training.randomness import Randomness, randomness


class PlanExhausted(PrivyPurseError, RuntimeError):
    """The plan has no more steps: another one would overdraw somebody."""


class PrivateRun:
    """What model, loader and optimizer share: the plan, the batch at hand, the steps taken."""

    def __init__(self, plan: Plan, recorder: Recorder, source: Randomness, loss_reduction: str) -> None:
        self.plan, self.recorder, self.source = plan, recorder, source
        self._mean = loss_reduction == "mean"
        self._clip_norms = torch.as_tensor(plan.levels.clip_norm[plan.level_of])
        self._batch: Batch | None = None
        self._tapes: list[tuple[Tape, int]] = []
        self._sums: dict[str, Tensor] = {}
        self.steps_taken = 0

    @property
    def steps_left(self) -> int:
        return self.plan.steps - self.steps_taken

    def begin(self, batch: Batch) -> None:
        """The loader hands a batch out."""
        if self._tapes:
            raise InvalidInput("a batch was left without optimizer.step(); take a step for every batch")
        if batch.first:
            self._sums = {}  # what a step that was broken off left behind belongs to no other step
        self._batch = batch

    def watch(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """A forward pass of the model on (a part of) the batch at hand."""
        if self._batch is None:
            raise InvalidInput("the model was run in training mode on a batch that is not from the private loader")
        first = next(value for value in (*inputs, *options.values()) if isinstance(value, Tensor))
        tape = Tape()
        self._tapes.append((tape, first.shape[0]))
        return self.recorder.forward(tape, *inputs, **options)

    def forget(self) -> None:
        """Forward passes since the last step do not count (zero_grad)."""
        self._tapes = []

    def clip(self) -> bool:
        """Add the clipped gradients of the batch at hand to the step's sum; True if the step is complete."""
        if self.steps_left <= 0:
            raise PlanExhausted(
                f"all {self.plan.steps:,} steps of the plan are taken; one more would overdraw budgets"
            )
        batch, tapes = self._batch, [(tape, size) for tape, size in self._tapes if tape.finished()]
        if batch is None or not tapes:
            raise InvalidInput("optimizer.step() needs a batch of the private loader and a loss.backward() before it")
        if sum(size for _, size in tapes) != batch.records.size:
            raise InvalidInput(
                f"{sum(size for _, size in tapes)} records went through the model, but the batch has "
                f"{batch.records.size}; run each batch of the loader through the model once, whole or in parts"
            )
        self._batch, self._tapes = None, []
        if batch.units.size:
            self._add(batch, tapes)
        return batch.last

    def _add(self, batch: Batch, tapes: list[tuple[Tape, int]]) -> None:
        device = tapes[0][0].finished()[0].back.device
        alone = bool(batch.units.size == np.count_nonzero(batch.owner < batch.units.size))
        if len(tapes) > 1 and not alone:
            raise InvalidInput(
                "a batch with several records of one person must go through the model whole, not in parts"
            )
        owner = torch.as_tensor(batch.owner)
        # Padding belongs to one more unit, whose clip norm is 0.
        limits = torch.cat([self._clip_norms[torch.as_tensor(batch.units)], torch.zeros(1, dtype=torch.float64)])
        by_record = limits[owner].to(device)
        begin = 0
        for tape, size in tapes:
            scale = float(size) if self._mean else 1.0  # undo the division by the batch in a mean loss
            if alone:
                found = norms(tape)
                factors = clip_factors(found * scale, by_record[begin : begin + size])
            else:
                place = owner.to(device)
                found = norms(tape, place, batch.units.size + 1)
                factors = clip_factors(found * scale, limits.to(device))[place]
                found = found[place]
            for name, value in summed(tape, factors * scale, found).items():
                self._sums[name] = value if name not in self._sums else self._sums[name] + value
            begin += size

    def release(self, parameters: dict[str, nn.Parameter]) -> None:
        """Count the step, then put the noisy gradient where the optimizer looks for it."""
        self.steps_taken += 1  # before anything is released, and never rolled back (rule 10)
        deviation = self.plan.noise_multiplier * self.plan.clip_norm
        sizes = [parameter.numel() for parameter in parameters.values()]
        wide = any(parameter.dtype == torch.float64 for parameter in parameters.values())
        noise = torch.split(self.source.normal(sum(sizes), torch.float64 if wide else torch.float32), sizes)
        for (name, parameter), part in zip(parameters.items(), noise, strict=True):
            total = part.to(parameter.device).reshape(parameter.shape) * deviation
            if name in self._sums:
                total = total + self._sums[name]
            # A public constant, whoever was drawn (rule 2).
            parameter.grad = (total / self.plan.batch_size).to(parameter.dtype)
        self._sums = {}


class PrivateModel(nn.Module):
    """The model, watched while it trains. In evaluation mode, or without gradients, it is the model itself."""

    def __init__(self, model: nn.Module, run: PrivateRun) -> None:
        super().__init__()
        self.inner = model
        object.__setattr__(self, "_run", run)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        if self.inner.training and torch.is_grad_enabled():
            return self._run.watch(inputs, options)
        return self.inner(*inputs, **options)

    def train(self, mode: bool = True) -> PrivateModel:
        super().train(mode)
        return self

    # Checkpoints of the model are those of the plain model.
    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.inner.state_dict(*arguments, **options)

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.inner.load_state_dict(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


class PrivateOptimizer(torch.optim.Optimizer):
    """The user's optimizer; its step clips, adds noise and divides first. Schedulers take it as the optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, run: PrivateRun) -> None:
        self.inner, self._run = optimizer, run
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._parameters = {
            name: parameter for name, parameter in run.recorder.trainable().items() if id(parameter) in trained
        }
        strangers = len(trained) - len({id(parameter) for parameter in self._parameters.values()})
        if strangers > 0:
            raise InvalidInput(
                f"the optimizer holds {strangers} parameters that are frozen or not the model's; make it anew from "
                "[p for p in model.parameters() if p.requires_grad]"
            )
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
        return self._run.steps_taken

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._run.forget()
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One private step, or, where a step is cut into physical batches, its part of one."""
        if closure is not None:
            raise InvalidInput("closures run the model several times for one step; call step() without one")
        if not self._run.clip():
            return None
        self._run.release(self._parameters)
        return self.inner.step()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise InvalidInput("add parameters before make_private: the plan's noise covers all of them at once")

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)

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
    seed: int | None = None,
) -> tuple[PrivateModel, PrivateOptimizer, PrivateLoader]:
    """The model, the optimizer and a loader, so that the ordinary loop trains by the plan.

    ``dataset`` has the plan's records in the plan's order. ``loss_reduction`` says what your loss does over the
    batch: "mean" (the default) or "sum"; a record's loss must not depend on other records. ``max_physical_batch``
    cuts large draws into several batches of the loop with the same result. ``seed`` makes a run repeatable, and
    therefore not private.

    Guarantee: each step draws every person with exactly their rate, bounds what they contribute by their clip norm,
    adds noise of noise_multiplier · clip_norm from a cryptographic generator and divides by the public batch size; a
    step that draws nobody is noise alone; more steps than the plan has are refused. So what the optimizer sees after
    all steps costs everyone at most ``plan.spent()``.
    """
    size = len(dataset)  # type: ignore[arg-type]
    if size != plan.records:
        raise InvalidInput(
            f"dataset has {size:,} records but the plan is for {plan.records:,}; they must be the same"
        )
    if loss_reduction not in ("mean", "sum"):
        raise InvalidInput(f"loss_reduction is {loss_reduction!r}; it must be 'mean' or 'sum'")
    if plan.promise is Promise.NONE:
        raise InvalidInput(f"method {plan.method} is for comparison only and keeps no budget; choose another")
    for name, value in (
        ("max_physical_batch", max_physical_batch),
        ("max_records_per_person", max_records_per_person),
    ):
        if value is not None and value < 1:
            raise InvalidInput(f"{name} is {value}; it must be at least 1")
    recorder = Recorder(model)
    if not recorder.units:
        raise InvalidInput("the model has no trainable parameters")
    run = PrivateRun(plan, recorder, randomness(seed), loss_reduction)
    on_device = isinstance(dataset, TensorDataset) and dataset.tensors[0].device.type != "cpu"
    multiple = 64 if on_device and max_physical_batch is None else 1
    draws = Draws(plan, run.source, max_physical_batch, max_records_per_person, multiple)
    options = {} if collate_fn is None else {"collate_fn": collate_fn}
    loader = PrivateLoader(dataset, draws, run, num_workers, options)
    return PrivateModel(model, run), PrivateOptimizer(optimizer, run), loader
