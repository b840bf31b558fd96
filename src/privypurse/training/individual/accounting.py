"""Individual accounting: everyone is charged by their own gradients, and contributes what their purse pays for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from privypurse._validate import integer, real
from privypurse.accounting.filters import Filter
from privypurse.accounting.lasting_step_filter import LastingStepFilter
from privypurse.accounting.odometer import Odometer
from privypurse.accounting.sampled_step_filter import StepFilter
from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.errors import InvalidInput
from privypurse.training.gradients.clipping import MARGIN
from privypurse.training.individual.early_stopping import EarlyStopping
from privypurse.training.individual.lifetime_charges import squares_within, step_units
from privypurse.training.individual.norm_passes import NormPasses, Right, most_likely
from privypurse.training.individual.spending import Spending
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.planned_records import PlannedRecords
from privypurse.training.setup import Setup

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger


@dataclass(frozen=True)
class Individual:
    """How each person's own spending is followed.

    Where people are drawn, everybody's gradient norm is measured by a norm pass before the first step, ``every`` so
    many steps (default: a twentieth of the plan's) and when the filter takes over. It is rounded up to one of
    ``grid_size`` equal shares of their clip norm, and every step is charged at that *grid norm*, whoever is drawn.
    With ``exact`` everyone is also clipped to it, so that a charge bounds its step (Yu et al. 2023, Algorithm 3);
    without, training is what it would be anyway, and the outcome is an estimate. ``headroom`` is how many times the
    measured norm is charged: gradients may grow until the next norm pass, and where that cuts them off, training
    suffers (1: the paper's).

    Where everyone is in every step, each step's own norms are charged as they are: nothing is rounded, and there are
    no norm passes (Feldman & Zrnic 2021, Algorithm 3).

    ``right(output, y)`` says how right the model is about each record, from 0 to 1, for a plan that stops at a
    plateau (`StopAtPlateau`); default: whether the largest output is that of the label.
    """

    every: int | None = None
    grid_size: int = 100
    exact: bool = True
    headroom: float = 1.5
    right: Right = most_likely

    def __post_init__(self) -> None:
        # Plain numbers, as every reader of checkpoints knows them.
        if self.every is not None:
            object.__setattr__(self, "every", integer(self.every, "every"))
        object.__setattr__(self, "grid_size", integer(self.grid_size, "grid_size", most=65_535))
        object.__setattr__(self, "headroom", real(self.headroom, "headroom", least=1))
        if not isinstance(self.exact, bool):
            raise InvalidInput(f"exact is {self.exact!r}; it must be True or False")
        if not callable(self.right):
            raise InvalidInput(f"right is {self.right!r}; it must be a function of output and label")


def accounting_of(
    setup: Setup, records: PlannedRecords, loss_fn: Loss | None, individual: Individual | None
) -> Accounting | None:
    """The individual accounting of a run, if it is asked for or the plan needs it."""
    plan = setup.plan
    if individual is None and plan.filter is None:
        return None
    if loss_fn is None:
        raise InvalidInput(
            "individual accounting measures everybody's gradient norm between steps: give loss_fn=, with one loss "
            "for each record, such as functools.partial(F.cross_entropy, reduction='none')"
        )
    if not isinstance(individual, Individual | None):
        raise InvalidInput(f"individual is {individual!r}; give pp.Individual(…)")
    settings, passes = individual or Individual(), NormPasses(setup, records, loss_fn)
    if plan.filter is not None and not settings.exact:
        raise InvalidInput(
            "extra steps need a filter, and a filter needs exact accounting: leave exact= out, for an estimate "
            "bounds nothing"
        )
    if not plan.full_batch or plan.filter == "rdp":
        return Sampled(settings, passes)
    if not settings.exact:
        raise InvalidInput("where everyone is in every step the accounting is exact as it is; leave exact= out")
    return FullBatch(settings, passes)


class Accounting(ABC):
    """What a run asks at each step."""

    def __init__(self, settings: Individual, passes: NormPasses, every: int) -> None:
        self._settings, self._passes, self._plan = settings, passes, passes.setup.plan
        self._every = every
        self._identity = {
            "data": passes.records.digest,
            "every": every,
            **{name: getattr(settings, name) for name in ("grid_size", "exact", "headroom")},
        }
        self.stopping = EarlyStopping(passes, settings.right)
        self._active: list[tuple[int, Tensor | int]] = []
        self._lost = 0  # steps of which nothing is known but their number

    @abstractmethod
    def prepare(self, steps_taken: int) -> bool:
        """Before a step: a norm pass if it is time. False: no further step."""

    @abstractmethod
    def limits(self, units: Tensor, clip_norms: Tensor, norms: Tensor) -> Tensor:
        """How much each of these units may contribute now; ``norms`` are what their gradients measure."""

    @abstractmethod
    def forget(self) -> None:
        """What was limited since the last step belongs to no step."""

    @abstractmethod
    def charge(self, step: int) -> None:
        """A step is about to be released."""

    @abstractmethod
    def hold_to(self, held: IntArray, ledger: Ledger) -> None:
        """Nobody's steps may cost more for life than is held [people, columns], with those beyond the fixed ones."""

    @abstractmethod
    def leave_out(self, takes_part: AnyArray) -> None:
        """Who takes no part from now on pays nothing from now on; their clip norm is 0."""

    def resumed(self, saved: int, now: int, answers_saved: bool = False) -> None:
        """Go on at step ``now`` from what was known at step ``saved``: charge in full what is not known.

        ``answers_saved`` says whether the stopping rule's answers were saved before anything followed from them.
        """
        self.stopping.resumed(saved, now, answers_saved)
        if now > saved:
            self._charge_unknown(saved, now)

    @abstractmethod
    def _charge_unknown(self, saved: int, now: int) -> None: ...

    @abstractmethod
    def spending(self) -> Spending:
        """What each person spent so far. Sensitive."""

    def _spending(self, meter: Odometer | FloatArray, contributing: AnyArray) -> Spending:
        told = tuple(self.stopping.told)
        return Spending(self._plan, meter, tuple(self._active_at()), told, contributing, self._lost)

    def _active_at(self) -> list[tuple[int, int]]:
        return [(int(step), int(count)) for step, count in self._active]

    def state(self) -> dict[str, Any]:
        """All that is needed to go on later."""
        return {
            "settings": self._identity,
            "active": self._active_at(),
            "lost": self._lost,
            "stopping": self.stopping.state(),
        }

    def require_same(self, state: Any) -> None:
        """Raise unless a state is of these data and settings."""
        before, now = state["settings"], self._identity
        if before["data"] != now["data"]:
            raise InvalidInput(
                "the checkpoint was made on another data set; purses are people's, so go on with the data that they "
                "began with, in the same order"
            )
        other = [f"{name} = {before[name]}" for name in now if before[name] != now[name]]
        if other:
            raise InvalidInput(f"the checkpoint was made with {', '.join(other)}; go on with the same")

    def restore(self, state: Any) -> None:
        """Go on from a state, or raise before anything is changed."""
        self.require_same(state)
        self._restore(state)
        self._active, self._lost = [*state["active"]], int(state["lost"])
        self.stopping.restore(state["stopping"])

    @abstractmethod
    def _restore(self, state: dict[str, Any]) -> None: ...


class Sampled(Accounting):
    """Poisson subsampling: what a step charges is fixed before it, by norm passes every few steps."""

    def __init__(self, settings: Individual, passes: NormPasses) -> None:
        plan, device = passes.setup.plan, passes.setup.device
        super().__init__(settings, passes, settings.every or max(1, plan.steps // 20))
        levels = plan.levels
        noise = plan.noise_multiplier * plan.clip_norm / levels.clip_norm
        purses = None
        if plan.filter is not None:
            purses = StepFilter(
                levels.rate, noise, levels.epsilon, plan.filter_delta, plan.level_of, settings.grid_size
            )
            purses.set_aside(self.stopping.price(purses.currency))
        self.odometer = Odometer(
            levels.rate, noise, plan.level_of, grid_size=settings.grid_size, exact=settings.exact, purses=purses
        )
        # On the device, one place more for nobody: the clip norm in force, steps that it is paid for, and the clip
        # norm of the one step after those.
        self._limits = torch.zeros((3, plan.people + 1), dtype=torch.float64, device=device)
        self._elapsed = torch.zeros((), dtype=torch.int64, device=device)
        self._takes_part = np.asarray(levels.rate[plan.level_of] > 0)
        self._filtering = False  # whether the last norm pass asked the filter
        self._overdue = False  # whether steps were taken of which nothing is known
        self._publish()

    def hold_to(self, held: IntArray, ledger: Ledger) -> None:
        odometer = self.odometer
        odometer.lasting = LastingStepFilter(step_units(odometer, ledger), held, odometer.level_of)

    def leave_out(self, takes_part: AnyArray) -> None:
        self._takes_part = self._takes_part & takes_part
        self.odometer.leave_out(~takes_part)
        self._publish()

    def prepare(self, steps_taken: int) -> bool:
        filtering = steps_taken >= self._plan.steps and self.odometer.purses is not None
        takes_over = filtering and (steps_taken == self._plan.steps or not self._filtering)
        if steps_taken % self._every == 0 or takes_over or self._overdue:
            self._measure(steps_taken, filtering)
        return not filtering or self.stopping.goes_on(steps_taken, self._who_is_active)

    def _who_is_active(self) -> AnyArray:
        assert self.odometer.purses is not None
        return np.asarray(self.odometer.active & (self.odometer.purses.left > 0))

    def _measure(self, steps_taken: int, filtering: bool) -> None:
        """A norm pass, and what follows from it for the steps to come."""
        self.odometer.settle()
        taking_part = self._takes_part
        if filtering:
            assert self.odometer.purses is not None
            taking_part = taking_part & (self.odometer.purses.left > 0)  # an empty purse needs no norm
        norms = self._passes.norms(steps_taken, np.flatnonzero(taking_part))
        room = self._settings.headroom if self._settings.exact else 1.0
        self.odometer.new_norms(room * norms / self._plan.levels.clip_norm[self._plan.level_of], filtering=filtering)
        if self._active and self._active[-1][0] == steps_taken:
            self._active.pop()  # a run that was saved between a norm pass and its step measures once more
        self._active.append((steps_taken, int(np.count_nonzero(self.odometer.active & taking_part))))
        self._publish()
        self._filtering, self._overdue = filtering, False

    def _publish(self) -> None:
        """Where the step can see it; in place, as a captured graph needs it."""
        odometer = self.odometer
        clip_norms = self._plan.levels.clip_norm[self._plan.level_of]
        full, last = (clip_norms * (norm / odometer.grid_size) for norm in (odometer.grid_norm, odometer.last))
        self._limits[:, :-1].copy_(torch.from_numpy(np.stack([full, odometer.allowed, last])))
        self._elapsed.zero_()

    def limits(self, units: Tensor, clip_norms: Tensor, norms: Tensor) -> Tensor:
        if not self._settings.exact:
            return clip_norms
        full, allowed, last = self._limits[:, units]
        after = torch.where(self._elapsed == allowed, last, 0.0)
        return torch.where(self._elapsed < allowed, full, after)

    def forget(self) -> None:
        pass  # limits were fixed before the step, so a step that is broken off leaves nothing behind

    def charge(self, step: int) -> None:
        self.odometer.advance()
        self._elapsed += 1

    def _charge_unknown(self, saved: int, now: int) -> None:
        known = 0 if self._overdue else min(now, self._next_pass(saved)) - saved  # limits hold until a norm pass
        self.odometer.advance(known)
        self.odometer.settle()
        if now > saved + known:
            self.odometer.charge_in_full(now - saved - known)
            self._lost += now - saved - known
            self._overdue = True
        self._publish()

    def _next_pass(self, step: int) -> int:
        regular = -(-step // self._every) * self._every
        takes_over = self._plan.filter is not None and step <= self._plan.steps
        return min(regular, self._plan.steps) if takes_over else regular

    def spending(self) -> Spending:
        return self._spending(self.odometer, self.odometer.active)

    def state(self) -> dict[str, Any]:
        counted = {
            name: torch.tensor(value) if isinstance(value, np.ndarray) else value
            for name, value in self.odometer.state().items()
        }
        return {**super().state(), **counted, "asked": self._filtering, "overdue": self._overdue}

    def _restore(self, state: dict[str, Any]) -> None:
        self.odometer.restore(
            {name: value.cpu().numpy() if isinstance(value, Tensor) else value for name, value in state.items()}
        )
        self._filtering, self._overdue = bool(state["asked"]), bool(state["overdue"])
        self._publish()


class FullBatch(Accounting):
    """Everyone is in every step: each step's own norms, charged in μ² of Gaussian DP."""

    def __init__(self, settings: Individual, passes: NormPasses) -> None:
        if passes.setup.processes.size > 1:
            raise InvalidInput("individual accounting of full-batch training runs in one process")
        super().__init__(settings, passes, every=1)
        plan, levels = self._plan, self._plan.levels
        self._deviation = plan.noise_multiplier * plan.clip_norm  # of the noise that a contribution is compared with
        purses = Filter(levels.epsilon, levels.delta, "gdp")
        held = np.maximum(purses.total - self.stopping.price(purses.currency), 0.0)
        empty = np.flatnonzero((held == 0) & (levels.rate > 0))
        if plan.filter is not None and empty.size:
            raise InvalidInput(
                f"the stopping rule's questions cost more than the purse of ε = {levels.epsilon[empty[0]]:g} holds "
                "in Gaussian DP, so that nothing is left for steps; make them cheaper, or leave stop= out"
            )
        if plan.filter is None:  # nothing to stop: the plan's steps are proved as they are
            held = np.full(len(levels), np.inf)
        held = np.where(levels.rate > 0, held, 0.0)
        each = np.append((held * self._deviation**2)[plan.level_of], 0.0)
        self._total = torch.as_tensor(each, device=passes.setup.device)
        self._spent = torch.zeros_like(self._total)
        self._pending = torch.zeros_like(self._total)

    def hold_to(self, held: IntArray, ledger: Ledger) -> None:
        most = torch.as_tensor(squares_within(held, ledger) * self._deviation**2, device=self._total.device)
        self._total[:-1] = torch.minimum(self._total[:-1], most)

    def leave_out(self, takes_part: AnyArray) -> None:
        pass  # whose clip norm is 0 is charged 0

    def prepare(self, steps_taken: int) -> bool:
        if self._plan.filter is None or steps_taken < self._plan.steps:
            return True
        return self.stopping.goes_on(steps_taken, self._who_is_active)

    def _who_is_active(self) -> AnyArray:
        return np.asarray((self._spent < self._total)[:-1].cpu().numpy())

    def limits(self, units: Tensor, clip_norms: Tensor, norms: Tensor) -> Tensor:
        left = (self._total[units] - self._spent[units]).clamp(min=0.0).sqrt()
        # A norm is let through whole if the limit leaves what clipping takes off: a margin, and the noise's grid.
        measured = norms.to(torch.float64) / (1 - MARGIN) + self._passes.setup.noise.slack
        limits = torch.minimum(torch.minimum(measured, clip_norms), left)
        limits = torch.where(torch.isfinite(norms), limits, 0.0)
        self._pending[units] = limits.square()
        return limits

    def forget(self) -> None:
        self._pending.zero_()

    def charge(self, step: int) -> None:
        self._spent += self._pending
        self._pending.zero_()
        if self._plan.filter is not None:
            self._active.append((step, (self._spent < self._total)[:-1].sum()))

    def _charge_unknown(self, saved: int, now: int) -> None:
        self._lost += now - saved
        in_full = self._passes.setup.clip_norms.square() * (now - saved)
        self._spent.copy_(torch.minimum(self._spent + in_full, self._total))  # the filter was at work in them too

    def spending(self) -> Spending:
        return self._spending(self._spent[:-1].cpu().numpy() / self._deviation**2, self._who_is_active())

    def state(self) -> dict[str, Any]:
        return {**super().state(), "spent": self._spent.cpu()}

    def _restore(self, state: dict[str, Any]) -> None:
        if state["spent"].shape != self._spent.shape:
            raise InvalidInput("what was spent before is about other people")
        self._spent.copy_(state["spent"])
        self.forget()
