"""Random histories on SQLite: a few in the fast gate, 10^5 steps in the full one."""

from __future__ import annotations

import shutil
from pathlib import Path

import histories
import history_steps
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import privypurse as pp
from privypurse.ledger import begun, copies, runs

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
    run_state_machine_as_test(history_steps.Steps, settings=chosen)


@pytest.mark.usefixtures("made")
def test_histories() -> None:
    explore(5, 20)


@pytest.mark.usefixtures("made")
def test_histories_find_who_contributes_without_paying(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the model can disagree at all."""
    monkeypatch.setattr(runs.Reserved, "admitted", property(lambda self: self.values == self.values))
    with pytest.raises(AssertionError):
        explore(20, 20)


TWINS = {
    "who withdraws stays in": (pp.Ledger, "_still_standing", lambda self, reserved: reserved.admitted),
    "an old copy freezes nobody": (copies.people, "freeze_everybody", lambda connection: None),
    "steps are handed out twice": (begun, "take_over", lambda connection, run, holder, known: 0),
}


@pytest.mark.slow
@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("twin", TWINS)
def test_histories_find_a_broken_rule(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*TWINS[twin])
    with pytest.raises((AssertionError, pp.PrivyPurseError)):
        explore(150)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
@pytest.mark.usefixtures("made")
def test_ten_to_the_five_steps(part: int) -> None:
    explore(250)
