"""Two trainings of the same people under one ledger, by configuration files, as a user would do it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from ledger_tools import DELTA, EPSILONS, KEY, new_ledger
from privypurse import cli
from privypurse.runs.config import parse_config
from privypurse.runs.folder import RunFolder
from privypurse.runs.training_run import train_by

pytestmark = pytest.mark.usefixtures("empty_folder")
N = 300
IDS = np.array([f"C{k:04d}" for k in range(N)])
GRANTED = np.array(EPSILONS)[np.arange(N) % 3]

CONFIG = """
ledger = "sqlite:///purses.db"
[data]
table = "{table}"
label = "y"
classes = ["0", "1"]
person = "id"
[data.features]
x = {{ low = -4, high = 4 }}
[budgets]
epsilon = "epsilon"
[plan]
steps = 20
batch_size = 60
noise_multiplier = 3.0
at_most = {at_most}
accountant = "rdp"
[model]
kind = "mlp"
hidden = [4]
[optimizer]
name = "SGD"
lr = 0.5
[training]
out = "{out}"
purpose = "{out}"
"""


def table(name: str, order: np.ndarray) -> str:
    random = np.random.default_rng(1)
    x = random.normal(size=N).clip(-4, 4)
    y = (x + random.normal(size=N) > 0).astype(int)
    rows = [f"{IDS[k]},{GRANTED[k]:g},{x[k]:.4f},{y[k]}" for k in order]
    Path(name).write_text("\n".join(["id,epsilon,x,y", *rows]) + "\n")
    return name


def test_a_second_training_takes_what_the_first_one_left(monkeypatch):
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", KEY.hex())
    ledger = new_ledger(Path.cwd())
    ledger.join(IDS, GRANTED)
    members = ledger.members(IDS)
    first = train_by(parse_config(CONFIG.format(table=table("one.csv", np.arange(N)), out="first", at_most=0.3)))
    after = ledger.balances(members)
    assert (after >= ledger.public_balances(members)).all()
    ledger.withdraw(IDS[7:8])
    order = np.random.default_rng(2).permutation(N)
    config = CONFIG.format(table=table("two.csv", order), out="second", at_most=2.0)
    second = train_by(parse_config(config))
    by_id = dict(zip(IDS[order], second.plan.rates, strict=True))
    assert by_id[IDS[7]] == 0
    fresh = pp.plan(
        pp.Budgets(GRANTED, delta=DELTA, person=IDS),
        steps=20,
        batch_size=60,
        noise_multiplier=3.0,
        accountant="rdp",
    )
    stayed = np.arange(N) != 7
    rates = np.array([by_id[person] for person in IDS])
    assert (rates[stayed] > 0).all()
    assert (rates < fresh.rates).all()  # something was taken from everybody
    assert (ledger.balances(members)[stayed] < after[stayed]).all()
    assert not ledger.verify().problems
    assert [run.purpose for run in ledger.runs()] == ["first", "second"]
    for done in (first, second):
        folder = RunFolder.open(done.folder)
        said = json.loads((done.folder / "ledger.json").read_text())
        assert said == {"ledger": ledger.id, "run": done.trained.run_id}
        assert not folder.files["anchor.json"].public
        assert not folder.files["ledger.json"].public
    pp.Ledger.open("sqlite:///purses.db", anchor="second/anchor.json")


def test_what_the_commands_print_tells_nobodys_balance(monkeypatch, capsys):
    monkeypatch.setenv("PRIVYPURSE_LEDGER_KEY", KEY.hex())
    ledger = new_ledger(Path.cwd())
    ledger.join(IDS, GRANTED)
    table("people.csv", np.arange(N))
    shown = []
    command = "plan people.csv --person id --steps 20 --batch-size 60 --noise-multiplier 3 --accountant rdp"
    for emptied in (False, True):
        if emptied:
            limits = np.array([[rung.limit for rung in ledger.rungs]])
            least = np.minimum.accumulate(limits[:, ::-1], axis=1)[:, ::-1]
            ledger.charge("a question", ledger.members(IDS[::2]), least, np.zeros(N // 2, dtype=int), at_most=None)
        assert cli.main([*command.split(), "--ledger", "sqlite:///purses.db", "--at-most", "0.3"]) == 0
        shown.append(capsys.readouterr().out)
        plan = pp.Plan.load("plan.json")
        assert ((plan.rates == 0).sum() > 0) == emptied
    assert shown[0] == shown[1]
    assert cli.main(command.split()) == 0
    assert "No ledger: what other trainings and questions take" in capsys.readouterr().out.replace("\n", " ")
