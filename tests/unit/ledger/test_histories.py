"""Random histories on SQLite: a few in the fast gate, 10^5 steps in the full one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import histories
import history_steps
import numpy as np
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


def explore(examples: int, steps: int = STEPS, part: int = 0) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # shrinking what takes a disk takes long; the steps are printed as they are
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    machine = type(f"Part{part}", (history_steps.Steps,), {})  # Hypothesis may draw by name: others in every part
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.usefixtures("made")
def test_histories() -> None:
    explore(5, 20)


def who_cannot_pay_is_in_no_answer(machine: history_steps.Steps) -> None:
    machine.ask(["p0"], [[2] * 4], [0], None, again=False)
    machine.ask(["p0"], [[1] * 4], [0], None, again=False)


def who_withdraws_is_in_no_later_step(machine: history_steps.Steps) -> None:
    machine.begin_run(["p0"], [[4] * 4], [0], None, [1] * 5, journal=True, affordable=False)
    (process,) = machine.processes.values()
    machine.go_on(process, 1)
    machine.leave(["p0"], forget=False)
    machine.go_on(process, 1)


def an_old_copy_pays_for_nothing(machine: history_steps.Steps) -> None:
    machine.save(as_file=1)
    machine.ask(["p0"], [[1] * 4], [0], None, again=False)
    machine.put_an_old_copy_in_its_place(exported=False)
    machine.ask(["p0"], [[1] * 4], [0], None, again=False)


def no_step_is_handed_out_twice(machine: history_steps.Steps) -> None:
    machine.begin_run(["p0"], [[4] * 4], [0], None, [1] * 5, journal=False, affordable=False)
    (process,) = machine.processes.values()
    machine.go_on(process, 2)
    machine.drop(process)
    machine.take_up_again(process)


TWINS = [
    (
        who_cannot_pay_is_in_no_answer,
        runs.Reserved,
        "admitted",
        property(lambda self: np.ones(self.values.shape, dtype=bool)),
    ),
    (who_withdraws_is_in_no_later_step, pp.Ledger, "_still_standing", lambda self, reserved: reserved.admitted),
    (an_old_copy_pays_for_nothing, copies.people, "freeze_everybody", lambda connection: None),
    (no_step_is_handed_out_twice, begun, "take_over", lambda connection, run, holder, known: 0),
]


def play(history: Callable[[history_steps.Steps], None]) -> None:
    """A history whose steps are chosen, so that it meets the rule every time."""
    machine = history_steps.Steps()
    try:
        machine.join(["p0"], 1, None)
        history(machine)
    finally:
        machine.teardown()


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(("history", "place", "name", "broken"), TWINS)
def test_histories_find_a_broken_rule(
    history: Callable[[history_steps.Steps], None],
    place: object,
    name: str,
    broken: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play(history)
    monkeypatch.setattr(place, name, broken)
    with pytest.raises(AssertionError):
        play(history)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
@pytest.mark.usefixtures("made")
def test_ten_to_the_five_steps(part: int) -> None:
    explore(250, part=part)
