"""LiRA and the loss threshold against trainings by a plan: what answers tell, by group."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from privypurse._validate import integer, one_of, real
from privypurse.accounting import Progress
from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.audit import lira
from privypurse.audit.by_group import GroupScores, by_group, paired_difference
from privypurse.audit.claims import audited_levels, claimed, constants_of, family_of, require_somebody
from privypurse.audit.loss_threshold import loss_threshold
from privypurse.audit.result import AuditResult, Cost, Group, Roc, confidence_of_each, over_groups
from privypurse.audit.shadow_models import ShadowTraining, loss_of
from privypurse.audit.subject import Subject
from privypurse.datasets.targets import Classes, known
from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.plans import Plan
from privypurse.training.devices import device_of

MODELS = 16
_TRIAL = 5  # steps by which the time is estimated


@dataclass(frozen=True, eq=False)
class _Answers:
    """Who is in which model, and what each says about all records: models × records."""

    level_of: AnyArray
    member: AnyArray
    phi: FloatArray

    def judged(self, levels: IntArray) -> IntArray:
        """Those of the levels that have two records in and two out in every model."""
        inside = np.stack([self.member[:, self.level_of == level].sum(axis=1).min() for level in levels])
        outside = np.stack([(~self.member[:, self.level_of == level]).sum(axis=1).min() for level in levels])
        found = levels[(inside >= 2) & (outside >= 2)]
        if not found.size:
            raise InvalidInput("too few people are left in every budget group; use --attack canaries")
        return found


@dataclass(frozen=True, eq=False)
class MembershipAudit:
    """``models`` trainings, each on its half of the records, attacked through what they answer.

    ``attack`` "lira": each model is the target in turn. "loss": the loss threshold on each. Neither proves a bound; a
    group is flagged where even the lower end of its AUC's interval is above what the claimed curve allows anybody, at
    `confidence_of_each`. On members everybody is in half of the models, and pays for each; who could not pay for all
    of them is in fewer, and nothing is asked about their records.
    """

    subject: Subject
    attack: Literal["lira", "loss"] = "lira"
    models: int = MODELS
    groups: int = 4
    confidence: float = 0.95
    device: str = "auto"

    def __post_init__(self) -> None:
        one_of(self.attack, "attack", ("lira", "loss"))
        integer(self.models, "models", least=6)
        integer(self.groups, "groups")
        real(self.confidence, "confidence", above=0, below=1)
        require_somebody(self.subject.plan)
        if not isinstance(self.subject.target, Classes):
            raise InvalidInput(
                "this attack asks a model for the probability of a record's class, and the run predicts something "
                "else; use --attack canaries or small-runs"
            )
        if min(np.bincount(self.subject.level_of)[self.levels]) < 4:
            raise InvalidInput(
                "some budget group has fewer than four made-up records, too few to halve; raise --others"
            )

    @property
    def levels(self) -> IntArray:
        present = np.unique(self.subject.level_of)
        found = audited_levels(self.subject.plan, self.groups)
        return found[np.isin(found, present)]

    @cached_property
    def _training(self) -> ShadowTraining:
        subject = self.subject
        return ShadowTraining(
            plan=subject.plan,
            level_of=subject.level_of,
            inputs=subject.inputs,
            labels=subject.labels,
            model=subject.model,
            optimizer=subject.optimizer,
            loss_fn=subject.loss_fn,
            device=str(device_of(self.device)),
        )

    @property
    def cost(self) -> str:
        """What it will take, before it begins: a few steps are timed, on made-up records."""
        member, steps = np.arange(self.subject.level_of.size) % 2 == 0, self.subject.plan.steps

        def seconds(some: int) -> float:
            begun = time.perf_counter()
            with _quiet():
                self._training.trained(member, steps=min(some, steps))
            return time.perf_counter() - begun

        once = seconds(1)
        a_step = max(0.0, seconds(1 + _TRIAL) - once) / _TRIAL
        total = self.models * (once + a_step * steps)
        return f"{self.models} trainings of {steps:,} steps; about {max(1, round(total)):,} seconds"

    def run(self, progress: Progress | None = None) -> AuditResult:
        begun = time.perf_counter()
        said = self._trained(progress) if self.subject.members is None else self._trained_on_members(progress)
        levels = said.judged(self.levels)
        scores = lira.scores(said.phi, said.member, "offline") if self.attack == "lira" else said.phi
        names = [f"ε = {epsilon:g}" for epsilon in self.subject.plan.levels.epsilon[levels]]
        numbers = np.full(len(self.subject.plan.levels), -1)
        numbers[levels] = np.arange(levels.size)
        stricter = confidence_of_each(self.confidence, levels.size)
        found, wider = (
            by_group(scores, said.member, numbers[said.level_of], names, confidence)
            for confidence in (self.confidence, stricter)
        )
        groups = tuple(
            self._group(int(level), each, wide.interval[0])
            for level, each, wide in zip(levels, found, wider, strict=True)
        )
        return AuditResult(
            attack=self.attack,
            plan=constants_of(self.subject.plan),
            data=self.subject.data,
            edition="internal" if self.subject.data == "members" else None,
            delta=max(group.delta for group in groups),
            confidence=self.confidence,
            verdict_reading="f-dp",
            groups=groups,
            cost=Cost(trainings=self.models, seconds=round(time.perf_counter() - begun, 3)),
            words=(*self.subject.words, *self._words(levels, found, groups, said)),
        )

    def _trained(self, progress: Progress | None) -> _Answers:
        """On made-up records, which nobody is charged for."""
        rng = np.random.default_rng()
        member, phi = lira.halves(self.subject.level_of, self.models, rng), []
        for done, mark in enumerate(member):
            with _quiet():
                model = self._training.trained(mark)
            phi.append(self._training.confidence(model))
            if progress:
                progress(done + 1, self.models)
        return _Answers(self.subject.level_of, member, np.stack(phi))

    def _trained_on_members(self, progress: Progress | None) -> _Answers:
        """On the people of the run: what all models cost them is reserved before the first is trained."""
        members = self.subject.members
        assert members is not None
        plan, owner = members.plan, members.owner
        halves, phi = lira.halves(plan.level_of, self.models, np.random.default_rng()), []
        asked = replace(self._training, level_of=plan.level_of[owner], inputs=members.inputs, labels=members.labels)
        in_full = np.ones(plan.people, dtype=bool)
        with ExitStack() as all_of_them:
            parts = [members.only(mark) for mark in halves]
            accounts = [all_of_them.enter_context(part.charged(strangers=0)) for part in parts]
            for done, (mark, part, account) in enumerate(zip(halves, parts, accounts, strict=True)):
                model = part.trained(
                    self.subject.model, self.subject.optimizer, self.subject.loss_fn, asked.device, account
                )
                phi.append(asked.confidence(model))
                if account is not None:
                    in_full &= account.takes_part | ~mark
                if progress:
                    progress(done + 1, self.models)
        kept = in_full[owner] & known(members.labels.numpy())
        return _Answers(plan.level_of[owner][kept], halves[:, owner][:, kept], np.stack(phi)[:, kept])

    def _group(self, level: int, found: GroupScores, least: float) -> Group:
        epsilon, delta = claimed(self.subject.plan, level)
        allowed = most_area(self.subject.plan, level)
        return Group(
            name=found.name,
            claimed_epsilon=epsilon,
            delta=delta,
            targets=found.areas.size,
            auc=found.auc,
            auc_interval=found.interval,
            roc=Roc(
                false_positive_rate=tuple(found.false_positive_rate.tolist()),
                true_positive_rate=tuple(found.true_positive_rate.tolist()),
            ),
            flagged=least > allowed,
        )

    def _words(
        self, levels: IntArray, found: tuple[GroupScores, ...], groups: tuple[Group, ...], said: _Answers
    ) -> Iterator[str]:
        yield (
            "This attacker sees what a model answers and nothing else. At ε ≤ 8 an AUC near 0.5 is usual for "
            "everybody, and it proves no bound. The attacks canaries and small-runs look at the steps."
        )
        rng = np.random.default_rng()
        for level, each, group in zip(levels.tolist(), found, groups, strict=True):
            most = most_area(self.subject.plan, level)
            verdict = "FLAGGED: more than anybody may" if group.flagged else f"the claim allows up to {most:.3f}"
            low, high = each.interval
            yield f"{each.name}: AUC {each.auc:.3f}, between {low:.3f} and {high:.3f}; {verdict}."
            if self.attack == "loss":
                some = said.level_of == level
                rates = [
                    loss_threshold(loss_of(row[mark & some]), loss_of(row[~mark & some]), rng).success
                    for row, mark in zip(said.phi, said.member, strict=True)
                ]
                yield f"{each.name}: the best threshold is right on {np.mean(rates):.1%} of records, a coin on 50 %."
        yield from over_groups(self.confidence, len(groups), "interval")
        if len(found) > 1:
            difference, p_value = paired_difference(found[0], found[-1])
            yield f"{found[-1].name} less {found[0].name}: AUC {difference:+.3f}, p = {p_value:.2g} over targets."


def most_area(plan: Plan, level: int) -> float:
    """The largest AUC that the claimed curve allows any attack: the area under it, which rises, summed from above."""
    curve = family_of(plan, level, events=True).curve(1.0)
    return float(np.mean([curve.most(each) for each in np.linspace(0.0, 1.0, 1001)[1:]]))


@contextmanager
def _quiet() -> Iterator[None]:
    """Nobody is charged for made-up records, and no ledger is missed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No ledger", PrivyPurseWarning)
        yield
