"""Random histories on SQLite: a few in the fast gate, 10^5 steps in the full one."""

from __future__ import annotations

import shutil
from pathlib import Path

import histories
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import privypurse as pp
from privypurse.ledger import runs

STEPS = 50


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("histories") / "template.db"
    ledger = pp.Ledger.create(f"sqlite:///{path}", histories.GRANTS, key=histories.KEY)
    ledger.join([f"filler {number}" for number in range(histories.FILLERS)], 1.0)
    return path


@pytest.fixture
def made(template: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(folder: Path) -> str:
        shutil.copy(template, folder / "purses.db")
        return f"sqlite:///{folder / 'purses.db'}"

    monkeypatch.setattr(histories, "MAKE", make)


def explore(examples: int, steps: int = STEPS) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # shrinking what takes a disk takes long; the steps are printed as they are
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(histories.Histories, settings=chosen)


@pytest.mark.usefixtures("made")
def test_histories() -> None:
    explore(5, 20)


@pytest.mark.usefixtures("made")
def test_histories_find_a_lost_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the model can disagree at all."""
    honest = runs.reserve
    monkeypatch.setattr(
        runs, "reserve", lambda connection, lifetime, request, *rest: honest(connection, lifetime, request, *rest)
    )
    monkeypatch.setattr(runs.Reserved, "admitted", property(lambda self: self.values == self.values))
    with pytest.raises(AssertionError):
        explore(20, 20)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
@pytest.mark.usefixtures("made")
def test_ten_to_the_five_steps(part: int) -> None:
    explore(250)
