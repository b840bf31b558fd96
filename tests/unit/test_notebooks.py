"""In notebooks objects show themselves: HTML without script, whatever was written into them; internal is marked."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from made_once import made_once
from page_checks import Page
from privypurse import _notebooks
from privypurse.audit.result import AuditResult, Cost, Group
from privypurse.plans import summary
from privypurse.plans.under_ledger import Own, PlannedUnderLedger
from privypurse.queries import answers
from privypurse.runs.verification.findings import Verified, fits, left_open, wrong
from privypurse.training.individual import spending as spending_module
from privypurse.training.individual.spending import Spending

HARM = "<script>alert('x')</script><img src=x onerror=alert(1)>"
ALLOWED = {"div", "p", "strong", "span", "ul", "li", "table", "caption", "thead", "tbody", "tr", "th", "td"}


@made_once
def plan():
    budgets = pp.Budgets([1.0, 2.0, 2.0, 4.0], person=["a", "b", "c", "d"])
    return pp.plan(budgets, steps=4, batch_size=2, noise_multiplier=3.0, accountant="rdp", at_most=3.0)


def parsed(html):
    """The page, once it is certain that there is nothing in it but text, in elements that do nothing."""
    page = Page.of(f"<html>{html}</html>")
    assert page.badly_closed == []
    assert {tag for tag, _ in page.elements} <= ALLOWED | {"html"}
    for _, attributes in page.elements:
        assert set(attributes) <= {"style", "scope"}
        assert "url" not in attributes.get("style", "")
        assert "#" not in attributes.get("style", "")  # no colour of its own: it reads in light and dark
    return page


def text(page):
    return " ".join(" ".join(page.texts["html"]).split())


def test_a_plan_shows_its_levels_and_what_it_promises():
    page = parsed(plan()._repr_html_())
    for line in summary.facts(plan()):
        assert line in text(page)
    assert page.texts["th"] == ["people", "ε promised", "ε certified", "rate", "clip norm"]
    shown = np.array(page.texts["td"]).reshape(-1, 5)
    assert shown[:, 0].tolist() == ["1", "2", "1"]
    assert shown[:, 1].tolist() == ["1", "2", "3"]
    told, certified = np.array([float(cell.split()[0]) for cell in shown[:, 2]]), plan().spent_by_level()
    assert ((certified <= told) & (told <= certified * 1.001)).all()
    assert _notebooks.SENSITIVE in text(page)
    assert plan().promise.text in text(page)


def test_a_round_and_a_plan_under_a_ledger_have_no_table_of_people():
    """Who was drawn into a round is a secret, and rates under a ledger follow from what people have left."""
    part = parsed(replace(plan(), promise="part")._repr_html_())
    under = PlannedUnderLedger("L", 0.5, np.arange(4), Own.RATE, None)
    lasting = parsed(replace(plan(), ledger=under)._repr_html_())
    for page in (part, lasting):
        assert "td" not in page.texts
    assert "nothing is shown of them" in text(lasting)
    assert _notebooks.SENSITIVE in text(lasting)


def test_what_is_written_into_a_plan_is_no_mark_up():
    page = parsed(replace(plan(), method=HARM, notes=(HARM, "</li></ul><b>"))._repr_html_())
    assert HARM in text(page)


def test_an_answer_shows_its_value_and_its_cost():
    answer = pp.Answer(12.25, 3.0, answers.Cost(0.01, "gdp"), np.array([12.25]), note=HARM, error=2.0)
    page = parsed(answer._repr_html_())
    assert "Answer: 12.25" in text(page)
    assert answer.says in text(page)
    assert HARM in text(page)
    assert _notebooks.SENSITIVE not in text(page)  # it was paid for
    several = pp.Answer(np.arange(60.0), 3.0, answers.Cost(0.01, "gdp"), np.arange(60.0))
    page = parsed(several._repr_html_())
    assert page.texts["td"][1::2] == [f"{value:g}" for value in range(50)]
    assert "the first 50 of 60" in text(page)


def test_what_follows_from_grants_is_printed_for_who_asks_and_kept_in_no_notebook_or_file():
    """A notebook is saved with its views, and passed on."""
    made = answers.Cost(0.01, "gdp")
    answer = pp.Answer(12.25, 3.0, made, np.array([12.25]), note="public", internal_note="whoever allows ε = 0.37")
    assert "(public; whoever allows ε = 0.37); costs" in str(answer)
    assert "0.37" not in text(parsed(answer._repr_html_()))
    assert "0.37" not in str(answer.to_json())


def test_spending_is_internal_and_shows_each_levels_epsilon():
    """Of μ²-GDP steps the zCDP bound is μ²/2 + sqrt(2 μ² log(1/δ)), by hand."""
    square = np.array([0.0, 0.01, 0.04, 0.02])
    spending = Spending(plan(), square, active=((0, 4), (3, 2)), told=((2, 3.5),))
    page = parsed(spending._repr_html_())
    assert _notebooks.SENSITIVE in text(page)
    assert page.texts["td"][12:] == ["0", "4", "3", "2", "2", "3.5"]
    people, promised, half, most = np.array(page.texts["td"][:12], dtype=float).reshape(3, 4).T
    assert (people.tolist(), promised.tolist()) == ([1, 2, 1], [1, 2, 3])
    upper = square / 2 + np.sqrt(2 * square * np.log(1e5))
    assert (most <= upper[[0, 2, 3]] * 1.001).all()
    assert (most[1:] > upper[[2, 3]] / 2).all()
    assert most[0] == 0
    assert half[1] < most[1]
    assert spending.text in text(page)


def test_where_a_plan_shows_no_levels_or_people_are_many_no_epsilon_is_worked_out(monkeypatch):
    monkeypatch.setattr(Spending, "_epsilon", None)
    under = PlannedUnderLedger("L", 0.5, np.arange(4), Own.RATE, None)
    for hidden in (replace(plan(), ledger=under), replace(plan(), promise="part")):
        page = parsed(Spending(hidden, np.zeros(4), active=((0, 4), (3, 4)))._repr_html_())
        assert "td" not in page.texts
        assert "4 people could contribute to the end" in text(page)
    monkeypatch.setattr(spending_module, "_SHOWN_PEOPLE", 3)
    assert "td" not in parsed(Spending(plan(), np.zeros(4))._repr_html_()).texts


def test_what_never_changes_is_said_once():
    same = tuple(pp.Figures(step, 9, 3.0, 0.5) for step in range(1, 10))
    page = parsed(pp.Trained(9, 0, 1.0, "eager", history=same)._repr_html_())
    assert "td" not in page.texts
    assert "learning rate 0.5 throughout" in text(page)
    assert "nobody's ε is above 3, all steps together" in text(page)
    falls = (*same[:8], replace(same[8], learning_rate=0.1))
    page = parsed(pp.Trained(9, 0, 1.0, "eager", history=falls)._repr_html_())
    assert page.texts["td"][-2:] == ["9", "0.1"]
    assert "throughout" not in text(page)


@pytest.mark.parametrize("edition", ["internal", "public"])
def test_a_run_looked_at_again_shows_every_finding(edition):
    found = (fits("files", HARM), wrong("levels", "other"), left_open("grants", "no table"))
    page = parsed(Verified(Path("run"), "train", edition, found)._repr_html_())
    assert page.texts["td"] == [
        "fits",
        "files",
        HARM,
        "does not fit",
        "levels",
        "other",
        "not checked",
        "grants",
        "no table",
    ]
    assert "run: 1 of 3 do not fit, 1 not checked" in text(page)
    assert (_notebooks.SENSITIVE in text(page)) == (edition == "internal")
    sound = parsed(Verified(Path("run"), "train", edition, found[:1])._repr_html_())
    assert "run: nothing that was checked is wrong" in text(sound)


@pytest.mark.parametrize("flagged", [True, False])
def test_an_audit_shows_claims_beside_bounds_and_is_internal(flagged):
    low = Group(name="ε = 1", claimed_epsilon=1.0, delta=1e-5, flagged=flagged, bounds={"guesses": 1.25})
    high = Group(name=HARM, claimed_epsilon=2.0, delta=1e-5, flagged=False, bounds={"gaussian scores": 2.5})
    found = AuditResult(
        attack="canaries",
        data="made up",
        delta=1e-5,
        confidence=0.95,
        verdict_reading="guesses",
        groups=(low, high),
        cost=Cost(trainings=1, seconds=1.0),
        words=("what was done",),
    )
    page = parsed(found._repr_html_())
    verdict = "flagged" if flagged else "cleared"
    assert page.texts["td"] == ["ε = 1", "1", "1.25", "", verdict, HARM, "2", "", "2.5", "cleared"]
    assert ("some claim is refuted" in text(page)) == flagged
    assert "gaussian scores (an estimate, which decides nothing)" in page.texts["th"]
    assert _notebooks.SENSITIVE in text(page)  # its bounds tell the noise
    assert "what was done" in text(page)


def test_what_training_did_is_told_apart_from_what_is_internal():
    inside = pp.Figures(5, 9, None, 0.1, {"accuracy": 0.75, HARM: 1.0}, measured="people")
    shown = pp.Figures(3, 9, None, 0.2, {"loss": 0.5}, measured="public")
    done = pp.Trained(5, 2, 12.3, "eager", Spending(plan(), np.zeros(4)), left_out=7, history=(shown, inside))
    html = done._repr_html_()
    assert HARM in text(parsed(html))
    public, internal = html.split(_notebooks.SENSITIVE, 1)
    for figure in ("0.75", "12.3 seconds", "7 times", "Spending of 4 people"):
        assert figure not in public
        assert figure in internal
    assert "0.5" in public
    assert "2 of them before this call" in public


def test_a_cell_that_is_not_escaped_would_be_seen(monkeypatch):
    monkeypatch.setattr(_notebooks, "escape", lambda text: text)
    with pytest.raises(AssertionError):
        parsed(replace(plan(), notes=(HARM,))._repr_html_())
