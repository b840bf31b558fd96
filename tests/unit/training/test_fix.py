"""fix: what it replaces, what it leaves alone, and the way back into stock torch."""

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.fix import Attention
from training_tools import LOSS

torch.set_num_threads(1)


def attention(**options: Any) -> nn.MultiheadAttention:
    layer = nn.MultiheadAttention(8, 2, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)  # biases too, which torch begins with 0
    return layer


class Classifier(nn.Module):
    """torch's encoder behind an embedding, with a class head."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.table(tokens)).mean(dim=1))


def trained(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    plan = pp.plan(pp.Budgets(np.full(len(x), 8.0), delta=1e-5), steps=3, batch_size=10, accountant="rdp")
    pp.train(model, torch.optim.SGD(model.parameters(), lr=0.5), TensorDataset(x, y), plan, LOSS)
    return model.eval()


STOCK = {
    "attention": attention,
    "attention without bias": lambda: attention(bias=False),
    "attention over other sizes": lambda: attention(kdim=5, vdim=6),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
    "decoder": lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2),
    "whole transformer": lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
    "recurrent, which stays": lambda: nn.Sequential(nn.LSTM(4, 8), nn.GRU(8, 8)),
}


@pytest.mark.parametrize("case", STOCK)
def test_the_state_of_a_fixed_model_is_that_of_the_stock_one(case: str) -> None:
    torch.manual_seed(0)
    stock = STOCK[case]()
    fixed, state = pp.fix(stock), stock.state_dict()
    assert list(fixed.state_dict()) == list(state)  # names, and their order
    assert all(torch.equal(value, state[name]) for name, value in fixed.state_dict().items())
    with torch.no_grad():
        for parameter in fixed.parameters():
            parameter.add_(torch.randn_like(parameter))
    file = io.BytesIO()
    torch.save(fixed.state_dict(), file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    stock.load_state_dict(saved, strict=True)
    again = pp.fix(STOCK[case]())
    again.load_state_dict(stock.state_dict(), strict=True)
    for mine, theirs in zip(fixed.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert list(saved) == list(state)  # loading changed nothing of what it was given


@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [True, False])
def test_weights_trained_in_a_fixed_transformer_compute_the_same_in_the_stock_one(norm_first: bool) -> None:
    torch.manual_seed(0)
    tokens, y = torch.randint(0, 20, (40, 6)), torch.randint(0, 3, (40,))
    stock = Classifier(norm_first).eval()
    before = stock(tokens)
    fixed = trained(pp.fix(stock), tokens, y)
    stock.load_state_dict(fixed.state_dict(), strict=True)
    torch.testing.assert_close(stock(tokens), fixed(tokens))
    assert float((stock(tokens) - before).detach().abs().max()) > 0.01  # it was trained


def test_parts_in_another_order_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: keys where queries belong load as well, and compute something else."""
    torch.manual_seed(0)
    stock, x = attention(batch_first=True).eval(), torch.randn(3, 5, 8)
    fixed = pp.fix(stock)
    expected = fixed(x, x, x)[0]
    monkeypatch.setattr("privypurse.training.fix._PARTS", ("key", "query", "value"))
    other = attention(batch_first=True).eval()
    other.load_state_dict(fixed.state_dict(), strict=True)
    assert float((other(x, x, x)[0] - expected).detach().abs().max()) > 0.01


def test_a_private_models_state_and_its_copies_are_the_stock_ones() -> None:
    stock = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    inner = pp.fix(stock)
    plan = pp.plan(pp.Budgets(np.full(20, 8.0), delta=1e-5), steps=3, batch_size=10, accountant="rdp")
    dataset = TensorDataset(torch.randn(20, 3, 8), torch.zeros(20))
    private, _, _ = pp.make_private(inner, torch.optim.SGD(inner.parameters(), lr=0.1), dataset, plan)
    for each in (private, copy.deepcopy(private), copy.deepcopy(inner)):
        stock.load_state_dict(each.state_dict(), strict=True)
    assert list(nn.Sequential(inner).state_dict()) == list(nn.Sequential(stock).state_dict())


def test_an_adapter_around_a_part_is_saved_as_it_is() -> None:
    class Adapter(nn.Module):
        def __init__(self, base_layer: nn.Module) -> None:
            super().__init__()
            self.base_layer, self.low = base_layer, nn.Linear(8, 2)

    fixed = pp.fix(attention())
    fixed.query = Adapter(fixed.query)
    names = list(fixed.state_dict())
    assert "query.base_layer.weight" in names
    assert "key.weight" in names
    fixed.load_state_dict(fixed.state_dict(), strict=True)


def test_weights_of_a_replaced_batch_norm_stay_with_fixed_models() -> None:
    """GroupNorm computes something else: a stock model says what it misses, another fixed one takes them."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))

    torch.manual_seed(0)
    x, y = torch.randn(30, 1, 8, 8), torch.randint(0, 3, (30,))
    fixed = trained(pp.fix(network()), x, y)
    with pytest.raises(RuntimeError, match=r"Missing key.*running_mean"):
        network().load_state_dict(fixed.state_dict())
    again = pp.fix(network()).eval()
    again.load_state_dict(fixed.state_dict(), strict=True)
    assert torch.equal(again(x), fixed(x))


def test_what_takes_a_layers_place_is_as_frozen_and_in_the_same_numbers_and_mode() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(6, affine=False), attention()).to(torch.bfloat16).eval()
    model[0].requires_grad_(False)
    fixed = pp.fix(model)
    assert not fixed[0].weight.requires_grad
    assert not fixed[0].training
    assert {parameter.dtype for parameter in fixed.parameters()} == {torch.bfloat16}
    fixed[0].weight.data.zero_()
    assert model[0].weight.data.any()  # the given model is left alone


def test_attention_that_was_frozen_stays_frozen() -> None:
    """Else noise would move weights that nobody wanted to train."""
    layer = attention()
    layer.in_proj_weight.requires_grad_(False)
    layer.out_proj.bias.requires_grad_(False)
    trained_by_name = {name: value.requires_grad for name, value in pp.fix(layer).named_parameters()}
    frozen = {name for name, asked in trained_by_name.items() if not asked}
    assert frozen == {"query.weight", "key.weight", "value.weight", "out_proj.bias"}


def test_a_layer_with_two_parents_stays_one() -> None:
    shared = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    stock = nn.Sequential(shared, nn.Sequential(shared.self_attn), shared)
    fixed = pp.fix(stock)
    assert isinstance(fixed[0].self_attn, Attention)
    assert fixed[1][0] is fixed[0].self_attn
    assert fixed[2] is fixed[0]
    assert len(list(fixed.parameters())) == len(list(stock.parameters())) + 4  # three weights and biases, not one
    stock.load_state_dict(fixed.state_dict(), strict=True)
    pair = nn.MultiheadAttention(8, 2)
    twice = pp.fix(nn.Sequential(pair, pair))
    assert twice[0] is twice[1]
