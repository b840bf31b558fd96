"""Canaries in one run: a training by the audited plan with canaries in it, and what their scores prove by group."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from privypurse._validate import integer, one_of, real
from privypurse.accounting import Progress
from privypurse.arrays import FloatArray, IntArray
from privypurse.audit import readings, roc
from privypurse.audit.canaries import Canaries, Loss, Scored, WithCanaries, with_canaries
from privypurse.audit.claims import audited_levels, claimed, constants_of, family_of, not_attacked, require_somebody
from privypurse.audit.families import Family
from privypurse.audit.own_directions import SHARE, Others
from privypurse.audit.own_directions import places as own_places
from privypurse.audit.own_directions import trained as trained_parameters
from privypurse.audit.result import BOUNDS, AuditResult, Cost, Group, Reading, Roc, confidence_of_each, over_groups
from privypurse.audit.subject import Subject
from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.plans import Plan
from privypurse.randomness import randomness
from privypurse.training.devices import device_of
from privypurse.training.execution import Execution
from privypurse.training.isolation.tracking.structures import untracked
from privypurse.training.ledger_account import Account
from privypurse.training.loop import train
from privypurse.training.make_private import PrivateLoader, PrivateModel, PrivateOptimizer, make_private

CANARIES, GROUPS = 2000, 4
Coordinates = Literal["appended", "own"]
COORDINATES: tuple[Coordinates, ...] = get_args(Coordinates)
_TRIAL = 5  # steps by which the time is estimated


@dataclass(frozen=True, eq=False)
class CanaryAudit:
    """One training with ``canaries`` of each of at most ``groups`` budget groups, read at ``confidence`` by group.

    ``verdict`` names the reading that flags, before anything is seen: "f-dp" or "guesses". It flags at
    `confidence_of_each`, so that ``confidence`` holds over all groups together. ``coordinates`` says where canaries
    are: "appended" to the network, or in its "own", up to a quarter of them, and appended beyond.
    """

    subject: Subject
    canaries: int = CANARIES
    groups: int = GROUPS
    confidence: float = 0.95
    verdict: Reading = "f-dp"
    coordinates: Coordinates = "appended"
    device: str = "auto"
    seed: int | None = None
    """Repeats coins and noise: for tests alone."""
    _families: dict[int, Family] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        integer(self.canaries, "canaries", least=50, hint="with fewer nothing can be proved")
        integer(self.groups, "groups")
        real(self.confidence, "confidence", above=0, below=1)
        one_of(self.verdict, "verdict", BOUNDS)
        one_of(self.coordinates, "coordinates", COORDINATES)
        if self.coordinates == "own" and (self.subject.plan.filter is not None or self.subject.members is not None):
            what = "an audit on members" if self.subject.members is not None else "a plan with extra steps"
            raise InvalidInput(
                f'coordinates is "own" for {what}: what others contribute there is more than their clipped sum by '
                'the plan, and is not subtracted yet. Leave it at "appended"'
            )
        require_somebody(self.subject.plan)

    @property
    def levels(self) -> IntArray:
        """The levels that are audited: of those with people who are drawn, the lowest ε, the highest, and between."""
        return audited_levels(self.subject.plan, self.groups)

    @property
    def cost(self) -> str:
        """What it will take, before it begins: a few steps are timed, on made-up records."""
        count = self.levels.size
        seconds = self._seconds_a_step() * self.subject.plan.all_steps + count
        groups = "one budget group" if count == 1 else f"each of {count} budget groups"
        return (
            f"one training of {self.subject.plan.all_steps:,} steps with {self.canaries:,} canaries in "
            f"{groups}, half of them in; about {max(1, round(seconds)):,} seconds"
        )

    def run(self, progress: Progress | None = None) -> AuditResult:
        """Train, score, read."""
        begun = time.perf_counter()
        on = self.trained if self.subject.members is None else self._trained_on_members
        canaries, scores = on(progress=progress)
        groups = tuple(self.group(int(level), *canaries.scores(int(level), scores)) for level in self.levels)
        seconds = round(time.perf_counter() - begun, 3)
        return AuditResult(
            attack="canaries",
            plan=constants_of(self.subject.plan),
            not_attacked=not_attacked(self.subject.plan, self.levels),
            data=self.subject.data,
            edition="internal" if self.subject.data == "members" else None,
            delta=max(group.delta for group in groups),
            confidence=self.confidence,
            verdict_reading=self.verdict,
            groups=groups,
            cost=Cost(trainings=1, seconds=seconds),
            words=(*self.subject.words, self._where(), *_words(groups, self.confidence, self.verdict)),
        )

    def trained(self, steps: int | None = None, progress: Progress | None = None) -> tuple[Canaries, FloatArray]:
        """The canaries, and the score of each after so many steps (default: all), among made-up people."""
        subject, canaries = self.subject, self._flipped()
        plan = canaries.joined(subject.plan, subject.level_of)
        given = canaries, plan, subject.inputs, subject.labels
        with _quiet():
            if self.coordinates == "own":
                return canaries, self._scored_inside(*given, steps=steps, progress=progress)
            return canaries, self._scored(*given, steps=steps, progress=progress)

    def _trained_on_members(self, progress: Progress | None = None) -> tuple[Canaries, FloatArray]:
        """The same among the people of the run, who are charged first."""
        members, canaries = self.subject.members, self._flipped()
        assert members is not None
        inside = canaries.level[canaries.is_in]
        with members.charged(strangers=inside.size) as account:
            return canaries, self._scored(
                canaries,
                members.plan.with_strangers(inside),
                members.inputs,
                members.labels,
                progress=progress,
                max_records_per_person=members.max_records_per_person,
                ledger=account,
            )

    def _flipped(self) -> Canaries:
        return Canaries.flipped(self.levels, self.canaries, randomness(self.seed))

    def _scored(
        self,
        canaries: Canaries,
        plan: Plan,
        inputs: Tensor,
        labels: Tensor,
        *,
        steps: int | None = None,
        progress: Progress | None = None,
        max_records_per_person: int | None = None,
        ledger: Account | None = None,
    ) -> FloatArray:
        """The score of each canary after a training by the plan: of these records and, behind them, canaries in."""
        device = device_of(self.device)
        model = WithCanaries(self.subject.model(), len(canaries)).to(device)
        optimizer = self.subject.optimizer(model)
        scored = Scored(plan, canaries, model)
        optimizer.register_step_pre_hook(scored.before_step)
        train(
            model,
            optimizer,
            _records(inputs.to(device), labels.to(device), canaries),
            plan,
            with_canaries(self.subject.loss_fn, plan.clip_norm),
            max_records_per_person=max_records_per_person,
            steps=steps,
            ledger=ledger,
            execution=Execution(progress=progress or False),
            seed=self.seed,
        )
        return scored.scores

    def _scored_inside(
        self,
        canaries: Canaries,
        plan: Plan,
        inputs: Tensor,
        labels: Tensor,
        *,
        steps: int | None = None,
        progress: Progress | None = None,
    ) -> FloatArray:
        """The same for canaries in the network's own numbers, less what the others contribute there."""
        device, network = device_of(self.device), self.subject.model()
        own = own_places(network, len(canaries), randomness(None if self.seed is None else self.seed + 1))
        model = WithCanaries(network, len(canaries), own).to(device)
        optimizer = self.subject.optimizer(model)
        scored = Scored(plan, canaries, model)
        optimizer.register_step_pre_hook(scored.before_step)
        records = _records(inputs.to(device), labels.to(device), canaries)
        numbered = TensorDataset(torch.arange(len(records), device=device), *records.tensors)
        last = plan.all_steps if steps is None else steps
        private = make_private(model, optimizer, numbered, plan, execution=Execution(capture=False), seed=self.seed)
        others = Others(network, self.subject.loss_fn, plan, records, len(inputs))
        losses = with_canaries(self.subject.loss_fn, plan.clip_norm)
        for taken in _steps(private, losses, scored, others, last):
            if progress is not None:
                progress(taken, last)
        return scored.scores

    def _where(self) -> str:
        """Where canaries are, and so what is tested."""
        if self.coordinates == "appended":
            return (
                "Each canary has a coordinate of its own, appended to the network: what is tested is how people are "
                "drawn, clipped, summed and covered by noise, and not the gradients of the network's own layers."
            )
        count = self.canaries * self.levels.size
        numbers = sum(each.numel() for each in trained_parameters(self.subject.model()))
        inside = min(count, numbers // SHARE)
        beyond = f"; for the other {count - inside:,} coordinates are appended" if inside < count else ""
        return (
            f"{inside:,} of {count:,} canaries are in numbers of the network's own, which has {numbers:,} of them, "
            f"at most a quarter of these{beyond}. What the others contribute there is subtracted."
        )

    def _seconds_a_step(self) -> float:
        def seconds(steps: int) -> float:
            begun = time.perf_counter()
            self.trained(steps=min(steps, self.subject.plan.all_steps))
            return time.perf_counter() - begun

        seconds(1)  # whatever is done once in a process
        once = seconds(1)  # with what is checked before the first step
        return max(0.0, seconds(1 + _TRIAL) - once) / _TRIAL

    def group(self, level: int, inside: FloatArray, outside: FloatArray) -> Group:
        """What the scores of a level's canaries prove, beside its claim."""
        plan = self.subject.plan
        epsilon, delta = claimed(plan, level)
        names: tuple[Reading, ...] = ("guesses", "f-dp", "gaussian scores")
        read = {name: self._read(name, level, inside, outside, self.confidence) for name in names}
        bounds = {name: epsilon for name, epsilon in read.items() if epsilon < math.inf}  # without noise: no estimate
        stricter = confidence_of_each(self.confidence, self.levels.size)
        false, true = roc.curve(inside, outside)
        return Group(
            name=f"ε = {plan.levels.epsilon[level]:g}",
            claimed_epsilon=epsilon,
            delta=delta,
            canaries=inside.size + outside.size,
            bounds=bounds,
            auc=roc.area(inside, outside),
            auc_interval=roc.area_interval(inside, outside, self.confidence),
            roc=Roc(false_positive_rate=tuple(false.tolist()), true_positive_rate=tuple(true.tolist())),
            flagged=self._read(self.verdict, level, inside, outside, stricter) > epsilon,
        )

    def _read(
        self, reading: Reading, level: int, inside: FloatArray, outside: FloatArray, confidence: float
    ) -> float:
        """What a reading proves, or estimates, at this confidence."""
        delta = float(self.subject.plan.levels.delta[level])
        if reading == "guesses":
            return readings.guesses(inside, outside, delta, confidence)
        if reading == "gaussian scores":
            return readings.gaussian_scores(inside, outside, delta, confidence)
        if level not in self._families:
            self._families[level] = family_of(self.subject.plan, level)
        return readings.f_dp(inside, outside, self._families[level], confidence)


def _records(inputs: Tensor, labels: Tensor, canaries: Canaries) -> TensorDataset:
    """The people, and behind them the canaries that are in, whose inputs are blank."""
    numbers = torch.as_tensor(np.flatnonzero(canaries.is_in), device=inputs.device)
    real = torch.full((len(inputs),), len(canaries), dtype=torch.int64, device=inputs.device)
    blank = inputs.new_zeros((len(numbers), *inputs.shape[1:]))
    some = labels.new_zeros((len(numbers), *labels.shape[1:]))
    return TensorDataset(torch.cat([inputs, blank]), torch.cat([real, numbers]), torch.cat([labels, some]))


def _steps(
    private: tuple[PrivateModel, PrivateOptimizer, PrivateLoader],
    losses: Loss,
    scored: Scored,
    others: Others,
    last: int,
) -> Iterator[int]:
    """The ordinary loop, in which the attacker looks at who was drawn, and works out what the others contribute."""
    model, optimizer, loader = private
    for number, x, canary, label in loader:
        scored.others = others.clipped_sum(untracked(number))
        optimizer.zero_grad()
        optimizer.backward(losses(model(x, canary), label))
        optimizer.step()
        yield optimizer.steps_taken
        if optimizer.steps_taken == last:
            break
    optimizer.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Nobody is charged for made-up records, and no ledger is missed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No ledger", PrivyPurseWarning)
        yield


def _words(groups: tuple[Group, ...], confidence: float, verdict: Reading) -> Iterator[str]:
    for group in groups:
        found = group.bounds[verdict]
        if group.flagged:
            yield (
                f"{group.name}: FLAGGED. An attacker who sees every step tells members from others better than "
                f"ε = {group.claimed_epsilon:.3g} allows: it is at least {found:.3g}, at confidence {confidence:g}."
            )
        else:
            above = "among several groups chance may show as much"
            yield (
                f"{group.name}: cleared. The attack proves ε ≥ {found:.3g} and the plan claims at most "
                f"{group.claimed_epsilon:.3g}; "
                + (above if group.above(verdict) else "nothing here contradicts it")
                + ", which does not prove it."
            )
    yield from over_groups(confidence, len(groups))
