"""Odometer: what each person's steps cost, by how large their gradients really were.

Yu et al. (2023, arXiv 2206.02617), Algorithms 1-3. A norm pass measures everyone's gradient every few steps, and
rounds its norm *up* to one of a few *grid norms*, equal shares of their clip norm. Until the next pass every step is
charged at that grid norm, whether the person was drawn or not (rule 1). The state is a count of steps for each person
and grid norm; what they cost is one matrix product.
"""

from enum import StrEnum
from typing import Any

import numpy as np

from privypurse._validate import integer, one_of
from privypurse.accounting import sampled_gaussian, trajectories
from privypurse.accounting.accountant import ROUND_UP, Progress
from privypurse.accounting.lasting_step_filter import LastingStepFilter, sooner
from privypurse.accounting.pld import PLD
from privypurse.accounting.rdp import ORDERS, epsilon_from_rdp
from privypurse.accounting.releases import SampledGaussian
from privypurse.accounting.sampled_step_filter import StepFilter
from privypurse.arrays import AnyArray, FloatArray, IntArray, frozen
from privypurse.errors import InvalidInput

FOREVER = np.iinfo(np.int64).max
_ELEMENTS = 2**24  # of counts that are turned into ε at once
_PASSES = 16  # norm passes whose steps are added to the counts in one sweep
_PEOPLE = 2048  # at a time in a sweep: so many counts stay in the processor's cache
_MOST_STEPS = int(np.iinfo(np.uint32).max)  # that a count holds
_MOST_WORST_CASES = 8  # of different (steps, δ): usually there is one
_EACH: dict[str, Any] = {"grid_norm": np.uint16, "allowed": np.int64, "last": np.uint16}
"""What is kept for each person beside the counts."""


def renyi_epsilons(counts: AnyArray, rate: float, noise_multipliers: FloatArray, delta: FloatArray) -> FloatArray:
    """The ε of trajectories with counts[i, k] steps of SampledGaussian(rate, noise_multipliers[k]).

    Steps of the first kind cost nothing. One matrix product, and the best order for each.
    """
    rates = np.full(noise_multipliers.size - 1, rate)
    table = np.vstack([np.zeros(ORDERS.size), sampled_gaussian.rdp(rates, noise_multipliers[1:], ORDERS)])
    out = np.empty(counts.shape[0])
    rows = max(1, _ELEMENTS // max(*counts.shape[1:], ORDERS.size))
    for begin in range(0, out.size, rows):
        some = slice(begin, begin + rows)
        taken = counts[some].astype(np.float64)
        spent = epsilon_from_rdp(taken @ table * ROUND_UP, ORDERS, delta[some]) * ROUND_UP + 1e-14
        out[some] = np.where(taken[:, 1:].any(axis=1), spent, 0.0)
    return out


class Reading(StrEnum):
    """What an odometer's ε is (rule 11)."""

    EXACT = "exact"
    ESTIMATE = "estimate"

    @property
    def text(self) -> str:
        return _READINGS[self]


_READINGS = {
    Reading.EXACT: (
        "output-specific ε: what this one trajectory cost each person. Every step was clipped to the grid norm "
        "that it is charged at. It describes the run that happened; it limits nothing and is no guarantee."
    ),
    Reading.ESTIMATE: (
        "estimate of the output-specific ε: norms were measured every few steps, and gradients may have grown in "
        "between. It describes the run that happened; it is neither a bound nor a guarantee."
    ),
}


class Odometer:
    """Counts the steps of every person at every grid norm.

    ``exact`` says whether training clips everybody to their grid norm. Then each charge bounds its step, and with a
    `StepFilter` nobody overdraws their purse. What it shows is sensitive (rule 6): a person may see their own.
    """

    def __init__(
        self,
        rate: FloatArray,
        noise_multiplier: FloatArray,
        level_of: AnyArray,
        *,
        grid_size: int = 100,
        exact: bool = True,
        purses: StepFilter | None = None,
    ) -> None:
        """``rate`` and ``noise_multiplier`` (noise over clip norm) are those of each level; ``level_of`` says which
        level each person has."""
        if purses is not None and not exact:
            raise InvalidInput("a filter needs every step clipped to its grid norm: an estimate bounds nothing")
        self.rate, self.noise_multiplier = np.asarray(rate, np.float64), np.asarray(noise_multiplier, np.float64)
        self.level_of, self.grid_size = level_of, integer(grid_size, "grid_size", most=65_535)
        self.reading = Reading.EXACT if exact else Reading.ESTIMATE
        self.purses = purses
        self.lasting: LastingStepFilter | None = None
        """What a ledger has reserved, beside the purses of the run itself."""
        people = level_of.size
        self._rows = np.arange(people, dtype=np.int64) * (grid_size + 1)
        self._counts = np.zeros(people * (grid_size + 1), dtype=np.uint32)
        self._unwritten: list[tuple[AnyArray, int]] = []
        # Before the first norm pass everyone is charged in full (Algorithm 1: Z = C).
        self.grid_norm = np.full(people, grid_size, dtype=np.uint16)
        self.allowed = np.full(people, FOREVER, dtype=np.int64)
        self.last = np.zeros(people, dtype=np.uint16)
        self.elapsed, self._filtering, self._steps = 0, False, 0

    @property
    def people(self) -> int:
        return int(self.level_of.size)

    def new_norms(self, shares: FloatArray, *, filtering: bool = False) -> None:
        """What a norm pass found, as shares of each person's clip norm; what is no norm (negative, ∞) counts as 1.

        With ``filtering`` each person may take ``allowed`` steps at their new grid norm and one at ``last``, the
        largest that what is then left still pays for, and none after that until the next pass. A filter that is once
        at work stays at work.
        """
        if filtering and self.purses is None:
            raise InvalidInput("there is no filter to ask")
        if self._filtering and not filtering:
            raise InvalidInput("a filter is at work: norms that do not ask it would let everyone overdraw")
        if np.shape(shares) != (self.people,):
            raise InvalidInput(f"one share for each of {self.people:,} people is needed, not {np.shape(shares)}")
        self.settle()
        with np.errstate(invalid="ignore"):
            norms = np.asarray(shares, dtype=np.float64)
            whole = np.where(norms >= 0, np.minimum(np.ceil(norms * self.grid_size), self.grid_size), self.grid_size)
        self.grid_norm, self._filtering = whole.astype(np.uint16), filtering
        if filtering and self.purses is not None:
            found = self.purses.affordable(self.grid_norm)
            if self.lasting is not None:
                found = sooner(found, self.lasting.affordable(self.counts, self.grid_norm))
            self.allowed, self.last = found

    def leave_out(self, who: AnyArray) -> None:
        """These people (a mask) contribute nothing from now on, and pay nothing; norms of theirs have to be 0."""
        self.settle()
        self.grid_norm, self.last = np.where(who, 0, self.grid_norm), np.where(who, 0, self.last)

    def advance(self, steps: int = 1) -> None:
        """So many steps more are taken. Everyone is charged for them, drawn or not."""
        self._count(steps)
        self.elapsed += steps

    def _count(self, steps: int) -> None:
        if steps < 0 or self._steps + steps > _MOST_STEPS:
            raise InvalidInput(f"{steps:,} steps after {self._steps:,}: counts hold 0 to {_MOST_STEPS:,} in all")
        self._steps += steps

    def settle(self) -> None:
        """Write what was taken since the last norm pass into the counts and out of the purses."""
        if not self.elapsed:
            return
        if self.purses is None or not self._filtering:
            self._unwritten.append((self.grid_norm, self.elapsed))
            if len(self._unwritten) >= _PASSES:
                self._write()
            if self.purses is not None:
                self.purses.charge(self.grid_norm, self.elapsed)
        else:
            self._settle_limited(self.purses)
        self.elapsed = 0

    def _write(self) -> None:
        """Several passes at once, few people at a time."""
        for begin in range(0, self.people if self._unwritten else 0, _PEOPLE):
            near = self._counts[begin * (self.grid_size + 1) : (begin + _PEOPLE) * (self.grid_size + 1)]
            rows = np.arange(0, near.size, self.grid_size + 1)
            for grid_norm, steps in self._unwritten:
                near[rows + grid_norm[begin : begin + _PEOPLE]] += np.uint32(steps)
        self._unwritten = []

    def _settle_limited(self, purses: StepFilter) -> None:
        full = np.clip(self.allowed, 0, self.elapsed)
        over = np.flatnonzero(self.allowed < self.elapsed)  # took their last step, and then none
        last = self.last[over]
        self._counts[self._rows + self.grid_norm] += full.astype(np.uint32)
        self._counts[self._rows[over] + last] += 1
        self._counts[self._rows[over]] += (self.elapsed - full[over] - 1).astype(np.uint32)
        purses.charge(self.grid_norm, full)
        purses.charge(last, 1, over)
        # What is still allowed until the next pass.
        self.allowed = np.maximum(self.allowed - self.elapsed, -1)
        self.last[over] = 0

    def shares(self) -> FloatArray:
        """The share of their clip norm that each person may contribute to the next step. Sensitive."""
        if self.reading is Reading.ESTIMATE:
            return np.ones(self.people)
        at_last = np.where(self.elapsed == self.allowed, self.last, 0)
        return np.asarray(np.where(self.elapsed < self.allowed, self.grid_norm, at_last) / self.grid_size)

    @property
    def active(self) -> AnyArray:
        """Who can still contribute something to a step. Sensitive."""
        left = (self.elapsed < self.allowed) | ((self.elapsed == self.allowed) & (self.last > 0))
        return np.asarray(left & (self.rate[self.level_of] > 0))

    @property
    def counts(self) -> AnyArray:
        """Steps of each person (row) at each grid norm, the first being "contributed nothing"."""
        self.settle()
        self._write()
        return frozen(self._counts.reshape(self.people, self.grid_size + 1))

    def charge_in_full(self, steps: int) -> None:
        """Steps of which only the number is known: everyone is charged as if their gradients had been the largest."""
        self.settle()
        self._count(steps)
        self._counts[self._rows + self.grid_size] += np.uint32(steps)
        if self.purses is not None:
            self.purses.charge(np.full(self.people, self.grid_size, dtype=np.uint16), steps)
        if self._filtering:
            self.allowed[:], self.last[:] = -1, 0  # until the next pass says what is left

    def noise_multipliers(self, level: int) -> FloatArray:
        """Noise over contribution at each grid norm, for people of this level; infinite at grid norm 0."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.noise_multiplier[level] * self.grid_size / np.arange(self.grid_size + 1.0))

    def epsilon(
        self,
        delta: FloatArray | float,
        accountant: str = "rdp",
        who: IntArray | None = None,
        progress: Progress | None = None,
    ) -> FloatArray:
        """The ε of these people (default: all) at their δ, one for all or one each; ``reading.text`` says what it is.

        "rdp" takes the best of all orders, "pld" composes loss distributions, which is tighter: both may, since
        the trajectory is taken as fixed (Yu et al. 2023, Theorem 3.1).
        """
        one_of(accountant, "accountant", ("rdp", "pld"))
        people = np.arange(self.people) if who is None else np.asarray(who, dtype=np.int64)
        each = np.broadcast_to(np.asarray(delta, dtype=np.float64), people.shape)
        out = np.empty(people.size)
        of_level = self.level_of[people]
        present = np.unique(of_level)
        for done, level in enumerate(present.tolist()):
            some = np.flatnonzero(of_level == level)
            counts = self.counts[people[some]]
            used = np.asarray(counts.any(axis=0))  # what nobody here was in needs no table
            used[0] = True
            counts, noise = counts[:, used], self.noise_multipliers(level)[used]
            rate = float(self.rate[level])
            if rate == 0:
                out[some] = 0.0
            elif accountant == "pld":
                out[some] = trajectories.epsilons(counts, rate, noise, each[some])
                self._cap(out, some, level, counts, each)
            else:
                out[some] = renyi_epsilons(counts, rate, noise, each[some])
            if progress:
                progress(done + 1, present.size)
        return out

    def _cap(self, out: FloatArray, some: IntArray, level: int, counts: AnyArray, delta: FloatArray) -> None:
        """No trajectory costs more than all its steps in full, which a finer grid can say a little more exactly."""
        steps, first = np.unique(np.stack([counts.sum(axis=1), delta[some]]), axis=1, return_inverse=True)
        if steps.shape[1] > _MOST_WORST_CASES:
            return
        rate, noise = float(self.rate[level]), float(self.noise_multiplier[level])
        releases = [SampledGaussian(rate, noise, int(count)) for count in steps[0]]
        worst = PLD().epsilons(releases, steps[1])
        out[some] = np.minimum(out[some], worst[first.ravel()])

    def state(self) -> dict[str, Any]:
        """All that is needed to go on later, settled."""
        arrays = {"counts": self.counts, **{name: getattr(self, name) for name in _EACH}}
        if self.purses is not None:
            arrays["spent"] = self.purses.spent
        return {"filtering": self._filtering, **{name: frozen(array.copy()) for name, array in arrays.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        if np.shape(state["counts"]) != (self.people, self.grid_size + 1):
            raise InvalidInput("what was counted before is about other people, or other grid norms")
        each = (*_EACH, *(() if self.purses is None else ("spent",)))
        if any(np.shape(state.get(name, 0)) != (self.people,) for name in each):
            raise InvalidInput(f"what was counted before is not whole: {', '.join(each)} are needed for everyone")
        self._counts, self._unwritten = np.array(state["counts"], dtype=np.uint32).ravel(), []
        for name, kind in _EACH.items():
            setattr(self, name, np.array(state[name], dtype=kind))
        self.elapsed, self._filtering = 0, bool(state["filtering"])
        self._steps = int(self._counts[: self.grid_size + 1].sum(dtype=np.int64))  # everyone's counts add up to it
        if self.purses is not None:
            self.purses.spent = np.array(state["spent"], dtype=np.float64)
