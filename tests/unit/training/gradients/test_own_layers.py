"""A rule for a layer of one's own: the page runs, right rules are used and wrong ones are seen."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privypurse as pp
from privypurse.training.gradients import Call, Recorder, Rule, check_rule, clipped_sum, handles, per_record_norms
from privypurse.training.gradients.check_rule import compare_with_autograd
from privypurse.training.gradients.rule import RULES

PAGE = Path(__file__).parents[4] / "docs" / "own-layers.md"


@pytest.fixture(autouse=True)
def _rules_of_this_test_alone() -> Iterator[None]:
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


class Mixture(nn.Module):
    """Tokens weighed by a learned number each, and shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.share, self.shift = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("btf,t->bf", x, self.share) + self.shift


class MixtureRule(Rule):
    def per_record(self, call: Call) -> dict[str, Tensor]:
        full = {
            "share": torch.einsum("btf,bf->bt", call.inputs[0], call.output_gradient),
            "shift": call.output_gradient,
        }
        return {name: full[name] for name in call.names}


def test_the_page_runs() -> None:
    space: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, space)
    model = nn.Sequential(nn.Linear(6, 5), space["Scale"](5), nn.Linear(5, 2))
    assert [type(rule).__name__ for _, _, rule in Recorder(model).layers] == ["LinearRule", "LeanRule", "LinearRule"]


def loss(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y, reduction="none")


@pytest.mark.parametrize("frozen", [(), ("0.share",), ("0.shift", "1.bias")])
def test_a_registered_rule_gives_what_autograd_gives_one_record_at_a_time(frozen: tuple[str, ...]) -> None:
    handles(Mixture)(MixtureRule)
    torch.manual_seed(0)
    model, x = nn.Sequential(Mixture(), nn.Linear(4, 2)).double(), torch.randn(6, 3, 4).double()
    y = torch.arange(6) % 2
    for name in frozen:
        model.get_parameter(name).requires_grad = False
    trained = [value for value in model.parameters() if value.requires_grad]
    truth = []
    for i in range(6):
        own = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]).sum(), trained)
        truth.append(torch.cat([each.flatten() for each in own]))
    norms = torch.stack([each.norm() for each in truth])
    torch.testing.assert_close(per_record_norms(model, loss, x, y), norms)
    clip = float(norms.median())
    total, _ = clipped_sum(model, loss, x, y, clip)
    expected = torch.stack([each * min(1.0, clip * (1 - 1e-4) / float(each.norm())) for each in truth]).sum(dim=0)
    torch.testing.assert_close(torch.cat([part.flatten() for part in total.values()]), expected)
    assert isinstance(Recorder(model).layers[0][2], MixtureRule)
    check_rule(Mixture(), torch.randn(5, 3, 4))


class Drawing(nn.Module):
    """Draws inside, and no rule knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.ones(4)), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.drop(x * self.weight)
        return result


def test_the_error_about_a_layer_that_draws_names_every_layer_with_a_rule() -> None:
    """One that has just got its rule is named too."""
    fresh = type("JustRegistered", (nn.Module,), {})
    with pytest.raises(pp.InvalidInput, match=r"have rules \(.*Linear") as before:
        Recorder(Drawing())
    handles(fresh)(MixtureRule)
    try:
        with pytest.raises(pp.InvalidInput, match=r"have rules \(.*JustRegistered.*Linear"):
            Recorder(Drawing())
    finally:
        del RULES[fresh]
    assert "JustRegistered" not in str(before.value)


class Block(nn.Module):
    """All that it trains lies in layers inside."""

    def __init__(self, *inside: nn.Module) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 4, bias=False), *inside)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inside(x)
        return result


class BlockRule(Rule):
    whole_module = True

    def per_record(self, call: Call) -> dict[str, Tensor]:
        return {"inside.0.weight": torch.einsum("bi,bj->bij", call.output_gradient, call.inputs[0])}


def test_a_rule_may_answer_for_all_that_is_inside() -> None:
    handles(Block)(BlockRule)
    assert [type(rule) for _, _, rule in Recorder(Block()).layers] == [BlockRule]
    check_rule(Block(), torch.randn(5, 4))
    with pytest.raises(pp.InvalidInput, match=r"layer inside.1 \(BatchNorm1d\): it normalises over the batch"):
        Recorder(Block(nn.BatchNorm1d(4)))


class TooSmall(MixtureRule):
    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        return {name: value * 0.999 for name, value in super().squared_norms(call).items()}


class TooLarge(MixtureRule):
    def squared_norms(self, call: Call) -> dict[str, Tensor]:
        return {name: value * 2 for name, value in super().squared_norms(call).items()}


class AnotherGradient(MixtureRule):
    def per_record(self, call: Call) -> dict[str, Tensor]:
        return {name: value * 1.01 for name, value in super().per_record(call).items()}


class AnotherSum(MixtureRule):
    def weighted_sum(self, call: Call, weights: Tensor) -> dict[str, Tensor]:
        return super().weighted_sum(call, torch.ones_like(weights))


class Half(MixtureRule):
    def per_record(self, call: Call) -> dict[str, Tensor]:
        return {"share": super().per_record(call)["share"]}


class OfTheBatch(MixtureRule):
    def per_record(self, call: Call) -> dict[str, Tensor]:
        return {name: value - value.mean(dim=0) for name, value in super().per_record(call).items()}


WRONG = {
    TooSmall: "less than the norm",
    TooLarge: "other norms",
    AnotherGradient: "another gradient of share",
    AnotherSum: "another sum of share",
    Half: "gives gradients of share; it must give those of share, shift",
    OfTheBatch: "another gradient of share",
}


@pytest.mark.parametrize("rule", WRONG)
def test_a_wrong_rule_is_seen(rule: type[Rule]) -> None:
    handles(Mixture)(rule)
    torch.manual_seed(0)
    with pytest.raises(pp.InvalidInput, match=WRONG[rule]):
        check_rule(Mixture(), torch.randn(5, 3, 4))


@pytest.mark.parametrize(
    "layer",
    [nn.Linear(4, 3), nn.Conv1d(3, 2, 2), nn.LayerNorm(4), nn.GroupNorm(3, 3)],
    ids=lambda layer: type(layer).__name__,
)
def test_our_own_rules_pass_the_same_check(layer: nn.Module) -> None:
    check_rule(layer, torch.randn(5, 3, 4))


class OwnRecurrence(nn.LSTM):
    """A kind of its own."""


def test_the_way_for_any_layer_passes_the_same_comparison() -> None:
    compare_with_autograd(nn.Sequential(OwnRecurrence(4, 3, batch_first=True), First()), torch.randn(5, 3, 4))


class Biased(nn.Linear):
    """A kind of its own: the rule of Linear knows nothing of what it may do."""


def test_a_layer_without_a_rule_is_no_rule_checked() -> None:
    with pytest.raises(
        pp.InvalidInput, match=r"kind Mixture, for which no rule is registered\. .*@handles\(Mixture\)"
    ):
        check_rule(Mixture(), torch.randn(5, 3, 4))
    with pytest.raises(pp.InvalidInput, match=r"kind Biased, .*; that of Linear is not used for its subclasses"):
        check_rule(Biased(4, 3), torch.randn(5, 4))
    assert not isinstance(Recorder(Biased(4, 3)).layers[0][2], type(RULES[nn.Linear]))
    compare_with_autograd(Biased(4, 3), torch.randn(5, 4))
    handles(Biased)(type(RULES[nn.Linear]))
    check_rule(Biased(4, 3), torch.randn(5, 4))


class First(nn.Module):
    def forward(self, output: Any) -> Tensor:
        first: Tensor = output[0]
        return first


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(pp.InvalidInput, match="subclass of"):
        handles(Mixture)(Mixture)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="per_record"):
        handles(Mixture)(Rule)  # type: ignore[type-abstract]
