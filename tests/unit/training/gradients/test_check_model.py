"""Before the first step: made-up records, perturbed weights, and every parameter's clipped sum against autograd's."""

import logging
import random
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from made_once import made_once
from privypurse.training.gradients import Recorder, check_model
from privypurse.training.gradients.check_model import require_true_gradients
from privypurse.training.gradients.linear import LinearRule
from privypurse.training.gradients.made_up_records import CannotMakeUp, MadeUp
from privypurse.training.step_randomness import state_of
from training_tools import LOSS

torch.set_num_threads(1)


class LoRA(nn.Module):
    """A frozen layer, and beside it a product of two thin ones, of which the second begins with zeros."""

    def __init__(self, bypassed: bool = False) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.first, self.second = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
        nn.init.zeros_(self.second.weight)
        self.bypassed = bypassed

    def forward(self, x: Tensor) -> Tensor:
        if self.bypassed:
            return self.base(x) + F.linear(F.linear(x, self.first.weight), self.second.weight)
        return self.base(x) + self.second(self.first(x))


def adapted(bypassed: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(LoRA(bypassed), nn.Tanh(), nn.Linear(6, 3))


@made_once
def planned(records: int = 20, steps: int = 3) -> pp.Plan:
    return pp.plan(pp.Budgets([2.0] * records), "uniform", steps=steps, batch_size=8, clip_norm=0.5, accountant="rdp")


def run(model: nn.Module, how: str, x: Tensor | None = None, **options: object) -> None:
    x = torch.randn(20, 6) if x is None else x
    dataset = TensorDataset(x, torch.arange(20) % 3)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(No ledger|seed=|.*seeded)")
        if how == "train":
            pp.train(model, optimizer, dataset, planned(), LOSS, seed=0, **options)
            return
        private, optimizer, loader = pp.make_private(model, optimizer, dataset, planned(), seed=0, **options)
        for inputs, labels in loader:
            optimizer.zero_grad()
            LOSS(private(inputs), labels).mean().backward()
            optimizer.step()


@pytest.mark.parametrize("how", ["train", "make_private"])
def test_weights_of_lora_that_no_rule_sees_are_named(how):
    """What opacus#820 did in silence: the head learns, ε is counted, LoRA's weights never do."""
    run(adapted(bypassed=False), how)
    model = adapted(bypassed=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(pp.InvalidInput, match=r"0\.first\.weight would get noise alone.*the Linear that holds it"):
        run(model, how)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_first_of_two_matrices_is_seen_only_with_perturbed_weights(monkeypatch):
    """Without, its gradient is 0 either way, and a layer that is bypassed looks right."""
    given = (torch.randn(5, 6),), {}
    model = nn.Sequential(LoRA(bypassed=False), nn.Linear(6, 3))
    model[0].forward = lambda x: model[0].base(x) + model[0].second(F.linear(x, model[0].first.weight))
    with pytest.raises(pp.InvalidInput, match=r"0\.first\.weight"):
        require_true_gradients(Recorder(model), given, 5)
    monkeypatch.setattr(check_model, "_MOVED", 0.0)
    require_true_gradients(Recorder(model), given, 5)  # nothing is found


def forgets_bias(self, call, weights):
    return {name: value * (name != "bias") for name, value in original_sum(self, call, weights).items()}


original_sum = LinearRule.weighted_sum


@pytest.mark.parametrize(
    ("method", "twin", "message"),
    [
        ("weighted_sum", forgets_bias, r"0\.bias gets another clipped sum"),
        ("over_tokens", lambda self, g: g[:, 0] if g.dim() > 2 else g, r"0\.bias gets another clipped sum"),
        ("weight_squares", lambda self, call: torch.zeros(2), "norms that clipping goes by are below autograd's"),
    ],
    ids=["forgets the bias", "first token alone", "no norm"],
)
def test_a_wrong_rule_is_found(monkeypatch, method, twin, message):
    model, given = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), ((torch.randn(3, 7, 4),), {})
    require_true_gradients(Recorder(model), given, 3)
    monkeypatch.setattr(LinearRule, method, twin)
    with pytest.raises(pp.InvalidInput, match=message):
        require_true_gradients(Recorder(model), given, 3)


def test_what_is_used_twice_and_once_past_its_layer_is_found():
    class Tied(nn.Module):
        def __init__(self, past: bool) -> None:
            super().__init__()
            self.table, self.head, self.past = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False), past
            self.head.weight = self.table.weight

        def forward(self, words: Tensor) -> Tensor:
            seen = self.table(words)
            return F.linear(seen, self.table.weight) if self.past else self.head(seen)

    given = (torch.zeros(3, 5, dtype=torch.long),), {}
    require_true_gradients(Recorder(Tied(past=False)), given, 3)
    with pytest.raises(pp.InvalidInput, match=r"table\.weight gets another clipped sum"):
        require_true_gradients(Recorder(Tied(past=True)), given, 3)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.spare(x)
        return self.used(x)


def test_what_nothing_hangs_on_is_said_and_trained_on():
    with pytest.warns(pp.PrivyPurseWarning, match=r"spare\.weight, spare\.bias got no gradient .* noise alone"):
        require_true_gradients(Recorder(Branches()), ((torch.randn(4, 6),), {}), 4)


class Everything(nn.Module):
    """Dropout, a buffer that counts calls, noise of its own from all generators."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.heard: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        self.heard.append(random.random() + np.random.rand())  # noqa: NPY002
        return self.second(self.drop(self.first(x)) + torch.randn_like(x))


def test_weights_buffers_and_generators_are_put_back_to_the_bit():
    def held() -> list[object]:
        values = [(value.tolist(), value._version) for value in (*model.parameters(), model.calls)]
        generators = [state_of(random), repr(state_of(np.random)), torch.get_rng_state().tolist()]
        return [*values, *generators, list(model.heard), [value.grad for value in model.parameters()]]

    model, x = Everything(), torch.randn(4, 6)
    before = held()
    require_true_gradients(Recorder(model), ((x,), {}), 4)
    assert held() == before


def test_peoples_records_are_never_looked_at():
    """Models and gradients see made-up values alone, whatever the batch holds."""
    seen: list[Tensor] = []

    class Looking(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach().clone())
            return x

    require_true_gradients(Recorder(nn.Sequential(Looking(), nn.Linear(6, 3))), ((torch.full((5, 6), 1e30),), {}), 5)
    assert len(seen) >= 2
    assert all(x.abs().max() < 10 for x in seen)


def test_it_is_done_once_before_the_first_step(monkeypatch):
    times = []
    monkeypatch.setattr(
        "privypurse.training.mechanism.require_true_gradients", lambda recorder, given, *others: times.append(given)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for how in ("train", "make_private"):
            run(adapted(bypassed=False), how)
    assert len(times) == 2


REFUSING = {
    "a range": lambda x: x if bool((x > 99).all()) else 1 / 0,
    "nothing that is finite": lambda x: x * float("nan"),
}


@pytest.mark.parametrize("why", REFUSING)
def test_a_model_that_takes_no_made_up_records_is_trained_all_the_same(why, caplog):
    class Choosy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(REFUSING[why](x))

    model = Choosy()
    before = [value.clone() for value in model.parameters()]
    with caplog.at_level(logging.INFO, logger="privypurse"):
        require_true_gradients(Recorder(model), ((torch.full((5, 6), 100.0),), {}), 5)
    assert "takes no made-up records" in caplog.text
    assert all(map(torch.equal, before, model.parameters()))


def made(value: object, way: int = 0, name: str = "x", lowest: bool = False, constant: bool = False) -> Tensor:
    constants = frozenset({id(value)} if constant else ())
    maker = MadeUp(4, 2, way, constants, lowest, torch.Generator().manual_seed(0))
    return maker.like(((), {name: value}))[1][name] if name else maker.like(((value,), {}))[0][0]


def test_made_up_records_have_the_form_of_real_ones_and_nothing_else_of_them():
    words = torch.full((4, 9), 777, dtype=torch.int32)
    assert made(words).shape == (2, 9)
    assert made(words).dtype == torch.int32
    assert set(made(words).flatten().tolist()) == {0, 1}
    assert made(words)[:, 0].tolist() == [1, 1]
    assert made(words, name="attention_mask").all()
    assert not made(words, name="token_type_ids").any()
    assert not made(words, name="", lowest=True).any()
    hidden = torch.ones(4, 9, dtype=torch.bool)
    assert made(hidden).all()
    assert not made(hidden, way=1).any()
    constant = torch.arange(9.0)
    assert made(constant) is constant
    assert made(words, constant=True) is words
    assert made(None) is None
    assert made("train") == "train"
    for record in (["a text", "another"], [3, 1, 2, 2], object()):
        with pytest.raises(CannotMakeUp):
            made(record)


def test_what_the_optimizer_does_not_hold_is_said():
    """It would never move, and yet its gradient would take a part of everybody's clip norm."""
    model = adapted(bypassed=False)
    dataset = TensorDataset(torch.randn(20, 6), torch.arange(20) % 3)
    with pytest.warns(pp.PrivyPurseWarning, match=r"0\.first\.weight, 0\.second\.weight can be trained, but"):
        pp.train(model, torch.optim.SGD(model[2].parameters(), lr=0.1), dataset, planned(), LOSS)


def test_a_hook_that_changes_what_a_layer_gives_is_part_of_the_model():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    require_true_gradients(Recorder(model), ((torch.randn(3, 4),), {}), 3)


class Listed(nn.Module):
    """Bare parameters in a list and in a dictionary, which the module around them uses."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([torch.randn(4), torch.randn(4)])
        self.shifts = nn.ParameterDict({"one": torch.randn(3)})
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scales[0] * self.scales[1]) + self.shifts["one"]


def test_parameters_in_lists_are_trained():
    """They lie in modules of their own, which nobody calls: each got noise alone."""
    model, x = nn.Sequential(Listed(), nn.Linear(3, 2)), torch.randn(5, 7, 4)
    require_true_gradients(Recorder(model), ((x,), {}), 5)
    found = pp.per_record_norms(model, lambda output, y: (output * y).sum(dim=(1, 2)), x, torch.ones(5, 7, 2))
    for row, norm in zip(x, found, strict=True):
        gradients = torch.autograd.grad(model(row[None]).sum(), list(model.parameters()))
        exact = float(torch.cat([value.flatten() for value in gradients]).norm())
        assert exact * (1 - 1e-4) < float(norm) < exact * 1.01
