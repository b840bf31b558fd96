"""What training by each method would be made of, and which of them that speaks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privypurse.arrays import FloatArray
from privypurse.assignment.coarse_levels import CoarseLevels, coarse
from privypurse.assignment.exclude import Exclude
from privypurse.assignment.method import Assignment, Calibrator, Method
from privypurse.budgets.levels import Levels
from privypurse.errors import InvalidInput
from privypurse.plans import Promise, TrainingShape

PREFERRED = ("uniform", "sample", "scale", "exclude", "curve-fit")
"""Who is named first where signals to noise are nearly equal: whoever treats people alike, then whoever leaves none
out."""
NEARLY = 0.02
_SHOWN = 4  # groups of levels in a table

BASIS = (
    "This rests on the grants alone. It assumes that gradients reach their clip norms, that consent has nothing to "
    "do with the data, and that noise is what limits the model. With many people, or a large ε everywhere, noise "
    "limits nothing and all methods end alike; where consent follows what is learnt, sample and scale neglect "
    "the strict."
)
NOBODY_OUT = (
    "exclude is the same as uniform here: nobody is left out, for any threshold that leaves people out needs more "
    "noise, or leaves too few for a batch."
)
INTERNAL = (
    "It follows from everybody's grants: internal, keep it as safe as the data. A plan by a method that was chosen "
    "here promises `data`: each ε protects that person's data, given the list of budgets. So plan without a noise "
    "multiplier: with one the plan would claim that nothing followed from the grants of others."
)


@dataclass(frozen=True)
class ChosenByGrants:
    """A method that was chosen by looking at everybody's grants: its plans promise `Promise.DATA` and no more.

    With a given noise multiplier a rate may follow from one person's ε alone; that this method is used at all does
    not (rule 7).
    """

    method: Method

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def own(self) -> Any:
        return getattr(self.method, "own", None)

    def assign(self, levels: Levels, calibrator: Calibrator) -> Assignment:
        return replace(self.method.assign(levels, calibrator), from_budgets=True)


@dataclass(frozen=True, eq=False)
class Outlook:
    """What training by one method would be made of; arrays have one entry a level. Sensitive, as the grants are."""

    how: ChosenByGrants
    """For `pp.plan`, as its method."""
    noise_multiplier: float
    draws: FloatArray
    """How often a person of the level is drawn in the whole training, on average."""
    clip_norm: FloatArray
    certified: FloatArray
    signal_to_noise: float
    """Of one step: Σ q·c over all people, what they add if every gradient reaches its clip norm, over σ·C."""
    used: float
    """The sum of everybody's certified ε over the sum of what they granted."""
    alike: float
    """(Σ q·c)² / Σ (q·c)²: so many people with equal weights would tell as much (Kish's effective sample size)."""

    @property
    def method(self) -> str:
        return self.how.name

    @property
    def threshold(self) -> float | None:
        """Of `exclude`: the least ε that takes part."""
        return self.how.method.threshold if isinstance(self.how.method, Exclude) else None

    @property
    def title(self) -> str:
        return self.method if self.threshold is None else f"{self.method}, ε ≥ {self.threshold:g}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Every method's outlook. It follows from all grants: internal, and a plan by the method chosen promises `data`.

    Guarantee: nobody's data was looked at, and nothing was trained. Of more than 40 levels neighbours are taken
    together, at their mean ε; the strictest and the threshold of `exclude` stay as they are.
    """

    levels: CoarseLevels
    shape: TrainingShape
    accountant: str
    outlooks: tuple[Outlook, ...]
    impossible: dict[str, str]
    """Methods of which no plan can be made, and why."""

    @property
    def promise(self) -> Promise:
        """What a plan by a method that was chosen here promises."""
        return Promise.DATA

    @property
    def recommended(self) -> Outlook:
        """The one with the largest signal to noise; of those within 2 % of it the first of `PREFERRED`."""
        most = max(outlook.signal_to_noise for outlook in self.outlooks)
        near = [outlook for outlook in self.outlooks if outlook.signal_to_noise >= most * (1 - NEARLY)]
        return min(near, key=lambda outlook: PREFERRED.index(outlook.method))

    def of(self, method: str) -> Outlook:
        """The outlook of a method, by name."""
        for outlook in self.outlooks:
            if outlook.method == method:
                return outlook
        why = self.impossible.get(method, f"compared were {', '.join(outlook.method for outlook in self.outlooks)}")
        raise InvalidInput(f"method is {method!r}, of which there is no outlook: {why}")

    @property
    def sentence(self) -> str:
        """Which method the grants speak for, and why."""
        best = self.recommended
        if best.method == "uniform":
            return (
                f"Recommended: uniform. No method's signal to noise is more than {NEARLY:.0%} above its "
                f"{_figure(best.signal_to_noise)}, and it treats everybody alike."
            )
        rivals = {each.method: each for each in self.outlooks if each.method in ("uniform", "exclude")}
        against = [
            f"{best.signal_to_noise / rival.signal_to_noise:.1f} times that of {rival.title}"
            for rival in rivals.values()
            if rival is not best
        ]
        beside = f", {' and '.join(against)}" if against else ""
        return f"Recommended: {best.title}. A step's signal to noise is {_figure(best.signal_to_noise)}{beside}."

    def table(self) -> list[tuple[str, ...]]:
        """A head, then a line for each method."""
        return [
            ("method", "noise σ", "signal to noise", "ε used", "as many alike"),
            *(
                (
                    outlook.title,
                    f"{outlook.noise_multiplier:.4g}",
                    _figure(outlook.signal_to_noise),
                    f"{outlook.used:.0%}",
                    f"{outlook.alike:,.0f}",
                )
                for outlook in self.outlooks
            ),
        ]

    def draws_table(self) -> list[tuple[str, ...]]:
        """How often people of each level are drawn, on average; neighbours share a column where there are many."""
        groups = self._shown()
        spans = [f"ε {low:g}" if low == high else f"ε {low:g} … {high:g}" for low, high in groups]
        return [("draws of", *spans), *(self._draws(outlook, groups) for outlook in self.outlooks)]

    def _shown(self) -> list[tuple[float, float]]:
        few = coarse(Levels(self.levels.epsilon, np.ones(len(self.levels.epsilon)), self.levels.people), _SHOWN)
        return [
            (float(self.levels.low[inside].min()), float(self.levels.high[inside].max()))
            for low, high in zip(few.low, few.high, strict=True)
            if (inside := (self.levels.epsilon >= low) & (self.levels.epsilon <= high)).any()
        ]

    def _draws(self, outlook: Outlook, groups: list[tuple[float, float]]) -> tuple[str, ...]:
        cells = []
        for low, high in groups:
            inside = (self.levels.low >= low) & (self.levels.high <= high)
            people = self.levels.people[inside]
            draws, clip = (
                float(people @ each[inside]) / int(people.sum()) for each in (outlook.draws, outlook.clip_norm)
            )
            share = clip / self.shape.clip_norm
            cells.append(_figure(draws) + ("" if abs(share - 1) < 1e-6 else f" (c = {share:.2g} C)"))
        return (outlook.title, *cells)

    def notes(self) -> list[str]:
        """What stands below the table."""
        refused = [f"{method}: no plan, since {why}" for method, why in self.impossible.items()]
        excluding = [each for each in self.outlooks if each.threshold is not None]
        alike = [NOBODY_OUT for each in excluding if each.threshold <= self.levels.low.min()]
        return [*refused, *alike, self.sentence, BASIS, INTERNAL]

    def summary(self) -> str:
        """For people to read."""
        return "\n".join([*_aligned(self.table()), "", *_aligned(self.draws_table()), "", *self.notes()])

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        columns = ("low", "high", "epsilon", "delta", "people")
        levels = [
            dict(zip(columns, row, strict=True))
            for row in zip(*(getattr(self.levels, name).tolist() for name in columns), strict=True)
        ]
        return {
            "internal": INTERNAL,
            "promise": str(self.promise),
            "people": self.levels.total,
            "steps": self.shape.steps,
            "batch_size": self.shape.batch_size,
            "clip_norm": self.shape.clip_norm,
            "accountant": self.accountant,
            "levels": levels,
            "methods": [_plain(outlook) for outlook in self.outlooks],
            "impossible": self.impossible,
            "recommended": {"method": self.recommended.method, "threshold": self.recommended.threshold},
            "sentence": self.sentence,
            "basis": BASIS,
        }


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def _aligned(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(line[k]) for line in table) for k in range(len(table[0]))]
    body = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
    return [body[0], "  ".join("-" * width for width in widths), *body[1:]]


def _plain(outlook: Outlook) -> dict[str, Any]:
    names = ("method", "threshold", "noise_multiplier", "signal_to_noise", "used", "alike")
    by_level = {name: getattr(outlook, name).tolist() for name in ("draws", "clip_norm", "certified")}
    return {**{name: getattr(outlook, name) for name in names}, **by_level}
