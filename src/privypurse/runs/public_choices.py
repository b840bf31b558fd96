"""What was chosen in public for a run: by whoever set it up, and not by following anybody's data or budget.

The files that a run publishes may repeat these. A δ from a column, steps that follow from how many people there are,
and which of the levels anybody chose are none of them (rule 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from privypurse.runs.config import Grants, NewPlan, RunConfig
from privypurse.runs.planning import usual_delta

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger


@dataclass(frozen=True)
class PublicChoices:
    """Constants that may be told; what nobody chose in public is None."""

    delta: float | None = None
    """One δ for everybody; None where each has their own."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """ε by the name of the level: what people could choose from, not what they chose."""
    simulated: bool = False
    """Whether budgets were drawn by a seed: nobody granted them."""
    about: Mapping[str, str] = field(default_factory=dict)
    """What [about] says of the run, and the day on which it began."""
    steps_tell_people: bool = False
    """Whether steps were computed from how many people there are, or may have been: a plan's file does not say."""

    range_share: float | None = None
    """Of every purse, what went to ends and categories of columns before the plan was made."""
    at_most: float | None = None
    """The cap on the whole run, where a part of it went there."""

    @classmethod
    def of(cls, config: RunConfig, ledger: Ledger | None = None, begun: str = "") -> PublicChoices:
        """Those of a configuration, for a run that began on that day."""
        asked, plan = config.budgets, config.plan
        return cls(
            delta=None if asked is None else _delta(asked, ledger),
            levels=_levels(asked, ledger),
            simulated=asked is not None and asked.simulate is not None,
            about={**config.about.said(config.training.purpose), "date": begun},
            steps_tell_people=not isinstance(plan, NewPlan) or (plan.epochs is not None and plan.people is None),
            range_share=None if config.private_ranges is None else config.private_ranges.share,
            at_most=plan.at_most if isinstance(plan, NewPlan) else None,
        )


def _delta(asked: Grants, ledger: Ledger | None) -> float | None:
    if asked.delta is None:
        return None if ledger is not None and not ledger.rungs_are_public else usual_delta(ledger)
    return None if isinstance(asked.delta, str) else float(asked.delta)


def _levels(asked: Grants | None, ledger: Ledger | None) -> dict[str, float]:
    if asked is not None and asked.simulate is not None:
        return {f"ε = {epsilon:g}": epsilon for epsilon in sorted(asked.simulate.epsilon)}
    if asked is not None and asked.levels is not None:
        return {name: float(epsilon) for name, epsilon in sorted(asked.levels.items(), key=lambda item: item[1])}
    if ledger is not None and ledger.rungs_are_public:
        return {f"ε = {epsilon:g}": epsilon for epsilon in sorted({rung.epsilon for rung in ledger.rungs})}
    return {}
