"""Charts of what was promised: the public levels, and for those who keep the data what the plan makes of them."""

from __future__ import annotations

from functools import partial

import numpy as np

from privypurse.accounting import accountant_named
from privypurse.ledger.bets import GUESSES, right_guesses
from privypurse.plans import Plan
from privypurse.report.charts import Chart, bars, lines
from privypurse.report.facts import InternalFacts, PublicFacts
from privypurse.report.numbers import percent

_SHOWN = 5
_POINTS = 12


def levels_chart(facts: PublicFacts) -> Chart | None:
    """What each level that people could choose means as a bet."""
    if facts.delta is None or not facts.levels:
        return None
    capped = {name: min(each, facts.at_most or each) for name, each in facts.levels.items()}
    right = {name: right_guesses(epsilon, facts.delta) * 100 / GUESSES for name, epsilon in capped.items()}
    names, values = [*right], [*right.values()]
    return Chart(
        "levels",
        "What the levels mean",
        "Somebody who guesses whether a person's data were used, and knows everything else, is right at most this "
        "often out of 100 times. Tossing a coin is right 50 times: the dashed line.",
        ("level", "ε", "right at most, of 100"),
        tuple((name, f"{capped[name]:g}", f"{right[name]:.1f}") for name in names),
        partial(bars, names, [("right at most", values)], "level", "of 100 guesses", 50.0, 100.0),
    )


def certified_chart(facts: InternalFacts) -> Chart | None:
    """Promised against certified, by level."""
    rows = [row for row in facts.metrics.get("sensitive", {}).get("levels", []) if "certified" in row]
    if not rows or facts.shown.under_ledger:
        return None
    names = [f"{row['epsilon']:g}" for row in rows]
    series = [
        (name, [row[key] for row in rows]) for name, key in (("promised", "epsilon"), ("certified", "certified"))
    ]
    most = max(row["certified"] / row["epsilon"] for row in rows)
    return Chart(
        "certified",
        "Promised and certified, by level",
        f"No level is certified to cost more than it was promised: the fullest uses {percent(most)} of its ε."
        if most <= 1
        else f"The promise is NOT kept: a level is certified to cost {percent(most)} of its ε.",
        ("ε promised", "ε certified at most", "people"),
        tuple((f"{row['epsilon']:g}", f"{row['certified']:.4f}", f"{row['people']:,}") for row in rows),
        partial(bars, names, series, "level, by its ε", "ε"),
        ("promised", "certified"),
    )


def steps_chart(facts: InternalFacts) -> Chart | None:
    """ε over steps, by level (Boenisch et al. 2023, arXiv 2303.17046, Figure 4)."""
    plan = facts.plan
    if plan is None or facts.shown.under_ledger or facts.shown.seeded:
        return None
    even, early = np.linspace(0, plan.steps, _POINTS + 1), np.geomspace(1, plan.steps, _POINTS // 2)
    steps = [int(step) for step in np.unique(np.concatenate([even, early]).round())]
    some = _some_levels(plan)
    accountant = accountant_named(plan.accountant)
    spent = np.zeros((len(steps), len(some)))
    for place, count in enumerate(steps[1:], 1):
        releases = plan.releases(count)
        spent[place] = accountant.epsilons([releases[k] for k in some], plan.fixed_delta[some])
    names = [f"ε = {plan.levels.epsilon[k]:g}" for k in some]
    after = "" if plan.filter is None else " Beyond these fixed steps a filter keeps everybody within the ε promised."
    return Chart(
        "steps",
        "ε over steps",
        f"What the steps have cost each level at most, if training stopped there.{after}",
        ("step", *names),
        tuple((f"{step:,}", *(f"{each:.4f}" for each in row)) for step, row in zip(steps, spent, strict=True)),
        partial(lines, [(name, steps, spent[:, k].tolist()) for k, name in enumerate(names)], "step", "ε"),
        tuple(names) if len(names) > 1 else (),
    )


def rates_chart(facts: InternalFacts) -> Chart | None:
    """Sampling rates and clip norms by level: how a larger ε is put to use."""
    plan = facts.plan
    if plan is None or facts.shown.under_ledger:
        return None
    some = _some_levels(plan, 12)
    names = [f"{plan.levels.epsilon[k]:g}" for k in some]
    rate = (plan.levels.rate / plan.levels.rate.max())[some]
    norm = (plan.levels.clip_norm / plan.levels.clip_norm.max())[some]
    by = [name for name, each in (("drawn more often", rate), ("clipped less", norm)) if np.ptp(each) > 0]
    who = f"Who granted more is {' and '.join(by)}." if by else "Everybody is drawn as often and clipped alike."
    return Chart(
        "rates",
        "Sampling rates and clip norms",
        f"{who} Bars are shares of the largest rate and the largest clip norm; the table has the values.",
        ("ε promised", "sampling rate", "clip norm"),
        tuple((name, *_of(plan, k)) for name, k in zip(names, some, strict=True)),
        partial(
            bars,
            names,
            [("sampling rate", rate.tolist()), ("clip norm", norm.tolist())],
            "level, by its ε",
            "share of the largest",
        ),
        ("sampling rate", "clip norm"),
    )


def _of(plan: Plan, level: int) -> tuple[str, str]:
    return f"{plan.levels.rate[level]:.4g}", f"{plan.levels.clip_norm[level]:.4g}"


def _some_levels(plan: Plan, most: int = _SHOWN) -> list[int]:
    """At most so many levels: all, or some from the smallest ε to the largest."""
    count = len(plan.levels)
    return [int(k) for k in np.unique(np.linspace(0, count - 1, min(most, count)).round())]
