"""The private median of gradient norms: near the median, paid for by everyone, within their purse."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from training_tools import LOSS

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def people(n=2000):
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(n, 4, generator=generator), torch.randint(0, 3, (n,), generator=generator))


def median_by_autograd(model, data):
    norms = []
    for x, y in data:
        gradients = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), tuple(model.parameters()))
        norms.append(torch.sqrt(sum(g.square().sum() for g in gradients)).item())
    return float(np.median(norms))


def test_it_is_near_the_median_and_everyone_pays_for_twenty_bits():
    model, data = network(), people()
    purses = pp.Filter(np.full(2000, 1.0), np.full(2000, 1e-5))
    found = pp.median_gradient_norm(model, LOSS, data, purses, cap=20.0, noise=30.0, seed=0)
    assert found.values[0] == pytest.approx(median_by_autograd(model, data), rel=0.05)
    np.testing.assert_allclose(purses.spent, 20 * (0.5 / 30) ** 2, rtol=1e-6)
    assert found.cost.epsilon <= 1.0
    assert all(p.grad is None for p in model.parameters())


def test_nobody_pays_more_than_they_hold():
    """Half of the purses are empty after a few bits; they count as half above and half below from then on."""
    purses = pp.Filter(np.where(np.arange(2000) % 2, 1.0, 0.01), np.full(2000, 1e-5))
    pp.median_gradient_norm(network(), LOSS, people(), purses, cap=20.0, noise=30.0, seed=0)
    assert (purses.spent <= purses.total).all()
    assert (purses.spent[::2] < purses.spent[1::2]).all()


def test_one_purse_for_each_record_is_needed():
    purses = pp.Filter(np.full(3, 1.0), np.full(3, 1e-5))
    with pytest.raises(pp.InvalidInput, match="3 purses for 2,000 records"):
        pp.median_gradient_norm(network(), LOSS, people(), purses, cap=20.0, noise=30.0)
