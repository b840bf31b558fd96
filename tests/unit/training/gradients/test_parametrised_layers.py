"""Layers whose weight is made of other parameters: these are what is clipped, so that norms are theirs."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from privypurse.errors import InvalidInput
from privypurse.training.gradients import Recorder, Tape, parametrised
from privypurse.training.gradients.check_rule import compare_with_autograd
from privypurse.training.gradients.parametrised import ParametrisedRule
from views_tools import compare, passes

torch.set_num_threads(1)


class Standardised(nn.Module):
    """Each filter less its mean, divided by its length, times a gain."""

    def __init__(self, filters: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(filters) + 0.5)

    def forward(self, weight: Tensor) -> Tensor:
        flat = weight.flatten(1)
        flat = flat - flat.mean(dim=1, keepdim=True)
        return (flat / flat.norm(dim=1, keepdim=True) * self.gain[:, None]).view_as(weight)


def standardised(layer: nn.Conv2d | nn.Linear, name: str = "weight") -> nn.Module:
    return parametrize.register_parametrization(layer, name, Standardised(len(layer.weight)))


LAYERS = {
    "convolution": (lambda: standardised(nn.Conv2d(3, 4, 3, padding=1)), (3, 6, 6)),
    "convolution without bias": (lambda: standardised(nn.Conv2d(4, 6, 3, groups=2, bias=False)), (4, 6, 6)),
    "linear": (lambda: standardised(nn.Linear(6, 4)), (5, 6)),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley"), (4,)),
    "network": (
        lambda: nn.Sequential(
            *(standardised(nn.Conv2d(3, 8, 3, 2, 1)), nn.GroupNorm(2, 8), nn.ReLU()),
            *(standardised(nn.Conv2d(8, 8, 3, 1, 1)), nn.Flatten(), nn.Linear(8 * 9, 5)),
        ),
        (3, 6, 6),
    ),
}


@pytest.mark.parametrize("views", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LAYERS)
def test_norms_and_sums_are_those_of_what_is_trained(name: str, views: int) -> None:
    build, shape = LAYERS[name]
    layer = build()
    rules = [rule for _, each, rule in Recorder(layer).layers if parametrize.is_parametrized(each)]
    assert rules
    assert all(isinstance(rule, ParametrisedRule) for rule in rules)
    compare(*passes(layer, shape, views))


def test_the_twin_that_measures_the_weight_itself_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_pulled_back(made_of: nn.Module, gradients: Tensor) -> dict[str, Tensor]:
        return {"original": gradients, "0.gain": gradients.flatten(2).sum(dim=2)}

    build, shape = LAYERS["convolution"]
    monkeypatch.setattr(parametrised, "_pulled_back", not_pulled_back)
    with pytest.raises(AssertionError):
        compare(*passes(build(), shape))


def test_frozen_parts_have_no_gradient() -> None:
    layer = standardised(nn.Conv2d(3, 4, 3))
    layer.parametrizations.weight.original.requires_grad_(False)
    compare_with_autograd(layer, torch.randn(5, 3, 6, 6))
    layer.parametrizations.requires_grad_(False)
    compare_with_autograd(layer, torch.randn(5, 3, 6, 6))


def test_a_parametrised_bias_and_weight_norm() -> None:
    layer = nn.Linear(6, 4)
    parametrize.register_parametrization(layer, "bias", nn.Tanh())
    compare_with_autograd(parametrizations.weight_norm(layer), torch.randn(5, 6))


def test_a_weight_that_remembers_is_still_refused() -> None:
    """Spectral norm takes a step of its power iteration at every use."""
    recorder = Recorder(parametrizations.spectral_norm(nn.Linear(6, 4)))
    with pytest.raises(InvalidInput, match="wrote into"):
        recorder.forward(Tape(5), torch.randn(5, 6))
