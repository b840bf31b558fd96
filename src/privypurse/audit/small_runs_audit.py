"""The audit of a plan by many small runs: one person of each budget group, with and without, thousands of times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from privypurse._validate import integer, real
from privypurse.accounting import Progress, Release
from privypurse.accounting.attacker_words import attacker_words
from privypurse.audit import roc
from privypurse.audit.claims import audited_levels, claimed, constants_of, family_of, not_attacked, require_somebody
from privypurse.audit.collusion import collusion
from privypurse.audit.result import AuditResult, Cost, Group, Roc, confidence_of_each, over_groups
from privypurse.audit.small_runs import SmallWorld, traces
from privypurse.audit.two_worlds import Bound, bound, by_curves, scores_for
from privypurse.errors import InvalidInput
from privypurse.plans import Plan, Promise

RUNS = 5000
_FEWEST = 100
_MOST_NUMBERS = 50_000_000  # of a world's traces: 400 MB
_TRIAL = 20  # steps by which the time is estimated


@dataclass(frozen=True, eq=False)
class SmallRunsAudit:
    """``runs`` of each world for each of at most ``groups`` budget groups, read at ``confidence`` by group.

    The runs go side by side (`small_runs`). The verdict is the f-DP reading of the score and threshold that the first
    half of the runs chose, at `confidence_of_each`: ``confidence`` holds over all groups together.
    """

    plan: Plan
    runs: int | None = None
    """Default: 5,000, or as many as memory has room for."""
    groups: int = 4
    confidence: float = 0.95
    seed: int | None = None
    """Repeats coins and noise: for tests alone."""

    def __post_init__(self) -> None:
        integer(self.groups, "groups")
        real(self.confidence, "confidence", above=0.5, below=1)
        require_somebody(self.plan)
        if self.runs is not None:
            integer(self.runs, "runs", least=_FEWEST, hint="with fewer nothing can be proved")
        if self._most < max(_FEWEST, self.runs or 0):
            raise InvalidInput(
                f"runs is {self.runs or _FEWEST:,}, and the {self.plan.steps:,} steps of each have to be kept; there "
                f"is room for {self._most:,}. Ask for fewer, or use --attack canaries"
            )

    @property
    def _most(self) -> int:
        return _MOST_NUMBERS // (4 * self.plan.steps)

    @property
    def _runs(self) -> int:
        return min(RUNS, self._most) if self.runs is None else self.runs

    @property
    def cost(self) -> str:
        """What it will take, before it begins: a few small runs are timed."""
        levels = audited_levels(self.plan, self.groups)
        begun = time.perf_counter()
        traces(SmallWorld(self.plan, int(levels[0])), True, self._runs, steps=min(_TRIAL, self.plan.steps))
        a_step = (time.perf_counter() - begun) / min(_TRIAL, self.plan.steps)
        seconds = levels.size * (2 * a_step * self.plan.steps + 2)
        groups = "one budget group" if levels.size == 1 else f"{levels.size} budget groups"
        return (
            f"{groups}, {self._runs:,} runs of {self.plan.steps:,} steps with a person and as "
            f"many without; about {max(1, round(seconds)):,} seconds"
        )

    def run(self, progress: Progress | None = None) -> AuditResult:
        begun, groups, words = time.perf_counter(), [], list(_words(self.plan))
        levels = audited_levels(self.plan, self.groups)
        for done, level in enumerate(levels.tolist()):
            group, found = self._group(level, confidence_of_each(self.confidence, levels.size))
            groups.append(group)
            release = self.plan.releases()[level] if self.plan.filter is None else None
            words.append(_verdict(group, found, self.confidence, release))
            if progress:
                progress(done + 1, levels.size)
        words.append(
            "What runs prove scatters from audit to audit, and one group's bound may lie below that of a smaller ε: "
            "none is compared with another, each with its own claim. More runs (--runs) narrow it."
        )
        words += over_groups(self.confidence, levels.size)
        words += _others(self.plan, levels.tolist())
        return AuditResult(
            attack="small-runs",
            plan=constants_of(self.plan),
            not_attacked=not_attacked(self.plan, levels),
            data="made up",
            delta=max(group.delta for group in groups),
            confidence=self.confidence,
            verdict_reading="f-dp",
            groups=tuple(groups),
            cost=Cost(trainings=2 * self._runs * len(groups), seconds=round(time.perf_counter() - begun, 3)),
            words=tuple(words),
        )

    def _group(self, level: int, stricter: float) -> tuple[Group, Bound]:
        world, (epsilon, delta) = SmallWorld(self.plan, level), claimed(self.plan, level)
        seeds = (None, None) if self.seed is None else (self.seed, self.seed + 1)
        inside, outside = (
            traces(world, present, self._runs, seed=seed) for present, seed in zip((True, False), seeds, strict=True)
        )
        scores = scores_for(world)
        family = family_of(self.plan, level, events=True)
        found = bound(scores, inside, outside, by_curves(family), self.confidence)
        proved = bound(scores, inside, outside, by_curves(family), stricter).epsilon
        both = scores["likelihood ratio"](inside), scores["likelihood ratio"](outside)
        false, true = roc.curve(*both)
        group = Group(
            name=f"ε = {self.plan.levels.epsilon[level]:g}",
            claimed_epsilon=epsilon,
            delta=delta,
            targets=2 * self._runs,
            bounds={"f-dp": found.epsilon},
            auc=roc.area(*both),
            auc_interval=roc.area_interval(*both, self.confidence),
            roc=Roc(false_positive_rate=tuple(false.tolist()), true_positive_rate=tuple(true.tolist())),
            flagged=proved > epsilon,
        )
        return group, found


def _words(plan: Plan) -> Iterator[str]:
    yield (
        "A tiny model is trained over and over by the plan's noise, rates and clip norms: drawing, clipping, summing "
        "and noise are tested. Runs share their batches; what depends on a batch as a whole does not show here."
    )
    if plan.filter is not None:
        yield f"Only the {plan.steps:,} steps that are fixed beforehand are run, not those under the filter."


def _verdict(group: Group, found: Bound, confidence: float, release: Release | None) -> str:
    if group.flagged:
        return (
            f"{group.name}: FLAGGED by {found.score}. With the person {found.true_positives:.1%} of runs lie above "
            f"the threshold, without {found.false_positives:.1%}: more than ε = {group.claimed_epsilon:.3g} allows, "
            f"at confidence {confidence:g}."
        )
    return (
        f"{group.name}: cleared, which does not prove the claim. The runs prove ε ≥ {found.epsilon:.3g}; the plan "
        f"claims at most {group.claimed_epsilon:.3g}. If the claim holds, "
        f"{attacker_words(group.claimed_epsilon, group.delta, release)}."
    )


def _others(plan: Plan, levels: list[int]) -> Iterator[str]:
    """What other people's choices could add (`collusion`)."""
    if plan.filter is not None or plan.promise not in (Promise.DATA, Promise.PRESENCE):
        return
    if plan.promise is Promise.PRESENCE:
        yield "What others choose adds nothing: all that is public was fixed beforehand."
        return
    found = collusion(plan, points=2)
    for each in (found[level] for level in levels):
        yield (
            f"ε = {each.epsilon:g}: an attacker's best advantage over a coin is {each.now:.3f}, and {each.worst:.3f} "
            "if all others had chosen so as to raise it, at the same (ε, δ)."
        )
