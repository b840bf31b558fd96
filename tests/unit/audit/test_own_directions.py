"""Canaries in the network's own coordinates: what the others contribute is subtracted, and bare numbers are seen."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from made_once import made_once
from privypurse.audit.canaries import PUSH, WithCanaries, with_canaries
from privypurse.audit.canary_audit import CanaryAudit
from privypurse.audit.own_directions import NOWHERE, Numbers, Others, places
from privypurse.audit.subject import stand_in
from privypurse.errors import InvalidInput
from privypurse.randomness import SecureRandomness
from privypurse.training import setup
from privypurse.training.gradients import check_rule, per_record_norms
from privypurse.training.grid_noise import GridNoise
from privypurse.training.mechanism import PrivateRun

pytestmark = pytest.mark.filterwarnings("ignore:seed=")


@made_once
def plan_for(epsilon=4.0, **options):
    options = {"steps": 8, "batch_size": 200, "accountant": "rdp"} | options
    return pp.plan(pp.Budgets([epsilon] * 200, delta=1e-5), **options)


def audit(plan=None, **options):
    options = {"canaries": 100, "coordinates": "own", "device": "cpu", "seed": 3} | options
    return CanaryAudit(stand_in(plan or plan_for(), others=40), **options)


def squares(output, label):
    return (output.squeeze(-1) - label).square()


@pytest.mark.parametrize(("canaries", "inside"), [(6, 6), (30, 10)])
def test_each_canary_has_a_number_of_its_own_and_at_most_a_quarter_of_them_is_taken(canaries, inside):
    network = nn.Sequential(nn.Linear(4, 7), nn.Linear(7, 1, bias=False))  # 42 numbers
    found = places(network, canaries, SecureRandomness())
    own = found[found != NOWHERE]
    assert (found.size, own.size) == (canaries, inside)
    assert np.unique(own).size == inside
    assert own.min() >= 0
    assert own.max() < 42


def test_a_canarys_gradient_is_ten_clip_norms_in_its_number_of_the_network_and_nowhere_else():
    network = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    model = WithCanaries(network, 4, np.array([0, 7, 10, NOWHERE]))
    losses = with_canaries(squares, clip_norm=0.7)
    x, y = torch.randn(6, 3), torch.randn(6)
    numbers = torch.tensor([0, 1, 2, 3, 4, 4])  # four canaries, two others
    found = per_record_norms(model, losses, (x, numbers), y)
    assert found[:4] == pytest.approx([PUSH * 0.7] * 4, rel=1e-4)
    assert found[4:] == pytest.approx(per_record_norms(network, squares, x[4:], y[4:]), rel=1e-4)
    losses(model(x, numbers), y)[:4].sum().backward()
    model.coordinates.weight.grad[3] -= 7.0
    assert model.released().tolist() == pytest.approx([7.0, 7.0, 7.0, 0.0])
    flat = torch.cat([each.grad.flatten() for each in network.parameters()])
    assert torch.nonzero(flat).flatten().tolist() == [0, 7, 10]


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 2, 2)])
def test_the_rule_of_single_numbers_agrees_with_autograd(shape):
    weight = nn.Parameter(torch.randn(shape))
    check_rule(Numbers(weight), torch.tensor([0, 4, 2, 4, 1, weight.numel() - 1]))


def test_what_others_contribute_is_what_autograd_says_one_by_one():
    plan = plan_for()
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    records = TensorDataset(3 * torch.randn(9, 3), torch.zeros(9), torch.randn(9))
    others = Others(network, squares, plan.for_nobody(np.zeros(9, dtype=np.int64)), records, real=6)
    expected = torch.zeros(21, dtype=torch.float64)
    for one in (1, 4, 5):
        network.zero_grad()
        squares(network(records.tensors[0][[one]]), records.tensors[2][[one]]).sum().backward()
        mine = torch.cat([each.grad.flatten() for each in network.parameters()]).double()
        expected += mine * min(1.0, float(plan.clip_norm / mine.norm()))
    found = others.clipped_sum(torch.tensor([1, 8, 5, 4, 1]))  # 8 is a canary; the second 1 is padding
    above = 3e-4 * plan.clip_norm  # of three people, whose norms are found up to 1e-4 too high
    assert found.numpy() == pytest.approx(expected.numpy(), rel=0, abs=above)
    assert expected.abs().max() > 100 * above  # one more or fewer would be seen
    assert others.clipped_sum(torch.tensor([7])).abs().max() == 0


@pytest.mark.slow
@pytest.mark.parametrize("subtracted", [True, False])
def test_without_noise_nothing_is_left_but_who_was_drawn(monkeypatch, subtracted):
    monkeypatch.setattr(setup, "GridNoise", lambda deviation, size: GridNoise(deviation / 1e5, size))
    right, seen = WithCanaries.released, []

    def noted(model, others=None):
        seen.append(right(model, others if subtracted else None))
        return seen[-1]

    monkeypatch.setattr(WithCanaries, "released", noted)
    plan = plan_for()
    canaries, _ = audit(plan).trained(steps=3)
    values = (torch.stack(seen) * plan.batch_size / plan.clip_norm).numpy()
    left = np.minimum(np.abs(values), np.abs(values - 1)).max()
    assert (left < 0.01) == subtracted
    if subtracted:
        assert values[:, ~canaries.is_in].max() < 0.01
        assert 0.8 < values[:, canaries.is_in].mean() < 1.01  # the rate of this plan is nearly 1


def no_noise_in_the_network(monkeypatch):
    """Appended coordinates keep theirs."""
    right = PrivateRun._release

    def release(run, step):
        exact = {name: value.clone() for name, value in run._sums.items()}
        right(run, step)
        for name, parameter in run.parameters.items():
            if name.startswith("model."):
                parameter.grad = exact[name].to(parameter.grad) / run.plan.batch_size

    monkeypatch.setattr(PrivateRun, "_release", release)


@pytest.mark.slow
@pytest.mark.parametrize("coordinates", ["own", "appended"])
def test_noise_that_is_missing_in_the_network_alone_is_seen_by_canaries_that_are_there(monkeypatch, coordinates):
    run = audit(plan_for(epsilon=1.0, accountant="pld"), canaries=300, coordinates=coordinates)
    assert not run.run().flagged
    no_noise_in_the_network(monkeypatch)
    assert run.run().flagged == (coordinates == "own")


def test_what_is_said_counts_those_inside():
    numbers = sum(each.numel() for each in audit().subject.model().parameters())
    beyond = audit(canaries=numbers)._where()
    assert f"{numbers // 4:,} of {numbers:,} canaries" in beyond
    assert f"the other {numbers - numbers // 4:,} coordinates are appended" in beyond
    assert "appended" not in audit(canaries=100)._where()


def test_under_a_filter_and_by_another_word_it_is_refused():
    with pytest.raises(InvalidInput, match="extra steps"):
        audit(plan_for(extra_steps=2, noise_multiplier=4.0))
    with pytest.raises(InvalidInput, match="coordinates"):
        audit(coordinates="borrowed")
