"""The networks and optimizers that a configuration can name."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import privypurse as pp
from privypurse.runs.config import Model, Optimizer
from privypurse.runs.models import TramerBoneh, mlp, model_of, optimizer_of

NETS = """
import torch

class Wide(torch.nn.Linear):
    def __init__(self, width=4):
        super().__init__(width, 2)

def normalised():
    return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))

def three():
    return torch.nn.Linear(4, 3)

def nothing():
    return "a network"

def broken():
    raise RuntimeError("out of wood")

number = 5
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A folder with a module of the user's, as the working directory."""
    (tmp_path / "nets_of_a_user.py").write_text(NETS, encoding="utf-8")
    (tmp_path / "needs_more.py").write_text("import no_such_thing_anywhere", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # and taken off again afterwards
    return "nets_of_a_user"


def test_an_mlp_is_what_it_says():
    model = mlp((3, 2), 5, hidden=(7, 4), activation="tanh")
    x = torch.randn(6, 3, 2)
    first, second, last = (layer for layer in model if isinstance(layer, nn.Linear))
    by_hand = last(torch.tanh(second(torch.tanh(first(x.flatten(1))))))
    assert torch.equal(model(x), by_hand)
    assert sum(p.numel() for p in model.parameters()) == (6 * 7 + 7) + (7 * 4 + 4) + (4 * 5 + 5)
    assert len(list(mlp((6,), 2, hidden=()).parameters())) == 2


def test_the_cnn_is_that_of_tramer_and_boneh():
    model = TramerBoneh(10, (1, 28, 28))
    assert sum(p.numel() for p in model.parameters()) == 26_010
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    x = torch.randn(2, 1, 28, 28)
    y = F.max_pool2d(torch.tanh(layers[0](x)), 2, 1)
    y = F.max_pool2d(torch.tanh(layers[1](y)), 2, 1)
    assert torch.equal(model(x), layers[3](torch.tanh(layers[2](y.flatten(1)))))
    assert TramerBoneh(10, (3, 32, 32))(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_a_module_of_the_users_is_imported_and_called(nets):
    assert model_of(Model(f"{nets}:Wide", options={"width": 4}), (4,), 2).in_features == 4
    assert model_of(Model(f"{nets}:Wide"), (4,), 2).training


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("no_module_of_a_user:build", {}, "there is no module no_module_of_a_user"),
        ("nets_of_a_user:build", {}, "nets_of_a_user has no function or class 'build'"),
        ("nets_of_a_user:number", {}, "no function or class 'number'"),
        ("nets_of_a_user:nothing", {}, "gave a str; it must give a torch.nn.Module"),
        ("nets_of_a_user:broken", {}, "failed: RuntimeError: out of wood"),
        ("nets_of_a_user:Wide", {"size": 3}, "failed: TypeError: .*size"),
        ("nets_of_a_user:Wide", {"width": 5}, r"does not take the data \(float32\[n, 4\] in, one of 2 classes out\)"),
        ("nets_of_a_user:three", {}, r"gives \(2, 3\) for two records; it must give \(2, 2\)"),
        ("needs_more:build", {}, "failed: ModuleNotFoundError: No module named 'no_such_thing_anywhere'"),
    ],
)
def test_what_is_wrong_with_a_module_is_said_before_training(nets, kind, options, words):
    with pytest.raises(pp.InvalidInput, match=words):
        model_of(Model(kind, options=options), (4,), 2)


def test_an_optimizer_gets_its_arguments_and_what_is_trainable():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    made = optimizer_of(Optimizer("AdamW", {"lr": 0.25, "betas": [0.5, 0.75], "weight_decay": 0.0}), model)
    assert type(made) is torch.optim.AdamW
    assert (made.defaults["lr"], tuple(made.defaults["betas"])) == (0.25, (0.5, 0.75))
    assert made.param_groups[0]["params"] == list(model[1].parameters())


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("SDG", {}, "no 'SDG'; did you mean 'SGD'"),
        ("Optimizer", {}, "there is no 'Optimizer'"),
        ("lr_scheduler", {}, "there is no 'lr_scheduler'"),
        ("LBFGS", {"lr": 1.0}, "there is no 'LBFGS'"),
        ("SGD", {"lr": 0.1, "momentun": 0.9}, "SGD has no argument 'momentun'; did you mean 'momentum'"),
        ("SGD", {"params": 1}, "no argument 'params'"),
        ("SGD", {"lr": -1.0}, "SGD does not take these arguments: Invalid learning rate"),
        ("SGD", {"lr": "x"}, r"\[optimizer\] lr is 'x'; SGD takes a number"),
        ("Adam", {"lr": 0.1, "weight_decay": True}, "weight_decay is True; Adam takes a number"),
        ("Adam", {"betas": 0.9}, "Adam does not take these arguments"),
    ],
)
def test_a_wrong_optimizer_is_named(name, options, words):
    with pytest.raises(pp.InvalidInput, match=words):
        optimizer_of(Optimizer(name, options), nn.Linear(2, 2))
