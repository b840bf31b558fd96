"""Noise without holes: what is released can be reached whoever is in the sum (rule 10)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.randomness import SecureRandomness
from privypurse.training.grid_noise import FINENESS, GridNoise, pieces
from privypurse.training.mechanism import PrivateRun
from privypurse.training.setup import Setup

PEOPLE, FEATURES, CLASSES = 64, 784, 10
STRICT = 1e-6


def people(dtype: torch.dtype = torch.float32, without: bool = False) -> TensorDataset:
    """Images of 64 people; the first is blank where they are not in: their gradient of the weights is then zero."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(PEOPLE, FEATURES, generator=generator, dtype=torch.float64).to(dtype)
    if without:
        x[0] = 0.0
    return TensorDataset(x, torch.arange(PEOPLE) % CLASSES)


def full_batch_plan() -> pp.Plan:
    budgets = pp.Budgets(np.full(PEOPLE, 0.5), delta=1e-5)
    return pp.plan(budgets, "uniform", steps=1, batch_size=PEOPLE, clip_norm=1.0, accountant="rdp")


def linear(dtype: torch.dtype) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES, bias=False, dtype=dtype)


def released(dtype: torch.dtype, without: bool) -> Tensor:
    """The gradient of one full-batch step, unseeded. Divided by 64, which loses no digit."""
    inner, data = linear(dtype), people(dtype, without)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.0)
    model, optimizer, loader = pp.make_private(inner, optimizer, data, full_batch_plan())
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert inner.weight.grad is not None
    return inner.weight.grad * PEOPLE


def sum_of_all(dtype: torch.dtype, without: bool) -> Tensor:
    """What the step adds up before it is noisy: the attacker knows everybody's data but the first's."""
    inner = linear(dtype)
    run = PrivateRun(Setup(full_batch_plan(), inner, torch.optim.SGD(inner.parameters())))
    x, y = people(dtype, without).tensors
    from privypurse.training.gradients import recorded

    tape, _ = recorded(run.recorder, lambda out, label: F.cross_entropy(out, label, reduction="none"), x, y)
    run.add(tape, torch.arange(PEOPLE))
    return run._sums["weight"].clone()


def impossible(seen: Tensor, others: Tensor) -> int:
    """Entries that the others' sum plus a float normal times the deviation cannot give, whatever the normal."""
    deviation = full_batch_plan().noise_multiplier
    near = (seen - others) / deviation  # what gives ``seen`` is this float or one beside it
    reached = torch.zeros_like(seen, dtype=torch.bool)
    for side in (math.inf, -math.inf):
        candidate = near
        for _ in range(4):
            reached |= torch.add(others, candidate, alpha=deviation) == seen
            candidate = torch.nextafter(candidate, torch.full_like(candidate, side))
    return int((~reached).sum())


def with_floats(total: Tensor) -> Tensor:
    """The broken twin: sum and noise are floats of one precision."""
    normals = SecureRandomness().normal(total.numel()).reshape(total.shape).to(total.dtype)
    return torch.add(total, normals, alpha=full_batch_plan().noise_multiplier)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bits_of_a_step_do_not_tell_who_is_in(dtype: torch.dtype) -> None:
    """With floats alone the attack is right every time; ε = 0.5 allows it 62 of 100."""
    others, everybody = (sum_of_all(dtype, without) for without in (True, False))
    assert not torch.equal(others, everybody)
    told = [(impossible(with_floats(others), others), impossible(with_floats(everybody), others)) for _ in range(5)]
    assert all(without == 0 and with_person > 20 for without, with_person in told)
    absent = [impossible(released(dtype, without=True), others) for _ in range(20)]
    present = [impossible(released(dtype, without=False), others) for _ in range(20)]
    assert stats.mannwhitneyu(absent, present).pvalue > STRICT
    assert stats.mannwhitneyu([without for without, _ in told] * 4, [each for _, each in told] * 4).pvalue < STRICT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("without", [True, False])
def test_every_value_is_a_multiple_of_one_public_step(dtype: torch.dtype, without: bool) -> None:
    """Then what can be reached is the same set for every sum."""
    plan = full_batch_plan()
    step = GridNoise(plan.noise_multiplier * plan.clip_norm, FEATURES * CLASSES).step
    assert math.log2(step).is_integer()
    whole = released(dtype, without).double() / step
    assert torch.equal(whole, whole.round())
    odd = int((whole.abs() % 2 == 1).sum())
    if dtype == torch.float64:  # all of them, not every second
        assert stats.binomtest(odd, whole.numel(), 0.5).pvalue > STRICT


def test_the_grid_follows_from_public_numbers_alone() -> None:
    for deviation in (1e-20, 0.7, 1.0, 3.1, 1e20):
        noise = GridNoise(deviation, 10_000)
        assert 2.0**-FINENESS / 2 < noise.step / deviation <= 2.0**-FINENESS
        assert noise.slack == noise.step * 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_on_the_grid_has_the_planned_deviation(dtype: torch.dtype) -> None:
    noise = GridNoise(0.3, 400_001)
    values = torch.linspace(-2, 3, 400_001, dtype=dtype)
    before = values.clone()
    noise.to_grid(values, SecureRandomness())
    moved = ((values.double() * noise.step - before.double()) / noise.deviation).numpy()
    assert stats.kstest(moved, "norm").pvalue > STRICT
    assert stats.kstest(moved * 1.05, "norm").pvalue < STRICT
    assert stats.kstest(moved + 0.02, "norm").pvalue < STRICT


def test_without_a_source_the_sum_is_rounded_and_nothing_else() -> None:
    """What the other processes of a run do: noise is added once in total."""
    noise, values = GridNoise(1.0, 1000), torch.randn(1000, dtype=torch.float64)
    before = values.clone()
    noise.to_grid(values, None)
    assert (values * noise.step - before).abs().max() <= noise.step / 2


@pytest.mark.slow
def test_normals_have_more_than_the_digits_of_a_float32() -> None:
    """Of four million float32 normals half are seen twice; of uniforms with 24 bits every one is."""
    drawn = SecureRandomness().normal(4_000_000)
    assert drawn.unique().numel() >= drawn.numel() - 3
    assert int((drawn == 0).sum()) == 0
    short = drawn.float()
    assert short.unique().numel() < 0.999 * short.numel()


@pytest.mark.slow
def test_what_rounding_adds_is_taken_off_the_clip_norm() -> None:
    """Nobody changes the rounded sum by more than their clip norm, however coarse the grid is for them."""
    inner = nn.Linear(30, 1, bias=False, dtype=torch.float64)
    plan = pp.plan(
        pp.Budgets(np.full(4, 1.0), delta=1e-5), "uniform", steps=1, batch_size=4, clip_norm=1.0, accountant="rdp"
    )
    run = PrivateRun(Setup(plan, inner, torch.optim.SGD(inner.parameters())))
    run.setup.noise = GridNoise(1.0, 30)
    # So coarse that rounding is half a clip norm.
    run.setup.noise.step, run.setup.noise.slack = 0.1, 0.1 * math.sqrt(30)
    from privypurse.training.gradients import recorded

    worst = 0.0
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        x = 100 * torch.randn(2, 30, dtype=torch.float64, generator=generator)
        totals = []
        for who in (torch.tensor([0, 1]), torch.tensor([0, 4])):  # 4 is nobody
            tape, _ = recorded(run.recorder, lambda out, _: out[:, 0], x, torch.zeros(2))
            run.clear()
            run.add(tape, who)
            total = run._sums["weight"].flatten().clone()
            run.setup.noise.to_grid(total, None)
            totals.append(total * run.setup.noise.step)
        worst = max(worst, float((totals[0] - totals[1]).norm()))
    assert 0.4 < worst <= 1.0


@pytest.mark.parametrize("sizes", [[5], [2**17 + 3], [3, 4, 2**18, 5, 6], [2**17 - 1, 1, 1], [0, 7]])
def test_pieces_are_the_values(sizes: list[int]) -> None:
    values = {str(k): torch.randn(size, 1) for k, size in enumerate(sizes)}
    copies = {name: value.clone() for name, value in values.items()}
    out, flat = pieces(values, torch.device("cpu"))
    assert all(torch.equal(out[name], copies[name]) for name in values)
    assert sum(piece.numel() for piece in flat) == sum(sizes)
    for piece in flat:
        piece.add_(1.0)
    assert all(torch.equal(out[name], copies[name] + 1.0) for name in values)
