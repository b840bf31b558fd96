"""Early stopping by a plan's stopping rule: private questions that the plan has paid for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from privypurse.accounting.filters import Currency
from privypurse.arrays import AnyArray, FloatArray
from privypurse.plans.stop_rules import StopAtPlateau, StopWhenFew
from privypurse.randomness import Randomness
from privypurse.training.individual.norm_passes import NormPasses, Right

_STREAM = 2**20 + 1  # of a seeded run's random numbers: none of its processes has such a rank
_STATE = ("told", "_threshold", "_over", "_asked", "_silent", "_best")


class EarlyStopping:
    """A stopping rule (`Plan.shape.stop`) at work. Its answers are released; the plan's ε includes them."""

    def __init__(self, passes: NormPasses, right: Right) -> None:
        plan = passes.setup.plan
        self._rule, self._passes, self._right, self._first = plan.shape.stop, passes, right, plan.steps
        self._processes = passes.setup.processes
        self._answers = np.asarray(plan.levels.rate[plan.level_of] > 0)  # who takes part in training, all the while
        self.told: list[tuple[int, float]] = []
        """(step, noisy answer): public."""
        self._threshold: float | None = None
        self._over, self._asked, self._silent = False, 0, False
        self._best: dict[str, Tensor] | None = None

    def price(self, currency: Currency) -> FloatArray:
        """What all its questions together cost whoever answers them, in a filter's currency."""
        match self._rule:
            case None:
                return np.asarray(0.0)
            case StopAtPlateau(noise=noise, most=most):
                return np.asarray(most * currency.gaussian(np.asarray(1.0 / noise)))
            case StopWhenFew(epsilon=epsilon):
                return np.asarray(currency.pure(epsilon))

    def goes_on(self, steps_taken: int, active: Callable[[], AnyArray]) -> bool:
        """Whether another step may follow. Asks at public times only."""
        since = steps_taken - self._first
        if self._rule is None or self._over or self._silent or since % self._rule.every:
            return not self._over
        if self.told and self.told[-1][0] == steps_taken:
            return True  # asked already: nobody pays twice for the same
        source = self._passes.setup.source.for_step(steps_taken, _STREAM)
        match self._rule:
            case StopAtPlateau() as rule:
                self._ask_how_many_right(rule, steps_taken, source)
            case StopWhenFew() as rule:
                self._compare(rule, steps_taken, self._answers & active(), source)
        self._over = self._processes.same(self._over)
        return not self._over

    def _ask_how_many_right(self, rule: StopAtPlateau, step: int, source: Randomness) -> None:
        if self._asked >= rule.most:
            return
        self._asked += 1
        right = self._passes.right(step, np.flatnonzero(self._answers), self._right)
        noise = rule.noise * float(source.normal(1)[0])
        # Counts and noise on one grid: else the last digits of their sum would tell the count (Mironov 2012).
        grain = 2.0 ** (math.floor(math.log2(min(rule.noise, 1.0))) - 20)
        noisy = float(np.floor(right / grain).sum() * grain) + round(noise / grain) * grain
        self.told.append((step, self._processes.same(noisy)))
        values = [value for _, value in self.told]
        since = len(values) - 1 - int(np.argmax(values))
        if since == 0:
            state = self._passes.setup.recorder.model.state_dict()
            self._best = {name: value.detach().clone() for name, value in state.items()}
        self._over = since >= rule.patience

    def finish(self) -> None:
        """The run is over: leave the model that had the best answer."""
        if self._best is not None:
            self._passes.setup.recorder.model.load_state_dict(self._best)

    def _compare(self, rule: StopWhenFew, step: int, active: AnyArray, source: Randomness) -> None:
        if self._threshold is None:
            self._threshold = rule.below + _laplace(2 / rule.epsilon, source)
        few = int(np.count_nonzero(active)) + _laplace(4 / rule.epsilon, source) < self._threshold
        few = self._processes.same(few)  # what others would say with noise of their own would cost again
        self.told.append((step, float(few)))
        self._over = few

    def resumed(self, saved: int, now: int, answers_saved: bool) -> None:
        """What may have been asked between a checkpoint and a crash is not asked again: it would cost once more.

        A run that saves every answer before anything follows from it, and lost no step, lost no question either.
        """
        if self._rule is None or (saved == now and answers_saved):
            return
        known = {step for step, _ in self.told}
        times = range(self._first, now + 1, self._rule.every)
        missing = sum(saved <= step and step not in known for step in times)
        self._asked += missing
        self._silent |= missing > 0 and isinstance(self._rule, StopWhenFew)

    def state(self) -> dict[str, Any]:
        """The noisy threshold is as secret as the purses beside it."""
        return {name.strip("_"): getattr(self, name) for name in _STATE}

    def restore(self, state: dict[str, Any]) -> None:
        for name in _STATE:
            setattr(self, name, state[name.strip("_")])
        self.told = [*self.told]  # the next answers are this run's, not the saved state's


def _laplace(scale: float, source: Randomness) -> float:
    """The difference of two exponentials."""
    one, other = source.uniform(2).tolist()
    return scale * (math.log(other) - math.log(one))
