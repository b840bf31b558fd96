"""Training by a schedule: people are drawn into each round by one coin, and the round is trained like any plan."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from privypurse._storage import digest_of, digest_of_arrays, make_folder, replace_file
from privypurse.arrays import AnyArray
from privypurse.errors import InvalidInput
from privypurse.plans.schedule import Schedule
from privypurse.randomness import Randomness, randomness
from privypurse.training.distributed import Processes
from privypurse.training.execution import DEFAULT, Execution
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.ledger_account import require_ledger
from privypurse.training.loop import train
from privypurse.training.rounds_account import RoundsAccount

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

_DRAWN = "drawn.npz"


@dataclass(frozen=True)
class TrainedInRounds:
    """What a call of ``pp.rounds.train`` did."""

    model: nn.Module
    """The model, or for separate models their average."""
    steps: int
    seconds: float


class AveragedOutputs(nn.Module):
    """Models whose class probabilities are averaged with public weights (Heo et al. 2023, B.2). Gives logarithms."""

    def __init__(self, models: list[nn.Module], weights: AnyArray) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.register_buffer("weights", torch.as_tensor(np.asarray(weights), dtype=torch.float32))

    def forward(self, *inputs: Tensor) -> Tensor:
        logs = torch.stack([model(*inputs).log_softmax(-1) for model in self.models])
        shape = (-1,) + (1,) * (logs.dim() - 1)
        weight = torch.as_tensor(self.weights, device=logs.device).log().view(shape)
        return torch.logsumexp(logs + weight, 0)


def train_rounds(
    new_model: Callable[[], nn.Module],
    new_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    dataset: Dataset[Any],
    schedule: Schedule,
    loss_fn: Loss,
    *,
    person: Any = None,
    max_records_per_person: int | None = None,
    checkpoint: str | Path | None = None,
    ledger: Ledger | None = None,
    purpose: str = "",
    execution: Execution = DEFAULT,
    seed: int | None = None,
    wide_sums: bool = False,
) -> TrainedInRounds:
    """Train by the schedule, all its rounds: one model through all of them, or one a round (``schedule.separate``).

    Each round draws people by independent coins that nobody sees, then trains on them with `train`. ``new_model()``
    and ``new_optimizer(model)`` make what is trained. ``checkpoint`` is a folder: a run that was broken off goes on
    from there with the people that its round had drawn, which that folder therefore holds. Keep it as safe as the
    data, and remove it in the end. All other options are those of `train`: with ``person`` a schedule that was made
    with ids is applied by id. ``ledger`` is the one that the schedule was made with, ``purpose`` a word for it: its
    people are charged for life, rounds that have begun, whole.

    Guarantee: that of the schedule, ``schedule.spent()``.
    """
    schedule = _checked(schedule, person, seed)
    require_ledger(schedule, ledger, seed)
    begun = time.perf_counter()
    models: list[nn.Module] = []
    model, optimizer = None, None
    with _charged(schedule, ledger, purpose, checkpoint, seed is not None) as account:
        for number in range(len(schedule.rounds)):
            if model is None or optimizer is None or schedule.separate:
                model = new_model()
                optimizer = new_optimizer(model)
                models.append(model)
            folder = None if checkpoint is None else Path(checkpoint) / f"round-{number + 1}"
            own = None if seed is None else _seed_of(seed, number)
            if account is None or account.begin(number, drawn_before=_is_drawn(folder)):
                drawn = _drawn(schedule, number, randomness(own), folder)
            else:
                drawn = np.zeros(schedule.people, dtype=bool)
            train(
                model,
                optimizer,
                dataset,
                schedule.round_plan(number, drawn),
                loss_fn,
                max_records_per_person=max_records_per_person,
                checkpoint=folder,
                ledger=account,
                execution=execution,
                seed=own,
                wide_sums=wide_sums,
            )
    trained = models[0] if not schedule.separate else AveragedOutputs(models, schedule.weights)
    return TrainedInRounds(trained, schedule.steps, time.perf_counter() - begun)


@contextmanager
def _charged(
    schedule: Schedule, ledger: Ledger | None, purpose: str, checkpoint: str | Path | None, seeded: bool
) -> Iterator[RoundsAccount | None]:
    """The account of these rounds in the ledger. It is settled in the end, or when they cannot go on later."""
    if ledger is None:
        yield None
        return
    folder = None if checkpoint is None else Path(checkpoint)
    account = RoundsAccount(ledger, schedule, _digest(schedule), folder, purpose, seeded=seeded)
    try:
        yield account
    except BaseException:
        if checkpoint is None:
            account.finish()
        else:
            account.close()
        raise
    account.finish()


def _checked(schedule: Any, person: Any, seed: int | None) -> Schedule:
    """The schedule for these records, or an error."""
    if not isinstance(schedule, Schedule):
        raise InvalidInput(
            f"schedule must be a Schedule, not {type(schedule).__name__}; make one with pp.rounds.schedule(…)"
        )
    if Processes.found().size > 1:
        raise InvalidInput("rounds are trained in one process: several would each draw people of their own")
    applied = schedule.for_records(person)
    applied.require_kept(seeded=seed is not None)
    return applied


def _seed_of(seed: int, number: int) -> int:
    """The seed of one round. With the same seed for all of them, all rounds would have the same noise."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint32)[0])


def _drawn(schedule: Schedule, number: int, source: Randomness, folder: Path | None) -> AnyArray:
    """Who is in the round, as one entry for each unit.

    People are drawn into a round once. One that is resumed reads its draw from the checkpoint: a second draw would be
    a second release of it, which the schedule does not charge for.
    """
    if folder is not None and _is_drawn(folder):
        try:
            with np.load(folder / _DRAWN) as saved:
                same, drawn = str(saved["schedule"]) == _digest(schedule), np.asarray(saved["drawn"])
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
            raise InvalidInput(
                f"{folder / _DRAWN} is damaged ({error}); who was drawn is not known any more"
            ) from None
        if not same:
            raise InvalidInput(f"{folder} holds a round of another schedule; name another checkpoint folder")
        return drawn
    drawn = schedule.draw(number, source.for_step(0).uniform(schedule.people))
    if folder is not None:
        make_folder(folder)
        replace_file(folder / _DRAWN, lambda file: np.savez(file, drawn=drawn, schedule=_digest(schedule)))
    return drawn


def _is_drawn(folder: Path | None) -> bool:
    """Whether a round has its draw from before."""
    return folder is not None and (folder / _DRAWN).exists()


def _digest(schedule: Schedule) -> str:
    """A digest of all rounds: of their plans (with nobody drawn into them), and of everybody's chances."""
    nobody = np.zeros(schedule.people, dtype=bool)
    plans = [schedule.round_plan(number, nobody).digest() for number in range(len(schedule.rounds))]
    chances = (one.chance[schedule.level_of] for one in schedule.rounds)
    return digest_of([schedule.separate, *plans, digest_of_arrays(*chances)])
