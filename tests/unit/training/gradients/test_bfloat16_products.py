"""Products of bfloat16 are added up in float32, with nothing rounded before: by a GPU as they are, and elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from privypurse.training.gradients import Call, Recorder, Tape, convolution, linear, norms, numerics, rule, sums
from privypurse.training.gradients.linear import LinearRule
from privypurse.training.gradients.rule import RULES

RECORDS = 5
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (partial(nn.Linear, 12, 9), (RECORDS, 6, 12)),
    "one token": (partial(nn.Linear, 12, 9), (RECORDS, 12)),
    "convolution": (partial(nn.Conv2d, 4, 6, 3, padding=1), (RECORDS, 4, 7, 6)),
    "stride": (partial(nn.Conv2d, 4, 6, 3, 2, padding=1, groups=2), (RECORDS, 4, 7, 6)),
    "one dimension": (partial(nn.Conv1d, 4, 6, 3, padding=1, padding_mode="circular"), (RECORDS, 4, 9)),
}
EACH_LAYER = pytest.mark.parametrize("name", LAYERS)
EACH_WAY = pytest.mark.parametrize("way", ["keep", "forget", "ghost"])
EACH_ORDER = pytest.mark.parametrize("last", [False, True])


def layer_and_input(name: str, last: bool = False) -> tuple[nn.Module, Tensor]:
    """The same each time; images have their channels ``last`` in memory."""
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer, x = make(), torch.randn(shape)
    return layer, x.contiguous(memory_format=torch.channels_last) if last and x.dim() == 4 else x


def taped(layer: nn.Module, x: Tensor) -> tuple[Tape, Tensor]:
    """Under autocast; the tape, and what comes back to the output, of as few digits."""
    tape = Tape(len(x))
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        output = Recorder(layer).forward(tape, x)
    back = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    (output * back).float().flatten(1).sum().backward()
    return tape, back


def by_way(patch: pytest.MonkeyPatch, way: str) -> None:
    patch.setattr(linear, "way_of", lambda call: way)
    patch.setattr(convolution, "way_of", lambda call, own=convolution.way_of: replace(own(call), how=way))


def gradients(layer: nn.Module, x: Tensor, back: Tensor) -> list[dict[str, Tensor]]:
    """Each record's, in float64, of the layer's input as autocast rounds it."""
    wide, found = layer.double(), []
    for one, given in zip(x.bfloat16().double().split(1), back.double().split(1), strict=True):
        parts = torch.autograd.grad((wide(one) * given).sum(), list(wide.parameters()))
        found.append(dict(zip(dict(wide.named_parameters()), parts, strict=True)))
    return found


def length(parts: dict[str, Tensor]) -> Tensor:
    return torch.stack([part.double().square().sum() for part in parts.values()]).sum().sqrt()


def compare(layer: nn.Module, x: Tensor) -> None:
    """Norms and sums with what float64 makes of the same numbers."""
    tape, back = taped(layer, x)
    weights = torch.arange(1.0, len(x) + 1, device=x.device)
    found = norms(tape)
    total: dict[str, Tensor] = dict(sums(tape, weights, found))
    each = gradients(layer, x, back)
    excess = found.double() / torch.stack([length(parts) for parts in each]) - 1
    assert -1e-6 < float(excess.min()) <= float(excess.max()) < 1e-3  # a little too large by Gram matrices
    for name, value in total.items():
        wanted = sum(weight.double() * parts[name] for weight, parts in zip(weights, each, strict=True))
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-5)


@EACH_LAYER
@EACH_WAY
def test_under_autocast_it_is_the_gradient_of_what_the_layer_met(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_way(monkeypatch, way)
    compare(*layer_and_input(name))


def test_an_input_with_more_digits_than_the_layer_met_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Call, "round_as_autocast", lambda call: None)
    with pytest.raises(AssertionError):
        compare(*layer_and_input("linear"))


class Shifted(nn.Linear):
    """Multiplies with what is left of its input, and gives few digits without autocast."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - 1000).bfloat16()


class ShiftedRule(LinearRule):
    def settle(self, call: Call) -> None:
        call.inputs = (call.inputs[0] - 1000,)


def test_layers_of_one_s_own_are_given_what_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, Shifted, ShiftedRule())
    layer, x = Shifted(12, 9), 1000 + torch.rand(RECORDS, 6, 12)
    tape = Tape(RECORDS)
    Recorder(layer).forward(tape, x).float().flatten(1).sum().backward()
    found = norms(tape)
    wanted = [(one - 1000).sum(dim=0).square().sum().mul(9).add(9 * 36).sqrt() for one in x.double()]
    torch.testing.assert_close(found.double(), torch.stack(wanted), rtol=1e-5, atol=0)


def test_what_the_user_allows_of_sums_in_parts_is_as_before() -> None:
    matmul, name = torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"

    def allowed() -> tuple[object, object]:
        return getattr(matmul, name), getattr(matmul, f"{name}_split_k", None)

    before = allowed()
    for setting in (False, True, *([(False, False)] if before[1] is not None else [])):
        setattr(matmul, name, setting)
        given = allowed()
        with numerics.full_products():
            assert allowed() == (False, given[1])
        assert allowed() == given
    setattr(matmul, name, before[0] if before[1] is None else before)


@contextmanager
def as_on_a_gpu() -> Iterator[list[torch.dtype]]:
    """Operands of bfloat16 are left as they are until they are multiplied; gives the kinds that were."""
    with pytest.MonkeyPatch.context() as patch:
        kinds, product = [], torch.bmm

        def bmm(one: Tensor, other: Tensor, out_dtype: torch.dtype | None = None, **options: Tensor) -> Tensor:
            kinds.append(one.dtype)
            wide = (one, other) if out_dtype is None else (one.to(out_dtype), other.to(out_dtype))
            return product(*wide, **options)

        for module in (numerics, rule):
            patch.setattr(module, "takes_short", lambda values: values.dtype == torch.bfloat16)
        patch.setattr(torch, "bmm", bmm)
        yield kinds


@EACH_LAYER
@EACH_WAY
@EACH_ORDER
def test_what_is_widened_later_is_the_same(name: str, way: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    by_way(monkeypatch, way)
    layer, x = layer_and_input(name, last)

    def made() -> tuple[Tensor, dict[str, Tensor]]:
        tape, _ = taped(layer, x)
        found = norms(tape)
        return found, dict(sums(tape, torch.ones(len(x)), found))

    before = made()
    with as_on_a_gpu() as kinds:
        after = made()
    assert set(kinds) == {torch.bfloat16}
    assert torch.equal(before[0], after[0])
    assert all(torch.equal(before[1][each], after[1][each]) for each in before[1])


def excess(layer: nn.Module, x: Tensor) -> float:
    """By how much what a record adds is longer than its norm, at most."""
    worst = 0.0
    for one in x.split(1):
        tape, _ = taped(layer, one)
        found = norms(tape)
        worst = max(worst, float(length(dict(sums(tape, torch.ones(1), found, wide=True))) / found) - 1)
    return worst


@EACH_WAY
def test_what_is_measured_is_what_is_added(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of inputs that autocast rounds down, a norm of them rounded is too small for a sum of them as they were."""
    by_way(monkeypatch, way)
    layer, x = layer_and_input("linear")
    x = x.bfloat16().float() * (1 + 0.9 * 2**-9)
    assert excess(layer, x) < 1e-6
    rounded = Call.operands
    monkeypatch.setattr(Call, "round_as_autocast", lambda call: None)
    monkeypatch.setattr(
        Call, "operands", lambda call, some=slice(None): tuple(v.bfloat16().float() for v in rounded(call, some))
    )
    monkeypatch.setattr(linear, "weighted_tokens", unrounded)
    assert (excess(layer, x) > 1e-3) == (way != "keep")  # what is kept is what is added up


def unrounded(call: Call, weights: Tensor) -> tuple[Tensor, Tensor]:
    a, g = (linear.by_token(values).to(weights.dtype) for values in call.input_and_gradient())
    return a.flatten(0, 1), (g * weights[:, None, None]).flatten(0, 1)


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("sizes", [(3, 5, 7, 9), (64, 64, 576, 1024), (17, 256, 2304, 64), (9, 33, 1, 4096)])
def test_a_gpu_adds_up_in_float32(sizes: tuple[int, int, int, int]) -> None:
    records, rows, columns, terms = sizes
    one, other = torch.randn(records, rows, terms, device="cuda"), torch.randn(records, terms, columns, device="cuda")
    short = one.bfloat16(), other.bfloat16()
    with numerics.full_precision(one.device):
        assert numerics.takes_short(short[0])
        found, into = numerics.products(*short), torch.empty(records, 2, rows, columns, device="cuda")
        numerics.products(*short, into[:, 1])
    wanted = torch.bmm(*(values.double() for values in short))
    share = numerics.rounding(terms, torch.float32) * torch.bmm(*(values.double().abs() for values in short))
    assert found.dtype == torch.float32
    assert torch.equal(found, into[:, 1])
    assert ((found.double() - wanted).abs() <= share).all()
    assert not ((torch.bmm(*short).double() - wanted).abs() <= share).all()  # rounded to bfloat16 at the end


@pytest.mark.needs("cuda")
@EACH_LAYER
@EACH_WAY
@EACH_ORDER
def test_on_a_gpu_too(name: str, way: str, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    by_way(monkeypatch, way)
    compare(*(each.cuda() for each in layer_and_input(name, last)))
