"""What lands in ``.grad`` of a step without any data: noise of σ·C / batch size, and of no other deviation.

C is the reference clip norm. Under `scale` nobody's own clip norm need be C; with groups of unequal size the mean
over levels is another number than the mean over people, and with a given noise multiplier neither of them is C.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from made_once import made_once
from training_tools import CUDA, LOSS

torch.set_num_threads(1)
PEOPLE, STEPS = 90, 5
RARELY = 1e-7


@made_once
def planned(noise_multiplier: float | None, method: str = "scale") -> pp.Plan:
    """Nine in ten grant eight times as much as the others."""
    budgets = pp.Budgets(np.where(np.arange(PEOPLE) % 10 == 0, 0.5, 4.0), delta=1e-5)
    return pp.plan(
        budgets,
        method,
        steps=STEPS,
        batch_size=20,
        clip_norm=0.3,
        noise_multiplier=noise_multiplier,
        accountant="rdp",
    )


class Silent(nn.Module):
    """Inputs of zeros make every gradient zero, so that noise is all that is released."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(300, 20, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Keeping(torch.optim.SGD):
    """Keeps every gradient that it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.0)
        self.seen: list[np.ndarray] = []

    def step(self, closure: object = None) -> None:
        super().step()
        for group in self.param_groups:
            self.seen += [p.grad.detach().double().cpu().numpy().ravel() for p in group["params"]]


def nothing() -> TensorDataset:
    return TensorDataset(torch.zeros(PEOPLE, 300), torch.arange(PEOPLE) % 20)


def in_the_loop(plan: pp.Plan, device: str, **options: object) -> np.ndarray:
    inner = Silent().to(device)
    keeping = Keeping(inner)
    model, optimizer, loader = pp.make_private(inner, keeping, nothing(), plan, **options)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
    return np.stack(keeping.seen)


def by_train(plan: pp.Plan, device: str, **options: object) -> np.ndarray:
    model = Silent().to(device)
    keeping = Keeping(model)
    pp.train(model, keeping, nothing(), plan, LOSS, **options)
    return np.stack(keeping.seen)


def require(noise: np.ndarray, deviation: float) -> None:
    """The deviation, the shape and the mean are right; 5 % of deviation, or a tenth of one beside, is noticed."""
    values = noise.ravel() / deviation
    assert values.size == STEPS * 6000  # each step is released once, whole

    def chance(scaled: np.ndarray) -> float:
        total = float(np.square(scaled).sum())
        return 2 * min(stats.chi2.cdf(total, scaled.size), stats.chi2.sf(total, scaled.size))

    assert chance(values) > RARELY
    assert stats.kstest(values, "norm").pvalue > RARELY
    for wrong in (0.95, 1.05):
        assert chance(values * wrong) < RARELY
    assert stats.kstest(values + 0.1, "norm").pvalue < RARELY


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("noise_multiplier", [None, 2.0], ids=["solved", "given"])
@pytest.mark.parametrize("physical", [None, 3], ids=["whole", "in parts"])
@pytest.mark.parametrize("trained", [in_the_loop, by_train])
def test_noise_is_that_of_the_reference_clip_norm_whatever_people_grant(
    trained: Callable[..., np.ndarray], physical: int | None, noise_multiplier: float | None, device: str
) -> None:
    """In parts, a step of about 20 records is seven physical batches: noise is added once, and once only."""
    plan = planned(noise_multiplier)
    over_levels, over_people = plan.levels.clip_norm.mean(), plan.clip_norms.mean()
    assert abs(over_levels / plan.clip_norm - 1) > 0.1  # each of these would be noticed
    assert (abs(over_people / plan.clip_norm - 1) > 0.1) == (noise_multiplier is not None)
    noise = trained(plan, device, execution=pp.Execution(max_physical_batch=physical))
    require(noise, plan.noise_multiplier * plan.clip_norm / plan.batch_size)
    alike = np.abs(np.corrcoef(noise) - np.eye(STEPS)).max()
    assert alike < 0.1  # and no two steps share it


@pytest.mark.parametrize("method", ["sample", "uniform", "exclude"])
def test_noise_of_the_other_methods(method: str) -> None:
    plan = planned(None, method)
    require(in_the_loop(plan, "cpu"), plan.noise_multiplier * plan.clip_norm / plan.batch_size)
