"""Plans in words: plain text for `Plan.summary`, and the cells of the command line's table."""

from collections.abc import Callable
from decimal import ROUND_CEILING, Context

from privypurse import _notebooks
from privypurse.plans.level_table import LevelRow
from privypurse.plans.planned_training import PlannedTraining
from privypurse.plans.promise import Promise
from privypurse.plans.under_ledger import UnderLedger

COLUMNS = ("people", "ε promised", "ε certified", "rate", "clip norm")


def cells(row: LevelRow) -> tuple[str, ...]:
    """One line of the table."""
    return (
        f"{row.people:,}",
        _span(row.epsilon),
        _span(row.certified, bound) + (" (capped)" if row.capped else ""),
        _span(row.rate),
        _span(row.clip_norm),
    )


def facts(plan: PlannedTraining) -> list[str]:
    """What holds for the whole plan, a line each."""
    deltas = (float(plan.levels.delta.min()), float(plan.levels.delta.max()))
    unused = 0 if plan.ledger is not None else sum(row.capped for row in plan.by_level())
    drawn = f", expected batch {plan.expected_batch_size:,.1f} people" if plan.ledger is None else ""
    lines = [
        f"method {plan.method}, "
        + (
            f"{plan.records:,} records, each counted as one person"
            if plan.owner is None
            else f"{plan.people:,} people with {plan.records:,} records"
        )
        + f", steps: {plan.steps:,}",
        f"noise multiplier {plan.noise_multiplier:.5g}, clip norm {plan.clip_norm:g}, "
        f"public divisor {plan.batch_size:,}" + drawn,
        f"proved by {_ACCOUNTANTS[plan.accountant]}, δ {_span(deltas, bound)}",
        whose(plan),
    ]
    if plan.filter is not None:
        lines.append(
            f"up to {plan.shape.extra_steps:,} steps may follow, for those whose purse still pays: a filter "
            f"({plan.filter}) keeps everyone within the ε promised"
            + (_SPLIT[plan.filter] if plan.ledger is None else ", and within what is reserved for them for life")
        )
        if plan.shape.stop is not None:
            lines.append(f"they end early by private questions, paid for in the ε certified: {plan.shape.stop}")
    if plan.ledger is not None:
        lines.append(_lasting(plan.ledger))
    elif plan.public_epsilon is not None:
        lines.append(f"nobody's ε is above {plan.public_epsilon:g}, whatever they grant: this figure may be told")
    if unused:
        lines.append(f"capped: {unused:,} people granted more than this training can use, even in every step")
    if plan.levels.delta.max() * plan.people >= 1:
        lines.append(f"warning: {large_delta(plan)}")
    return [*lines, *plan.notes]


def whose(plan: PlannedTraining) -> str:
    """What binds the plan to its people."""
    if plan.keyed_ids is not None:
        return "it knows its people by id (as keyed digests): it is applied to their records in any order"
    if plan.seal is not None:
        return "it holds for the rows of its table as they are, in this order; made with ids it would follow people"
    return "it holds for this order of rows; made with ids it would follow people"


def _lasting(ledger: UnderLedger) -> str:
    cap = "all of each public balance" if ledger.at_most is None else f"at most ε = {ledger.at_most:g} of each purse"
    return (
        f"made with the ledger {ledger.id}, which training needs: it reserves {cap}. Rates follow from what people "
        "have left, so nothing is shown of them, nor how many take part"
    )


def large_delta(plan: PlannedTraining) -> str:
    """What a δ of 1/n or more means."""
    return (
        f"δ = {plan.levels.delta.max():g} is not below 1/{plan.people:,}: publishing the data of one person in "
        f"{plan.people:,}, drawn at random, would keep this promise; choose a δ well below 1 / people"
    )


def text(plan: PlannedTraining) -> str:
    """The whole plan as plain text."""
    if plan.promise is Promise.PART:  # its table would say how many were drawn
        return f"method {plan.method}, {plan.steps:,} steps\n\n{plan.promise_text}"
    if plan.ledger is not None:
        return "\n".join([*facts(plan), "", plan.promise_text, SAVED])
    table = [COLUMNS, *(cells(row) for row in plan.by_level())]
    widths = [max(len(line[k]) for line in table) for k in range(len(COLUMNS))]
    body = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
    dashes = "  ".join("-" * width for width in widths)
    return "\n".join([*facts(plan), "", body[0], dashes, *body[1:], "", plan.promise_text, ROUNDED, SENSITIVE])


def html(plan: PlannedTraining) -> str:
    """The same for notebooks."""
    title = f"Plan: {plan.method}, {plan.steps:,} steps"
    if plan.promise is Promise.PART:
        return _notebooks.shown(title, _notebooks.words(plan.promise_text))
    said = _notebooks.lines(facts(plan))
    if plan.ledger is not None:
        below = f"{plan.promise_text} {SAVED}"
        return _notebooks.shown(title, said, _notebooks.words(below), internal=True)
    levels = _notebooks.table(COLUMNS, [cells(row) for row in plan.by_level()], "by level")
    below = f"{plan.promise_text} {ROUNDED} {SENSITIVE}"
    return _notebooks.shown(title, said, levels, _notebooks.words(below), internal=True)


_ACCOUNTANTS = {"pld": "privacy loss distributions (pld)", "rdp": "Rényi divergences (rdp)"}
_SPLIT = {
    "gdp": ". The table shows what the fixed steps alone cost",
    "rdp": ". The table shows what the fixed steps alone cost, at nine tenths of δ; the last tenth is the filter's",
}
ROUNDED = (
    "ε promised is each budget, rounded down to the ladder (by less than 1 %). It holds against whoever sees every "
    "step and the model, if training draws people by independent coins with exactly these rates."
)
SAVED = "The saved plan follows from people's budgets and from what they have left: keep it as safe as the data."
SENSITIVE = "This table and the saved plan follow from people's budgets: keep them as safe as the data."


_UPWARDS = Context(prec=4, rounding=ROUND_CEILING)


def bound(value: float) -> str:
    """An upper bound to four digits, rounded up (rule 4)."""
    return f"{float(_UPWARDS.create_decimal(repr(float(value)))):.4g}"


def _span(ends: tuple[float, float], shown: Callable[[float], str] = "{:.4g}".format) -> str:
    low, high = map(shown, ends)
    return low if low == high else f"{low} … {high}"
