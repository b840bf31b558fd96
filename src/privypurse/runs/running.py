"""A whole run by its configuration: data, plan, training, results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from privypurse.accounting import Progress
from privypurse.budgets.tables import unchanged
from privypurse.plans import Plan
from privypurse.runs import results
from privypurse.runs.config import BuiltIn, RunConfig, Table
from privypurse.runs.evaluation import Score, score
from privypurse.runs.inputs import Part, inputs_of
from privypurse.runs.models import model_of
from privypurse.runs.optimizers import optimizer_of
from privypurse.runs.planning import plan_of
from privypurse.training.devices import device_of
from privypurse.training.execution import Execution
from privypurse.training.individual.accounting import Individual
from privypurse.training.individual.spending import Spending
from privypurse.training.loop import train

losses = partial(F.cross_entropy, reduction="none")
"""One loss for each record."""


@dataclass(frozen=True)
class Finished:
    """A run that went to its end."""

    plan: Plan
    score: Score | None
    seconds: float
    folder: Path
    steps: int
    spending: Spending | None = None


def run(
    config: RunConfig,
    *,
    certifying: Progress | None = None,
    planned: Callable[[Plan], None] = lambda plan: None,
    bar: bool = False,
) -> Finished:
    """Train what the configuration says and write the results into its folder.

    ``planned`` is called with the plan before training begins, ``certifying`` while it is made. Guarantee: that of
    `train`, for the plan in the folder; the test figures are of records that took no part in training.
    """
    settings = config.training
    device = device_of(settings.device)
    results.check_out(settings.out)  # said before the work, not after it
    # Features, ids, budgets and seal are read one after the other, and have to be of the same rows.
    with unchanged(config.data.path) if isinstance(config.data, Table) else nullcontext():
        inputs = inputs_of(config.data)
        if settings.seed is not None:
            torch.manual_seed(settings.seed)
        model = model_of(config.model, inputs.shape, inputs.classes).to(device)
        optimizer = optimizer_of(config.optimizer, model)
        plan = plan_of(config, len(inputs.train), certifying).for_records(inputs.train.person)
    plan.require_kept(certifying)  # before anything is shown or written: it may have been altered
    planned(plan)
    results.make(settings.out)
    plan.save(settings.out / results.PLAN)  # now: a run that is broken off has spent something by it
    trained = train(
        model,
        optimizer,
        tensors(inputs.train, device),
        plan,
        losses,
        individual=None if config.individual is None else Individual(**vars(config.individual)),
        max_records_per_person=settings.max_records_per_person,
        checkpoint=settings.checkpoint,
        execution=Execution(
            max_physical_batch=settings.max_physical_batch,
            checkpoint_every=settings.checkpoint_every,
            progress=bar,
        ),
        seed=settings.seed,
    )
    found = None if inputs.test is None else score(model, inputs.test)
    data = config.data.name if isinstance(config.data, BuiltIn) else config.data.path.name
    metrics = results.metrics_of(
        plan,
        found,
        trained.seconds,
        data=data,
        seeded=settings.seed is not None,
        steps=trained.steps,
        spending=trained.spending,
    )
    results.save(settings.out, model, metrics)
    if trained.spending is not None:
        results.save_spending(settings.out, trained.spending)
    return Finished(plan, found, trained.seconds, settings.out, trained.steps, trained.spending)


def tensors(part: Part, device: torch.device) -> TensorDataset:
    """Records as tensors on the device."""
    return TensorDataset(torch.as_tensor(part.inputs, device=device), torch.as_tensor(part.labels, device=device))
