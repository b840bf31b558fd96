"""compare: what training by each method would be made of, from the grants alone. Nothing is trained."""

from __future__ import annotations

from privypurse.accounting import Progress, accountant_named
from privypurse.assignment.best_threshold import best_threshold
from privypurse.assignment.coarse_levels import CoarseLevels, coarse
from privypurse.assignment.exclude import Exclude
from privypurse.assignment.method import Calibrator, Method, require_budgets, require_people
from privypurse.assignment.methods import METHODS
from privypurse.assignment.outlook import ChosenByGrants, Comparison, Outlook
from privypurse.assignment.planner import planned_levels, steps_for
from privypurse.budgets import Budgets
from privypurse.errors import InfeasibleBudget
from privypurse.plans import TrainingShape

_LEVELS = 40
"""With more, neighbours are taken together: a million people with a million different ε are to take seconds."""


def compare(
    budgets: Budgets,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    batch_size: int,
    clip_norm: float = 1.0,
    accountant: str = "pld",
    progress: Progress | None = None,
) -> Comparison:
    """What every method would make of these grants: σ, draws, a step's signal to noise, how much of ε is used.

    Nothing is trained, and no data but the grants is looked at. ``exclude`` stands there with the threshold that has
    the largest expected signal to noise. Noise is solved for each method: an expected batch is ``batch_size``.

    Whoever chooses by this chooses by everybody's grants: what it says is internal, and a plan by the choice promises
    `Promise.DATA`. Plans of ``recommended.how`` do, with a noise multiplier too.
    """
    require_budgets(budgets)
    count = steps_for(steps, epochs, None, budgets.people, batch_size)
    shape = TrainingShape(steps=count, batch_size=batch_size, clip_norm=clip_norm)
    every, _ = budgets.levels()
    require_people(shape, every, "lower it")
    calibrator = Calibrator(shape, accountant_named(accountant))
    known: dict[str, Method] = dict(METHODS)
    impossible: dict[str, str] = {}
    refused: InfeasibleBudget | None = None
    try:
        threshold = best_threshold(every, calibrator)
        known["exclude"] = Exclude(threshold)
    except InfeasibleBudget as error:
        refused, threshold = error, float(every.epsilon.min())
        del known["exclude"]
        impossible["exclude"] = str(error)
    levels = coarse(every, _LEVELS, {float(every.epsilon.min()), threshold})
    outlooks: list[Outlook] = []
    for done, (name, method) in enumerate(known.items()):
        if progress is not None:
            progress(done, len(known))
        try:
            outlooks.append(_outlook(method, levels, calibrator))
        except InfeasibleBudget as error:
            impossible[name] = str(error)
            refused = refused or error
    if not outlooks:
        assert refused is not None
        raise refused
    return Comparison(levels, shape, accountant, tuple(outlooks), impossible)


def _outlook(method: Method, levels: CoarseLevels, calibrator: Calibrator) -> Outlook:
    how = ChosenByGrants(method)
    made = planned_levels(how, levels, calibrator)
    rate, clip_norm, certified = made.levels.rate, made.levels.clip_norm, made.spent_by_level()
    weight = rate * clip_norm
    signal = float(levels.people @ weight)
    return Outlook(
        how=how,
        noise_multiplier=made.noise_multiplier,
        draws=rate * made.steps,
        clip_norm=clip_norm,
        certified=certified,
        signal_to_noise=signal / (made.noise_multiplier * made.clip_norm),
        used=float(levels.people @ certified) / float(levels.people @ levels.epsilon),
        alike=signal**2 / float(levels.people @ weight**2),
    )
