"""Liu et al. (2024): who is where, what each baseline makes of the budgets, Figure 8, and the trusted curve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.federated import compare_rates
from torch import nn
from torch.utils.data import TensorDataset

from components import require
from privypurse.errors import InvalidInput
from privypurse.federated import federation_run, silos
from privypurse.federated.silos import Silo
from reproductions import catalogue, federated, train_cell
from reproductions.cell import Cell, Federation
from reproductions.cell_data import Inputs
from reproductions.grid import Grid
from reproductions.plans import epsilon_of

CPU = torch.device("cpu")


def figure() -> Grid:
    table = catalogue.load("liu-figure-8")
    assert isinstance(table, Grid)
    return table


def made_up(shape: tuple[int, ...], number: int = 400) -> Inputs:
    """Images whose first two pixels say which one it is."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (number, *shape)).astype(np.float32)
    images.reshape(number, -1)[:, 0] = np.arange(number) % 256
    images.reshape(number, -1)[:, 1] = np.arange(number) // 256
    labels = rng.permutation(np.arange(number) % 10)
    whole = TensorDataset(torch.as_tensor(images / 255), torch.as_tensor(labels))
    return Inputs(whole, TensorDataset(*whole[:50]), 10, False)


def numbers(silo: Silo) -> list[int]:
    pixels = (silo.train.tensors[0].flatten(1)[:, :2] * 255).round().long()
    return (pixels[:, 0] + 256 * pixels[:, 1]).tolist()


@pytest.mark.parametrize("row", ["MNIST, Pareto", "MNIST, non-iid, Pareto"])
def test_every_record_lies_in_one_silo(row: str) -> None:
    images, cell = made_up((1, 28, 28)), figure().cells[row, "personalised"]
    made = federated._federation(cell, 3, images, CPU)
    assert len(made.silos) == 10
    everybody = [each for silo in made.silos for each in numbers(silo)]
    assert sorted(everybody) == list(range(400))
    for silo in made.silos:
        assert silo.train.tensors[1].tolist() == images.labels[numbers(silo)].tolist()
    kinds = [len(set(silo.train.tensors[1].tolist())) for silo in made.silos]
    assert max(kinds) <= 4 if "non-iid" in row else min(kinds) >= 7
    again, other = (federated._federation(cell, seed, images, CPU) for seed in (3, 4))
    assert [numbers(silo) for silo in again.silos] == [numbers(silo) for silo in made.silos]
    assert [numbers(silo) for silo in other.silos] != [numbers(silo) for silo in made.silos]


def test_colour_images_over_ten_clients() -> None:
    cell = figure().cells["CIFAR-10, three levels", "personalised"]
    made = federated._federation(cell, 0, made_up((3, 32, 32), 60), CPU)
    x, y = made.silos[0].train.tensors
    assert (x.shape, y.shape) == ((6, 3, 32, 32), (6,))
    model = made.new_model()
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    assert model(x).shape == (6, 10)
    granted = epsilon_of(cell.budgets, np.zeros(100), np.random.default_rng(0))
    assert dict(zip(*np.unique(granted, return_counts=True), strict=True)) == {1.0: 70, 3.0: 20, 10.0: 10}


@pytest.mark.parametrize("law", ["Pareto", "mixture"])
@pytest.mark.parametrize(("data", "levels"), [("MNIST", (0.1, 1.0, 5.0)), ("CIFAR-10", (1.0, 3.0, 10.0))])
def test_laws_begin_at_the_lowest_level(law: str, data: str, levels: tuple[float, ...]) -> None:
    budgets = figure().cells[f"{data}, {law}", "personalised"].budgets
    granted = epsilon_of(budgets, np.zeros(5_000), np.random.default_rng(0))
    assert levels[0] <= granted.min() < 1.02 * levels[0]
    assert granted.max() <= 10
    if law == "Pareto":  # P(ε > x) = (low / x − low / 10) / (1 − low / 10)
        low = levels[0]
        expected = (low / (2 * low) - low / 10) / (1 - low / 10)
        assert abs((granted > 2 * low).mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / 5_000)
    else:
        assert abs((granted > (levels[1] + levels[2]) / 2).mean() - 0.1) < 0.001


def small(method: str, law: str = "three levels", **changes: Any) -> tuple[Cell, Inputs]:
    """Easy records over ten clients, and a cell that trains on them."""
    rng = np.random.default_rng(1)

    def some(number: int) -> TensorDataset:
        y = rng.integers(0, 2, number)
        x = rng.normal(size=(number, 10)).astype(np.float32) + 2 * y[:, None].astype(np.float32)
        return TensorDataset(torch.as_tensor(x), torch.as_tensor(y))

    cell = figure().cells[f"Heart Disease, {law}", method]
    training = replace(cell.training, steps=4, learning_rate=0.5)
    cell = replace(cell, training=training, federation=Federation(rounds=3, split="evenly", **changes), delta=1e-4)
    return cell, Inputs(some(600), some(300), 2, False)


@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
@pytest.mark.parametrize("method", ["personalised", "minimum", "dropout"])
@pytest.mark.parametrize("adversary", ["server", "public"])
def test_nobody_is_overdrawn_by_any_method(method: str, adversary: str) -> None:
    cell, inputs = small(method, adversary=adversary)
    done = federated.outcome(cell, 2, inputs, CPU)
    assert done["overspent"] == 0
    assert [group["epsilon"] for group in done["groups"]] == [0.1, 1.0, 5.0]
    assert len(done["course"]) == 3
    spent, mean = [group["spent"] for group in done["groups"]], 0.7 * 0.1 + 0.2 + 0.5
    if method == "minimum":  # everybody spends what the strictest grants
        assert min(spent) == max(spent)
        assert 0.09 < max(spent) <= 0.1
    elif method == "dropout":  # who grants less than the mean is left out, the others spend the mean
        assert min(spent) == 0
        assert 0.9 * mean < max(spent) <= mean
    else:
        assert 0.09 < min(spent) <= 0.1
        assert 3 < max(spent) <= 5


def test_without_privacy_nothing_is_promised() -> None:
    cell, inputs = small("privacy-free", "Pareto")
    done = federated.outcome(cell, 0, inputs, CPU)
    assert "groups" not in done
    assert done["accuracy"] > 85


def test_an_unknown_method_is_an_error() -> None:
    cell, _ = small("personalised")
    with pytest.raises(InvalidInput, match="choose one of 'personalised'"):
        replace(cell, method="maximum")
    with pytest.raises(InvalidInput, match="choose one of 'silos', 'evenly', 'shards'"):
        Federation(rounds=3, split="oddly")


@pytest.mark.slow
@pytest.mark.parametrize("row", ["Adult, three levels", "MNIST, non-iid, mixture"])
def test_a_quick_cell_of_the_figure(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVYPURSE_DATA", str(tmp_path / "nothing"))
    cell = figure().cells[row, "personalised"].quickened()
    done = train_cell.outcome(cell, 0)
    assert (len(done["course"]), done["overspent"], done["made_up"]) == (2, 0, "MNIST" in row)


@pytest.mark.slow
def test_the_published_curve_overspends_and_the_certified_table_does_not() -> None:
    federation = silos.federation("adult")
    terms = federation_run.terms_of(federation_run.SETTINGS["adult"], len(federation.silos))
    granted = silos.PREFERENCES["three-levels"](federation.records, np.random.default_rng(0))
    found = compare_rates(terms, granted)
    assert found.overspent_certified == 0
    assert found.overspent_published > federation.records // 2


def test_a_method_has_one_colour_whatever_else_is_drawn() -> None:
    require("plots")
    from matplotlib.figure import Figure

    from reproductions import plots

    some = {"personalised": [[3.0, 4.0], [5.0, 8.0]], "minimum": [[1.0, 2.0]]}
    colours = []
    for courses in (some, {**some, "personalised": []}):
        axes = Figure().add_subplot()
        plots._courses(axes, courses)
        colours.append({line.get_label(): line.get_color() for line in axes.lines})
        means = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
        assert means["minimum"] == [1.0, 2.0]
        assert means.get("personalised", [4.0, 6.0]) == [4.0, 6.0]
    assert colours[0]["minimum"] == colours[1]["minimum"] != colours[0]["personalised"]


@pytest.mark.parametrize("number", [1, 4])
def test_any_number_of_panels(number: int, tmp_path: Path) -> None:
    require("plots")
    from reproductions import plots

    table = figure()
    lines = {(row, "dropout"): [{"course": [50.0, 60.0], "made_up": False}] for row in table.rows[:number]}
    paths = plots.save(table, lines, tmp_path)
    assert [path.name for path in paths] == ["liu-figure-8.svg", "liu-figure-8.png"]
    assert all(path.stat().st_size > 1_000 for path in paths)
