"""privypurse audit --real: it trains on members, who pay as for any run, and what it finds is internal."""

from __future__ import annotations

import stat
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import command_line
import privypurse as pp
from ledger_tools import EPSILONS, KEY, charged, new_ledger, step_cost
from privypurse.audit.canaries import Scored
from privypurse.audit.canary_audit import CanaryAudit
from privypurse.audit.members import Members
from privypurse.audit.membership_audit import MembershipAudit
from privypurse.audit.result import AuditResult
from privypurse.audit.subject import subject_on_members
from privypurse.errors import InvalidInput
from privypurse.report.page import report
from privypurse.runs.config import parse_config
from privypurse.runs.training_run import train_by
from privypurse.training.mechanism import PrivateRun

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:No ledger")]
N, STEPS, NOISE = 60, 5, 3.0
IDS = np.array([f"C{k:02d}" for k in range(N)])
GRANTED = np.array(EPSILONS)[np.arange(N) % 3]
EMPTY = 7
"""Somebody whose purse is empty before the audit."""

SURE = "--confidence 0.9999999"
"""At the usual 95 % a sound run is refuted now and then."""

CONFIG = """
{ledger}
[data]
table = "{folder}/people.csv"
label = "y"
classes = ["0", "1"]
person = "id"
features = {{ x = {{ low = -4, high = 4 }} }}
[budgets]
epsilon = "epsilon"
[plan]
steps = 5
batch_size = 20
noise_multiplier = 3.0
accountant = "rdp"
{plan}
[model]
kind = "mlp"
hidden = [4]
[optimizer]
name = "SGD"
lr = 0.5
[training]
device = "cpu"
out = "{folder}/run"
{training}
"""


def trained(folder: Path, ledger: str = "", plan: str = "", training: str = "", rows: int = N) -> Path:
    random = np.random.default_rng(1)
    lines = [f"{IDS[k % N]},{GRANTED[k % N]:g},{random.normal():.3f},{k % 2}" for k in range(rows)]
    (folder / "people.csv").write_text("\n".join(["id,epsilon,x,y", *lines]) + "\n", encoding="utf-8")
    text = CONFIG.format(folder=folder, ledger=ledger, plan=plan, training=training)
    return train_by(parse_config(text)).folder


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pp.Ledger:
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", KEY.hex())
    made = new_ledger(tmp_path)
    made.join(IDS, GRANTED)
    return made


def run_under(ledger: pp.Ledger, folder: Path) -> Path:
    return trained(folder, f'ledger = "sqlite:///{folder}/purses.db"', "at_most = 0.2")


def require_charged(ledger: pp.Ledger, before: np.ndarray, plan: pp.Plan, runs: int = 1) -> None:
    """Of everybody but those who could not pay, whole runs by the plan, by a plain sum at the orders for life."""
    orders = np.array([rung.order for rung in ledger.rungs])
    rates = plan.levels.rate[plan.level_of]
    cost = np.array([[runs * STEPS * step_cost(rate, NOISE, order) for order in orders] for rate in rates])
    cost[EMPTY] = 0.0
    paid = charged(ledger, IDS) - before
    assert paid[np.arange(N) != EMPTY].min() > 0
    assert (paid >= cost - 1e-9).all()
    assert paid == pytest.approx(cost, rel=0.01, abs=1e-9)


def emptied(ledger: pp.Ledger) -> None:
    one = ledger.members(IDS[EMPTY : EMPTY + 1])
    ledger.charge("a question", one, ledger.room(one), np.zeros(1, dtype=int), at_most=None)


def test_members_are_charged_for_a_whole_run_before_the_first_step(ledger, tmp_path, capsys) -> None:
    run = run_under(ledger, tmp_path)
    plan = pp.Plan.load(run / "plan.json")
    emptied(ledger)
    before = charged(ledger, IDS)
    out = tmp_path / "audit"
    asked = f"audit {run} --real --canaries 100 {SURE} -o {out}"
    lowest, highest = ledger.rungs[0], ledger.rungs[-1]
    own = np.diag(ledger.caps(np.zeros((0, ledger.lifetime.columns), dtype=int), 0.2))
    price = f"the cap, ε = 0.2, is {100 * own[0] / lowest.limit:.0f} % of the lowest rung (ε = {lowest.epsilon:g})"
    code, _, error = command_line.run(capsys, asked)
    assert code == 2
    assert price in error
    assert "--yes" in error
    assert np.array_equal(charged(ledger, IDS), before)
    assert not out.exists()
    said = command_line.done(capsys, f"{asked} --yes")
    assert price in said
    assert f"of the highest rung (ε = {highest.epsilon:g})" in said
    assert "Everybody is charged for it in the ledger" in said.replace("\n", " ")
    require_charged(ledger, before, plan)
    last = ledger.runs()[-1]
    assert (last.purpose, last.settled is not None) == ("audit", True)
    takes_part = ledger.reservation(last.run_id).admitted
    assert not takes_part[EMPTY]
    assert takes_part.sum() == N - 1
    assert not ledger.verify().problems
    found = AuditResult.load(out)
    assert (found.data, found.edition) == ("members", "internal")
    for file in (out / "audit.json", out / "anchor.json"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {file.name for file in out.iterdir()} == {"audit.json", "anchor.json"}  # no model
    pp.Ledger.open(f"sqlite:///{tmp_path}/purses.db", anchor=out / "anchor.json")


def test_a_twin_that_trains_on_members_for_nothing_is_caught(ledger, tmp_path, monkeypatch) -> None:
    run = run_under(ledger, tmp_path)
    plan = pp.Plan.load(run / "plan.json")
    emptied(ledger)

    @contextmanager
    def for_nothing(self, strangers):
        yield None

    before = charged(ledger, IDS)
    with monkeypatch.context() as patched:
        patched.setattr(Members, "charged", for_nothing)
        CanaryAudit(subject_on_members(run, ledger=ledger), canaries=50).run()
    with pytest.raises(AssertionError):
        require_charged(ledger, before, plan)
    before = charged(ledger, IDS)
    CanaryAudit(subject_on_members(run, ledger=ledger), canaries=50).run()
    require_charged(ledger, before, plan)


def test_who_could_not_pay_or_withdrew_contributes_nothing(ledger, tmp_path, monkeypatch) -> None:
    """By the rates that coins are thrown at: those of canaries and of all others stay the plan's."""
    run = run_under(ledger, tmp_path)
    emptied(ledger)
    ledger.withdraw(IDS[3:4])
    seen: list[np.ndarray] = []
    before = PrivateRun.prepare
    monkeypatch.setattr(PrivateRun, "prepare", lambda self: seen.append(self.rates) or before(self))
    subject = subject_on_members(run, ledger=ledger)
    audit = CanaryAudit(subject, canaries=50)
    canaries, _ = audit._trained_on_members()
    plan = subject.members.plan
    wanted = np.append(plan.levels.rate[plan.level_of], plan.levels.rate[canaries.level[canaries.is_in]])
    wanted[[3, EMPTY]] = 0.0
    assert len(seen) == STEPS
    assert all(np.array_equal(rates, wanted) for rates in seen)


def test_what_is_broken_off_is_charged_as_far_as_it_came(ledger, tmp_path, monkeypatch) -> None:
    run = run_under(ledger, tmp_path)
    subject = subject_on_members(run, ledger=ledger)
    before = charged(ledger, IDS)
    monkeypatch.setattr(CanaryAudit, "_scored", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        CanaryAudit(subject, canaries=50).run()
    assert np.array_equal(charged(ledger, IDS), before)
    assert ledger.runs()[-1].settled is not None
    monkeypatch.undo()

    def stopped(self: Scored, *_: object) -> None:
        if self.steps == 1:  # in the second step
            raise KeyboardInterrupt
        self.steps += 1

    monkeypatch.setattr(Scored, "before_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        CanaryAudit(subject, canaries=50).run()
    assert ledger.runs()[-1].settled is not None
    assert charged(ledger, IDS) - before == pytest.approx(before * 2 / STEPS, rel=1e-3)  # of what the run itself cost


def test_lira_is_paid_for_by_everybody_in_half_of_the_models(ledger, tmp_path, monkeypatch) -> None:
    run = run_under(ledger, tmp_path)
    plan = pp.Plan.load(run / "plan.json")
    emptied(ledger)
    before, reserved = charged(ledger, IDS), []
    right = Members.trained
    monkeypatch.setattr(Members, "trained", lambda *of: reserved.append(len(ledger.runs())) or right(*of))
    known = len(ledger.runs())
    audit = MembershipAudit(subject_on_members(run, ledger=ledger), "lira", models=6)
    assert len(ledger.runs()) == known
    found = audit.run()
    assert reserved == [known + 6] * 6  # all before the first
    require_charged(ledger, before, plan, runs=3)
    assert (found.data, found.edition, found.cost.trainings) == ("members", "internal", 6)
    assert all(each.settled is not None for each in ledger.runs())
    assert not ledger.verify().problems


def test_who_could_not_pay_is_not_asked_about(ledger, tmp_path) -> None:
    run = run_under(ledger, tmp_path)
    emptied(ledger)
    said = MembershipAudit(subject_on_members(run, ledger=ledger), "loss", models=6)._trained_on_members(None)
    assert said.level_of.size == N - 1
    assert (said.member.sum(axis=0) == 3).all()


def test_halves_of_people_keep_all_records_of_a_person(tmp_path) -> None:
    members = subject_on_members(trained(tmp_path, rows=2 * N)).members
    mark = np.arange(N) < 10
    some = members.only(mark)
    assert (some.plan.records, len(some.inputs), some.plan.absent) == (20, 20, N - 10)
    assert set(some.plan.person) == set(IDS[:10])
    assert np.array_equal(some.inputs, members.inputs[np.isin(members.plan.person, IDS[:10])])


def test_timing_it_charges_nobody_and_it_needs_the_ledger_of_its_run(ledger, tmp_path) -> None:
    run = run_under(ledger, tmp_path)
    with pytest.raises(InvalidInput, match="give it as ledger="):
        subject_on_members(run)
    subject = subject_on_members(run, ledger=ledger)
    before, runs = charged(ledger, IDS), len(ledger.runs())
    assert "one training of 5 steps" in CanaryAudit(subject, canaries=50).cost
    assert np.array_equal(charged(ledger, IDS), before)
    assert len(ledger.runs()) == runs


def test_without_a_ledger_it_asks_first(tmp_path, capsys) -> None:
    run = trained(tmp_path, rows=2 * N, training="max_records_per_person = 1")  # two records of everybody
    asked = f"audit {run} --real --canaries 100 {SURE} -o {tmp_path / 'audit'}"
    code, _, error = command_line.run(capsys, asked)
    assert code == 2
    assert "--yes" in error
    assert "once more" in error
    assert "by level ε = 0.5, 1, 2." in error
    assert not (tmp_path / "audit").exists()
    said = command_line.done(capsys, f"{asked} --yes").replace("\n", " ")
    assert "nobody adds that up" in said
    found = AuditResult.load(tmp_path / "audit")
    assert (found.data, found.edition) == ("members", "internal")
    with pytest.raises(InvalidInput, match="cannot stand in a public report"):
        report(run, audit=found)
    assert "people in training: internal" in report(run, edition="internal", audit=found)


def test_what_it_cannot_look_at_is_refused(tmp_path, capsys) -> None:
    run = trained(tmp_path)
    code, _, error = command_line.run(capsys, f"audit {run} --real --yes --attack small-runs")
    assert code == 2
    assert "looks at no record" in error.replace("\n", " ")
    code, _, error = command_line.run(capsys, f"audit {run / 'plan.json'} --real --yes")
    assert code == 2
    assert "name the folder of a run" in error.replace("\n", " ")


def test_another_table_is_not_audited_as_the_runs(tmp_path, capsys) -> None:
    run = trained(tmp_path)
    table = tmp_path / "people.csv"
    first = table.read_text("utf-8")
    table.write_text(first.replace("C59,2,", "C59,2,1"), encoding="utf-8")
    asked = f"audit {run} --real --yes --canaries 100 {SURE} -o {tmp_path / 'audit'}"
    code, _, error = command_line.run(capsys, asked)
    assert code == 2
    assert f"{table} is not, byte for byte, the table" in error
    assert not (tmp_path / "audit").exists()
    table.write_text(first, encoding="utf-8")
    command_line.done(capsys, asked)
    (run / "fingerprint.key").unlink()
    with pytest.raises(InvalidInput, match=r"fingerprint\.key"):
        subject_on_members(run)


def test_several_trainings_are_priced_together(ledger, tmp_path) -> None:
    members = subject_on_members(run_under(ledger, tmp_path), ledger=ledger).members
    own = np.diag(ledger.caps(np.zeros((0, ledger.lifetime.columns), dtype=int), 0.2))
    share = min(100, 300 * own[0] / ledger.rungs[0].limit)
    assert f"ε = 0.2, 3 times is {share:.0f} % of the lowest rung" in members.price(3)


def test_people_who_grant_less_now_are_not_audited(tmp_path) -> None:
    run = trained(tmp_path)
    table = tmp_path / "people.csv"
    table.write_text(table.read_text("utf-8").replace("C02,2,", "C02,0.5,"), encoding="utf-8")
    with pytest.raises(InvalidInput, match="overspend"):
        subject_on_members(run)


def test_strangers_come_behind_people_and_change_nothing_for_them(tmp_path) -> None:
    run = trained(tmp_path, rows=N + 5)
    plan = subject_on_members(run).members.plan
    more = plan.with_strangers(np.array([0, 2]))
    assert (more.people, more.records) == (plan.people + 2, plan.records + 2)
    assert np.array_equal(more.rates[:-2], plan.rates)
    assert np.array_equal(more.clip_norms[:-2], plan.clip_norms)
    assert more.rates[-2:].tolist() == plan.levels.rate[[0, 2]].tolist()
    assert (more.noise_multiplier, more.batch_size) == (plan.noise_multiplier, plan.batch_size)
