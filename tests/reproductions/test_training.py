"""The parts of one training: thresholds, step lengths, averages, networks on several views."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import optimize
from scipy.stats import norm
from torch.nn import functional as F

import privypurse as pp
from reproductions import plans
from reproductions.choice import Settings
from reproductions.feature_models import losses, network
from reproductions.rival_training import Averages, step_length, trained
from reproductions.score import predictions


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The μ of Gaussian DP that is (ε, δ) (Dong et al. 2022, Corollary 1)."""

    def excess(mu: float) -> float:
        a, b = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
        return float(norm.cdf(a) - math.exp(epsilon) * norm.cdf(b)) - delta

    return float(optimize.brentq(excess, 1e-3, 50))


def levelled(epsilon: tuple[float, ...], shares: tuple[float, ...], records: int) -> np.ndarray:
    kind = {"kind": "levels", "epsilon": epsilon, "shares": shares}
    return plans.epsilon_of(kind, np.zeros(records), np.random.default_rng([0, 3]))


@pytest.mark.parametrize("shares", [(0.34, 0.43, 0.23), (0.8, 0.1, 0.1), (0.05, 0.15, 0.8)])
def test_the_threshold_has_the_largest_signal_to_noise(shares: tuple[float, ...]) -> None:
    levels = (1.0, 2.0, 3.0)
    epsilon = levelled(levels, shares, 50_000)
    worth = [sum(shares[i:]) * gaussian_mu(level, 1e-5) for i, level in enumerate(levels)]
    budgets, sizes = pp.Budgets(epsilon, delta=1e-5), {"steps": 400, "batch_size": 4096}
    found = plans.best_threshold(budgets, **sizes)
    assert found == levels[int(np.argmax(worth))]
    best = pp.plan(budgets, plans.method_of("exclude", {}), **sizes)
    assert ((best.rates > 0) == (epsilon >= found)).all()
    everybody = pp.plan(budgets, plans.method_of("exclude", {"threshold": 1.0}), **sizes)
    assert (everybody.rates > 0).all()


def test_rows_that_are_no_methods_by_themselves() -> None:
    epsilon = levelled((1, 2, 3), (0.34, 0.43, 0.23), 5_000)
    sizes = {"steps": 50, "batch_size": 500, "clip_norm": 0.1}
    made = {name: plans.plan_of(name, epsilon, 1e-5, **sizes) for name in ("ceiling", "uniform", "exclude@3")}
    assert made["ceiling"].noise_multiplier < made["uniform"].noise_multiplier
    assert made["ceiling"].spent() == pytest.approx(3.0, rel=0.01)
    assert (made["exclude@3"].rates > 0).sum() == (epsilon == 3).sum()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_noise_alone_walks_as_far_as_asked(momentum: float) -> None:
    settings = Settings(steps=1_000, batch_size=100, clip_norm=0.5, momentum=momentum, walk=0.2)
    plan = pp.plan(pp.Budgets(np.full(1_000, 1.0), delta=1e-5), "uniform", steps=1_000, batch_size=100, clip_norm=0.5)
    weights = torch.zeros(4_000, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=step_length(plan, settings), momentum=momentum)
    generator = torch.Generator().manual_seed(0)
    for _ in range(settings.steps):
        noise = torch.randn(4_000, generator=generator) * plan.noise_multiplier * settings.clip_norm
        weights.grad = noise / settings.batch_size
        optimizer.step()
    # 4,000 draws tell a deviation to 1.1 %; momentum's first and last steps take off about 1 % more.
    assert float(weights.detach().std()) == pytest.approx(0.2, rel=0.05)


def test_averages_are_those_of_the_weights_after_each_step() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    expected = float(model.weight.detach()[0, 0])
    averages = Averages(model, [0.0, 0.5])
    for step in range(1, 31):
        with torch.no_grad():
            model.weight.fill_(float(step**2))
        averages.step()
        decay = min(0.5, step / (9 + step))
        expected = decay * expected + (1 - decay) * step**2
    averages.put(0.5)
    assert float(model.weight[0, 0]) == pytest.approx(expected)
    averages.put(0.0)
    assert model.weight.detach().flatten().tolist() == [900.0, 900.0]


@pytest.mark.parametrize(("name", "side"), [("linear", 7), ("cnn", 8), ("cnn-strided", 7)])
def test_views_go_through_the_same_weights(name: str, side: int) -> None:
    torch.manual_seed(0)
    both = network(name, (5, 2, side, side), 8)
    one = network(name, (5, side, side), 8)
    one.load_state_dict({key: value.reshape(one.state_dict()[key].shape) for key, value in both.state_dict().items()})
    x, y = torch.randn(6, 5, 2, side, side), torch.arange(6)
    outputs = both(x)
    alone = torch.stack([one(x[:, :, view]) for view in range(2)], dim=1)
    assert torch.allclose(outputs, alone, atol=1e-6)
    each = torch.stack([F.cross_entropy(alone[:, view], y, reduction="none") for view in range(2)])
    assert torch.allclose(losses(outputs, y), each.mean(dim=0), atol=1e-6)
    assert torch.allclose(losses(alone[:, 0], y), each[0], atol=1e-6)
    assert predictions(outputs).shape == predictions(alone[:, 0]).shape == (6,)


@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
def test_a_training_repeats_by_its_seed_and_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 10, (600,), generator=generator)
    x = torch.randn(600, 3, 2, 8, 8, generator=generator) + torch.randn(10, 3, 1, 8, 8, generator=generator)[y]
    epsilon = np.full(600, 20.0)
    settings = Settings(width=8, steps=30, batch_size=200, walk=0.3, decays=(0.0, 0.9))
    build = partial(network, settings.network, (3, 2, 8, 8), settings.width)
    runs = [trained("sample", settings, build, (x, y), epsilon, 1e-3, seed) for seed in (0, 0, 1)]
    weights = [next(model.parameters()).detach() for model, _, _ in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    model, averages, said = runs[0]
    averages.put(0.9)
    assert float((predictions(model(x)) == y).float().mean()) > 0.5
    assert max(said["spent"]) <= 20.0
