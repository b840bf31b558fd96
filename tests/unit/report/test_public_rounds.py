"""What a federation publishes, and what training in rounds hands out, follows from nobody: pairs that differ in one
person, and twins that tell of them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from components import require
from privypurse import cli
from privypurse.assignment.round_planner import AdaPdp, InRounds
from privypurse.assignment.threshold_sampling import FixedLoss
from privypurse.federated import federation_run, silos
from privypurse.federated.federation_run import Setting
from privypurse.federated.silos import Federation, Silo
from privypurse.plans import Promise
from privypurse.report.card import model_card
from privypurse.report.facts import public_facts
from privypurse.report.registry import deployment
from privypurse.rounds import Schedule
from privypurse.runs.folder import RunFolder
from privypurse.training import train_rounds as in_rounds
from training_tools import LOSS

require("report")
from public_files import whole  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")]
FEW = Setting(2, 2, 1.0, 1e-4, 20, 0.5, 1.0, 30, 1.0, "rdp")
CHANGES = ("other data", "other budget", "absent")
Kept = Callable[[str, str], Path]


def small(changed: str) -> tuple[Federation, list[np.ndarray]]:
    """Two silos and what their people granted; the first person of the first one differs as is said."""
    random = np.random.default_rng(1)
    rows = [random.normal(size=(size, 4)).astype(np.float32) for size in (30, 20, 10)]
    labels = [random.integers(0, 2, len(each)) for each in rows]
    granted = [np.tile([1.0, 0.5], len(each) // 2) for each in rows[:2]]
    if changed == "other data":
        rows[0][0], labels[0][0] = 100.0, 1 - labels[0][0]
    if changed == "other budget":
        granted[0][0] = 5.0
    if changed == "absent":
        rows[0], labels[0], granted[0] = rows[0][1:], labels[0][1:], granted[0][1:]
    one, two, test = (
        TensorDataset(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(rows, labels, strict=True)
    )
    return Federation("adult", (Silo("north", one), Silo("south", two)), test, partial(nn.Linear, 4, 2)), granted


def federated(folder: Path, changed: str, adversary: str = "server", ledgers: bool = False) -> Path:
    """The folder of `privypurse federate` over these silos."""
    federation, granted = small(changed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(silos, "federation", lambda *_, **__: federation)
        patched.setattr(silos, "granted_in", lambda *_: granted)
        patched.setitem(federation_run.SETTINGS, "adult", FEW)
        purses = ["--ledgers", str(folder / "purses"), "--at-most", "0.4"] if ledgers else []
        run = folder / "run"
        assert cli.main(["federate", "adult", "--adversary", adversary, "--out", str(run), *purses]) == 0
    return run


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Each trained once: who differs, and what against, or "ledgers"."""

    @cache
    def of(changed: str, kind: str) -> Path:
        ledgers = kind == "ledgers"
        adversary = "server" if ledgers else kind
        return federated(tmp_path_factory.mktemp("federation"), changed, adversary, ledgers)

    return of


def assert_alike(one: Path, other: Path) -> None:
    """Every public file, the page, the card, and what the registry is told: a seeded run has no model to publish."""
    assert whole(one) == whole(other)
    assert set(whole(one)) == {"public.json", "terms.json", "facts.json", "page", "card", "registry"}


@pytest.mark.parametrize("kind", ["server", "public", "ledgers"])
@pytest.mark.parametrize("changed", CHANGES)
def test_what_a_federation_publishes_follows_from_nobody(kept: Kept, changed: str, kind: str) -> None:
    assert_alike(kept("nobody", kind), kept(changed, kind))


def test_the_pairs_do_differ_inside(kept: Kept) -> None:
    """Else the test above would compare a run with itself."""
    for changed in CHANGES:
        one, other = ((kept(who, "server") / "model.npz").read_bytes() for who in ("nobody", changed))
        assert one != other


def test_noise_that_follows_from_how_many_records_there_are_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As terms once were made: σ for the rate of a divisor over the records that were counted."""
    right = federation_run.terms_of

    def counted(setting: Setting, clients: int, **options: Any) -> Any:
        records = silos.federation("adult").records / clients
        return right(replace(setting, records_per_client=records), clients, **options)

    monkeypatch.setattr(federation_run, "terms_of", counted)
    runs = {changed: federated(tmp_path / changed, changed) for changed in ("nobody", "other budget", "absent")}
    assert_alike(runs["nobody"], runs["other budget"])
    with pytest.raises(AssertionError):
        assert_alike(runs["nobody"], runs["absent"])


TELLING: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "records": ("absent", lambda accounts: sum(len(each["granted"]) for each in accounts.values())),
    "largest ε": ("other budget", lambda accounts: max(max(each["granted"]) for each in accounts.values())),
}


@pytest.mark.parametrize("what", TELLING)
def test_a_fact_that_follows_from_people_would_be_seen(kept: Kept, tmp_path: Path, what: str) -> None:
    changed, value = TELLING[what]
    copies = [Path(shutil.copytree(kept(name, "server"), tmp_path / name)) for name in ("nobody", changed)]
    assert_alike(*copies)
    for copy in copies:
        told, accounts = (json.loads((copy / f"{name}.json").read_text("utf-8")) for name in ("facts", "accounts"))
        RunFolder.open(copy).add_json("facts.json", {**told, what: value(accounts)}, public=True)
    with pytest.raises(AssertionError):
        assert_alike(*copies)


def test_a_federation_is_neither_registered_nor_called_private(kept: Kept) -> None:
    facts = public_facts(kept("nobody", "server"))
    assert facts.noise_multiplier is not None
    assert "NOT private" in model_card(facts)
    with pytest.raises(pp.InvalidInput, match="seeded"):
        deployment(facts)


# --- Rounds of a schedule: they leave no folder; what is handed out is a model, with weights and a number of steps.

IDS = np.array([f"p{k}" for k in range(40)])
SEVERAL = AdaPdp(loss=FixedLoss(0.7, 0.3))
"""Three models, whose outputs are averaged with weights."""


def in_the_clear(
    changed: str, method: str | InRounds = SEVERAL, seed: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What training in rounds hands out beside parameters that noise covers; and those parameters."""
    random = np.random.default_rng(2)
    x, y = random.normal(size=(40, 3)).astype(np.float32), random.integers(0, 2, 40)
    epsilon, there = np.tile([0.5, 1.0, 2.0, 3.0], 10), np.arange(40)
    if changed == "other data":
        x[0], y[0] = 100.0, 1 - y[0]
    if changed == "other budget":
        epsilon[0] = 3.0
    if changed == "absent":
        there = there[1:]  # of the records; the plan's entry stays (rule 13)
    budgets = pp.Budgets(epsilon, delta=1e-4, person=IDS)
    schedule = pp.rounds.schedule(budgets, method=method, epochs=2, batch_size=10, accountant="rdp")
    assert schedule.promise is Promise.DATA
    trained = pp.rounds.train(
        partial(nn.Linear, 3, 2),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(torch.as_tensor(x[there]), torch.as_tensor(y[there])),
        schedule,
        LOSS,
        person=IDS[there],
        seed=seed,
    )
    state = {name: value.tolist() for name, value in trained.model.state_dict().items()}
    fixed = {name: value for name, value in state.items() if name == "weights"}
    shapes = {name: np.shape(value) for name, value in state.items()}
    told = {"steps": trained.steps, "shapes": shapes, "promise": schedule.promise.text, **fixed}
    return told, {name: value for name, value in state.items() if name not in fixed}


@pytest.mark.parametrize("method", ["pdp-sgd", SEVERAL, "groups"])
@pytest.mark.parametrize("changed", ["other data", "absent"])
def test_what_rounds_hand_out_follows_from_nobodys_data(method: str | InRounds, changed: str) -> None:
    one, other = (in_the_clear(who, method) for who in ("nobody", changed))
    assert one[0] == other[0]
    assert one[1] != other[1]  # noise


def test_rounds_do_follow_from_budgets_and_promise_no_presence() -> None:
    """A schedule is solved from everybody's ε: a twin that called its promise one of presence would be seen here."""
    one, other = (in_the_clear(who)[0] for who in ("nobody", "other budget"))
    assert one != other
    assert "given the list of budgets" in one["promise"]


def test_weights_by_how_many_were_drawn_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As published (Heo et al. 2023, B.2): with other coins, other weights, which no noise covers."""
    assert in_the_clear("nobody", seed=0)[0] == in_the_clear("nobody", seed=1)[0]
    drawn, right = [], in_rounds._drawn

    def noted(*given: Any) -> Any:
        drawn.append(right(*given))
        return drawn[-1]

    def realised(schedule: Schedule) -> np.ndarray:
        raw = [one.threshold * mark.sum() for one, mark in zip(schedule.rounds, drawn, strict=True)]
        drawn.clear()
        return np.array(raw) / sum(raw)

    monkeypatch.setattr(in_rounds, "_drawn", noted)
    monkeypatch.setattr(Schedule, "weights", property(realised))
    assert in_the_clear("nobody", seed=0)[0] != in_the_clear("nobody", seed=1)[0]


def test_terms_hold_nothing_but_what_was_chosen() -> None:
    terms = asdict(federation_run.terms_of(FEW, 2))
    assert terms.pop("noise_multiplier") > 0
    assert terms.pop("clients") == 2
    chosen = asdict(FEW)
    assert all(terms[name] == chosen[name] for name in terms if name in chosen)
