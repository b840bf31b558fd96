"""`privypurse federate` and the rounds on Flower's simulation engine, run for real."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privypurse as pp
from held_files import read_held
from privypurse import cli, datasets
from privypurse.errors import InvalidInput
from privypurse.federated import engine, federation_run, silos, simulation
from privypurse.federated.federation_run import Purses
from privypurse.federated.terms import Offer, Terms
from privypurse.ledger import people
from privypurse.runs.folder import RunFolder

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests
SILOS = {
    "adult": {"private": 22_696, "self-employed": 3_657, "government": 4_351, "other": 1_857},
    "heart": {"cleveland": 202, "hungarian": 174, "switzerland": 31, "va": 87},
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(datasets.folder().resolve()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        pytest.param("adult", marks=pytest.mark.slow),
        pytest.param("heart", marks=pytest.mark.needs("data/heart_disease")),
    ],
)
def test_a_federation_trains_and_nobody_is_overdrawn(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["federate", data, "--rounds", "2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert {row[0]: int(row[1].replace(",", "")) for row in rows} == SILOS[data]
    for _, _, joined, granted, spent, overdrawn, _ in rows:
        assert joined == "2 of 2"
        assert overdrawn == "0"
        assert granted == "0.1 … 5"
        least, most = (float(value) for value in spent.split(" … "))
        assert 0.09 < least <= 0.1
        assert 3 < most <= 5
    words = " ".join(out.split())
    found = re.search(r"test accuracy ([0-9.]+) ?%", words)
    assert found is not None
    assert float(found[1]) > 55
    assert "ε against the server" in words
    assert "simulated" in words
    assert not list(Path().iterdir())  # nothing is left behind


@pytest.mark.parametrize("rounds", ["0", "-1"])
def test_a_wrong_number_of_rounds_is_an_error_that_says_so(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["federate", "adult", "--rounds", rounds]) == 2
    assert f"rounds must be a whole number of at least 1, not {rounds}" in capsys.readouterr().err


def test_data_that_is_not_there_is_an_error_that_says_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path))
    assert cli.main(["federate", "heart"]) == 2
    assert "PRIVYPURSE_DATA" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--method", "minimum"], ["--baselines"], ["--rates"], ["--seeds", "3"]])
def test_baselines_and_unsound_rates_are_not_installed(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["federate", "adult", *option])
    assert option[0] in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["federate", "mnist"])


def test_flower_runs_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["federate", "adult", "--flower", "--device", "auto"]) == 2
    assert "--device does not go with --flower" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_can_be_kept_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["federate", "adult", "--rounds", "1", "--out", "kept"]) == 0
    folder = RunFolder.open(tmp_path / "kept")
    public = {name for name, file in folder.files.items() if file.public}
    assert public == {"terms.json", "facts.json"}
    assert set(folder.files) == public | {"metrics.json", "model.npz", "accounts.json"}
    accounts = json.loads((tmp_path / "kept" / "accounts.json").read_text(encoding="utf-8"))
    assert {name: len(each["spent"]) for name, each in accounts.items()} == SILOS["adult"]
    found = {each.what: each.verdict for each in pp.verify(tmp_path / "kept").findings}
    assert {found[name] for name in ("files", "grants", "certified ε", "spending")} == {"fits"}
    (tmp_path / "file").write_text("")
    assert cli.main(["federate", "adult", "--out", "file"]) == 2
    assert "cannot be written to" in capsys.readouterr().err


def silo_ledger(home: Path) -> pp.Ledger:
    return pp.Ledger.open(f"sqlite:///{home}/purses.db", key=home / "purses.key", anchor=home / "purses.anchor")


def taken(ledger: pp.Ledger) -> np.ndarray:
    """[people, rungs]: what everybody's settled runs took, in units."""
    with ledger._reading() as connection:
        everybody = np.arange(people.count(connection))
        stand, places = people.of(connection, ledger.lifetime, everybody, None)
        assert not stand.reserved.any()
    return np.asarray(stand.spent[:, places].T)


@pytest.mark.slow
def test_purses_last_over_several_trainings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    for _ in range(2):
        options = ["--rounds", "1", "--ledgers", "purses", "--purpose", "bus", "--at-most", "0.4"]
        assert cli.main(["federate", "adult", *options]) == 0
        seen.append({name: taken(silo_ledger(tmp_path / "purses" / name)) for name in SILOS["adult"]})
    out = capsys.readouterr().out
    words = " ".join(out.split())
    assert "Charged for life to the silos' own ledgers in purses, at most ε = 0.4" in words
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert all(float(row[4].split(" … ")[-1]) <= 0.4 for row in rows)
    assert ("Where 0 is spent people take no part" in words) == any(row[4].startswith("0 ") for row in rows)
    receipt = next(line for line in out.splitlines() if line.startswith("  privypurse receipt "))
    assert cli.main(shlex.split(receipt)[1:]) == 0
    assert "bus" in capsys.readouterr().out
    for name, people_there in SILOS["adult"].items():
        ledger = silo_ledger(tmp_path / "purses" / name)
        assert ledger.verify().problems == []
        assert [(run.what, run.purpose) for run in ledger.runs()] == [("federated", "bus")] * 2
        first, second = (after[name] for after in seen)
        assert len(first) == people_there
        assert first.any(axis=1).mean() > 0.2
        assert (second == 2 * first).all()
    assert not any(path.name == "book" for path in tmp_path.rglob("*"))


def test_what_purses_are_for_needs_purses(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--at-most", "1"], ["--purpose", "bus"]):
        assert cli.main(["federate", "adult", *option]) == 2
        assert "name their --ledgers FOLDER too" in capsys.readouterr().err


# --- Flower -------------------------------------------------------------------------------------------

TERMS = Terms(
    rounds=2,
    local_steps=5,
    noise_multiplier=1.2,
    batch_size=256,
    learning_rate=0.5,
    clients=4,
    accountant="rdp",
)


def books(folder: Path) -> dict[str, Any]:
    return {path.parent.name: json.loads(read_held(path)) for path in sorted(folder.glob("*/book"))}


@pytest.mark.slow
def test_on_flower_the_rounds_are_the_same(tmp_path: Path) -> None:
    """Two rounds, everybody asked: the same model as in one process, and every round in every book.

    But for the order in which answers arrive, that is, and so for rounding. With a rate below 1 the same clients need
    not be asked: Flower numbers its nodes as it likes.
    """
    terms = replace(TERMS, most_joined=1)
    heard: list[tuple[int, int]] = []
    trial = engine.run(
        *("adult", "three-levels", terms, tmp_path / "flower"),
        seed=3,
        told=lambda number, outcome: heard.append((number, len(outcome.used))),
    )
    state = trial.state
    assert heard == [(1, 4), (2, 0)]
    assert [(row.name, row.joined, row.overdrawn) for row in trial.clients] == [(s, 1, 0) for s in SILOS["adult"]]
    kept = books(tmp_path / "flower")
    assert {name: book["begun"] for name, book in kept.items()} == {str(k): [1] for k in range(4)}
    federation, offer = silos.federation("adult", 3), Offer.of(terms)
    clients = [engine.new_client("adult", "three-levels", k, offer, tmp_path / "here", 3) for k in range(4)]
    begin = expected = simulation.new_state(federation.new_model, 3)
    declined = []
    for held in simulation.rounds(terms, begin, clients, seed=3):
        expected = held.state
        declined.append(held.declined)
    assert declined == [(), (0, 1, 2, 3)]  # after one round that is all that they join
    for name in begin:
        assert state[name] == pytest.approx(expected[name], abs=1e-6)
        assert np.abs(state[name] - begin[name]).max() > 1e-3
    # Going on with Flower's books, nobody is overdrawn, and nobody joins again.
    for k, client in enumerate(clients):
        client.close()
        later = engine.new_client("adult", "three-levels", k, offer, tmp_path / "flower", 3)
        granted = silos.granted_in(federation, "three-levels", 3)[k]
        assert later.joined == terms.cap
        assert (later.spent().against_server <= granted).all()
        assert later.spent().against_server.max() > 0.5
        later.close()


@pytest.mark.slow
def test_on_flower_purses_last_too(tmp_path: Path) -> None:
    """Every node charges a ledger of its own, what the same clients in one process charge; the model is the same."""
    setting = ("adult", "three-levels", TERMS)
    purses = Purses(tmp_path / "flower" / "purses", 0.6, "bus")
    trial = engine.run(*setting, tmp_path / "flower", seed=3, purses=purses)
    federation = silos.federation("adult", 3)
    here = replace(purses, folder=tmp_path / "here")
    granted = silos.granted_in(federation, "three-levels", 3)
    same = federation_run.run(federation, TERMS, granted, seed=3, purses=here)
    for name in trial.state:
        assert trial.state[name] == pytest.approx(same.state[name], abs=1e-6)
    for silo in SILOS["adult"]:
        ledgers = [silo_ledger(one.folder / silo) for one in (purses, here)]
        first, second = map(taken, ledgers)
        assert (first == second).all()
        assert first.any()
        assert all(ledger.verify().problems == [] for ledger in ledgers)
        assert [run.settled is not None for run in ledgers[0].runs()] == [True]


@pytest.mark.slow
def test_a_silo_whose_people_count_on_more_refuses_terms_against_the_public(tmp_path: Path) -> None:
    """Whom ε holds against is for the people to say: a deployed silo does not take it from the server."""
    offer = Offer.of(replace(TERMS, adversary="public", accountant="rdp"))
    with pytest.raises(InvalidInput, match="public"):
        engine.new_client("adult", "three-levels", 3, offer, tmp_path, None)
    engine.new_client("adult", "three-levels", 3, offer, tmp_path, None, "public").close()
