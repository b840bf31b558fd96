"""Following everyone's own spending during training, and limiting what they contribute by what they have left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from privypurse.accounting.filters import Filter
from privypurse.accounting.level_filter import LevelFilter
from privypurse.accounting.odometer import Odometer
from privypurse.arrays import AnyArray, FloatArray
from privypurse.errors import InvalidInput
from privypurse.plans.plan import Plan, in_every_step
from privypurse.training.fingerprints import data_of
from privypurse.training.gradients.clipped import MARGIN
from privypurse.training.individual.norm_passes import Looks, Right, most_likely
from privypurse.training.individual.spending import Spending
from privypurse.training.individual.stopping import Watch
from privypurse.training.mechanism import PrivateRun


@dataclass(frozen=True)
class Individual:
    """How each person's own spending is followed.

    Where people are drawn, everybody's gradient norm is looked at before the first step, ``every`` so many steps
    (default: a twentieth of the plan's) and when the filter takes over. It is rounded up to one of ``levels`` shares
    of their clip norm, and every step is charged at that level, whoever is drawn. With ``clip`` everyone is also
    clipped to their level, so that a charge bounds its step (Yu et al. 2023, Algorithm 3); without, training is what
    it would be anyway, and the outcome is an estimate. ``headroom`` is how many times the norm that was seen the
    level is: gradients may grow until the next look, and where that cuts them off, training suffers (1: the paper's).

    Where everyone is in every step, each step's own norms are charged as they are: nothing is rounded, nothing is
    looked at again (Feldman & Zrnic 2021, Algorithm 3).

    ``right(output, y)`` says how right the model is about each record, from 0 to 1, for a plan that stops at a
    plateau (`StopAtPlateau`); default: whether the largest output is that of the label.
    """

    every: int | None = None
    levels: int = 100
    clip: bool = True
    headroom: float = 1.5
    right: Right = most_likely

    def __post_init__(self) -> None:
        for name in ("every", "levels"):
            value = getattr(self, name)
            if value is None and name == "every":
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise InvalidInput(f"{name} is {value!r}; it must be a whole number, at least 1")
            object.__setattr__(self, name, int(value))
        if self.levels > 65_535:
            raise InvalidInput(f"levels is {self.levels:,}; at most 65,535 are kept apart")
        if not isinstance(self.clip, bool):
            raise InvalidInput(f"clip is {self.clip!r}; it must be True or False")
        room = self.headroom
        if isinstance(room, bool) or not isinstance(room, int | float) or not (math.isfinite(room) and room >= 1):
            raise InvalidInput(f"headroom is {room!r}; it must be a number, at least 1")
        object.__setattr__(self, "headroom", float(room))  # plain numbers, as every reader of checkpoints knows them
        if not callable(self.right):
            raise InvalidInput(f"right is {self.right!r}; it must be a function of output and label")


class Following(Protocol):
    """What a run asks at each step."""

    def prepare(self, steps_taken: int) -> bool:
        """Before a step: look if it is time. False: no further step."""
        ...

    def limits(self, units: Tensor, clip_norms: Tensor, norms: Tensor) -> Tensor:
        """How much each of these units may contribute now; ``norms`` are what their gradients measure."""
        ...

    def forget(self) -> None:
        """What was limited since the last step belongs to no step."""
        ...

    def charge(self) -> None:
        """A step is about to be released."""
        ...

    def finish(self) -> None:
        """The run is over."""
        ...

    def resumed(self, saved: int, now: int) -> None:
        """Go on at step ``now`` from what was known at step ``saved``: charge in full what is not known."""
        ...

    @property
    def answers(self) -> int:
        """How many questions of the stopping rule were answered."""
        ...

    def spending(self) -> Spending: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


def follow(run: PrivateRun, settings: Individual | None, looks: Looks) -> None:
    """Let the run follow everyone's spending, if that is asked for or the plan needs it."""
    if settings is None and run.plan.filter is None:
        return
    if not isinstance(settings, Individual | None):
        raise InvalidInput(f"individual is {settings!r}; give pp.Individual(…)")
    run.follow(_following(run.plan, settings or Individual(), looks))


def _following(plan: Plan, settings: Individual, looks: Looks) -> Following:
    """The way that fits the plan."""
    if plan.filter is not None and not settings.clip:
        raise InvalidInput("extra steps need a filter, and a filter needs clip=True: an estimate bounds nothing")
    if in_every_step(plan.levels.rate):
        if not settings.clip:
            raise InvalidInput("where everyone is in every step the accounting is exact as it is; leave clip=True")
        return EveryStep(plan, settings, looks)
    return ByLevels(plan, settings, looks)


class ByLevels:
    """Poisson sampling: levels that are known before a step, from looks every few steps."""

    def __init__(self, plan: Plan, settings: Individual, looks: Looks) -> None:
        self._plan, self._settings, self._looks = plan, settings, looks
        self._every = settings.every or max(1, plan.steps // 20)
        noise = plan.noise_multiplier * plan.clip_norm / plan.levels.clip_norm
        purses = None
        if plan.filter is not None:
            levels = plan.levels
            purses = LevelFilter(
                levels.rate, noise, levels.epsilon, plan.filter_delta, plan.level_of, settings.levels
            )
        self._watch = Watch(plan, looks, settings.right)
        if purses is not None:
            purses.set_aside(self._watch.price(purses.currency))
        self.odometer = Odometer(
            plan.levels.rate, noise, plan.level_of, levels=settings.levels, exact=settings.clip, purses=purses
        )
        self._active: list[tuple[int, int]] = []
        device, people = looks.run.device, plan.people
        # On the device, one place more for nobody: clip norm at the level, steps at it, clip norm of the step after.
        self._full = torch.zeros(people + 1, dtype=torch.float64, device=device)
        self._allowed = torch.zeros(people + 1, dtype=torch.int64, device=device)
        self._last = torch.zeros(people + 1, dtype=torch.float64, device=device)
        self._elapsed = torch.zeros((), dtype=torch.int64, device=device)
        self._fingerprint = data_of(plan, looks.dataset)
        self._filtering = False  # whether the last look asked the filter
        self._overdue, self._lost = False, 0  # whether, and how many, steps were taken of which nothing is known
        self._publish()

    @property
    def _taking_part(self) -> AnyArray:
        return np.asarray(self._plan.levels.rate[self._plan.level_of] > 0)

    def prepare(self, steps_taken: int) -> bool:
        filtering = steps_taken >= self._plan.steps and self.odometer.purses is not None
        takes_over = filtering and (steps_taken == self._plan.steps or not self._filtering)
        if steps_taken % self._every == 0 or takes_over or self._overdue:
            self._look(steps_taken, filtering)
        if not filtering:
            return True
        return self._watch.goes_on(steps_taken, self._who_is_active)

    def _who_is_active(self) -> AnyArray:
        assert self.odometer.purses is not None
        return np.asarray(self.odometer.active & (self.odometer.purses.left > 0))

    def _look(self, steps_taken: int, filtering: bool) -> None:
        self.odometer.settle()
        taking_part = self._taking_part
        if filtering:
            assert self.odometer.purses is not None
            taking_part &= self.odometer.purses.left > 0  # an empty purse needs no look
        norms, _ = self._looks.norms(np.flatnonzero(taking_part))
        room = self._settings.headroom if self._settings.clip else 1.0
        self.odometer.look(room * norms / self._plan.levels.clip_norm[self._plan.level_of], filtering=filtering)
        if self._active and self._active[-1][0] == steps_taken:
            self._active.pop()  # a run that was saved between a look and its step looks once more
        self._active.append((steps_taken, int(np.count_nonzero(self.odometer.active & taking_part))))
        self._publish()
        self._filtering, self._overdue = filtering, False

    def _publish(self) -> None:
        """Where the step can see it; in place, as a captured graph needs it."""
        odometer = self.odometer
        clip_norms = self._plan.levels.clip_norm[self._plan.level_of]
        for there, here in (
            (self._full, clip_norms * (odometer.level / odometer.levels)),
            (self._allowed, odometer.allowed),
            (self._last, clip_norms * (odometer.last / odometer.levels)),
        ):
            there[:-1].copy_(torch.from_numpy(np.ascontiguousarray(here)))
        self._elapsed.zero_()

    def limits(self, units: Tensor, clip_norms: Tensor, norms: Tensor) -> Tensor:
        if not self._settings.clip:
            return clip_norms
        allowed = self._allowed[units]
        after = torch.where(self._elapsed == allowed, self._last[units], 0.0)
        return torch.where(self._elapsed < allowed, self._full[units], after)

    def forget(self) -> None:
        pass  # levels were fixed before the step, so a step that is broken off leaves nothing behind

    def charge(self) -> None:
        self.odometer.advance()
        self._elapsed += 1

    def finish(self) -> None:
        self._watch.finish()

    def resumed(self, saved: int, now: int) -> None:
        self._watch.resumed(saved, now)
        if now > saved:
            known = 0 if self._overdue else min(now, self._next_look(saved)) - saved  # levels hold until a look
            self.odometer.advance(known)
            self.odometer.settle()
            if now > saved + known:
                self.odometer.charge_in_full(now - saved - known)
                self._lost += now - saved - known
                self._overdue = True
            self._publish()

    def _next_look(self, step: int) -> int:
        regular = -(-step // self._every) * self._every
        takes_over = self._plan.filter is not None and step <= self._plan.steps
        return min(regular, self._plan.steps) if takes_over else regular

    @property
    def answers(self) -> int:
        return len(self._watch.told)

    def spending(self) -> Spending:
        active, told = tuple(self._active), tuple(self._watch.told)
        return Spending(self._plan, self.odometer, active, told, self.odometer.active, self._lost)

    def state(self) -> dict[str, Any]:
        return {
            **_tensors(self.odometer.state()),
            "settings": self._identity,
            "active": self._active,
            "asked": self._filtering,
            "overdue": self._overdue,
            "lost": self._lost,
            "watch": self._watch.state(),
        }

    @property
    def _identity(self) -> dict[str, Any]:
        return _identity(self._fingerprint, self._settings, self._every)

    def restore(self, state: dict[str, Any]) -> None:
        _require_same(state["settings"], self._identity)
        self.odometer.restore(_arrays(state))
        self._active = [(int(step), int(count)) for step, count in state["active"]]
        self._filtering, self._overdue = bool(state["asked"]), bool(state["overdue"])
        self._lost = int(state["lost"])
        self._watch.restore(state["watch"])
        self._publish()


class EveryStep:
    """Full-batch training: each step's own norms, charged in μ² of Gaussian DP."""

    def __init__(self, plan: Plan, settings: Individual, looks: Looks) -> None:
        if looks.run.processes.size > 1:
            raise InvalidInput("individual accounting of full-batch training runs in one process")
        self._plan, self._settings, self._looks = plan, settings, looks
        self._fingerprint = data_of(plan, looks.dataset)
        self._watch = Watch(plan, looks, settings.right)
        self._unit = plan.noise_multiplier * plan.clip_norm  # the noise that a contribution is compared with
        levels = plan.levels
        purses = Filter(levels.epsilon, levels.delta, "gdp")
        held = np.maximum(purses.total - self._watch.price(purses.currency), 0.0)
        empty = np.flatnonzero((held == 0) & (levels.rate > 0))
        if plan.filter is not None and empty.size:
            raise InvalidInput(
                f"the stopping rule's questions cost more than the purse of ε = {levels.epsilon[empty[0]]:g} holds "
                "in Gaussian DP, so that nothing is left for steps; make them cheaper, or leave stop= out"
            )
        if plan.filter is None:  # nothing to stop: the plan's steps are proved as they are
            held = np.full(len(levels), np.inf)
        held = np.where(levels.rate > 0, held, 0.0)
        device = looks.run.device
        each = np.append((held * self._unit**2)[plan.level_of], 0.0)
        self._total = torch.as_tensor(each, device=device)
        self._lost = 0
        self._spent = torch.zeros_like(self._total)
        self._pending = torch.zeros_like(self._total)
        self._active: list[tuple[int, Tensor | int]] = []

    def prepare(self, steps_taken: int) -> bool:
        if self._plan.filter is None or steps_taken < self._plan.steps:
            return True
        return self._watch.goes_on(steps_taken, self._who_is_active)

    def _who_is_active(self) -> Any:
        return (self._spent < self._total)[:-1].cpu().numpy()

    def limits(self, units: Tensor, clip_norms: Tensor, norms: Tensor) -> Tensor:
        left = (self._total[units] - self._spent[units]).clamp(min=0.0).sqrt()
        # A norm is let through whole if the limit leaves what clipping takes off: a margin, and the noise's grid.
        measured = norms.to(torch.float64) / (1 - MARGIN) + self._looks.run.noise.slack
        limits = torch.minimum(torch.minimum(measured, clip_norms), left)
        limits = torch.where(torch.isfinite(norms), limits, 0.0)
        self._pending[units] = limits.square()
        return limits

    def forget(self) -> None:
        self._pending.zero_()

    def charge(self) -> None:
        self._spent += self._pending
        self._pending.zero_()
        if self._plan.filter is not None:
            self._active.append((self._looks.run.steps_taken, (self._spent < self._total)[:-1].sum()))

    def finish(self) -> None:
        self._watch.finish()

    def resumed(self, saved: int, now: int) -> None:
        self._watch.resumed(saved, now)
        self._lost += now - saved
        in_full = self._looks.run.clip_norms.square() * (now - saved)
        self._spent.copy_(torch.minimum(self._spent + in_full, self._total))  # the filter was at work in them too

    @property
    def answers(self) -> int:
        return len(self._watch.told)

    def spending(self) -> Spending:
        squares = self._spent[:-1].cpu().numpy() / self._unit**2
        told = tuple(self._watch.told)
        return Spending(self._plan, squares, self._active_at(), told, self._who_is_active(), self._lost)

    def _active_at(self) -> tuple[tuple[int, int], ...]:
        return tuple((step, int(count)) for step, count in self._active)

    def state(self) -> dict[str, Any]:
        return {
            "spent": self._spent.cpu(),
            "lost": self._lost,
            "active": list(self._active_at()),
            "settings": _identity(self._fingerprint, self._settings, 1),
            "watch": self._watch.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        _require_same(state["settings"], _identity(self._fingerprint, self._settings, 1))
        if state["spent"].shape != self._spent.shape:
            raise InvalidInput("what was spent before is about other people")
        self._spent.copy_(state["spent"])
        self._lost = int(state["lost"])
        self._active = [(int(step), int(count)) for step, count in state["active"]]
        self._watch.restore(state["watch"])
        self.forget()


def _identity(data: str, settings: Individual, every: int) -> dict[str, Any]:
    return {
        "data": data,
        "every": every,
        "levels": settings.levels,
        "clip": settings.clip,
        "headroom": settings.headroom,
    }


def _require_same(before: dict[str, Any], now: dict[str, Any]) -> None:
    if before["data"] != now["data"]:
        raise InvalidInput(
            "the checkpoint was made on another data set; purses are people's, so go on with the data that they "
            "began with, in the same order"
        )
    other = [f"{name} = {before[name]}" for name in now if before[name] != now[name]]
    if other:
        raise InvalidInput(f"the checkpoint was made with {', '.join(other)}; go on with the same")


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    """NumPy's unsigned integers as tensors that every reader of checkpoints knows."""
    wide = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64}
    return {
        name: torch.from_numpy(value.astype(wide.get(value.dtype, value.dtype)))
        if isinstance(value, np.ndarray)
        else value
        for name, value in state.items()
    }


def _arrays(state: dict[str, Any]) -> dict[str, FloatArray]:
    return {name: value.cpu().numpy() if isinstance(value, Tensor) else value for name, value in state.items()}
