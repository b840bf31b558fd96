"""train: the whole loop in one call, with a bar, checkpoints, and on a GPU one captured graph a step."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, TensorDataset

from privypurse.accounting import Progress
from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.training.captured import OnDevice, one_record_each, static_size
from privypurse.training.checkpoints import Checkpoints
from privypurse.training.distributed import unwrapped
from privypurse.training.execution import DEFAULT, Execution
from privypurse.training.gradients import recorded
from privypurse.training.individual.accounting import Individual, follow
from privypurse.training.individual.norm_passes import Looks, moved
from privypurse.training.individual.spending import Spending
from privypurse.training.interruption import undivided
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.isolation.model import require_isolated
from privypurse.training.loader import Batch, Draws, PrivateLoader
from privypurse.training.make_private import check
from privypurse.training.mechanism import PrivateRun
from privypurse.training.progress import shown

_ALIKE = 64  # records: in batches of so many, or a multiple, each row is computed like any other
_FULL = (torch.float32, torch.float64)
_LOOKS = 2.0  # times a second that the bar asks for the loss: on a GPU asking means waiting


class Scheduler(Protocol):
    """A learning-rate scheduler of torch."""

    def step(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Trained:
    """What a call of ``train`` did."""

    steps: int
    """Steps of the plan that are taken now, those of earlier calls included."""
    resumed_from: int
    """How many were taken before this call."""
    seconds: float
    how: str
    """The path that was taken: "captured" (a CUDA graph on data that stays on the device) or "eager"."""
    spending: Spending | None = None
    """What each person spent, if that was followed. Sensitive."""
    left_out: int = 0
    """How often somebody was drawn and contributed nothing, since their gradient was not finite. Internal."""


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Dataset[Any],
    plan: Plan,
    loss_fn: Loss,
    *,
    person: Any = None,
    scheduler: Scheduler | None = None,
    max_records_per_person: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    individual: Individual | None = None,
    checkpoint: str | Path | None = None,
    steps: int | None = None,
    execution: Execution = DEFAULT,
    seed: int | None = None,
    wide_sums: bool = False,
    forgiving: bool = False,
) -> Trained:
    """Train the model by the plan, all its steps, or up to ``steps`` of them.

    ``individual`` follows what each person really spends (see `Individual`); the outcome is ``Trained.spending``. A
    plan with extra steps is always followed: beyond its fixed steps everyone goes on until their purse is empty.

    ``dataset`` gives (input, label), or several inputs and a label; ``person`` holds the id of each record's owner in
    the same order, for a plan that was made with ids; without, records come in the plan's order.
    ``loss_fn(output, label)`` gives one loss for each record. The model is trained where it lies, in place.
    ``collate_fn`` has to pad to a public length, not to the longest record of a batch, which would decide about
    others.

    ``checkpoint`` is a folder, for one run on one data set: the run is saved there every so often and
    at the end, and goes on from there when it is called again. Its journal counts every step before it is taken, so a
    run that was killed never counts fewer steps than it released; with a seed it ends as if it had not been.

    ``execution`` holds what cannot change the guarantee (see `Execution`). On a GPU a ``TensorDataset`` whose people
    have one record each is kept on the device and each step is one captured CUDA graph over a batch of static shape
    (``Execution(capture=False)`` turns that off). Larger draws take several.

    ``wide_sums`` adds records up in float64, as a float64 model does anyway: without it, data made for it can shift
    how a float32 sum rounds, by up to n² · 6e-8 clip norms for n records in a step. Steps of a wide MLP take twice as
    long on a CPU, those of a CNN a few percent to a third longer.

    ``forgiving`` is for a model whose parameters come from somebody who must not learn from errors: a person whose
    records make model or loss raise contributes nothing, where otherwise the run would end. Every physical batch
    has the same shape and sums are wide, so that nobody's presence decides how others round. Whether model and
    loss keep records apart is then not looked at on these records; do so before, on others.

    Guarantee: that of `make_private`; it is the same code.
    """
    plan = plan.for_records(person)
    check(dataset, plan, execution, max_records_per_person=max_records_per_person, steps=steps)
    max_physical_batch, num_workers = execution.max_physical_batch, execution.num_workers
    _refuse_scheduler(scheduler)
    if forgiving and (individual is not None or plan.filter is not None):
        raise InvalidInput("forgiving=True cannot follow what each person spends: looks at their norms may raise")
    bare = unwrapped(model)
    folder = None if checkpoint is None else Path(checkpoint)
    run = PrivateRun(plan, bare, optimizer, seed, None if folder is None else folder / "steps")
    begun, modes = time.perf_counter(), [(module, module.training) for module in bare.modules()]
    try:
        if wide_sums or forgiving:
            run.widen()
        if forgiving and any(value.dtype not in _FULL for value in bare.parameters()):
            raise InvalidInput(
                "forgiving=True needs a model in float32 or float64: some CPUs let a number that is not finite reach "
                "the next record in products of shorter floats"
            )
        options = {} if collate_fn is None else {"collate_fn": collate_fn}
        captured = _captures(run, dataset, execution.capture)
        if captured:
            dataset = TensorDataset(*(tensor.to(run.device) for tensor in dataset.tensors))  # type: ignore[attr-defined]
        follow(
            run,
            individual,
            Looks(run, dataset, loss_fn, max_physical_batch, max_records_per_person, num_workers, options),
        )
        saved = Checkpoints(folder, execution.checkpoint_every, run, bare, optimizer, scheduler, dataset)
        saved.resume()
        begun_at = run.steps_taken
        if not bare.training:
            bare.train()
        if captured:
            draws = Draws(run, max_physical_batch or static_size(plan), max_records_per_person)
            batches = OnDevice(run, dataset, loss_fn, look=not forgiving).steps(draws)  # type: ignore[arg-type]
        elif forgiving:
            size = _one_shape(plan, max_physical_batch)
            draws = Draws(run, size, max_records_per_person, multiple=size)
            batches = _eager(run, dataset, loss_fn, _add_forgivingly, draws, num_workers, options)
        else:
            draws = Draws(run, max_physical_batch, max_records_per_person)
            batches = _eager(run, dataset, loss_fn, _Looking(), draws, num_workers, options)
        goal = plan.all_steps if steps is None else min(steps, plan.all_steps)
        _take(run, batches, goal, optimizer, scheduler, saved, execution.progress)
        spending = None if run.following is None else run.following.spending()
    finally:
        for module, training in modes:
            module.training = training
        run.close()
    how = "captured" if captured else "eager"
    return Trained(run.steps_taken, begun_at, time.perf_counter() - begun, how, spending, run.left_out)


def _refuse_scheduler(scheduler: Any) -> None:
    """Raise for one that wants to be told how well training goes: that is a question which nobody pays for."""
    if scheduler is None:
        return
    wanted = [
        name for name, value in inspect.signature(scheduler.step).parameters.items() if value.default is value.empty
    ]
    if wanted:
        raise InvalidInput(
            f"scheduler {type(scheduler).__name__} decides by {wanted[0]}: the training loss is a function of "
            "people's data, and asking for it is paid for by nobody. Use one that follows the number of "
            "steps (CosineAnnealingLR, StepLR), or a plan with extra steps and stop=pp.StopAtPlateau, which is "
            "paid for"
        )


def _take(
    run: PrivateRun,
    batches: Iterator[Tensor],
    goal: int,
    optimizer: torch.optim.Optimizer,
    scheduler: Scheduler | None,
    saved: Checkpoints,
    progress: bool | Progress,
) -> None:
    """Steps up to that number, or until the run ends by itself; what was taken is saved, also when interrupted."""
    looked, applied = 0.0, run.steps_taken
    try:
        with shown(run.plan, run.processes.first and progress) as bar:
            bar.update(run.steps_taken)
            stopped = False
            while run.steps_taken < goal and not (stopped := not run.prepare()):
                saved.before_step()
                loss = next(batches)
                with undivided():
                    run.release()
                    optimizer.step()
                    optimizer.zero_grad()  # frees a copy of the model's size before the next forward pass
                    if scheduler is not None:
                        scheduler.step()
                    applied = run.steps_taken
                    saved.after_step()
                now = time.perf_counter()
                if progress and (now - looked > 1 / _LOOKS or run.steps_taken == goal):
                    bar.update(run.steps_taken, float(loss))
                    looked = now
        saved.write()
        if stopped or run.steps_taken == run.plan.all_steps:
            run.finish()
    except KeyboardInterrupt:
        if applied == run.steps_taken:  # else the last step is counted but not in the model: no state to go on from
            saved.write()
        raise


class _AtHand:
    """The batch that the loader hands out."""

    batch: Batch

    def restart(self) -> None: ...

    def prepare(self) -> bool:
        return True  # the loop sees to it

    def begin(self, batch: Batch) -> None:
        self.batch = batch

    def require_stepped(self) -> None: ...

    def finish(self) -> None: ...


def _captures(run: PrivateRun, dataset: Dataset[Any], asked: bool | None) -> bool:
    """Whether steps are captured: as asked for, else where it can be done and the data fits on the device."""
    if run.device.type != "cuda" or not one_record_each(run.plan) or type(dataset) is not TensorDataset:
        can = False
    else:
        size = sum(tensor.nbytes for tensor in dataset.tensors if tensor.device != run.device)
        can = size < 0.5 * torch.cuda.mem_get_info(run.device)[0]
    if asked and not can:
        raise InvalidInput(
            "capture=True needs the model on a GPU, a TensorDataset, and no person with more than one record"
        )
    return can if asked is None else asked


Add = Callable[[PrivateRun, Loss, tuple[Any, ...], Any, Batch], Tensor]
"""Adds the clipped gradients of a physical batch to the run; gives the losses of its records."""


def _eager(
    run: PrivateRun,
    dataset: Dataset[Any],
    loss_fn: Loss,
    add: Add,
    draws: Draws,
    workers: int,
    options: dict[str, Any],
) -> Iterator[Tensor]:
    """Adds one step's clipped gradients to the run at each turn; gives the mean loss of its last batch."""
    at_hand = _AtHand()
    run.clear()
    for data in PrivateLoader(dataset, draws, at_hand, workers, options):
        batch = at_hand.batch
        *inputs, label = moved(data, run.device)
        losses = add(run, loss_fn, tuple(inputs), label, batch)
        if batch.last:
            yield losses.mean()


class _Looking:
    """Adds batches, and looks at the first and at random later ones: what mixes records is refused."""

    def __call__(self, run: PrivateRun, loss_fn: Loss, inputs: tuple[Any, ...], label: Any, batch: Batch) -> Tensor:
        due = batch.records.size > 1 and run.keys.due("model")
        if due:
            require_isolated(run.recorder, inputs, {}, batch.records.size)
        tape, losses = recorded(run.recorder, loss_fn, inputs, label, due)
        run.add(tape, *batch.places(run))
        return losses[: batch.real]


def _one_shape(plan: Plan, most: int | None) -> int:
    """Records in every physical batch of a forgiving run, from public numbers: enough for most steps at once.

    A multiple of 64: the last entries of a batch that is none go through other instructions than the rest.
    """
    size = min(512, _ALIKE * math.ceil((plan.batch_size + 2 * math.sqrt(plan.batch_size)) / _ALIKE))
    return size if most is None else min(size, most // _ALIKE * _ALIKE or 1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads share a batch out among themselves, and where one ends the last entries are computed otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _add_forgivingly(run: PrivateRun, loss_fn: Loss, inputs: tuple[Any, ...], label: Any, batch: Batch) -> Tensor:
    """Adds a batch without whoever makes model or loss raise.

    Only they are left out: without the whole batch one person would move the sum by as many clip norms as it has
    people (rule 12). And the others have to be what they would have been: whoever chose the parameters can choose
    them so that the last bit of a product decides a gradient, and these bits change with the shape of a batch. So
    all batches have one shape, and the halves of one that raises are repeated until they fill it, and so on.
    """
    size = batch.records.size
    if not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (size,) for leaf in tree_leaves((inputs, label))):
        raise InvalidInput(
            "with forgiving=True every input and label must be a tensor with one row for each record: what is "
            "something else cannot be taken apart by person"
        )
    kept: list[Tensor] = []

    def adds(rows: Tensor | None, some: Batch) -> bool:
        """Whether these rows could be added; all of them or none."""
        mine, own = (inputs, label) if rows is None else tree_map(lambda value: value[rows], (inputs, label))
        put_back = run.recorder.remembered()
        with _one_thread(), torch.autocast(run.device.type, enabled=False):
            try:
                tape, losses = recorded(run.recorder, loss_fn, mine, own, False)
                weights = run.weights(tape, *some.places(run))
            except Exception:  # what it says is about somebody's record, and stays unsaid
                put_back()
                return False
            run.gather(tape, *weights)
        kept.append(losses[: some.real])
        return True

    # What raised may have been a stand-in: so everybody is tried once more without.
    waiting = [] if adds(None, batch) or not batch.units.size else [(0, batch.units.size)]
    while waiting:
        first, last = waiting.pop()
        rows, some = _of(batch, first, last)
        if not adds(torch.as_tensor(rows, device=run.device), some) and last - first > 1:
            middle = (first + last) // 2
            waiting += [(middle, last), (first, middle)]
    return torch.cat(kept) if kept else torch.zeros(1, device=run.device)


def _of(batch: Batch, first: int, last: int) -> tuple[IntArray, Batch]:
    """Rows of these units of a batch, repeated until there are as many as it has, and the batch that they make."""
    begin, end = np.searchsorted(batch.owner, [first, last])
    rows = np.resize(np.arange(begin, end), batch.records.size)
    owner = np.where(np.arange(rows.size) < end - begin, batch.owner[rows] - first, last - first)
    return rows, Batch(batch.records[rows], batch.units[first:last], owner)
