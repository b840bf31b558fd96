"""Charts of audits, of tests on others, and of federations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from privypurse.audit.result import AuditResult, Group, Reading
from privypurse.report.charts import LINE, Chart, bars, lines
from privypurse.report.facts import InternalFacts, PublicFacts
from privypurse.report.numbers import percent

_POINTS = 60


def bounds_chart(audit: AuditResult) -> Chart | None:
    """What attacks proved, beside the claim, by group."""
    groups = [group for group in audit.groups if group.bounds]
    if not groups:
        return None
    readings: list[Reading] = [name for name in _READINGS if any(name in each.bounds for each in groups)]
    found: dict[str, list[float | None]] = {"claimed": [group.claimed_epsilon for group in groups]}
    for name in readings:
        words = "Gaussian scores, an estimate" if name == "gaussian scores" else f"at least, by {_READINGS[name]}"
        found[words] = [group.bounds.get(name) for group in groups]
    flagged = [group.name for group in groups if group.flagged]
    above = [group.name for group in groups if group.above(audit.verdict_reading)]
    verdict = "No attack proved more than is claimed."
    if flagged:
        verdict = f"The claim is refuted for {', '.join(flagged)}."
    elif above:
        verdict = f"For {', '.join(above)} a bound lies above the claim, as chance may show among several groups."
    estimate = " Gaussian scores are an estimate: where it lies above the claim, it proves nothing against it."
    estimate = estimate if "gaussian scores" in readings and audit.verdict_reading != "gaussian scores" else ""
    return Chart(
        "bounds",
        "What attacks proved, beside the claim",
        f"{verdict} Each bound holds with confidence {percent(audit.confidence, 0)}; the one by "
        f"{_READINGS[audit.verdict_reading]} was named beforehand as the verdict.{estimate}",
        ("group", *found),
        tuple(
            (group.name, *("" if values[k] is None else f"{values[k]:.3g}" for values in found.values()))
            for k, group in enumerate(groups)
        ),
        partial(bars, [group.name for group in groups], [*found.items()], "group", f"ε at δ = {audit.delta:g}"),
        tuple(found),
    )


_READINGS: dict[Reading, str] = {"guesses": "guesses", "f-dp": "f-DP", "gaussian scores": "Gaussian scores"}


def roc_chart(audit: AuditResult) -> Chart | None:
    """How often an attack is right about members against how often it is wrong about others, by group."""
    groups = [group for group in audit.groups if group.roc is not None]
    if not groups:
        return None
    scored = [group for group in groups if group.auc is not None]
    worst = max(scored, key=lambda group: group.auc or 0, default=None)
    whose = "" if worst is None else worst.name.replace(" ", "\u00a0")  # kept on one line
    said = "" if worst is None else f" The largest area under a curve is {worst.auc:.3f}, for {whose}."
    return Chart(
        "roc",
        "How well the attack tells members from others",
        f"On the diagonal an attack is no better than a coin.{said}",
        ("group", "area under the curve", "interval", "true positives at 1 % false", "at 10 %"),
        tuple(_roc_row(group) for group in groups),
        partial(_roc, groups),
        tuple(group.name for group in groups) if len(groups) > 1 else (),
    )


def _roc_row(group: Group) -> tuple[str, ...]:
    interval = "" if group.auc_interval is None else " to ".join(f"{end:.3f}" for end in group.auc_interval)
    area = "" if group.auc is None else f"{group.auc:.3f}"
    return (group.name, area, interval, *(percent(_at(group, share)) for share in (0.01, 0.1)))


def _at(group: Group, share: float) -> float:
    """The true positives at no more false ones than this share."""
    assert group.roc is not None
    both = zip(group.roc.false_positive_rate, group.roc.true_positive_rate, strict=True)
    return max((true for false, true in both if false <= share), default=0.0)


def _roc(groups: Sequence[Group]) -> Any:
    series = []
    for group in groups:
        assert group.roc is not None
        false, true = group.roc.false_positive_rate, group.roc.true_positive_rate
        step = max(1, len(false) // _POINTS)
        series.append((group.name, [*false[::step], 1.0], [*true[::step], 1.0]))
    made = lines(series, "false positives", "true positives", x_range=(0, 1), y_range=(0, 1))
    made.line(x=[0, 1], y=[0, 1], color=LINE, line_dash="dotted")
    return made


def others_chart(facts: PublicFacts) -> Chart | None:
    """How good the model became on others while it trained."""
    test = facts.test or {}
    history = [one for one in test.get("history", ()) if "accuracy" in one]
    if len(history) < 2:
        return None
    steps, right = [one["step"] for one in history], [one["accuracy"] for one in history]
    return Chart(
        "test",
        "Accuracy on others while it trained",
        f"After {steps[-1]:,} steps the model is right on {percent(right[-1])} of the records that took no part in "
        "training.",
        ("step", "accuracy"),
        tuple((f"{step:,}", percent(each)) for step, each in zip(steps, right, strict=True)),
        partial(lines, [("accuracy", steps, right)], "step", "accuracy"),
    )


def clients_chart(facts: InternalFacts) -> Chart | None:
    """Rounds of a federation by client."""
    clients = {name: each for name, each in facts.accounts.items() if "joined" in each}
    if not clients or facts.shown.terms is None:
        return None
    cap = int(facts.shown.terms["most_joined"])
    names, joined = [*clients], [float(each["joined"]) for each in clients.values()]
    return Chart(
        "clients",
        "Rounds by client",
        f"A client may join {cap:,} rounds (the dashed line): everybody's ε is accounted for that many. "
        f"The most that one joined is {max(joined):,.0f}.",
        ("client", "rounds joined", "records", "largest ε spent", "largest share of a budget"),
        tuple((name, f"{each['joined']:,}", *_account(each)) for name, each in clients.items()),
        partial(bars, names, [("joined", joined)], "client", "rounds", float(cap)),
    )


def _account(each: Any) -> tuple[str, str, str]:
    shares = [spent / granted for spent, granted in zip(each["spent"], each["granted"], strict=True)]
    return f"{len(shares):,}", f"{max(each['spent'], default=0.0):.4g}", percent(max(shares, default=0.0))


def rounds_chart(facts: InternalFacts) -> Chart | None:
    """How good a federation's model became, round by round."""
    course = facts.metrics.get("rounds", [])
    if len(course) < 2:
        return None
    numbers, right = [one["round"] for one in course], [one["accuracy"] for one in course]
    return Chart(
        "rounds",
        "Accuracy over rounds",
        f"After {numbers[-1]:,} rounds the common model is right on {percent(right[-1])} of the test records.",
        ("round", "accuracy"),
        tuple((f"{number:,}", percent(each)) for number, each in zip(numbers, right, strict=True)),
        partial(lines, [("accuracy", numbers, right)], "round", "accuracy"),
    )
