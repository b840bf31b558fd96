"""Several views of a record against autograd, one record at a time, in float64."""

import pytest
import torch
from torch import Tensor, nn

from privypurse.training.gradients import Recorder, clip_factors, convolution, linear, norms, numerics, recorded, sums
from privypurse.training.gradients.convolution import Way
from views_tools import RECORDS, VIEWS, compare, losses, passes

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _without_the_safety_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "rounding", lambda terms, dtype: 0.0)


class Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """A parameter of one's own, which no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * self.scale)


class ResidualBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.GroupNorm(2, 4), nn.Conv2d(4, 8, 3, 2, 1)
        self.other_norm, self.second = nn.GroupNorm(4, 8), nn.Conv2d(8, 8, 3, 1, 1)
        self.shortcut, self.last = nn.Conv2d(4, 8, 1, 2), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(self.other_norm(torch.relu(self.first(self.norm(torch.relu(x))))))
        return self.last((out + self.shortcut(x)).mean(dim=(2, 3)))  # type: ignore[no-any-return]


LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "linear over tokens": (lambda: nn.Linear(6, 4), (5, 6)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1, dilation=2), (3, 17)),
    "conv2d": (lambda: nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0)), (3, 9, 8)),
    "conv2d, stride folded": (lambda: nn.Conv2d(3, 4, 4, stride=2, padding=1), (3, 8, 8)),
    "conv2d, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, dilation=2, bias=False), (4, 9, 9)),
    "conv2d, reflect": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 7, 7)),
    "conv2d, same": (lambda: nn.Conv2d(2, 3, 3, padding="same"), (2, 7, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=2), (2, 4, 4, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 5, 5)),
    "layer norm": (lambda: nn.LayerNorm(5), (3, 5)),
    "no rule": (Scaled, (5,)),
    "recurrent": (Recurrent, (6, 4)),
    "linear, twice": (lambda: Twice(nn.Linear(5, 5)), (5,)),
    "convolution, twice": (lambda: Twice(nn.Conv2d(3, 3, 3, padding=1)), (3, 6, 6)),
    "residual block": (ResidualBlock, (4, 6, 6)),
}


FAST = "residual block"


@pytest.mark.parametrize(
    "name", [FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in LAYERS if name != FAST)]
)
def test_views_are_averaged_before_the_norm_is_taken(name: str) -> None:
    build, shape = LAYERS[name]
    compare(*passes(build(), shape))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["keep", "forget", "ghost"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", ["conv2d", "conv2d, stride folded", "conv2d, groups", "conv1d", "conv3d"])
def test_a_convolution_has_views_in_every_way(
    name: str, how: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "way_of", lambda call: Way(how, whole))
    build, shape = LAYERS[name]
    compare(*passes(build(), shape))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["keep", "forget", "ghost"])
def test_a_linear_layer_has_views_in_every_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "way_of", lambda call: way)
    compare(*passes(nn.Linear(6, 4), (5, 6)))


@pytest.mark.slow
def test_views_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privypurse.training.gradients.rule._IN_CACHE", 1)  # one record after the other
    compare(*passes(ResidualBlock(), (4, 6, 6)))


def test_the_twin_that_takes_every_view_for_a_record_is_caught() -> None:
    tape, truth = passes(nn.Linear(6, 4), (6,))
    for call in tape.finished():
        call.inputs, call.gradient = (call.inputs[0][:, 0],), call.output_gradient[:, 0]  # the first view alone
    with pytest.raises(AssertionError):
        compare(tape, truth)


@pytest.mark.slow
def test_a_person_with_several_records_in_several_views() -> None:
    tape, truth = passes(ResidualBlock(), (4, 6, 6))
    owner = torch.tensor([0, 0, 1, 2])
    found = norms(tape, owner, 3)
    whole = [torch.cat([each.flatten() for each in mine.values()]) for mine in truth]
    exact = torch.stack([(whole[0] + whole[1]).norm(), whole[2].norm(), whole[3].norm()])
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)


def test_a_view_that_is_not_finite_leaves_its_record_out() -> None:
    class OneRow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            rows = torch.arange(len(x)).reshape(-1, *[1] * (x.dim() - 1))
            return torch.where(rows == 4, torch.inf, x)  # the second view of the second record

    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3).double()
    recorder = Recorder(nn.Sequential(OneRow(), layer))
    recorder.views = VIEWS
    x, target = torch.randn(RECORDS, 2, 5, 5).double(), torch.randn(RECORDS, 3, 3, 3).double()
    tape, _ = recorded(recorder, losses, x, target, check=False)
    found = norms(tape)
    assert torch.isfinite(found).tolist() == [True, False, True, True]
    total = dict(sums(tape, clip_factors(found, torch.full_like(found, 1.0)), found))
    recorder.views = 1
    others = torch.tensor([0, 2, 3])
    tape, _ = recorded(Recorder(layer), losses, x[others], target[others])
    found = norms(tape)
    expected = dict(sums(tape, clip_factors(found, torch.full_like(found, 1.0)), found))
    torch.testing.assert_close(total["1.weight"], expected["weight"])
