"""Layers whose weights have few bits are refused by name, without the packages that bring them."""

import sys
import types

import pytest
import torch
from torch import Tensor, nn

import privypurse as pp
from privypurse.training.gradients import Recorder


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("bitsandbytes.nn.modules", "Linear4bit"),
        ("bitsandbytes.nn.modules", "LinearNF4bit"),
        ("bitsandbytes.nn.modules", "Linear8bitLt"),
        ("peft.tuners.lora.gptq", "GPTQLoraLinear"),
        ("peft.tuners.lora.awq", "AwqLoraLinear"),
        ("peft.tuners.lora.hqq", "HqqLoraLinear"),
        ("auto_gptq.nn_modules", "QuantLinear"),
    ],
)
@pytest.mark.parametrize("frozen", [True, False])
def test_layers_of_few_bits_are_refused_by_name(module, name, frozen, monkeypatch):
    """Also by what they are made from, and frozen beneath an adapter, as they usually are."""
    stand_in = type(name, (nn.Linear,), {"__module__": module})
    monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    layer = type("Derived", (stand_in,), {})(4, 4).requires_grad_(not frozen)
    model = nn.Sequential(nn.Linear(4, 4), layer)
    with pytest.raises(pp.InvalidInput, match=r"layer 1 \(Derived\): its weights are held in few bits"):
        Recorder(model)


def test_a_weight_of_whole_numbers_is_refused_whatever_its_layer_is_called():
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.uint8), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.float()

    with pytest.raises(pp.InvalidInput, match="held in few bits"):
        Recorder(nn.Sequential(nn.Linear(4, 4), Packed()))


def test_dora_is_refused_by_name():
    model = nn.Sequential(nn.Linear(4, 4), type("DoraLinearLayer", (nn.Linear,), {})(4, 4))
    with pytest.raises(pp.InvalidInput, match="use_dora=False"):
        Recorder(model)
