"""The report of a run: whole in itself, in NIST's order, and its public edition follows from nobody."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import privypurse as pp
from command_line import done
from components import require
from page_checks import Page, complaints, contrast
from privypurse.audit.canary_audit import CanaryAudit
from privypurse.audit.result import AuditResult, Cost, Group, PlanConstants, Roc
from privypurse.audit.subject import stand_in
from privypurse.queries import Analyst, answers
from privypurse.queries.answers import in_short
from privypurse.runs.folder import RunFolder
from run_folders import trained

require("report")
from privypurse import _pages  # noqa: E402
from privypurse.report import charts, fitting_audits, page, sections  # noqa: E402
from privypurse.report.card import model_card  # noqa: E402
from privypurse.report.facts import internal_facts, public_facts  # noqa: E402
from privypurse.report.usefulness import figure_rows  # noqa: E402
from public_files import made_of  # noqa: E402

HOSTILE = '"><script>alert(1)</script><img src=//example.org/x onerror=y>'
PRESENCE = "noise_multiplier = 3.0"


FIXED = PlanConstants(
    method="sample",
    noise_multiplier=3.0,
    clip_norm=1.0,
    batch_size=10,
    accountant="rdp",
    steps=6,
    all_steps=6,
)
"""Of the plan of runs by `PRESENCE`."""


def audit(
    names: tuple[str, ...] = ("strict", "medium", "relaxed"),
    data: str = "made up",
    plan: PlanConstants | None = FIXED,
) -> AuditResult:
    roc = Roc(false_positive_rate=(0.0, 0.1, 1.0), true_positive_rate=(0.0, 0.2, 1.0))
    bounds = {"guesses": 0.3, "f-dp": 0.6, "gaussian scores": 0.9}
    groups = tuple(
        Group(name=name, claimed_epsilon=1.0, delta=1e-5, flagged=False, bounds=bounds, auc=0.55, roc=roc)
        for name in names
    )
    fixed = {"confidence": 0.95, "delta": 1e-5, "verdict_reading": "f-dp", "cost": Cost(trainings=1, seconds=2.0)}
    edition = "internal" if data == "members" else None
    return AuditResult(attack="canaries", data=data, groups=groups, edition=edition, plan=plan, **fixed)


def text_of(html: str) -> str:
    return " ".join(Page.of(html).texts["main"][0].split())


def charts_of(html: str) -> list[str]:
    return [each["id"] for each in Page.of(html).all("div") if each.get("class") == "chart"]


@pytest.mark.slow
def test_both_editions_are_whole_in_themselves(run: Path) -> None:
    public, internal = page.report(run), page.report(run, edition="internal", audit=audit(plan=None))
    for html in (public, internal):
        assert complaints(html, drawing=True) == []
        assert len(html) < 5_000_000
    assert charts_of(public) == ["levels", "test"]
    every = ["levels", "certified", "steps", "rates", "bounds", "roc", "test", "individual", "against-loss"]
    assert charts_of(internal) == [*every, "group-0", "group-1", "active"]


def test_it_goes_in_the_order_that_nist_weighs_a_claim_in(run: Path) -> None:
    said = text_of(page.report(run))
    order = (
        "ε δ Variant|Privacy unit|Neighbouring data sets|Method|Noise multiplier|Accountant|Audit|Accuracy|"
        "Trust model|Side channels|Randomness and floating point|Tuning|Released"
    )
    places = [said.index(word.split()[-1] if word.startswith("ε") else word) for word in order.split("|")]
    assert places == sorted(places)
    assert "Audit not stated" in said
    assert "Controller not stated" in said


@pytest.mark.slow
def test_each_chart_has_a_sentence_and_its_numbers(run: Path) -> None:
    for section in page.internal_sections(internal_facts(run), audit()):
        for chart in section.charts:
            assert chart.sentence.endswith(".")
            assert chart.rows
            assert {len(row) for row in chart.rows} == {len(chart.columns)}
            drawn = json.loads(chart.item())
            names = {each.name for each in chart.draw().renderers}
            assert set(chart.legend) <= names
            assert drawn["target_id"] == chart.key


def test_charts_are_read_as_they_are_drawn(run: Path) -> None:
    found = {c.key: c for s in page.internal_sections(internal_facts(run)) for c in s.charts}
    assert (found["levels"].draw().y_range.start, found["levels"].draw().y_range.end) == (0, 100)  # of 100 guesses
    assert "The stronger the colour, the more records." in found["against-loss"].sentence
    assert "' spent most on average and '" in found["group-0"].sentence


def test_certified_is_what_the_plan_costs(run: Path) -> None:
    [chart] = [c for s in page.internal_sections(internal_facts(run)) for c in s.charts if c.key == "steps"]
    plan = pp.Plan.load(run / "plan.json")
    assert [float(cell) for cell in chart.rows[-1][1:]] == pytest.approx(plan.spent_by_level(), abs=1e-4)
    assert chart.rows[-1][0] == "6"


@pytest.mark.parametrize(
    ("plan", "changed"),
    [("", "other data"), (PRESENCE, "other data"), (PRESENCE, "other budget"), (PRESENCE, "absent")],
)
def test_public_page_card_and_entry_follow_from_nobody(runs: Callable[..., Path], plan: str, changed: str) -> None:
    """All of it but what the model, whose noise is paid for, says on public records."""
    one, other = (replace(public_facts(runs(name, plan)), test=None) for name in ("all", changed))
    assert made_of(one) == made_of(other)


def test_a_head_count_on_the_public_page_would_be_seen(
    runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = sections.handling
    people = {name: internal_facts(runs(name, PRESENCE)).plan.people for name in ("all", "absent")}  # type: ignore[union-attr]
    pages = []
    for name in ("all", "absent"):
        count = ("People", f"{people[name]:,}")
        monkeypatch.setattr(sections, "handling", lambda facts, c=count: replace(honest(facts), facts=(c,)))
        facts = replace(public_facts(runs(name, PRESENCE)), test=None)
        pages.append(page._page(facts, page.public_sections(facts), page.Edition.PUBLIC))
    assert pages[0] != pages[1]


def test_the_public_page_is_made_of_public_files_alone(run: Path, tmp_path: Path) -> None:
    for name in ("public.json", *json.loads((run / "public.json").read_text("utf-8"))["files"]):
        shutil.copy(run / name, tmp_path / name)
    assert page.report(tmp_path) == page.report(run)


def test_the_public_page_tells_no_count_duration_digest_or_solved_noise(run: Path) -> None:
    facts, said = internal_facts(run), text_of(page.report(run))
    assert "not told: it may follow from everybody's budgets" in said
    plan = facts.plan
    assert plan is not None
    hidden = [f"{plan.noise_multiplier:.4g}", plan.digest()[:12], "Duration", "People"]
    files = json.loads((run / "run.json").read_text("utf-8"))["files"]
    hidden += [each["sha256"][:12] for each in files.values()]
    assert [word for word in hidden if word in said] == []
    inside = text_of(page.report(run, edition="internal"))
    assert f"Noise multiplier σ {plan.noise_multiplier:.4g}" in inside
    assert "People 40" in inside
    assert "Internal edition: sensitive." in inside


def test_an_audit_is_public_only_if_it_tells_of_nobody(runs: Callable[..., Path]) -> None:
    fixed, solved = runs("all", PRESENCE), runs("all", "")
    for names in (("strict", "medium", "relaxed"), ("ε = 1", "ε = 2", "ε = 4")):
        assert "bounds" in charts_of(page.report(fixed, audit=audit(names)))
    with pytest.raises(pp.InvalidInput, match="attacked people in training"):
        page.report(fixed, audit=audit(data="members"))
    with pytest.raises(pp.InvalidInput, match="tell which levels somebody chose"):
        page.report(fixed, audit=audit(("ε = 1", "ε = 2")))
    with pytest.raises(pp.InvalidInput, match="names levels that it left out"):
        page.report(fixed, audit=msgspec.structs.replace(audit(), not_attacked=("ε = 3",)))
    with pytest.raises(pp.InvalidInput, match="bounds tell the noise"):
        page.report(solved, audit=audit())


@pytest.mark.slow
@pytest.mark.parametrize("plan", [PRESENCE, "", "extra_steps = 4"])
def test_an_audit_of_the_runs_own_plan_fits_and_no_other(tmp_path: Path, plan: str) -> None:
    """By what an attack really wrote; each constant that is another one is named."""
    more = "[individual]\nevery = 2" if "extra" in plan else ""
    run = trained(tmp_path / "run", plan=plan, more=more)
    made = pp.Plan.load(run / "plan.json")
    found = CanaryAudit(stand_in(made, others=40), canaries=50).run()
    assert "Plan attacked one with the constants" in text_of(page.report(run, edition="internal", audit=found))
    assert found.plan is not None
    other = {
        "method": "uniform",
        "noise_multiplier": made.noise_multiplier * (1 + 1e-15),
        "clip_norm": 2.0,
        "batch_size": 11,
        "accountant": "pld",
        "steps": 5,
        "filter": "gdp",
    }
    for name, value in other.items():
        broken = msgspec.structs.replace(found, plan=msgspec.structs.replace(found.plan, **{name: value}))
        with pytest.raises(pp.InvalidInput, match=rf"another plan than that of this run: {name} is .* here\."):
            page.report(run, edition="internal", audit=broken)
    groups = tuple(msgspec.structs.replace(group, delta=1e-6) for group in found.groups)
    with pytest.raises(pp.InvalidInput, match="delta is 1e-06 there and 1e-05 here"):
        page.report(run, edition="internal", audit=msgspec.structs.replace(found, groups=groups))


def test_in_public_too_an_audit_of_another_plan_is_refused(
    runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs("all", PRESENCE)
    less = audit(plan=msgspec.structs.replace(FIXED, noise_multiplier=2.0))
    with pytest.raises(pp.InvalidInput, match=r"noise_multiplier is 2\.0 there and 3\.0 here"):
        page.report(run, audit=less)
    with pytest.raises(pp.InvalidInput, match="does not say which plan it attacked; make it anew"):
        page.report(run, audit=audit(plan=None))
    said = text_of(page.report(run, edition="internal", audit=audit(plan=None)))
    assert "Plan attacked not stated" in said
    # The twin that compares nothing shows bounds of a plan with less noise as this run's.
    monkeypatch.setattr(fitting_audits, "_differences", lambda *_: ())
    assert "bounds" in charts_of(page.report(run, audit=less))


def test_an_audit_of_a_plan_says_nothing_of_a_federation_or_a_question(tmp_path: Path) -> None:
    with pytest.raises(pp.InvalidInput, match="method is 'sample' there and 'federated' here"):
        page.report(a_federation(tmp_path / "run"), edition="internal", audit=audit())
    RunFolder.begin(tmp_path / "query", "query").add_json("answer.json", {}, public=True)
    with pytest.raises(pp.InvalidInput, match="this run trained nothing"):
        page.report(tmp_path / "query", edition="internal", audit=audit())


def test_a_refuted_claim_is_said() -> None:
    bad = audit()
    flagged = AuditResult(
        **{
            **{name: getattr(bad, name) for name in bad.__struct_fields__},
            "groups": tuple(
                Group(**{**{n: getattr(g, n) for n in g.__struct_fields__}, "flagged": g.name == "medium"})
                for g in bad.groups
            ),
        }
    )
    section = sections.correctness(flagged, page._of_audit(flagged))
    assert section.words[0] == "Verdict: The claim is refuted."
    assert section.charts[0].sentence.startswith("The claim is refuted for medium.")
    assert sections.correctness(audit()).words[0] == "Verdict: Nothing was found against the claim."


def test_an_estimate_above_the_claim_is_said_to_prove_nothing() -> None:
    found = audit()
    high = tuple(msgspec.structs.replace(g, bounds={**g.bounds, "gaussian scores": 1.5}) for g in found.groups)
    [chart, _] = page._of_audit(msgspec.structs.replace(found, groups=high))
    assert chart.sentence.startswith("No attack proved more than is claimed.")
    assert "Gaussian scores are an estimate: where it lies above the claim, it proves nothing" in chart.sentence
    alone = tuple(msgspec.structs.replace(g, bounds={"f-dp": 0.6}) for g in found.groups)
    [chart, _] = page._of_audit(msgspec.structs.replace(found, groups=alone))
    assert "estimate" not in chart.sentence


def test_accuracy_stands_beside_that_of_one_answer_for_all(run: Path) -> None:
    """Of the five others three are "no"; where a test is internal, neither page for others nor card has a figure."""
    for said in (text_of(page.report(run)), model_card(public_facts(run))):
        assert "(always the commonest class: 60.0 %)" in said
        assert "of 3 'no':" in said
        assert "on 2 records" in said  # of one group
        assert "AUC" in said
        assert "Calibration error" in said
    without = replace(public_facts(run), test=None)
    for said in (dict(sections.utility(without).facts)["Test"], model_card(without)):
        assert "ot stated: " in said
        assert "commonest" not in said


def test_other_kinds_of_test_are_said_too() -> None:
    whose = {"records": 9, "about": "Public records."}
    several = {"classes": list("abcde"), "confusion": [[1 + (i == k) for k in range(5)] for i in range(5)]}
    said = dict(figure_rows({**whose, "accuracy": 0.5, "auc": {"a": 0.5, "b": 1.0, "c": None}, **several}))
    assert said["AUC"] == "0.750, the mean over each class against the rest"
    assert said["Said, by class"].startswith("'a' 33.3 % of 6; ")
    flag = {"records": 4, "accuracy": 0.75, "accuracy_without_a_model": 0.5}
    assert dict(figure_rows({**whose, "labels": {"x": flag, "y": None}}))["Accuracy of 'x'"] == (
        "75.0 % (always the commonest class: 50.0 %), on 4 records"
    )
    number = {**whose, "mean_absolute_error": 2.5, "r_squared": None, "loss": 3.0, "loss_without_a_model": 4.0}
    said = dict(figure_rows({**number, "groups": {"town": {"Oslo": {"records": 2, "mean_absolute_error": 1.0}}}}))
    assert said["Mean absolute error by 'town'"] == "'Oslo' 1 on 2 records"
    assert said["Loss"] == "3 (one answer for all: 4)"
    assert "R²" not in said


def test_what_is_not_stated_names_its_key_and_delta_its_meaning(run: Path) -> None:
    facts = public_facts(run)
    told = replace(facts, about={**facts.about, "controller": "Bank of Oslo"})
    [hint] = sections.answering(told).words
    assert "under [about]" in hint
    assert "legal_basis" in hint
    assert "controller" not in hint
    assert "at most e^ε times as likely" in dict(sections.promise(facts).facts)["δ"]
    assert dict(sections.promise(replace(facts, seeded=True)).facts)["δ"] == "1e-5 for everybody"


def test_what_others_wrote_stays_text(run: Path) -> None:
    facts = replace(public_facts(run), data=HOSTILE, levels={HOSTILE: 1.0}, about={"controller": HOSTILE})
    html = page._page(facts, page.public_sections(facts), page.Edition.PUBLIC)
    assert complaints(html, drawing=True) == []
    assert len(Page.of(html).all("script")) == 2


def test_a_level_whose_name_looks_like_another_epsilon_is_shown_with_its_own(run: Path) -> None:
    told = replace(public_facts(run), levels={"ε = 0.1": 8.0, "ε = 2": 2.0})
    assert dict(sections.promise(told).facts)["ε"] == "each person's own: ε = 0.1 8, ε = 2"


def test_series_are_seen_on_their_ground() -> None:
    base, own = _pages._source("page.css"), _pages._source("report.css")
    grounds = [part.split(";")[0].strip() for part in base.split("--ground:")[1:3]]
    for ground, line in zip(grounds, [line for line in own.splitlines() if "--series-1:" in line], strict=True):
        found = [part.split(";")[0].strip() for part in line.split(": #")[1:]]
        assert len(found) == len(charts.SERIES)
        assert min(contrast(f"#{colour}", ground) for colour in found) >= 3


@pytest.mark.slow
def test_on_the_command_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    said = done(capsys, f"report {run} -o {out}")
    assert "written to" in said
    assert out.read_text("utf-8") == page.report(run)
    audit(plan=None).save(tmp_path / "audit")
    said = done(capsys, f"report {run} -o {out} --edition internal --audit {tmp_path / 'audit'}")
    assert "sensitive" in said
    assert os.stat(out).st_mode & 0o077 == 0
    assert "bounds" in charts_of(out.read_text("utf-8"))
    card, registry = tmp_path / "card.md", tmp_path / "deployment.yaml"
    said = done(capsys, f"report {run} --card {card} --registry {registry}")
    assert "report.html" not in said  # no page was asked for
    assert "## Privacy" in card.read_text("utf-8")
    assert "deployment:" in registry.read_text("utf-8")


def a_federation(folder: Path) -> Path:
    from dataclasses import asdict

    from privypurse.federated.terms import Terms

    terms = Terms(rounds=4, local_steps=5, noise_multiplier=2.0, batch_size=8, learning_rate=0.1, clients=2)
    kept = RunFolder.begin(folder, "federate")
    kept.add_json("terms.json", asdict(terms), public=True)
    facts = {"data": "adult", "unit": "record", "seeded": True, "promise": "seeded: NOT private."}
    kept.add_json("facts.json", facts, public=True)
    kept.add_json("metrics.json", {**facts, "rounds": [{"round": k, "accuracy": k / 10} for k in (1, 2, 3, 4)]})
    accounts = {name: {"joined": 3, "granted": [1.0, 2.0], "spent": [0.5, 1.9]} for name in ("north", "south")}
    kept.add_json("accounts.json", accounts)
    return folder


def test_a_federation_has_a_report_too(tmp_path: Path) -> None:
    run = a_federation(tmp_path / "run")
    public, internal = page.report(run), page.report(run, edition="internal")
    assert "4 rounds of 5 local steps" in text_of(public)
    assert "NOT private" in text_of(public)
    assert "north" not in public
    assert charts_of(internal) == ["rounds", "clients"]
    assert "A client may join 4 rounds" in text_of(internal)
    assert "95.0 %" in text_of(internal)  # the largest share of a budget
    assert complaints(internal, drawing=True) == []


def test_an_answer_has_a_report_too(tmp_path: Path) -> None:
    kept = RunFolder.begin(tmp_path, "query")
    cost = {"epsilon": 0.1, "delta": 1e-5}
    answer = {"value": 12.5, "noise": 20.0, "note": "", "cost": cost, "says": "it costs at most ε = 0.1 at δ = 1e-05"}
    kept.add_json("answer.json", answer, public=True)
    html = page.report(tmp_path)
    assert "It costs at most ε = 0.1" in text_of(html)
    assert "12.5, noise of standard deviation 20" in text_of(html)
    assert complaints(html) == []  # nothing to draw: no library


def test_an_answer_is_told_with_its_own_error_and_with_what_has_to_be_known(tmp_path: Path) -> None:
    """The noise of a mean is on the count and on the sum, and where nobody is left the middle is no answer."""
    table = {"pay": np.linspace(0.0, 900.0, 400)}
    with pytest.warns(pp.PrivyPurseWarning, match="seed=1"):
        asks = Analyst(table, pp.Budgets(np.full(400, 8.0)), seed=1)
    told = asks.mean("pay", lower=0.0, upper=1000.0, noise=5.0)
    nothing = asks.mean("pay", lower=0.0, upper=1000.0, where="pay < 0", noise=5.0)
    shown = []
    for place, answer in enumerate((told, nothing)):
        RunFolder.begin(tmp_path / f"{place}", "query").add_json("answer.json", answer.to_json(), public=True)
        shown.append(text_of(page.report(tmp_path / f"{place}")))
    assert f"{float(told):.6g} ± about {in_short(told.error)}" in shown[0]
    assert "the middle of the range, not an answer" in shown[1]
    assert not any("noise of standard deviation" in each for each in shown)


def test_a_note_of_a_time_when_it_might_name_what_somebody_grants_is_not_told(tmp_path: Path) -> None:
    """Answers of then state no version; their files stay as they are, a page of them is made anew (rule 6)."""
    rung = "whoever allows ε = 0.37 cannot pay for this, even with a full purse"
    now = pp.Answer(12.5, 20.0, answers.Cost(0.01, "gdp"), np.array([12.5]), note="that is public").to_json()
    earlier = {name: said for name, said in now.items() if name != "version"} | {"note": rung}
    shown = []
    for place, answer in enumerate((earlier, now)):
        RunFolder.begin(tmp_path / f"{place}", "query").add_json("answer.json", answer, public=True)
        shown.append([text_of(page.report(tmp_path / f"{place}", edition=one)) for one in ("public", "internal")])
    assert not any("0.37" in each for each in shown[0])
    assert all("that is public" in each for each in shown[1])


def test_the_cost_of_an_answer_is_rounded_up_and_told_with_its_delta(tmp_path: Path) -> None:
    """A bound that is rounded to the nearest digit may lie below what it bounds (rule 4)."""
    cost = {"epsilon": 0.16004231, "delta": 1e-6}
    answer = {"value": 12.5, "noise": 20.0, "note": "", "cost": cost, "says": "costs ε = 0.161 at δ = 1e-6"}
    RunFolder.begin(tmp_path, "query").add_json("answer.json", answer, public=True)
    shown = text_of(page.report(tmp_path))
    assert "at most 0.161 for whoever the question touches" in shown
    assert "1e-6, at which the cost is told" in shown


def test_an_edition_that_does_not_exist_is_named(run: Path) -> None:
    with pytest.raises(pp.InvalidInput, match="edition is 'both'; choose 'public' or 'internal'"):
        page.report(run, edition="both")
