"""The private median of gradient norms: near the median, paid for by everyone, within their purse."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from ledger_tools import DELTA, UNIT, new_ledger
from privypurse.queries import LedgerPurses, statistics
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


@pytest.mark.slow
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


@pytest.fixture
def ledger(tmp_path):
    made = new_ledger(tmp_path)
    made.join(["a", "b", "c"], [2.0, 2.0, 2.0])
    return made


def purses_of(ledger, person=("a", "b", "c")):
    return LedgerPurses(ledger, pp.Budgets(np.full(len(person), 2.0), delta=DELTA, person=list(person)))


def test_under_a_ledger_everybody_pays_for_their_own_record(ledger):
    """In whatever order records stand, and whoever has none pays nothing."""
    found = pp.median_gradient_norm(
        network(), LOSS, people(2), purses_of(ledger), cap=20.0, noise=100.0, person=["c", "a"], seed=0
    )
    spent = ledger.spent(ledger.members(["a", "b", "c"]))
    assert (spent[1] == 0).all()
    # Twenty bits of 1/2 with noise 100, at each order (Mironov 2017, Proposition 7).
    want = [20 * rung.order / 2 * (0.5 / 100) ** 2 for rung in ledger.rungs]
    np.testing.assert_allclose(spent[[0, 2]] * UNIT, [want, want], rtol=1e-2)
    assert (spent[[0, 2]] * UNIT >= np.array(want) * (1 - 1e-9)).all()
    assert np.isfinite(found.values[0])


def test_each_norm_is_its_owners(ledger, monkeypatch):
    seen = []
    monkeypatch.setattr(statistics, "quantiles", lambda norms, purses, **other: seen.append(norms))
    model, data = network(), people(3)
    for order in ([0, 1, 2], [2, 0, 1]):
        ids, rows = np.array(["a", "b", "c"])[order], TensorDataset(*(tensor[order] for tensor in data.tensors))
        pp.median_gradient_norm(model, LOSS, rows, purses_of(ledger), cap=20.0, noise=100.0, person=ids)
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-6)
    assert len(set(seen[0])) == 3


@pytest.mark.parametrize(
    ("person", "said"),
    [(["a", "a"], "more than once"), (["a", "z"], "z"), (["a"], "person"), (None, "give person=")],
)
@pytest.mark.parametrize("known", ["abc", "abca"])
def test_two_records_of_one_person_and_ids_that_do_not_fit_are_refused(ledger, person, said, known):
    purses = purses_of(ledger, known)
    with pytest.raises(pp.InvalidInput, match=said):
        pp.median_gradient_norm(network(), LOSS, people(2), purses, cap=20.0, noise=100.0, person=person, seed=0)
    assert (ledger.spent(ledger.members(["a", "b", "c"])) == 0).all()


def test_purses_without_ids_are_not_matched_with_any():
    purses = pp.Filter(np.full(2, 1.0), np.full(2, 1e-5))
    with pytest.raises(pp.InvalidInput, match="leave person= out"):
        pp.median_gradient_norm(network(), LOSS, people(2), purses, cap=20.0, noise=30.0, person=["a", "b"])
