"""LiRA and the loss threshold against trainings by a plan: what answers tell, by group."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from privypurse._validate import integer, one_of, real
from privypurse.accounting import Progress
from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.audit import lira, membership_bound
from privypurse.audit.by_group import GroupScores, by_group, paired_difference
from privypurse.audit.claims import audited_levels, claimed, constants_of, family_of, not_attacked, require_somebody
from privypurse.audit.families import Family
from privypurse.audit.loss_threshold import loss_threshold
from privypurse.audit.result import AuditResult, Cost, Group, Roc, confidence_of_each, over_groups
from privypurse.audit.shadow_models import ShadowTraining, loss_of
from privypurse.audit.subject import Subject
from privypurse.datasets.targets import Classes, known
from privypurse.errors import InvalidInput, PrivyPurseWarning
from privypurse.plans import Plan
from privypurse.training.devices import device_of

MODELS = 16
_LEAST = 40  # people: coins leave a model without any with a probability of 2⁻³⁹ a pair, and it ends with an error
_TRIAL = 5  # steps by which the time is estimated


@dataclass(frozen=True, eq=False)
class _Answers:
    """Who is in which model, and what each says about all records: models × records."""

    level_of: AnyArray
    person: IntArray
    """Whose record it is: all of a person's are in the same models."""
    member: AnyArray
    phi: FloatArray

    def judged(self, levels: IntArray) -> IntArray:
        """Those of the levels of which at least two people are asked about."""
        found = [level for level in levels.tolist() if np.unique(self.person[self.level_of == level]).size >= 2]
        if not found:
            raise InvalidInput("too few people are left in every budget group; use --attack canaries")
        return np.array(found)

    def with_area(self, levels: IntArray) -> IntArray:
        """Those that have two records in and two out in every model: others have no AUC."""
        inside = np.stack([self.member[:, self.level_of == level].sum(axis=1).min() for level in levels])
        outside = np.stack([(~self.member[:, self.level_of == level]).sum(axis=1).min() for level in levels])
        return levels[(inside >= 2) & (outside >= 2)]


@dataclass(frozen=True, eq=False)
class MembershipAudit:
    """``models`` trainings two by two, everybody in one of each pair by a coin, attacked through what they answer.

    ``attack`` "lira": each model is the target in turn. "loss": the loss threshold on each. AUC and ROC say how well
    that goes, and decide nothing. The verdict is a bound that holds for any number of records, from targets whose
    answers no shadow model's fit has seen (`membership_bound`): a group is flagged where it lies above the claim at
    `confidence_of_each`. On members everybody pays for each model that they are in, half of all; who could not pay
    for all of them is in fewer, and nothing is asked about their records.
    """

    subject: Subject
    attack: Literal["lira", "loss"] = "lira"
    models: int = MODELS
    groups: int = 4
    confidence: float = 0.95
    device: str = "auto"
    _families: dict[int, Family] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        one_of(self.attack, "attack", ("lira", "loss"))
        integer(self.models, "models", least=6)
        if self.models % 2:
            raise InvalidInput(f"models is {self.models}; give an even number: they are trained two by two")
        integer(self.groups, "groups")
        real(self.confidence, "confidence", above=0, below=1)
        require_somebody(self.subject.plan)
        if not isinstance(self.subject.target, Classes):
            raise InvalidInput(
                "this attack asks a model for the probability of a record's class, and the run predicts something "
                "else; use --attack canaries or small-runs"
            )
        if self.subject.level_of.size < _LEAST:
            raise InvalidInput(
                f"there are fewer than {_LEAST} people in all, so that a coin for each could leave a model without "
                "anybody; use --attack canaries"
            )
        if min(np.bincount(self.subject.level_of)[self.levels]) < 2:
            raise InvalidInput("some budget group has fewer than two made-up records; raise --others")

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

        seconds(1)  # what is loaded when it is first used counts once, not for every model
        once = seconds(1)
        a_step = max(0.0, seconds(1 + _TRIAL) - once) / _TRIAL
        total = self.models * (once + a_step * steps)
        return f"{self.models} trainings of {steps:,} steps; about {max(1, round(total)):,} seconds"

    def run(self, progress: Progress | None = None) -> AuditResult:
        begun = time.perf_counter()
        said = self._trained(progress) if self.subject.members is None else self._trained_on_members(progress)
        levels = said.judged(self.levels)
        areas = self._areas(said, said.with_area(levels))
        groups = tuple(self._group(level, said, areas.get(level), levels.size) for level in levels.tolist())
        return AuditResult(
            attack=self.attack,
            plan=constants_of(self.subject.plan),
            not_attacked=not_attacked(self.subject.plan, levels),
            data=self.subject.data,
            edition="internal" if self.subject.data == "members" else None,
            delta=max(group.delta for group in groups),
            confidence=self.confidence,
            verdict_reading="f-dp",
            groups=groups,
            cost=Cost(trainings=self.models, seconds=round(time.perf_counter() - begun, 3)),
            words=(*self.subject.words, *self._words(dict(zip(levels.tolist(), groups, strict=True)), areas, said)),
        )

    def _areas(self, said: _Answers, levels: IntArray) -> dict[int, GroupScores]:
        """AUC and ROC by level, each model the target in turn."""
        if not levels.size:
            return {}
        scores = lira.scores(said.phi, said.member, "offline") if self.attack == "lira" else said.phi
        numbers = np.full(len(self.subject.plan.levels), -1)
        numbers[levels] = np.arange(levels.size)
        found = by_group(scores, said.member, numbers[said.level_of], self._names(levels), self.confidence)
        return dict(zip(levels.tolist(), found, strict=True))

    def _names(self, levels: IntArray) -> list[str]:
        return [f"ε = {epsilon:g}" for epsilon in self.subject.plan.levels.epsilon[levels]]

    def _trained(self, progress: Progress | None) -> _Answers:
        """On made-up records, which nobody is charged for."""
        records = self.subject.level_of.size
        member, phi = lira.coins(records, self.models, np.random.default_rng()), []
        for done, mark in enumerate(member):
            with _quiet():
                model = self._training.trained(mark)
            phi.append(self._training.confidence(model))
            if progress:
                progress(done + 1, self.models)
        return _Answers(self.subject.level_of, np.arange(records), member, np.stack(phi))

    def _trained_on_members(self, progress: Progress | None) -> _Answers:
        """On the people of the run: what all models cost them is reserved before the first is trained."""
        members = self.subject.members
        assert members is not None
        plan, owner = members.plan, members.owner
        halves, phi = lira.coins(plan.people, self.models, np.random.default_rng()), []
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
        return _Answers(plan.level_of[owner][kept], owner[kept], halves[:, owner][:, kept], np.stack(phi)[:, kept])

    def _group(self, level: int, said: _Answers, area: GroupScores | None, groups: int) -> Group:
        epsilon, delta = claimed(self.subject.plan, level)
        scores, member = self._of_targets(said, level)
        family = self._family(level)
        stricter = confidence_of_each(self.confidence, groups)
        return Group(
            name=self._names(np.array([level]))[0],
            claimed_epsilon=epsilon,
            delta=delta,
            targets=len(scores),
            bounds={"f-dp": membership_bound.proved(scores, member, family, self.confidence)},
            auc=None if area is None else area.auc,
            auc_interval=None if area is None else area.interval,
            roc=None if area is None else _roc(area),
            flagged=membership_bound.proved(scores, member, family, stricter) > epsilon,
        )

    def _family(self, level: int) -> Family:
        if level not in self._families:
            self._families[level] = family_of(self.subject.plan, level)
        return self._families[level]

    def _of_targets(self, said: _Answers, level: int) -> tuple[FloatArray, AnyArray]:
        """Of each target and person of the level the score, and whether they were in."""
        scores, member = membership_bound.target_scores(said.phi, said.member, self.attack)
        some = said.level_of == level
        person = said.person[some]
        inside = membership_bound.of_people(member[:, some].astype(np.float64), person) > 0.5
        return membership_bound.of_people(scores[:, some], person), inside

    def _words(self, groups: dict[int, Group], areas: dict[int, GroupScores], said: _Answers) -> Iterator[str]:
        yield (
            "This attacker sees what a model answers and nothing else. At ε ≤ 8 an AUC near 0.5 is usual for "
            "everybody, and next to nothing is proved. The attacks canaries and small-runs look at the steps."
        )
        for level, group in groups.items():
            yield from self._words_of(level, group, areas.get(level), said, len(groups))
        yield from over_groups(self.confidence, len(groups))
        if len(areas) > 1:
            first, *_, last = areas.values()
            difference, p_value = paired_difference(first, last)
            yield f"{last.name} less {first.name}: AUC {difference:+.3f}, p = {p_value:.2g} over targets."

    def _words_of(
        self, level: int, group: Group, area: GroupScores | None, said: _Answers, groups: int
    ) -> Iterator[str]:
        """What is said of one group."""
        proves = f"it proves ε ≥ {group.bounds['f-dp']:.3g}, where at most {group.claimed_epsilon:.3g} is claimed"
        coins, stricter = self._of_targets(said, level)[0].size, confidence_of_each(self.confidence, groups)
        if group.flagged:
            yield f"{group.name}: FLAGGED. By models that were no shadow models {proves}."
        elif membership_bound.can_refute(coins, self._family(level), stricter):
            yield f"{group.name}: cleared. By models that were no shadow models {proves}; nothing contradicts that."
        else:
            yield (
                f"{group.name}: cleared, which says nothing: with so few records and models a claim of "
                f"{group.claimed_epsilon:.3g} could not be refuted even if every guess were right."
            )
        if area is None:
            yield f"{group.name}: too few records for an AUC."
            return
        low, high = area.interval
        most = most_area(self.subject.plan, level)
        yield (
            f"{group.name}: AUC {area.auc:.3f}, between {low:.3f} and {high:.3f} over targets; the claim allows "
            f"nobody more than {most:.3f} in the long run."
        )
        if self.attack == "loss":
            rng, some = np.random.default_rng(), said.level_of == level
            rates = [
                loss_threshold(loss_of(row[mark & some]), loss_of(row[~mark & some]), rng).success
                for row, mark in zip(said.phi, said.member, strict=True)
            ]
            yield f"{group.name}: the best threshold is right on {np.mean(rates):.1%} of records, a coin on 50 %."


def _roc(area: GroupScores) -> Roc:
    false, true = area.false_positive_rate.tolist(), area.true_positive_rate.tolist()
    return Roc(false_positive_rate=tuple(false), true_positive_rate=tuple(true))


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
