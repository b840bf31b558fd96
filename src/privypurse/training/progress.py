"""A bar for long runs: the step, the loss, and what each level has spent so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from privypurse.accounting import Progress, accountant_named
from privypurse.plans import Plan, Promise

_MARKS = 20  # ε is computed at so many points of a run: each costs a certification
_MOST_LEVELS = 4


class Show(Protocol):
    """Told that so many steps are taken. The loss of the last batch is sensitive: for the operator alone (rule 6)."""

    def __call__(self, steps: int, loss: float | None = None) -> None: ...


class _RichBar:
    def __init__(self, plan: Plan) -> None:
        from rich import progress
        from rich.table import Column

        self._plan, self._mark, self._spent = plan, -1, ""
        taking_part = np.flatnonzero(plan.levels.rate > 0)
        count = min(_MOST_LEVELS, taking_part.size)
        self._levels = taking_part[np.linspace(0, taking_part.size - 1, count).astype(int)].tolist()
        self._loss = ""
        self.progress = progress.Progress(
            progress.TextColumn("training"),
            progress.BarColumn(bar_width=10),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[figures]}", table_column=Column()),  # goes on below where it is long
        )
        self._task = self.progress.add_task("training", total=plan.all_steps, figures="")

    def update(self, steps: int, loss: float | None = None) -> None:
        if loss is not None:
            self._loss = f"loss {loss:.3f} (internal)  "
        # Rounded up to the next mark: what is shown is at least what was spent.
        mark = -(-steps * _MARKS // self._plan.steps)
        if steps > self._plan.steps:
            self._spent = f"a {self._plan.filter} filter keeps everyone within their ε"
        elif self._plan.promise is Promise.PART:
            self._spent = "the schedule says what all rounds cost"
        elif self._plan.ledger is not None:  # which levels there are follows from what people have left
            self._spent = "all steps are reserved in the ledger"
        elif mark != self._mark:
            self._mark, self._spent = mark, self._spent_at(-(-mark * self._plan.steps // _MARKS))
        self.progress.update(self._task, completed=steps, figures=self._loss + self._spent)

    def _spent_at(self, steps: int) -> str:
        releases, delta = self._plan.releases(min(max(steps, 1), self._plan.steps)), self._plan.fixed_delta
        accountant = accountant_named(self._plan.accountant)
        spent = accountant.epsilons([releases[k] for k in self._levels], delta[self._levels])
        return "ε ≤ " + "  ".join(
            f"{used:.2f}/{self._plan.levels.epsilon[k]:g}" for k, used in zip(self._levels, spent, strict=True)
        )


@contextmanager
def shown(plan: Plan, progress: bool | Progress) -> Iterator[Show]:
    """A bar while the work goes on, if wanted, or a function that is told how far it is (`Execution.progress`)."""
    if progress is True:
        bar = _RichBar(plan)
        with bar.progress:
            yield bar.update
    else:
        yield lambda steps, loss=None: progress(steps, plan.all_steps) if progress else None
