"""What each person really spent in a training run, for that person to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from privypurse import _notebooks
from privypurse._validate import is_integer
from privypurse.accounting import Progress, gdp
from privypurse.accounting.odometer import Odometer, Reading
from privypurse.arrays import AnyArray, FloatArray, IntArray, frozen
from privypurse.errors import InvalidInput
from privypurse.plans import Plan
from privypurse.plans.promise import Promise

_SHOWN_PEOPLE = 20_000
"""For more of them ε takes longer than a notebook should take to show something."""


@dataclass(frozen=True, eq=False, repr=False)
class Spending:
    """What a training run cost each person, by how large their gradients were.

    Guarantee: none. ``text`` says what its ε is; the guarantee is the plan's, ``plan.spent()`` or, with a filter, the
    purse (rule 11, fixed guarantees). Everything here is sensitive (rule 6): a person may see their own with `of`,
    everybody else only statistics that are private themselves (`privypurse.queries.statistics`).
    """

    plan: Plan
    meter: Odometer | FloatArray
    """Counts of steps by grid norm; for full-batch training each person's μ² of Gaussian DP."""
    active: tuple[tuple[int, int], ...] = ()
    """(step, how many people could still contribute): the curve of Feldman & Zrnic (2021), Figure 1."""
    told: tuple[tuple[int, float], ...] = ()
    """(step, answer) for each question of the stopping rule. Public: each answer is noisy, and paid for by the plan.

    An answer is how many records the model gets right (`StopAtPlateau`), or 1 once few people can still contribute,
    0 before (`StopWhenFew`)."""
    contributing: AnyArray | None = None
    """Who could contribute to a further step. `queries.statistics.count` publishes privately how many they are."""
    lost: int = 0
    """Steps before a crash of which only the number is known; they are charged in full."""

    def __repr__(self) -> str:
        who = "record" if self.plan.keyed_ids is None else "id"
        return f"Spending({self.plan.people:,} people, {self.reading}; sensitive: epsilon(), of({who}), active)"

    def _repr_html_(self) -> str:
        """In a notebook: what it is, each level's ε as far as that is quick, and who could still contribute."""
        who = "record" if self.plan.keyed_ids is None else "id"
        active = [(f"{step:,}", f"{people:,}") for step, people in self.active]
        stay = len({people for _, people in self.active}) == 1
        told = [(f"{step:,}", f"{answer:.6g}") for step, answer in self.told]
        return _notebooks.shown(
            f"Spending of {self.plan.people:,} people, {self.reading}",
            _notebooks.words(self.text),
            self._by_level(),
            _notebooks.lines([f"{active[0][1]} people could contribute to the end"] if stay else []),
            _notebooks.table(("step", "people"), [] if stay else active, "who could still contribute"),
            _notebooks.table(("step", "answer"), told, "private answers of the stopping rule, which are public"),
            _notebooks.words(f"epsilon() gives everybody's ε, of({who}) one person their own."),
            internal=True,
        )

    def _by_level(self) -> str:
        """A table of what people spent, by Rényi divergences, which are quick; none of many people.

        Neither where a plan shows none: levels under a ledger follow from what people have left, and those of a round
        from who was drawn (rule 15, nothing follows from what is left).
        """
        plan = self.plan
        if plan.ledger is not None or plan.promise is Promise.PART or plan.people > _SHOWN_PEOPLE:
            return ""
        spent, rows = self.epsilon_by_person("rdp"), []
        for level, promised in enumerate(plan.levels.epsilon.tolist()):
            those = spent[plan.level_of == level]
            if those.size:
                figures = (f"{promised:g}", f"{np.median(those):.4g}", f"{those.max():.4g}")
                rows.append((f"{those.size:,}", *figures))
        columns = ("people", "ε promised", "ε spent, half of them at most", "ε spent, the most")
        return _notebooks.table(columns, rows, "by level, by Rényi divergences (rdp)")

    @property
    def reading(self) -> Reading:
        """Exact, or an estimate."""
        return self.meter.reading if isinstance(self.meter, Odometer) else Reading.EXACT

    @property
    def text(self) -> str:
        """What its ε is, and what it is not, in words."""
        lost = f" Of {self.lost:,} steps before a crash only the number is known; they count in full."
        questions = " The stopping rule's questions, which the plan paid for, are not in it."
        return self.reading.text + (lost if self.lost else "") + (questions if self.told else "")

    def epsilon(self, accountant: str = "pld", progress: Progress | None = None) -> FloatArray:
        """For each record its person's ε at their δ on this trajectory, by "pld" (tighter) or "rdp".

        Of the steps: the questions of a stopping rule (``told``) are not in it. Never more than the ε promised, which
        is proved for every trajectory and may be the tighter of the two.
        """
        by_person = self.epsilon_by_person(accountant, progress)
        return frozen(by_person if self.plan.owner is None else by_person[self.plan.owner])

    def epsilon_by_person(self, accountant: str = "pld", progress: Progress | None = None) -> FloatArray:
        """The same, one entry a person."""
        return self._epsilon(np.arange(self.plan.people), accountant, progress)

    def of(self, person: Any, accountant: str = "pld") -> float:
        """What a person may be told: their own ε, by their id. It costs nobody anything.

        Where the plan was made without ids, ``person`` is the number of one of their records.
        """
        plan = self.plan
        if plan.keyed_ids is not None:
            unit = plan.keyed_ids.unit_of(person)
        elif is_integer(person) and 0 <= person < plan.records:
            unit = int(person if plan.owner is None else plan.owner[person])
        else:
            raise InvalidInput(f"record is {person!r}; there are {plan.records:,}, counted from 0")
        return float(self._epsilon(np.array([unit], dtype=np.int64), accountant, None)[0])

    def _epsilon(self, who: IntArray, accountant: str, progress: Progress | None) -> FloatArray:
        levels, level = self.plan.levels, self.plan.level_of[who]
        if isinstance(self.meter, Odometer):
            found = self.meter.epsilon(levels.delta[level], accountant, who, progress)
        elif accountant in ("rdp", "pld"):
            found = np.empty(who.size)
            for some in np.array_split(np.arange(who.size), max(1, who.size // 2000)):
                square, delta = self.meter[who[some]], levels.delta[level[some]]
                if accountant == "rdp":
                    found[some] = gdp.epsilon_from_zcdp(square / 2, delta)
                else:  # the exact ε of Gaussian steps, which a loss distribution would only approach
                    found[some] = gdp.epsilon(np.sqrt(square), delta) * (1 + 1e-12)
        else:
            raise InvalidInput(f"accountant is {accountant!r}; choose 'rdp' or 'pld'")
        return np.minimum(found, levels.epsilon[level])
