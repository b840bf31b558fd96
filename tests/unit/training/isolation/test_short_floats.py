"""Rule 12 where activations have few digits: a model that mixes records a little is told from rounding."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.isolation import compared
from privypurse.training.isolation import model as isolation

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


class Centred(nn.Module):
    """Takes a share of the batch's mean off every record, and sends nothing back through it."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        return x - self.share * x.detach().mean(0)


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.inner, self.last = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x.unflatten(1, (8, 32)))[:, 0])  # type: ignore[no-any-return]


def deep(share: float = 0.0) -> nn.Module:
    hidden = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(nn.Linear(256, 256), Centred(share) if share else nn.Identity(), *hidden, nn.Linear(256, 4))


def pictures() -> nn.Module:
    middle = nn.Sequential(nn.Conv2d(1, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2))
    return nn.Sequential(nn.Unflatten(1, (1, 16, 16)), middle, nn.Flatten(), nn.Linear(16 * 36, 4))


def trained(model: nn.Module, device: str, records: int = 64, steps: int = 2) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(records, 256).to(device), torch.randint(4, (records,)).to(device))
    plan = pp.plan(pp.Budgets([1.0] * records, delta=1e-5), "uniform", steps=steps, batch_size=records, clip_norm=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = pp.make_private(model.to(device), optimizer, data, plan, seed=1)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [deep, pictures, Sequence])
def test_records_that_do_not_mix_are_let_through(make: Callable[[], nn.Module], device: str) -> None:
    trained(make(), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("share", [1.0, 0.1, 0.01])
def test_a_small_share_of_the_mean_is_refused(share: float, device: str) -> None:
    with pytest.raises(pp.InvalidInput, match="changes with the other records"):
        trained(deep(share), device)


@pytest.mark.slow
def test_a_ceiling_on_the_largest_change_alone_would_let_it_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared, "_SAME_ON_AVERAGE", (float("inf"), 0.0))
    monkeypatch.setattr(isolation, "_require_same_gradients", lambda *seen: None)  # these would tell, too
    trained(deep(0.01), "cpu", steps=1)
