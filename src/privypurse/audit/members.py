"""Audits on members: people's own records in place of made-up ones, each training on them a use that they pay for.

What is found is internal (rule 6), and its models are thrown away. That changes nothing about the charge: whoever is
measured pays (rule 16), for a whole run by the audited plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from privypurse.arrays import AnyArray
from privypurse.assignment.ledger_notes import share_of_cap
from privypurse.audit.canaries import Loss
from privypurse.budgets.tables import unchanged
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.runs import fingerprint
from privypurse.runs.config import RunConfig, Table
from privypurse.runs.folder import RunFolder
from privypurse.runs.planning import plan_of
from privypurse.runs.predictor import Predictor
from privypurse.runs.records import records_of
from privypurse.runs.training_run import tables_of
from privypurse.training.distributed import Processes
from privypurse.training.ledger_account import Account, require_ledger
from privypurse.training.loop import train

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

PURPOSE = "audit"
"""What the ledger, and people's receipts, say that it was for."""
_LISTED = 8  # levels whose ε are all named


@dataclass(frozen=True, eq=False)
class Members:
    """The people of a run with their own records, and the ledger that charges them. Sensitive."""

    plan: Plan
    """Of the run, applied to these records."""
    inputs: Tensor
    labels: Tensor
    ledger: Ledger | None = None
    """The one that the plan was made with; None where it was made with none, and nobody adds up."""
    max_records_per_person: int | None = None

    def __post_init__(self) -> None:
        require_ledger(self.plan, self.ledger, None)
        if self.ledger is not None and self.plan.filter is not None:
            raise InvalidInput(
                f"the plan has extra_steps = {self.plan.shape.extra_steps:,} under a ledger: people go on within "
                "what is reserved for them, and canaries have no purse there. Leave --real out"
            )

    @property
    def words(self) -> Iterator[str]:
        yield (
            "The run's network is trained anew on the people of the run. This is internal: it tells of them, and may "
            "stand in no public report."
        )
        if self.ledger is None:
            yield (
                "No ledger: each training that somebody is in costs them what the plan claims once more, beside the "
                "run itself and all else, and nobody adds that up."
            )
        else:
            yield (
                f"Everybody is charged for it in the ledger {self.ledger.id}: for a whole run by the plan, for each "
                "training that they are in."
            )

    def price(self, trainings: int) -> str:
        """What so many trainings take of whoever is in them; under a ledger by public numbers alone (rule 15)."""
        if self.ledger is not None:
            cap = None if self.plan.ledger is None else self.plan.ledger.at_most
            if cap is None:
                return "the run has no cap (at_most): by public account nothing is left for later uses"
            return share_of_cap(self.ledger, cap, trainings)
        plan = self.plan
        claimed = plan.spent_by_level(plan.all_steps)[plan.people_by_level() > 0]
        found = [f"{math.ceil(1000 * epsilon) / 1000:g}" for epsilon in np.unique(claimed)]
        levels = ", ".join(found) if len(found) <= _LISTED else f"from {found[0]} to {found[-1]}"
        times = "once more" if trainings == 1 else f"{trainings} times more"
        return f"everybody pays what the plan claims, {times}, and no ledger adds that up: by level ε = {levels}"

    @property
    def owner(self) -> AnyArray:
        """For each record, its person's place in the plan."""
        return np.arange(self.plan.people) if self.plan.owner is None else self.plan.owner

    def only(self, mark: AnyArray) -> Members:
        """Those of the plan's people who are marked; the others are absent, and pay nothing."""
        rows = np.flatnonzero(mark[self.owner])
        if self.plan.person is None:
            plan = self.plan.for_nobody(self.plan.level_of[rows])  # without ids each record is its own
        else:
            plan = self.plan.applied_to(self.plan.person[rows])
        return replace(self, plan=plan, inputs=self.inputs[rows], labels=self.labels[rows])

    def trained(
        self,
        model: Callable[[], nn.Module],
        optimizer: Callable[[nn.Module], torch.optim.Optimizer],
        loss_fn: Loss,
        device: str,
        account: Account | None,
    ) -> nn.Module:
        """A model of theirs by the plan, charged to the account that `charged` gave."""
        made = model().to(device)
        train(
            made,
            optimizer(made),
            TensorDataset(self.inputs.to(device), self.labels.to(device)),
            self.plan,
            loss_fn,
            max_records_per_person=self.max_records_per_person,
            ledger=account,
        )
        return made

    @contextmanager
    def charged(self, strangers: int) -> Iterator[Account | None]:
        """All steps of a training on them and, behind them, so many made-up records: reserved before the first one.

        Guarantee: who cannot pay for the whole plan takes no part. Charged in the end are the steps that were begun;
        without a ledger nothing is.
        """
        if self.ledger is None:
            yield None
            return
        account = _WithStrangers(self.ledger, self.plan, strangers)
        try:
            yield account
        finally:
            account.settle(account.counted)  # nothing is left to do where the training has settled


class _WithStrangers(Account):
    """The account of a plan's people in a training that holds made-up records too, which nobody pays for."""

    def __init__(self, ledger: Ledger, plan: Plan, strangers: int) -> None:
        self.counted = 0
        self._strangers = np.ones(strangers, dtype=bool)
        super().__init__(ledger, plan, Processes.found(), purpose=PURPOSE)

    def _spread(self) -> None:
        super()._spread()
        self.takes_part = np.append(self.takes_part, self._strangers)

    def count(self, step: int) -> None:
        super().count(step)
        self.counted = step


def members_of(folder: Path, config: RunConfig, run: Predictor, ledger: Ledger | None) -> Members:
    """The people of a finished run, as its configuration finds them now, by its own plan (rule 13).

    What they grant now is compared with the plan where the configuration says it. Ends and categories that people
    were asked for are those that the run found: nobody is asked again. What is found is about the run, so the table
    has to be the one that it was trained on, byte for byte.
    """
    data = config.data
    if isinstance(data, Table) and run.encoder is not None:
        data = replace(data, features=run.encoder.columns)
    config = replace(config, data=data, plan=folder / "plan.json", private_ranges=None)
    with unchanged(*tables_of(config)):
        records = records_of(config.data).train
        plan = plan_of(config, len(records), ledger=ledger).for_records(records.person)
        if isinstance(data, Table):
            _require_same(RunFolder.listed(folder), data.table)
    return Members(
        plan=plan,
        inputs=torch.as_tensor(records.inputs),
        labels=torch.as_tensor(records.labels),
        ledger=ledger,
        max_records_per_person=config.training.max_records_per_person,
    )


def _require_same(folder: RunFolder, table: Path) -> None:
    """Raise unless this is the table that the run was trained on."""
    same = fingerprint.fits(folder, table)
    if same is None:
        raise InvalidInput(
            f"{folder.path} holds no {fingerprint.FINGERPRINT} with its {fingerprint.KEY}: whether it was trained "
            f"on {table} cannot be seen; name the whole folder of the run, or leave --real out"
        )
    if not same:
        raise InvalidInput(
            f"{table} is not, byte for byte, the table that {folder.path} was trained on, so nobody was charged; put "
            "that file back, or call from the folder that the run was trained in"
        )
