"""train: the whole loop in one call, with a bar, checkpoints, and on a GPU one captured graph a step."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from privypurse._totals import say_not_kept
from privypurse._validate import integer
from privypurse.accounting import Progress
from privypurse.errors import InvalidInput, Unsupported
from privypurse.plans import Plan
from privypurse.training.callbacks import Callback
from privypurse.training.captured import CapturedSteps, one_record_each, sizes_of
from privypurse.training.checkpoints import Checkpoints
from privypurse.training.cuda_graphs import NotCapturable
from privypurse.training.distributed import unwrapped
from privypurse.training.execution import DEFAULT, Execution
from privypurse.training.failing_records import add_forgivingly, one_shape, require_forgivable
from privypurse.training.gradients import recorded
from privypurse.training.individual.accounting import Individual, accounting_of
from privypurse.training.interruption import undivided
from privypurse.training.isolation.batches import Collate
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.isolation.model import require_isolated
from privypurse.training.journal import STEPS
from privypurse.training.ledger_account import Account, require_ledger
from privypurse.training.mechanism import PrivateRun
from privypurse.training.model_inputs import Inputs, arguments
from privypurse.training.physical_batches import Batch, moved
from privypurse.training.planned_records import PlannedRecords
from privypurse.training.poisson_loader import Draws
from privypurse.training.progress import shown
from privypurse.training.setup import Setup, modes_kept
from privypurse.training.step_randomness import alone
from privypurse.training.trained import Trained
from privypurse.training.validation import Measure, ModelChanged, Validation
from privypurse.training.watch import Watch

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_TIMES = 2.0  # a second that the bar asks for the loss: on a GPU asking means waiting


class Scheduler(Protocol):
    """A learning-rate scheduler of torch."""

    def step(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Dataset[Any],
    plan: Plan,
    loss_fn: Loss,
    *,
    person: Any = None,
    scheduler: Scheduler | None = None,
    validate: Validation | Dataset[Any] | Measure | None = None,
    callbacks: Iterable[Callback] = (),
    max_records_per_person: int | None = None,
    collate_fn: Collate | None = None,
    individual: Individual | None = None,
    views: int = 1,
    checkpoint: str | Path | None = None,
    steps: int | None = None,
    ledger: Ledger | Account | None = None,
    purpose: str = "",
    execution: Execution = DEFAULT,
    seed: int | None = None,
    wide_sums: bool = False,
    forgiving: bool = False,
) -> Trained:
    """Train the model by the plan, in place: all its steps, or up to ``steps`` of them.

    ``dataset`` gives (input, label), several inputs and a label, or a dictionary of inputs by name and "labels";
    ``loss_fn(output, label)`` one loss for each record. ``person`` holds the id of each record's owner in their
    order, for a plan with ids. ``max_records_per_person, collate_fn``: `PlannedRecords`. ``validate`` (`Validation`,
    or its data set or function) measures the model on others, for ``Trained.history``. ``individual`` charges each
    person by their own gradients. ``views``: so often each record goes through the model, for a mean gradient that is
    clipped. ``checkpoint`` is a folder for one run, which goes on from there when called again; its journal counts
    every step before it is taken. ``ledger`` is that of the plan, ``purpose`` a word for it: all steps are reserved
    before the first, those begun charged; with a checkpoint it stands until the last step. ``seed`` makes a run
    repeatable, so not private. ``forgiving`` is for parameters of a server, which must not learn from errors: whose
    records make model or loss raise contributes zero; isolation is not checked. ``wide_sums``: `PrivateRun`. In
    another thread a second call waits for this one. Guarantee: that of `make_private`, whose code it is.
    """
    _refuse_scheduler(scheduler, optimizer)
    require_ledger(plan, ledger, seed)
    if ledger is None and not forgiving:
        say_not_kept(seed)
    records = PlannedRecords(dataset, plan.for_records(person), execution, max_records_per_person, collate_fn)
    goal = None if steps is None else integer(steps, "steps")
    with alone():
        begun, watch = time.perf_counter(), Watch(validate, callbacks, records, loss_fn)
        setup = Setup(records.plan, unwrapped(model), optimizer, seed, views)
        if forgiving:
            require_forgivable(setup, individual is not None or records.plan.filter is not None)
        captured, records = _placed(setup, records, forgiving)
        accounting = accounting_of(setup, records, loss_fn, individual)
        folder, wide = None if checkpoint is None else Path(checkpoint), wide_sums or forgiving
        run = PrivateRun(setup, accounting, None if folder is None else folder / STEPS, wide)
        with closing(run), modes_kept(setup.recorder.model):
            saved = Checkpoints(folder, run, records, optimizer, scheduler, watch)
            run.charge_to(ledger, purpose)  # before what was saved: the ledger may know of later steps
            begun_at = _resumed(run, saved)
            batches, captured = _summed(run, records, loss_fn, captured, forgiving)
            _take(batches, goal, _Applied(run, optimizer, scheduler, saved, watch), execution.progress)
        return _outcome(run, begun_at, time.perf_counter() - begun, captured, watch)


def _resumed(run: PrivateRun, saved: Checkpoints) -> int:
    """How many steps the run has taken before, and goes on from, in training mode."""
    saved.resume()
    run.require_open()
    if not run.recorder.model.training:
        run.recorder.model.train()
    return run.steps_taken


def _outcome(run: PrivateRun, begun_at: int, seconds: float, captured: bool, watch: Watch) -> Trained:
    return Trained(
        steps=run.steps_taken,
        resumed_from=begun_at,
        seconds=seconds,
        how="captured" if captured else "eager",
        spending=None if run.accounting is None else run.accounting.spending(),
        left_out=run.left_out,
        run_id=None if run.account is None else run.account.run_id,
        history=tuple(watch.history),
    )


def _refuse_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> None:
    """Raise for one that wants to be told how well training goes: that is a question which nobody pays for."""
    if scheduler is None:
        return
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise InvalidInput(
            f"scheduler {type(scheduler).__name__} is of another optimizer than this one, whose learning rate would "
            "never move; make it of the optimizer that train is given"
        )
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


@dataclass
class _Applied:
    """A step from what was summed up: released, applied, saved where it is time, and looked at."""

    run: PrivateRun
    optimizer: torch.optim.Optimizer
    scheduler: Scheduler | None
    saved: Checkpoints
    watch: Watch

    def __post_init__(self) -> None:
        self._applied = self.run.steps_taken

    def step(self, loss: Tensor) -> None:
        with undivided():
            self.run.release()
            self.optimizer.step()
            self.optimizer.zero_grad()  # frees a copy of the model's size before the next forward pass
            if self.scheduler is not None:
                self.scheduler.step()
            self._applied = self.run.steps_taken
            self.saved.after_step()
        with self._kept():
            self.watch.after_step(loss)

    def last(self) -> None:
        """Look at the model as it stays, unless a stopping rule may go back to a better one yet; then save."""
        with self._kept():
            if self.run.plan.shape.stop is None:
                self.watch.last()
        self.saved.write()

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """What was paid for is saved when a logger cannot be reached, but not a model that somebody wrote into."""
        try:
            yield
        except ModelChanged:
            raise
        except Exception:
            self.saved.write()
            raise

    def interrupted(self) -> None:
        """Save, unless the last step is counted but not in the model: that is no state to go on from."""
        if self._applied == self.run.steps_taken:
            self.saved.write()


def _take(batches: Iterator[Tensor], goal: int | None, applied: _Applied, progress: bool | Progress) -> None:
    """Steps up to that number, or until the run ends by itself; what was taken is saved, also when interrupted."""
    run, saved, shown_at = applied.run, applied.saved, 0.0
    most = run.plan.all_steps
    goal = most if goal is None else min(goal, most)
    applied.watch.begin(run, applied.optimizer)
    try:
        with shown(run.plan, run.processes.first and progress) as show:
            show(run.steps_taken)
            stopped = False
            while run.steps_taken < goal and not (stopped := not run.prepare()):
                saved.before_step()
                loss = next(batches)
                applied.step(loss)
                now = time.perf_counter()
                if progress and (now - shown_at > 1 / _TIMES or run.steps_taken == goal):
                    show(run.steps_taken, float(loss))
                    shown_at = now
        applied.last()
        if stopped or run.steps_taken == most:
            run.finish()
        applied.watch.end()
    except KeyboardInterrupt:
        applied.interrupted()
        raise


def _placed(setup: Setup, records: PlannedRecords, forgiving: bool) -> tuple[bool, PlannedRecords]:
    """Whether steps are captured, as asked for or where it can be done; the data then lies on the device.

    Batches of captured steps have other sizes, so that everybody's gradient rounds otherwise. Where somebody else
    chooses the parameters, who can make much of that, nobody's second record decides it: people with ids are never
    captured.
    """
    dataset, asked, can = records.dataset, records.execution.capture, False
    alone = setup.plan.owner is None if forgiving else one_record_each(setup.plan)
    if setup.device.type == "cuda" and alone and type(dataset) is TensorDataset:
        size = sum(tensor.nbytes for tensor in dataset.tensors if tensor.device != setup.device)
        can = size < 0.5 * torch.cuda.mem_get_info(setup.device)[0]
        if can and asked is not False:
            return True, replace(records, dataset=TensorDataset(*(each.to(setup.device) for each in dataset.tensors)))
    if asked:
        raise InvalidInput(
            "capture=True needs the model on a GPU, a TensorDataset, and no person with more than one record"
        )
    return False, records


def _summed(
    run: PrivateRun, records: PlannedRecords, loss_fn: Loss, captured: bool, forgiving: bool
) -> tuple[Iterator[Tensor], bool]:
    """Adds one step's clipped gradients to the run at each turn, and gives the mean loss of its last batch; and
    whether steps are captured after all."""
    most = records.execution.max_physical_batch
    if captured:
        largest, multiple = sizes_of(run.plan, most)
        if forgiving:
            multiple = largest = most or largest
        draws = Draws(run, records, largest, multiple)
        try:
            steps = CapturedSteps(run, records.dataset, loss_fn, draws, not forgiving)  # type: ignore[arg-type]
        except NotCapturable as why:
            if records.execution.capture:
                raise Unsupported(
                    f"no graph can hold this model and loss ({why}); give execution=pp.Execution(capture=False)"
                ) from why
        else:
            return steps.steps(), True
    if forgiving:
        size = one_shape(run.plan, most)
        return _eager(Draws(run, records, size, multiple=size), loss_fn, add_forgivingly), False
    return _eager(Draws(run, records), loss_fn, _add), False


Add = Callable[[PrivateRun, Loss, Inputs, Any, Batch], Tensor]
"""Adds the clipped gradients of a physical batch to the run; gives the losses of its records."""


def _eager(draws: Draws, loss_fn: Loss, add: Add) -> Iterator[Tensor]:
    draws.run.clear()
    for batch, data in draws:
        losses = add(draws.run, loss_fn, *moved(data, draws.run.device), batch)
        if batch.last:
            yield losses.mean()


def _add(run: PrivateRun, loss_fn: Loss, inputs: Inputs, label: Any, batch: Batch) -> Tensor:
    """Adds a batch; the first ones and random later ones are checked, and a model that mixes records is refused."""
    due = batch.records.size > 0 and run.keys.due("model" if batch.records.size > 1 else "one record")
    if due:
        require_isolated(run.recorder, *arguments(inputs), batch.records.size)
    run.require_true_gradients(arguments(inputs), batch.records.size)
    tape, losses = recorded(run.recorder, loss_fn, inputs, label, due)
    run.add(tape, *batch.places(run.setup))
    return losses[: batch.real]
