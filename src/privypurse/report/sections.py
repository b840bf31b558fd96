"""What a report says, in the order in which NIST SP 800-226 (2025) weighs a claim of differential privacy.

First ε, δ, the variant, the unit and neighbours; then the algorithm, its accountant, whether it is correct, and what
it is good for; then who is trusted, side channels, randomness, tuning, and what was released in the clear. What
nobody said stands there as "not stated".
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from privypurse.audit.result import AuditResult
from privypurse.ledger.bets import GUESSES, right_guesses
from privypurse.queries.answers import in_short as two_digits
from privypurse.queries.answers import rounded_up
from privypurse.report.charts import Chart
from privypurse.report.facts import InternalFacts, PublicFacts
from privypurse.report.numbers import percent
from privypurse.report.usefulness import figure_rows
from privypurse.runs.about import NOT_STATED, About

_ACCOUNTANTS = {"pld": "privacy loss distributions, computed pessimistically", "rdp": "Rényi divergences"}
_FILTERS = {"gdp": "Gaussian differential privacy", "rdp": "Rényi divergence at an order fixed beforehand"}
_METHODS = {
    "sample": "who pays more is drawn more often",
    "scale": "who pays more is clipped less",
    "uniform": "everybody as strictly as the strictest",
    "exclude": "the strictest left out, the others alike",
    "curve-fit": "who pays more is drawn more often, by a certified curve",
    "federated": "clients train on their own records and send noisy updates",
}
_FILES = {
    "model.pt": "the model's parameters",
    "model.json": "which network it is",
    "encoder.json": "how a table goes in",
    "ranges.json": "ends and categories of columns that people were asked for",
    "model.onnx": "the model as ONNX",
    "facts.json": "the facts of this report",
    "test.json": "how good the model is on public records",
    "curves.svg": "curves of that test",
    "terms.json": "the terms of the federation",
    "answer.json": "the answer",
}


@dataclass(frozen=True)
class Section:
    """A heading, facts by name, paragraphs, and charts."""

    title: str
    facts: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = field(default=())


def promise(facts: PublicFacts, charts: tuple[Chart, ...] = ()) -> Section:
    """ε, δ, variant, unit and neighbours."""
    unit = {"person": "a person, with all their records", "record": "a record, counted as one person"}
    neighbours = {
        "data": "the same people with the same budgets; one of them contributes nothing",
        "presence": "one person is there, with data and a declared ε, or is not",
    }
    return Section(
        "The promise",
        (
            ("ε", _epsilon(facts)),
            ("δ", _delta(facts)),
            ("Variant", "none: this run was seeded" if facts.seeded else "personalised (ε, δ)-differential privacy"),
            ("Privacy unit", unit.get(facts.unit or "", NOT_STATED)),
            ("Neighbouring data sets", neighbours.get(facts.protects or "", NOT_STATED)),
            ("Over several uses", _lasting(facts)),
        ),
        tuple(filter(None, (None if facts.seeded else facts.promise, _cost_of_answer(facts), _simulated(facts)))),
        charts,
    )


def _epsilon(facts: PublicFacts) -> str:
    if facts.seeded:
        return "none"
    if facts.answer is not None:
        return f"at most {rounded_up(facts.answer['cost']['epsilon'])} for whoever the question touches"
    told = []
    if facts.levels:
        told.append("each person's own: " + ", ".join(_named(*level) for level in facts.levels.items()))
    if facts.at_most is not None:
        told.append(f"nobody's is above {facts.at_most:g}, whatever they granted")
    return "; ".join(told) or "each person's own; which levels there were is not stated"


def _delta(facts: PublicFacts) -> str:
    """With what it means: the definition of (ε, δ)-differential privacy in words."""
    if facts.answer is not None and "delta" in facts.answer["cost"]:
        return f"{facts.answer['cost']['delta']:g}".replace("e-0", "e-") + ", at which the cost is told"
    if facts.delta is None:
        return NOT_STATED
    told = f"{facts.delta:g}".replace("e-0", "e-") + " for everybody"
    if facts.seeded:
        return told
    return (
        f"{told}: whatever somebody concludes from what was released is at most e^ε times as likely with a person's "
        "data as without them, plus this δ, and the other way round"
    )


def _named(name: str, epsilon: float) -> str:
    return name if name == f"ε = {epsilon:g}" else f"{name} {epsilon:g}"


def _lasting(facts: PublicFacts) -> str:
    if facts.under_ledger is None:
        return NOT_STATED
    if facts.under_ledger:
        return "a ledger keeps each person's purse for life, over all uses"
    return "this run alone: what other uses of the same data cost adds up"


def _simulated(facts: PublicFacts) -> str:
    return "Budgets are simulated: nobody in the data granted them." if facts.simulated_budgets else ""


def _cost_of_answer(facts: PublicFacts) -> str:
    return "" if facts.answer is None else f"{facts.answer['says']}.".capitalize()


def algorithm(facts: PublicFacts, charts: tuple[Chart, ...] = ()) -> Section:
    """How the promise is kept, and who proved it."""
    return Section(
        "How it is kept",
        (
            ("Method", _method(facts)),
            ("Steps", _steps(facts)),
            ("Noise multiplier σ", _noise(facts)),
            ("Clip norm C", _number(facts.clip_norm)),
            ("Divisor of each step", _number(facts.batch_size)),
            ("Accountant", _ACCOUNTANTS.get(facts.accountant or "", NOT_STATED)),
            ("Beyond the fixed steps", _beyond(facts)),
        ),
        charts=charts,
    )


def _method(facts: PublicFacts) -> str:
    if facts.method is None:
        return "a question, answered with Gaussian noise" if facts.answer is not None else NOT_STATED
    return f"{facts.method}: {_METHODS[facts.method]}" if facts.method in _METHODS else facts.method


def _steps(facts: PublicFacts) -> str:
    if facts.terms is not None:
        return f"{facts.terms['rounds']:,} rounds of {facts.terms['local_steps']:,} local steps"
    if facts.steps is None:
        said = "not told: they were computed from how many people there are, or the plan does not say"
        return said if facts.method else NOT_STATED
    return f"{facts.steps:,}"


def _noise(facts: PublicFacts) -> str:
    if facts.noise_multiplier is not None:
        return f"{facts.noise_multiplier:.4g}"
    if facts.protects == "data":
        return "not told: it may follow from everybody's budgets, and would tell something about them"
    return NOT_STATED


def _beyond(facts: PublicFacts) -> str:
    if facts.filter is None:
        return "no step follows"
    return f"a filter keeps everybody within the ε promised, by {_FILTERS.get(facts.filter, facts.filter)}"


def _number(value: float | None) -> str:
    return NOT_STATED if value is None else f"{value:,g}"


def correctness(audit: AuditResult | None, charts: tuple[Chart, ...] = ()) -> Section:
    """Whether anybody tried to break it."""
    if audit is None:
        return Section("Was it tried?", (("Audit", f"{NOT_STATED}: no audit was given that may stand here"),))
    verdict = "The claim is refuted." if audit.flagged else "Nothing was found against the claim."
    whose = "made-up records" if audit.data == "made up" else "people in training: internal"
    cost = f"{audit.cost.trainings:,} training" + ("" if audit.cost.trainings == 1 else "s")
    return Section(
        "Was it tried?",
        (
            ("Audit", f"{audit.attack}, on {whose}"),
            ("Plan attacked", NOT_STATED if audit.plan is None else "one with the constants of this run's plan"),
            *((("Not attacked", audit.left_out_in_words),) if audit.not_attacked else ()),
            ("Confidence", audit.confidence_in_words),
            ("Cost", cost),
        ),
        (f"Verdict: {verdict}", *audit.words),
        charts,
    )


def utility(facts: PublicFacts, charts: tuple[Chart, ...] = ()) -> Section:
    """What it is good for."""
    rows = figure_rows(facts.test or {})
    if facts.answer is not None:
        rows.append(("Answer", _answer(facts)))
    missing = (
        "Test",
        f"{NOT_STATED}: there are no figures that may stand here; those of people who were not charged are internal",
    )
    return Section("What it is good for", tuple(rows) or (missing,), charts=charts)


def _answer(facts: PublicFacts) -> str:
    assert facts.answer is not None
    value = facts.answer["value"]
    values = value if isinstance(value, list) else [value]
    said = ", ".join(f"{each:.6g}" for each in values)
    if facts.answer.get("error") is not None:
        said += f" ± about {two_digits(facts.answer['error'])}"
    elif facts.answer.get("released", values) == values:  # else the noise is on other numbers than these
        said += f", noise of standard deviation {facts.answer['noise']:g}"
    # Answers that state no version are of a time when a note might follow from what people granted.
    note = facts.answer.get("note") if "version" in facts.answer else None
    return "; ".join(filter(None, (said, note)))


def trust(facts: PublicFacts) -> Section:
    """Who is trusted, and what lies outside."""
    whom = "central: whoever keeps the data and the budgets is trusted, and releases only what is listed below"
    if facts.terms is not None:
        against = (
            "an honest-but-curious server" if facts.terms["adversary"] == "server" else "whoever sees no updates"
        )
        whom = f"each client is trusted with its own records; everybody's ε holds against {against}"
    noise = (
        "a cryptographic generator keyed by the operating system; noise and sums lie on one public grid, in float64"
    )
    if facts.seeded:
        noise = "seeded: noise and coins can be repeated and taken off"
    return Section(
        "Who is trusted",
        (
            ("Trust model", whom),
            ("Adversary", "sees every noisy step and what is released, and knows everything about everybody else"),
            ("Side channels", "time and memory use are not covered; a public report tells no duration"),
            ("Randomness and floating point", noise),
        ),
    )


def handling(facts: PublicFacts) -> Section:
    """What else was done with the data, and what is in the clear."""
    files = "; ".join(f"{name} ({_FILES[name]})" if name in _FILES else name for name in facts.files)
    return Section(
        "What else was done, and what is in the clear",
        (
            ("Data", facts.data or NOT_STATED),
            ("Tuning", facts.about.get("tuning", NOT_STATED)),
            ("Private statistics", _statistics(facts)),
            ("Released", files or "nothing"),
        ),
    )


def _statistics(facts: PublicFacts) -> str:
    """What was asked of the people, and what that cost them."""
    said = []
    if facts.private_ranges is not None:
        share = percent(facts.private_ranges["share"])
        said.append(f"ends and categories of columns, for {share} of everybody's ε")
    if facts.told:
        answers = ", ".join(
            f"{answer:.5g}" + ("" if step is None else f" at step {step:,}") for step, answer in facts.told
        )
        said.append(f"{len(facts.told):,} noisy answers of a stopping rule, paid for in the ε above: {answers}")
    return "; ".join(said) or "none"


def answering(facts: PublicFacts) -> Section:
    """Who answers for it."""
    names = ("controller", "contact", "purpose", "legal basis", "date")
    rows = [(name.capitalize(), facts.about.get(name, NOT_STATED)) for name in names]
    more = [(name.capitalize(), said) for name, said in facts.about.items() if name not in (*names, "tuning")]
    keys = [each.name for each in fields(About)]
    empty = [key for key in keys if facts.about.get(key.replace("_", " "), NOT_STATED) == NOT_STATED]
    said = f"What is not stated can be said before training, under [about] in the configuration: {', '.join(empty)}."
    return Section("Who answers for it", (*rows, *more), (said,) if empty and facts.answer is None else ())


def in_short(facts: PublicFacts) -> str:
    """The page in one paragraph."""
    if facts.answer is not None:
        return "A question about people was answered with noise, so that nobody's data decide the answer."
    if facts.seeded or facts.protects not in ("data", "presence"):
        return facts.promise or "What was promised is not stated."
    said = "Everybody has a limit (ε) of their own on what this model may tell about them, and training kept it."
    if facts.epsilon is None or facts.delta is None:
        return said
    right = right_guesses(facts.epsilon, facts.delta)
    return (
        f"{said} At the largest limit that could be chosen, ε = {facts.epsilon:g}, somebody who guesses whether a "
        f"person's data were used is right at most {right:,} of {GUESSES:,} times; tossing a coin is right "
        f"{GUESSES // 2:,} times."
    )


def people(facts: InternalFacts, charts: tuple[Chart, ...]) -> Section:
    """What people really spent; internal."""
    if facts.shown.under_ledger:
        said = "Under a ledger rates follow from what people have left, so nothing is shown of them, nor how many."
        return Section("The people in training", words=(said,))
    plan, inside = facts.plan, facts.metrics.get("sensitive", {})
    rows = [("People", f"{plan.people:,}"), ("Records", f"{plan.records:,}")] if plan is not None else []
    if "absent" in inside:
        rows.append(("Planned, without a record", f"{inside['absent']:,}"))
    if "seconds" in inside:
        rows.append(("Duration", f"{inside['seconds']:,.1f} s"))
    about = inside.get("spending", {}).get("about", "")
    return Section("The people in training", tuple(rows), (about[:1].upper() + about[1:],) if about else (), charts)
