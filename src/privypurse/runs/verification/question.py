"""The claims of an answer: what its noise costs, worked out from the question."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from privypurse.queries.answers import epsilon_of
from privypurse.runs.folder import RunFolder
from privypurse.runs.verification.findings import Finding, compared, left_open, wrong

if TYPE_CHECKING:
    from privypurse.runs.verification.training import Beside

_ROUNDING = 1e-6
_LEDGER = "who paid is in its ledger, which `privypurse ledger verify` recomputes"


def of_question(folder: RunFolder, beside: Beside) -> Iterator[Finding]:
    """The ε that is told must be that of the noise, for whoever contributes as much as anybody may."""
    if "answer.json" not in folder.files:
        yield wrong("answer", "run.json lists no answer.json, which every question writes")
        return
    answer = json.loads((folder.path / "answer.json").read_text("utf-8"))
    cost = answer["cost"]
    epsilon = float(epsilon_of(cost["amount"], cost["delta"], cost["currency"]))
    differences = []
    if not abs(cost["epsilon"] - epsilon) <= _ROUNDING * epsilon:
        differences.append(f"answer.json says ε = {cost['epsilon']}, and this amount costs {epsilon:.6g}")
    yield compared("cost", differences, f"this amount costs the ε that is told, at δ = {cost['delta']:g}")
    if "question.json" not in folder.files:
        yield left_open("noise", "that this noise costs this amount: the question is internal, and not here")
    else:
        question = json.loads((folder.path / "question.json").read_text("utf-8"))
        yield compared("noise", list(_cheaper(question, answer)), "this noise costs this amount, by the question")
    yield left_open("charges", _LEDGER)


def _cheaper(question: dict[str, Any], answer: dict[str, Any]) -> Iterator[str]:
    """Gaussian noise on sums that one person moves by at most so much: μ = sensitivity / noise, ρ = μ²/2."""
    most = {"mean": math.sqrt(2.0)}.get(question["question"], 1.0)
    if question["question"] == "sum":
        most = max(abs(question["lower"]), abs(question["upper"]))
    square = (most / answer["noise"]) ** 2
    amount = square if answer["cost"]["currency"] == "gdp" else square / 2
    if not abs(answer["cost"]["amount"] - amount) <= _ROUNDING * amount:
        yield f"answer.json says that it costs {answer['cost']['amount']:.6g}, by the question it is {amount:.6g}"
