"""Without a ledger every use says once in a process that totals are not kept; with one, or for tests, none does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import privypurse as pp
from ledger_tools import new_ledger
from privypurse import _totals, cli
from privypurse.assignment.round_planner import PdpSgd
from privypurse.errors import PrivyPurseWarning
from privypurse.federated import simulation

IDS = np.array([f"C{k}" for k in range(40)])
BUDGETS = pp.Budgets(np.full(40, 2.0), delta=1e-5, person=IDS)
SHAPE = {"noise_multiplier": 5.0, "steps": 1, "batch_size": 4, "accountant": "rdp"}
DATA = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.zeros(40).long())
Given = dict[str, object]


def losses(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, y, reduction="none")


def trained(folder: Path, given: Given) -> None:
    model = torch.nn.Linear(3, 2)
    ledger = {"ledger": given["ledger"]} if "ledger" in given else {}
    plan = pp.plan(BUDGETS, **SHAPE, **ledger)
    pp.train(model, torch.optim.SGD(model.parameters(), lr=0.1), DATA, plan, losses, person=IDS, **given)


def made_private(folder: Path, given: Given) -> None:
    model = torch.nn.Linear(3, 2)
    ledger = {"ledger": given["ledger"]} if "ledger" in given else {}
    plan = pp.plan(BUDGETS, **SHAPE, **ledger)
    pp.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), DATA, plan, person=IDS, **given)


def in_rounds(folder: Path, given: Given) -> None:
    less = pp.Budgets(np.full(40, 1.0), delta=1e-5, person=IDS)
    shape = {"epochs": 1, "batch_size": 20, "accountant": "rdp"}
    schedule = pp.rounds.schedule(less, PdpSgd(rounds=1), **shape, ledger=given.get("ledger"))
    new_optimizer = lambda model: torch.optim.SGD(model.parameters(), lr=0.1)  # noqa: E731
    pp.rounds.train(lambda: torch.nn.Linear(3, 2), new_optimizer, DATA, schedule, losses, person=IDS, **given)


def asked(folder: Path, given: Given) -> None:
    pp.Analyst({"age": np.arange(40)}, BUDGETS, person=IDS, **given).count("age > 20", noise=30.0)


def joined(folder: Path, given: Given) -> None:
    terms = pp.federated.Terms(
        rounds=1,
        local_steps=1,
        noise_multiplier=20.0,
        batch_size=4,
        learning_rate=0.1,
        clients=1,
        delta=1e-5,
        accountant="rdp",
    )
    offer, place = pp.federated.Offer.of(terms), folder / f"book-{len(list(folder.iterdir()))}"
    client = pp.federated.Client(
        DATA, BUDGETS, lambda: torch.nn.Linear(3, 2), losses, offer, place, person=IDS, **given
    )
    client.answer(1, simulation.new_state(lambda: torch.nn.Linear(3, 2)))
    client.close()


USES = [trained, made_private, in_rounds, asked, joined]


def notes(use: Callable[[Path, Given], None], folder: Path, given: Given) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use(folder, given)
    return [str(one.message) for one in caught if str(one.message).startswith("No ledger")]


@pytest.fixture(autouse=True)
def a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_totals, "_said", False)


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_it_is_said_once(use: Callable[[Path, Given], None], tmp_path: Path) -> None:
    [said] = notes(use, tmp_path, {})
    assert "not added up" in said
    assert "ledger=pp.Ledger.open(url)" in said
    assert notes(use, tmp_path, {}) == []
    assert notes(asked, tmp_path, {}) == []


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_it_is_not_said_with_a_ledger_nor_of_tests(use: Callable[[Path, Given], None], tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.join(IDS, 2.0)
    assert notes(use, tmp_path, {"ledger": ledger}) == []
    assert notes(use, tmp_path, {"seed": 1}) == []


def test_the_warning_points_to_who_trains(tmp_path: Path) -> None:
    with pytest.warns(PrivyPurseWarning, match="No ledger") as caught:
        trained(tmp_path, {})
    assert caught[0].filename == __file__


def test_commands_say_it_themselves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "people.csv"
    table.write_text("id,epsilon\n" + "".join(f"{one},2\n" for one in IDS))
    said = f"plan {table} --person id --steps 1 --batch-size 4 --noise-multiplier 5 --accountant rdp"
    assert cli.main([*said.split(), "-o", str(tmp_path / "plan.json")]) == 0
    shown = capsys.readouterr()
    assert "No ledger" in shown.out
    assert shown.err == ""
    assert notes(trained, tmp_path, {}) == []
