"""Public facts come from public files alone, and follow from nobody: not from their data, and where presence is
protected not from their budget or presence either."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import privypurse as pp
from privypurse.audit.claims import constants_of
from privypurse.audit.result import AuditResult, Cost, Group
from privypurse.errors import PrivyPurseWarning
from privypurse.ledger import keys
from privypurse.ledger.private import private_ledger
from privypurse.queries.table_ledger import table_ledger
from privypurse.report.facts import PublicFacts, internal_facts, public_facts
from privypurse.report.fitting_audits import require_same_plan
from privypurse.runs.config import parse_config
from privypurse.runs.folder import RunFolder
from privypurse.runs.public_choices import PublicChoices
from privypurse.runs.training_run import train_by
from run_folders import LINES, trained

PRESENCE = "noise_multiplier = 3.0"


def without_noise(facts: PublicFacts) -> PublicFacts:
    """All but what the model, whose noise people paid for, says on public records."""
    assert facts.test is not None
    return replace(facts, test=None)


def constant_files(folder: Path) -> dict[str, bytes]:
    """The public files without the model, and what it says."""
    listed = json.loads((folder / "public.json").read_text("utf-8"))["files"]
    assert {"model.pt", "test.json"} < set(listed)
    return {name: (folder / name).read_bytes() for name in listed if name not in ("model.pt", "test.json")}


def assert_alike(one: Path, other: Path) -> None:
    assert without_noise(public_facts(one)) == without_noise(public_facts(other))
    assert constant_files(one) == constant_files(other)


@pytest.mark.parametrize(
    ("plan", "changed"),
    [("", "other data"), (PRESENCE, "other data"), (PRESENCE, "other budget"), (PRESENCE, "absent")],
)
def test_public_facts_follow_from_nobody(runs: Callable[..., Path], plan: str, changed: str) -> None:
    assert_alike(runs("all", plan), runs(changed, plan))


TELLING = {
    "people": ("absent", lambda plan: plan.people),
    "largest ε": ("other budget", lambda plan: float(plan.levels.epsilon.max())),
    "occupied levels": ("other budget", lambda plan: len(plan.levels)),
}


@pytest.mark.parametrize("what", TELLING)
def test_a_fact_that_follows_from_people_would_be_seen(runs: Callable[..., Path], tmp_path: Path, what: str) -> None:
    changed, value = TELLING[what]
    copies = [Path(shutil.copytree(runs(name, PRESENCE), tmp_path / name)) for name in ("all", changed)]
    assert_alike(*copies)
    for copy in copies:
        folder, told = RunFolder.open(copy), json.loads((copy / "facts.json").read_text("utf-8"))
        folder.add_json("facts.json", {**told, what: value(pp.Plan.load(copy / "plan.json"))}, public=True)
    with pytest.raises(AssertionError):
        assert_alike(*copies)


def test_public_facts_need_no_internal_file(run: Path, tmp_path: Path) -> None:
    """Passed on as public.json says, a run tells the same; what is internal is not even there."""
    alone = tmp_path / "alone"
    alone.mkdir()
    for name in ("public.json", *json.loads((run / "public.json").read_text("utf-8"))["files"]):
        shutil.copy(run / name, alone / name)
    assert public_facts(alone) == public_facts(run)


def test_public_facts_are_what_was_chosen_in_public(run: Path) -> None:
    facts = public_facts(run)
    assert facts.levels == {"strict": 1.0, "medium": 2.0, "relaxed": 4.0}  # nobody is relaxed: that is not told
    assert (facts.fixed_steps, facts.batch_size, facts.clip_norm, facts.delta) == (6, 10, 1.0, 1e-5)
    assert (facts.unit, facts.protects, facts.accountant, facts.epsilon) == ("person", "data", "rdp", 4.0)
    assert facts.noise_multiplier is None  # solved from everybody's budgets
    assert facts.test is not None
    assert facts.test["records"] == 5


def test_noise_is_public_where_nobodys_budget_moved_it(tmp_path: Path) -> None:
    facts = public_facts(trained(tmp_path, plan=PRESENCE + "\nat_most = 1.5"))
    assert (facts.noise_multiplier, facts.protects, facts.at_most, facts.epsilon) == (3.0, "presence", 1.5, 1.5)


def test_steps_that_tell_how_many_people_there_are_stay_inside(tmp_path: Path) -> None:
    folder = trained(tmp_path, plan="epochs = 1.5", training="validate_every = 2")
    assert public_facts(folder).steps is None
    assert '"steps"' not in (folder / "facts.json").read_text("utf-8")
    assert '"step"' not in (folder / "test.json").read_text("utf-8")
    assert internal_facts(folder).shown.steps == 6  # 1.5 · 40 people / 10


def test_inside_an_audit_of_the_runs_own_plan_fits_where_its_steps_and_noise_are_not_public(tmp_path: Path) -> None:
    inside = internal_facts(trained(tmp_path, plan="epochs = 1.5"))
    assert inside.plan is not None
    group = Group(name="all", claimed_epsilon=1.0, delta=inside.shown.delta or 0.0, flagged=False)
    known = {"confidence": 0.95, "verdict_reading": "f-dp", "cost": Cost(trainings=1, seconds=1.0), "words": ()}
    audit = AuditResult(
        attack="canaries",
        data="made up",
        delta=group.delta,
        groups=(group,),
        plan=constants_of(inside.plan),
        **known,
    )
    require_same_plan(audit, inside.shown)
    longer = msgspec.structs.replace(constants_of(inside.plan), steps=7)
    with pytest.raises(pp.InvalidInput, match="steps is 7 there and 6 here"):
        require_same_plan(msgspec.structs.replace(audit, plan=longer), inside.shown)


@pytest.mark.slow
@pytest.mark.needs("report")
def test_a_stopping_rule_does_not_tell_when_it_began_where_steps_are_not_told(tmp_path: Path) -> None:
    """It asks first after the fixed steps, which were computed from how many people there are."""
    from privypurse.report.page import report

    stop = 'extra_steps = 4\nstop = { kind = "plateau", noise = 50, every = 2, most = 2 }'
    told = []
    for people in (40, 30):
        plan, home = f"epochs = 1.5\n{stop}", tmp_path / str(people)
        folder = trained(home, LINES[:people], plan=plan, more="[individual]\nevery = 2")
        facts = json.loads((folder / "facts.json").read_text("utf-8"))
        answers = facts.pop("told")
        assert all(set(each) == {"answer"} for each in answers)
        assert [step for step, _ in public_facts(folder).told] == [None] * len(answers)
        told.append(facts)
        assert "at step" not in report(folder)
    assert told[0] == told[1]
    open_steps = trained(tmp_path / "open", plan=stop, more="[individual]\nevery = 2")
    assert public_facts(open_steps).told[0][0] == 6  # given, and so told
    assert "at step 6" in report(open_steps)


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "steps"), [(None, None), (3.0, 6)])
def test_steps_of_a_plan_from_a_file_are_told_only_where_presence_is_protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sigma: float | None, steps: int | None
) -> None:
    """The file does not say whether they were computed from how many people there are."""
    monkeypatch.chdir(tmp_path)
    epsilon, ids = [1.0 + i % 2 for i in range(40)], [f"p{i}" for i in range(40)]
    people = None if sigma is None else 40
    budgets = pp.Budgets(epsilon, delta=1e-5, person=ids)
    options = {"noise_multiplier": sigma, "people": people, "accountant": "rdp"}
    pp.plan(budgets, epochs=1.5, batch_size=10, **options).save("plan.json")
    rows = "\n".join(f"{i},{('no', 'yes')[i % 2]},p{i}" for i in range(40))
    Path("people.csv").write_text(f"age,answer,id\n{rows}\n", encoding="utf-8")
    text = (
        'plan = "plan.json"\n[data]\ntable = "people.csv"\nlabel = "answer"\nclasses = ["no", "yes"]\nperson = "id"\n'
        '[data.features]\nage = { low = 0, high = 100 }\n[model]\nkind = "mlp"\nhidden = []\n'
        '[optimizer]\nname = "SGD"\nlr = 0.1\n[training]\ndevice = "cpu"'
    )
    assert public_facts(train_by(parse_config(text)).folder).steps == steps


def test_rungs_that_follow_from_grants_are_no_levels_that_people_could_choose(tmp_path: Path) -> None:
    """A table's own ledger takes its rungs from its people; one that is made for everybody has public ones."""
    budgets = pp.Budgets([1.03, 2.07, 3.11], delta=[1e-5, 2e-6, 1e-5], person=["a", "b", "c"])
    config = parse_config(
        '[data]\ntable = "people.csv"\nlabel = "answer"\nclasses = ["no", "yes"]\nperson = "id"\n'
        '[data.features]\nage = { low = 0, high = 100 }\n[budgets]\nepsilon = "epsilon"\n'
        '[plan]\nsteps = 6\nbatch_size = 10\nat_most = 0.5\nnoise_multiplier = 3.0\n[model]\nkind = "mlp"\n'
        '[optimizer]\nname = "SGD"\nlr = 0.1'
    )
    for ledger in (
        private_ledger(tmp_path / "silo", budgets),
        table_ledger(tmp_path / "people.csv.ledger", budgets, {"people": "id"}).ledger,
    ):
        assert {rung.epsilon for rung in ledger.rungs} == {1.03, 2.07, 3.11}  # each somebody's own
        chosen = PublicChoices.of(config, ledger)
        assert (dict(chosen.levels), chosen.delta) == ({}, None)
    common = pp.Ledger.create(f"sqlite:///{tmp_path / 'all.db'}", [(1.0, 1e-5), (2.0, 1e-5)], key=keys.new())
    chosen = PublicChoices.of(config, common)
    assert (dict(chosen.levels), chosen.delta) == ({"ε = 1": 1.0, "ε = 2": 2.0}, 1e-5)


def test_internal_facts_are_everything(run: Path) -> None:
    facts = internal_facts(run)
    plan = pp.Plan.load(run / "plan.json")
    assert facts.plan is not None
    assert facts.plan.digest() == plan.digest()
    assert facts.shown.noise_multiplier == plan.noise_multiplier
    assert facts.promised is not None
    assert facts.spent is not None
    assert sorted(facts.promised.tolist()) == [1.0] * 20 + [2.0] * 20
    assert (facts.spent <= facts.promised).all()
    groups = facts.by_group["groups"]
    assert groups["kind"]["a"]["mean_epsilon"] == pytest.approx(facts.spent[facts.promised == 1].mean(), rel=1e-5)
    assert {name: each["records"] for name, each in groups["answer"].items()} == {"no": 26, "yes": 14}
    against = facts.by_group["against_loss"]
    assert np.sum(against["counts"]) == 40


def test_a_seeded_run_has_no_public_facts(tmp_path: Path) -> None:
    with pytest.warns(PrivyPurseWarning, match="for tests only"):
        folder = trained(tmp_path, training="seed = 0")
    with pytest.raises(pp.InvalidInput, match=r"holds nothing that may be shown.*internal edition"):
        public_facts(folder)
    assert internal_facts(folder).shown.seeded
