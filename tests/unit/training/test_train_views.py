"""Training with several views of a record: one record stays one unit, and nothing else changes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.errors import InvalidInput
from privypurse.training.gradients import views as views_module
from training_tools import CUDA, LOSS, Keeping, few_records, quiet, same
from views_tools import Jitter

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:seed=")

CLIP, PEOPLE = 0.05, 60


def network(*first: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*first, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def everybody(steps: int = 1, batch_size: int = PEOPLE) -> pp.Plan:
    budgets = pp.Budgets(np.full(PEOPLE, 4.0), delta=1e-5)
    return pp.plan(budgets, method="uniform", steps=steps, batch_size=batch_size, clip_norm=CLIP, accountant="rdp")


class Flips(nn.Module):
    """Every other row the other way round: two views of each record, known beforehand."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 - 2 * (torch.arange(len(x), device=x.device) % 2)).unsqueeze(1)


def released(model: nn.Module, monkeypatch: pytest.MonkeyPatch, **how: object) -> list[Tensor]:
    """The gradient of a step that draws everybody and adds no noise."""
    quiet(monkeypatch)
    monkeypatch.setattr("privypurse.training.loop.require_isolated", lambda *given: None)  # rows of Flips have places
    optimizer = Keeping(model)
    pp.train(model, optimizer, few_records(), everybody(), LOSS, **how)  # type: ignore[arg-type]
    return optimizer.seen


def by_hand(each_view: bool) -> list[Tensor]:
    """The clipped sum of mean gradients of both views; or the mean of clipped ones, which is something else."""
    model, (x, y) = network(), few_records().tensors
    total = [torch.zeros_like(p) for p in model.parameters()]
    for record in range(PEOPLE):
        both = LOSS(model(torch.stack([x[record], -x[record]])), y[record].expand(2))
        for loss in both / 2 if each_view else both.mean().reshape(1):
            gradient = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            norm = torch.cat([g.flatten() for g in gradient]).norm()
            limit = CLIP / 2 if each_view else CLIP
            total = [t + g * min(1.0, float(limit / norm)) for t, g in zip(total, gradient, strict=True)]
    return [t / PEOPLE for t in total]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 7])
def test_a_step_clips_the_mean_over_views(batch: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    how = {"views": 2, "execution": pp.Execution(max_physical_batch=batch)}
    found = released(network(Flips()), monkeypatch, **how)
    for mine, expected in zip(found, by_hand(each_view=False), strict=True):
        torch.testing.assert_close(mine, expected, rtol=2e-3, atol=1e-7)  # factors leave a margin


@pytest.mark.slow
def test_the_twin_that_clips_every_view_by_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    found = released(network(Flips()), monkeypatch, views=2)
    other = by_hand(each_view=True)
    apart = [float((mine - twin).norm() / twin.norm()) for mine, twin in zip(found, other, strict=True)]
    assert max(apart) > 0.1, apart  # of what is compared to 0.002 above


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_views_that_do_not_differ_are_one_view(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU through captured graphs."""
    one = released(network().to(device), monkeypatch)
    several = released(network().to(device), monkeypatch, views=4)
    for mine, other in zip(one, several, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-7)


def test_an_augmentation_that_mixes_records_is_refused() -> None:
    class MixUp(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0.7 * x + 0.3 * x.flip(0)

    model = network(MixUp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidInput, match="changes with the other records"):
        pp.train(model, optimizer, few_records(), everybody(), LOSS, views=2, seed=0)


def test_a_model_that_averages_over_views_itself_is_refused() -> None:
    """It would mix records wherever rows are taken for something else than this."""

    class OverViews(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(-1, 2, 6).mean(dim=1).repeat_interleave(2, dim=0)

    model = network(OverViews())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises((InvalidInput, RuntimeError)):
        pp.train(model, optimizer, few_records(), everybody(), LOSS, views=2, seed=0)


def test_gradients_are_compared_with_autograd_as_they_will_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that took the first view of each record for the whole of it is found before it is taken."""
    model = network(Jitter())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(
        views_module, "by_record", lambda values, views: values[:: 1 if views == 1 else views].unsqueeze(1)
    )
    with pytest.raises(InvalidInput, match="made-up records"):
        pp.train(model, optimizer, few_records(), everybody(), LOSS, views=3, seed=0)


@pytest.mark.slow
def test_a_seeded_run_that_is_broken_off_goes_on_with_the_same_views(tmp_path: Path) -> None:
    def trained(folder: str, *goals: int) -> nn.Module:
        for goal in goals:
            model = network(Jitter())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            where = tmp_path / folder
            plan = everybody(steps=4, batch_size=20)
            pp.train(model, optimizer, few_records(), plan, LOSS, views=3, seed=1, steps=goal, checkpoint=where)
        return model

    whole = trained("whole", 4)
    assert same(whole, trained("parts", 2, 4))
    assert not same(whole, trained("less", 3))


@pytest.mark.slow
def test_norm_passes_see_as_many_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views that cancel have no norm to be charged for; each by itself would have one."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)  # type: ignore[no-any-return]

    monkeypatch.setattr("privypurse.training.loop.require_isolated", lambda *given: None)
    spent = []
    for views in (1, 2):
        model = nn.Sequential(Flips(), Odd())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        x, y = few_records().tensors
        data = TensorDataset(x[:1].expand(PEOPLE, -1).contiguous(), y.float())
        how = {"individual": pp.Individual(every=1), "views": views, "seed": 0}
        done = pp.train(model, optimizer, data, everybody(2, 20), lambda out, _: out.flatten(), **how)  # type: ignore[arg-type]
        assert done.spending is not None
        spent.append(done.spending.epsilon("rdp").max())
    assert spent[1] < 0.2 * spent[0]


@pytest.mark.parametrize("views", [0, 1.5, "two"])
def test_views_are_a_whole_number(views: object) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidInput, match="views"):
        pp.train(model, optimizer, few_records(), everybody(), LOSS, views=views, seed=0)  # type: ignore[arg-type]
