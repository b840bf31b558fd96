"""Rivals over clients: nobody is overdrawn by an accountant that is not ours, and noise walks as far as is said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from torch import Tensor, nn

from privypurse.errors import InvalidInput
from privypurse.federated.client import Client
from reproductions import federated_rivals
from reproductions.choice import Clients, Settings

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")

DELTA = 1e-4
THREE = Clients(number=3, rounds=2, client_rate=1.0, reference=2.0)
SMALL = Settings(network="probe", steps=4, batch_size=60, momentum=0.0, decays=(0.0, 0.5))


def records(width: int = 4, number: int = 300, far: float = 2.0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, number)
    x = rng.normal(size=(number, width)) + far * y[:, None]
    return torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)


def granted(number: int = 300) -> np.ndarray:
    return np.repeat([1.0, 2.0, 3.0], number // 3)


def train(method: str, settings: Settings = SMALL, clients: Clients = THREE) -> tuple[nn.Module, dict[str, Any]]:
    made = federated_rivals.trained(
        clients, method, settings, lambda: nn.Linear(4, 2), records(), granted(), DELTA, seed=2
    )
    return made[0], made[2]


def by_another_accountant(client: Client) -> list[float]:
    """What each level faces in all rounds, by Google's accountant."""
    terms, levels, found = client.offer.terms, client.plan.levels, []
    for rate, clip in zip(levels.rate.tolist(), levels.clip_norm.tolist(), strict=True):
        noise = terms.noise_multiplier * terms.clip_norm / clip
        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        found.append(PLDAccountant().compose(event, terms.local_steps * terms.cap).get_epsilon(terms.delta))
    return found


def client(method: str, folder: Any) -> Client:
    terms, used, rate = federated_rivals.terms_of(method, THREE, SMALL, granted(), DELTA)
    silo = federated_rivals._federation(records(), [np.arange(300)], lambda: nn.Linear(4, 2)).silos[0]
    offer = federated_rivals.offer_of(terms, np.unique(used[used > 1e-3]))
    scale = rate if method == "scale" else None
    return federated_rivals._client(silo, used, offer, lambda: nn.Linear(4, 2), folder, 0, scale)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sample", "scale"])
def test_everybody_spends_their_own_epsilon_and_no_more(method: str, tmp_path) -> None:
    made = client(method, tmp_path)
    spent = by_another_accountant(made)
    for epsilon, found in zip((1.0, 2.0, 3.0), spent, strict=True):
        assert 0.97 * epsilon < found <= epsilon * (1 + 1e-3)  # the other accountant's own grid
    more = "rate" if method == "sample" else "clip_norm"  # 5 % more would overdraw, and be seen
    levels = made.plan.levels
    made.plan = replace(made.plan, levels=replace(levels, **{more: 1.05 * getattr(levels, more)}))
    assert all(a > b for a, b in zip(by_another_accountant(made), (1.0, 2.0, 3.0), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "expected"),
    [("uniform", [1.0]), ("exclude", [0.0, 2.0]), ("sample", [1, 2, 3]), ("scale", [1, 2, 3]), ("ceiling", [3.0])],
)
def test_what_each_method_spends(method: str, expected: list[float]) -> None:
    _, said = train(method)
    assert said["overspent"] == 0
    assert said["joined"] == [2, 2, 2]
    assert said["spent"] == pytest.approx(expected, rel=0.02)
    assert said["people"] == (200 if method == "exclude" else 300)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sample", "none"])
def test_the_model_learns(method: str) -> None:
    model, _ = train(method, replace(SMALL, steps=10, batch_size=150, walk=0.3, learning_rate=0.3))
    x, y = records()
    assert (model(x).argmax(1) == y).float().mean() > 0.9


@pytest.mark.slow
def test_noise_alone_walks_as_far_as_is_said() -> None:
    """Inputs of zero: no gradient reaches the weights, so that all of their way is noise."""
    x, y = torch.zeros(300, 1500), torch.arange(300) % 2
    walk, clients = 0.05, replace(THREE, rounds=3)

    def zero() -> nn.Module:
        layer = nn.Linear(1500, 2)
        nn.init.zeros_(layer.weight)
        return layer

    settings = replace(SMALL, walk=walk)
    model, _, _ = federated_rivals.trained(clients, "sample", settings, zero, (x, y), granted(), DELTA, seed=0)
    found = next(model.parameters()).detach().std().item()
    assert found == pytest.approx(walk, rel=0.07)  # five deviations of 3,000 weights' spread are 6.5 %
    assert found != pytest.approx(walk * math.sqrt(3), rel=0.07)  # clients' noise averages


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"momentum is 0.9"):
        federated_rivals.terms_of("sample", THREE, replace(SMALL, momentum=0.9), granted(), DELTA)
    with pytest.raises(InvalidInput, match="method is 'best'"):
        federated_rivals.terms_of("best", THREE, SMALL, granted(), DELTA)
