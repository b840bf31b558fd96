"""Norms and clipped sums against autograd, one record at a time, in float64; and against Opacus."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import privypurse as pp
from privypurse.training import gradients
from privypurse.training.gradients import clip_factors, convolution, linear, numerics, rule

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _without_the_safety_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas are compared to 1e-10 here; what is added so that no norm is too small is tested in test_regimes."""
    monkeypatch.setattr(numerics, "rounding", lambda terms, dtype: 0.0)


def square_loss(output: Tensor, target: Tensor) -> Tensor:
    return (output.flatten(1) * target.flatten(1)).sum(dim=1).square() / 2 + output.flatten(1).sin().sum(dim=1)


def one_at_a_time(model: nn.Module, x: Tensor, target: Tensor) -> list[dict[str, Tensor]]:
    """The reference: autograd on each record alone."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    out = []
    for i in range(x.shape[0]):
        loss = square_loss(model(x[i : i + 1]), target[i : i + 1]).sum()
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        grads = [torch.zeros_like(p) if g is None else g for p, g in zip(named.values(), found, strict=True)]
        out.append(dict(zip(named, grads, strict=True)))
    return out


def check(model: nn.Module, x: Tensor, tolerance: float = 1e-10) -> None:
    model.double()
    x = x.double() if x.is_floating_point() else x
    target = torch.randn(model(x).shape, dtype=torch.float64)
    reference = one_at_a_time(model, x, target)
    true_norms = torch.stack([torch.cat([g.flatten() for g in grads.values()]).norm() for grads in reference])
    found = gradients.per_record_norms(model, square_loss, x, target)
    torch.testing.assert_close(found, true_norms, rtol=tolerance, atol=tolerance)
    clips = true_norms * torch.linspace(0.3, 1.7, x.shape[0], dtype=torch.float64)
    sums, again = gradients.clipped_sum(model, square_loss, x, target, clips)
    torch.testing.assert_close(again, true_norms, rtol=tolerance, atol=tolerance)
    factors = clip_factors(again, clips)  # norms were compared above; near 0 they have fewer digits
    for name in reference[0]:
        expected = sum(f * grads[name] for f, grads in zip(factors, reference, strict=True))
        torch.testing.assert_close(
            sums.get(name, torch.zeros_like(expected)), expected, rtol=tolerance, atol=tolerance
        )
    assert all(p.grad is None for p in model.parameters())


class Tied(nn.Module):
    """A language model whose head is its embedding table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens)))


class Twice(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x)))


class Scaled(nn.Module):
    """A parameter of one's own, which no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(5))
        self.inner = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * self.scale)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.layer = kind(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]  # type: ignore[no-any-return]


class ByName(nn.Module):
    """Calls its layers by the names of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(5, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(input=self.first(input=x))  # type: ignore[no-any-return]


LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (5, 6)),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), (5, 6)),
    "linear over few tokens": (lambda: nn.Linear(16, 12), (5, 3, 16)),
    "linear over many tokens": (lambda: nn.Linear(3, 2), (5, 40, 3)),
    "linear over a grid": (lambda: nn.Linear(4, 3), (5, 2, 3, 4)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1, dilation=2), (5, 3, 17)),
    "conv2d": (lambda: nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0)), (5, 3, 9, 8)),
    "conv2d, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, dilation=2, bias=False), (5, 4, 9, 9)),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (5, 4, 6, 6)),
    "conv2d, one place": (lambda: nn.Conv2d(2, 3, 4), (5, 2, 4, 4)),
    "conv2d, few places": (lambda: nn.Conv2d(8, 16, 3), (5, 8, 4, 4)),
    "conv2d, same": (lambda: nn.Conv2d(2, 3, 4, padding="same"), (5, 2, 7, 7)),
    "conv2d, reflect": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (5, 2, 7, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=2, padding=1, groups=1), (4, 2, 5, 4, 6)),
    "conv transposed (generic)": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (4, 2, 4, 4)),
    "layer norm": (lambda: nn.LayerNorm((3, 4)), (5, 2, 3, 4)),
    "layer norm on vectors": (lambda: nn.LayerNorm(4), (5, 4)),
    "rms norm": (lambda: nn.RMSNorm(4), (5, 7, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 6), (5, 6, 4, 3)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), (5, 3, 4, 4)),
    "layer norm, large eps": (lambda: nn.LayerNorm(4, eps=0.5), (5, 2, 4)),
    "rms norm, large eps": (lambda: nn.RMSNorm(4, eps=0.5), (5, 7, 4)),
    "group norm, large eps": (lambda: nn.GroupNorm(2, 6, eps=0.5), (5, 6, 4, 3)),
    "instance norm, large eps": (lambda: nn.InstanceNorm2d(3, eps=0.5, affine=True), (5, 3, 4, 4)),
    "prelu (generic)": (lambda: nn.PReLU(3), (5, 3, 4)),
    "bilinear scale (generic)": (Scaled, (5, 5)),
    "attention (generic)": (Attention, (4, 5, 8)),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 6, 4)),
    "gru": (lambda: Recurrent(nn.GRU), (5, 6, 4)),
    "one layer used twice": (Twice, (5, 5)),
    "inputs by name": (ByName, (5, 5)),
}


@pytest.mark.parametrize("case", LAYERS)
def test_each_rule_equals_autograd_one_record_at_a_time(case: str) -> None:
    torch.manual_seed(1)
    build, shape = LAYERS[case]
    check(build(), torch.randn(shape))


def totals(model: nn.Module, x: Tensor, weights: Tensor, wide: bool) -> Tensor:
    """All sums of a batch, one after the other, in float64."""
    torch.manual_seed(0)
    tape, _ = gradients.recorded(gradients.Recorder(model), square_loss, x, torch.randn(model(x).shape), False)
    found = gradients.norms(tape)
    parts: dict[str, Tensor] = {}
    for name, part in gradients.sums(tape, weights, found, wide):
        assert part.dtype == (torch.float64 if wide else torch.float32)
        parts[name] = parts[name] + part if name in parts else part
    return torch.cat([part.double().flatten() for part in parts.values()])


@pytest.mark.parametrize("case", LAYERS)
def test_wide_sums_add_each_record_to_the_others_without_rounding(case: str) -> None:
    torch.manual_seed(0)
    build, shape = LAYERS[case]
    model, x = build(), torch.randn(shape)
    weights = torch.rand(x.shape[0]) + 0.1
    alone = torch.diag(weights)
    off = {
        wide: (totals(model, x, weights, wide) - sum(totals(model, x, each, wide) for each in alone)).norm()
        for wide in (True, False)
    }
    size = totals(model, x, weights, True).norm()
    assert float(off[True]) <= 1e-13 * float(size)
    assert float(off[False]) > 1e-10 * float(size)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("case", LAYERS)
def test_what_cancels_is_clipped_by_what_is_added(case: str, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places whose gradients cancel up to rounding: a norm by fewer digits than the sum would let it all through."""
    monkeypatch.undo()  # with the safety for rounding
    torch.manual_seed(0)
    build, shape = LAYERS[case]
    model, x = build(), torch.ones((1, *shape[1:]))
    output = model(x)
    channels_first = case.startswith(("conv", "group", "instance", "prelu"))
    places = math.prod(output.shape[2:]) if channels_first else math.prod(output.shape[1:-1])
    for large in (1.0, 2.0**20, 2.0**34):
        pattern = torch.zeros(places)
        pattern[:3] = torch.tensor([large, large * 2.0**-25, -large])[:places]
        spread = (1, 1, *output.shape[2:]) if channels_first else (1, *output.shape[1:-1], 1)
        each = pattern.reshape(spread)

        def loss(output: Tensor, _: Any, each: Tensor = each) -> Tensor:
            return (output * each).flatten(1).sum(dim=1)

        tape, _ = gradients.recorded(gradients.Recorder(model), loss, x, x, False)
        found = gradients.norms(tape)
        parts: dict[str, Tensor] = {}
        for name, part in gradients.sums(tape, clip_factors(found, torch.ones(1)), found, wide):
            parts[name] = parts.get(name, 0.0) + part.double()
        assert float(torch.cat([part.flatten() for part in parts.values()]).norm()) <= 1.0


def test_in_wide_sums_nobodys_absence_shifts_how_others_round() -> None:
    """Small gradients beside large ones: who is there decides what float32 loses (Casacuberta et al. 2022)."""
    model = nn.Linear(1, 1, bias=False)
    x = torch.full((20_000, 1), 0.51 * 2.0**-11)
    x[:4096] = 1.0
    without = x.clone()
    without[0] = 0.0

    def total(x: Tensor, wide: bool) -> float:
        tape, _ = gradients.recorded(gradients.Recorder(model), lambda output, _: output[:, 0], x, x, False)
        return float(dict(gradients.sums(tape, torch.ones(len(x)), gradients.norms(tape), wide))["weight"].double())

    assert total(x, True) - total(without, True) == pytest.approx(1.0, abs=1e-9)
    assert total(x, False) - total(without, False) > 1.5


def test_embedding_and_tied_weights() -> None:
    torch.manual_seed(2)
    tokens = torch.randint(0, 11, (5, 9))
    check(nn.Embedding(11, 4), tokens)
    check(nn.Embedding(11, 4, padding_idx=3), tokens)
    check(nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 2)), tokens)
    check(Tied(), tokens)


def test_frozen_parameters_cost_nothing_and_get_nothing() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)
    )
    model[2].requires_grad_(False)
    model[4].weight.requires_grad_(False)
    check(model, torch.randn(4, 6))
    recorder = gradients.Recorder(model)
    assert [name for name, _, _ in recorder.layers] == ["0", "4"]


def test_the_ordinary_weight_gradient_is_not_computed() -> None:
    """Only the operations of the backward pass are counted: no product that makes a weight gradient is among them."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    x, y = torch.randn(8, 32), torch.randn(8, 16)
    tape = gradients.Tape(8)
    losses = square_loss(gradients.Recorder(model).forward(tape, x), y)
    with torch.profiler.profile(record_shapes=True) as profile:
        losses.sum().backward()
    products = [event for event in profile.events() if event.name in ("aten::mm", "aten::addmm", "aten::bmm")]
    assert len(products) == 1  # the input gradient of the last layer; plain training has three
    assert all(call.gradient is not None for call in tape.calls)


@st.composite
def stacks(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(draw(st.integers(0, 10_000)))
    kind = draw(st.sampled_from(["dense", "image", "sequence"]))
    depth, width = draw(st.integers(1, 4)), draw(st.sampled_from([2, 3, 6]))
    layers: list[nn.Module] = []
    for k in range(depth):
        bias = draw(st.booleans())
        if kind == "image":
            groups = draw(st.sampled_from([1, width]))
            layers.append(
                nn.Conv2d(width, width, 3, padding=draw(st.integers(0, 1)) if k == 0 else 1, groups=groups, bias=bias)
            )
            extra = [nn.ReLU(inplace=True), nn.GroupNorm(1, width), nn.Tanh(), nn.AvgPool2d(1)]
        else:
            layers.append(nn.Linear(width, width, bias=bias))
            extra = [nn.ReLU(inplace=True), nn.LayerNorm(width), nn.RMSNorm(width), nn.GELU()]
        layers.append(draw(st.sampled_from(extra)))
    shape = {"dense": (3, width), "sequence": (3, 4, width), "image": (3, width, 5, 5)}[kind]
    return nn.Sequential(*layers), torch.randn(shape)


@given(case=stacks())
@settings(max_examples=25, deadline=None)
def test_random_stacks(case: tuple[nn.Module, Tensor]) -> None:
    check(*case, tolerance=1e-9)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A convolution of any kind, and images on which its kernel finds at least one place."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    n = draw(st.integers(1, 3))
    few = st.integers(1, 4 if n < 3 else 3)
    kernel, dilation = (tuple(draw(few) for _ in range(n)) for _ in range(2))
    mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "circular", "replicate"]))
    same = draw(st.booleans())
    stride = (1,) * n if same else tuple(draw(few) for _ in range(n))
    padding = "same" if same else tuple(draw(st.integers(0, 2)) for _ in range(n))
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    # Room for the kernel without padding, and, for "same" by reflection, for the padding inside the image.
    size = [max(s, 3) + draw(st.integers(0, 5 if n < 3 else 2)) for s in span]
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inputs, outputs = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[n - 1]
    layer = kind(inputs, outputs, kernel, stride, padding, dilation, groups, draw(st.booleans()), mode)
    x = torch.randn(draw(st.integers(1, 5)), inputs, *size)
    return layer, x.contiguous(memory_format=torch.channels_last) if n == 2 and draw(st.booleans()) else x


WAYS = [convolution.Way(how, whole) for how in ("keep", "forget", "ghost") for whole in (False, True)]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.how}, {'windows' if way.whole else 'lines'}")
@given(case=convolutions(), room=st.sampled_from([1, 2**9, 2**20]))
@settings(max_examples=20, deadline=None)
def test_every_way_to_a_convolutions_norm_is_exact(
    way: convolution.Way, case: tuple[nn.Module, Tensor], room: int
) -> None:
    layer, x = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "way_of", lambda call: replace(way, last=convolution._last(call, way.whole)))
        patch.setattr(rule, "_IN_CACHE", room)  # from one record at a time to all at once
        check(layer, x)
        target = torch.randn(layer(x.double()).shape, dtype=torch.float64)
        tape = gradients.Tape(x.shape[0])
        square_loss(gradients.Recorder(layer).forward(tape, x.double()), target).sum().backward()
        full = tape.calls[0].rule.per_record(tape.calls[0])
    for i, grads in enumerate(one_at_a_time(layer, x.double(), target)):
        for name, expected in grads.items():
            torch.testing.assert_close(full[name][i], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("way", ["keep", "forget", "ghost"])
@pytest.mark.parametrize("room", [1, 2**20])
def test_every_way_to_a_linear_layers_norm_is_exact(way: str, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(8)
    monkeypatch.setattr(linear, "way_of", lambda call: way)
    monkeypatch.setattr(rule, "_IN_CACHE", room)
    for inputs, outputs in ((6, 4), (4, 6)):
        check(nn.Linear(inputs, outputs), torch.randn(5, 3, 2, inputs))
        check(nn.Linear(inputs, outputs), torch.randn(1, 1, inputs))


def test_the_way_follows_the_shape_of_the_layer() -> None:
    def ways(model: nn.Module, x: Tensor) -> list[Any]:
        tape = gradients.Tape(x.shape[0])
        output = gradients.Recorder(model).forward(tape, x)
        output.flatten(1).sum().backward()
        rules = {nn.Conv2d: convolution, nn.Linear: linear}
        return [rules[type(call.module)].way_of(call) for call in tape.calls]

    images = [(3, 8, 32), (32, 32, 32), (64, 64, 16), (128, 128, 8), (512, 64, 4)]
    found = [ways(nn.Conv2d(i, o, 3, padding=1), torch.randn(2, i, n, n))[0] for i, o, n in images]
    hows = ["keep", "keep", "forget", "ghost", "ghost"]
    assert [(way.how, way.whole) for way in found] == list(zip(hows, [True] + [False] * 4, strict=True))
    patches = nn.Conv2d(3, 64, 16, stride=16)
    assert ways(patches, torch.randn(2, 3, 64, 64))[0].how == "ghost"
    tokens = [(784, 1), (8, 100), (64, 60), (256, 20)]
    assert [ways(nn.Linear(i, i), torch.randn(2, t, i))[0] for i, t in tokens] == ["outer", "keep", "forget", "ghost"]


def test_chunks_hold_every_record_once_and_little_at_a_time() -> None:
    tape = gradients.Tape(1000)
    gradients.Recorder(nn.Linear(2, 2)).forward(tape, torch.randn(1000, 2)).sum().backward()
    for each in (1, 3000, 2**18, 2**30):
        runs = tape.calls[0].chunks(each)
        assert [i for run in runs for i in range(1000)[run]] == list(range(1000))
        longest = max(len(range(1000)[run]) for run in runs)
        assert longest == 1 or longest * each <= rule._IN_CACHE


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kernel", [(3, 2), (2, 3), (4, 1)])
def test_gradients_of_images_with_channels_last_are_in_the_weight_s_order(
    kernel: tuple[int, int], whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "way_of", lambda call: convolution.Way("keep", whole, True))
    layer, x = (
        nn.Conv2d(5, 4, kernel, padding=1),
        torch.randn(3, 5, 7, 6).contiguous(memory_format=torch.channels_last),
    )
    check(layer, x)
    layer, x = layer.double(), x.double()
    tape = gradients.Tape(3)
    gradients.Recorder(layer).forward(tape, x).square().sum().backward()
    made, way = tape.calls[0].rule.by_steps(tape.calls[0])  # type: ignore[attr-defined]
    assert way.last
    for found, record in zip(convolution.as_weight(layer, made, way), x, strict=True):
        (wanted,) = torch.autograd.grad(layer(record[None]).square().sum(), [layer.weight])
        torch.testing.assert_close(found, wanted)


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (3, {"padding": 1}),
        (3, {"padding": 1, "stride": 2}),
        ((3, 2), {"padding": (0, 2), "stride": (1, 3)}),
        ((2, 3), {"padding": (2, 1), "stride": (3, 1), "dilation": (2, 3)}),
        ((4, 3), {"padding": "same", "dilation": (1, 2)}),
        (1, {"stride": 2}),
    ],
)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_kernel_unfolds_windows_as_torch_does(
    kernel: Any, options: dict[str, Any], whole: bool, kind: torch.dtype
) -> None:
    layer = nn.Conv2d(8, 4, kernel, **options).to("cuda", kind)
    x = torch.randn(5, 8, 11, 9, device="cuda", dtype=kind).contiguous(memory_format=torch.channels_last)
    given = layer, x, layer(x).shape[2:], convolution.Way("keep", whole, True)
    assert convolution.has_kernels(x, kind)
    found, starts = convolution._unfolded(*given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "has_kernels", lambda *given: False)
        wanted, theirs = convolution._unfolded(*given)
    assert starts == theirs
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 1), (2, 2)])
def test_windows_of_images_with_channels_last_have_theirs_last(kernel: int, stride: int) -> None:
    """Nothing is turned round on the way: an unfolded run of channels follows the next, as in the image."""
    layer, images = nn.Conv2d(8, 4, kernel, stride, kernel // 2), torch.randn(3, 8, 12, 12)
    taken = {}
    for name, x in (("first", images), ("last", images.contiguous(memory_format=torch.channels_last))):
        tape = gradients.Tape(3)
        gradients.Recorder(layer).forward(tape, x).square().sum().backward()
        gradients.norms(tape)
        (call,) = tape.calls
        taken[name] = call.way.last
        seen, _ = convolution._unfolded(layer, x, call.output_gradient.shape[2:], call.way)
        assert seen.transpose(1, 2).is_contiguous() == call.way.last
    assert taken == {"first": False, "last": kernel != 2 or call.way.whole}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.how}, {'windows' if way.whole else 'lines'}")
def test_a_record_that_is_not_finite_contributes_zero_to_a_convolution(
    way: convolution.Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(9)
    monkeypatch.setattr(convolution, "way_of", lambda call: way)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(64, 2)).double()
    x, y = torch.randn(5, 2, 6, 6, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    good, _ = gradients.clipped_sum(model, square_loss, x[[0, 2, 4]], y[[0, 2, 4]], 1.0)
    x[1], x[3] = math.nan, math.inf
    mixed, _ = gradients.clipped_sum(model, square_loss, x, y, 1.0)
    for name in good:
        torch.testing.assert_close(mixed[name], good[name])


def test_agrees_with_opacus_per_sample_gradients() -> None:
    from opacus import GradSampleModule

    torch.manual_seed(4)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
    ).double()
    x, y = torch.randn(6, 1, 8, 8, dtype=torch.float64), torch.randint(0, 5, (6,))
    ours = gradients.per_record_norms(model, lambda out, y: F.cross_entropy(out, y, reduction="none"), x, y)
    wrapped = GradSampleModule(model, loss_reduction="sum")
    F.cross_entropy(wrapped(x), y, reduction="sum").backward()
    theirs = torch.stack([p.grad_sample.flatten(1).square().sum(1) for p in wrapped.parameters()]).sum(0).sqrt()
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_contribution_exceeds_its_clip_norm(dtype: torch.dtype) -> None:
    """A record's contribution, measured in float64, stays within its clip norm; without the margin it does not."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 10)).to(dtype)
    x, y = torch.randn(40, 300).to(dtype), torch.randint(0, 10, (40,))

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.float(), target, reduction="none")

    biggest, biggest_without = 0.0, 0.0
    for i in range(40):
        clip = 0.01 * (i + 1)
        sums, norms = gradients.clipped_sum(model, loss, x[i : i + 1], y[i : i + 1], clip)
        size = math.sqrt(sum(float(g.double().square().sum()) for g in sums.values()))
        if float(norms[0]) > clip:
            biggest = max(biggest, size / clip)
            biggest_without = max(biggest_without, size / clip / (1 - gradients.clipping.MARGIN))
    assert biggest <= 1.0
    assert biggest_without > 1.0


def test_records_that_are_not_finite_contribute_zero() -> None:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    good, _ = gradients.clipped_sum(model, square_loss, x[[0, 2, 4]], y[[0, 2, 4]], 1.0)
    x[1], x[3] = math.nan, math.inf
    mixed, norms = gradients.clipped_sum(model, square_loss, x, y, 1.0)
    assert not torch.isfinite(norms[[1, 3]]).any()
    for name in good:
        torch.testing.assert_close(mixed[name], good[name])


class Unit(nn.Module):
    """Scales its input to length 1: not finite at zero. No rule knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x if mask is None else x * mask
        return x / x.norm(dim=-1, keepdim=True) * self.scale


def test_a_record_that_is_not_finite_contributes_zero_in_a_generic_layer_too() -> None:
    torch.manual_seed(7)
    model = nn.Sequential(Unit(), nn.Linear(4, 2)).double()
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    good, _ = gradients.clipped_sum(model, square_loss, x[1:], y[1:], 1.0)
    x[0] = 0.0
    mixed, norms = gradients.clipped_sum(model, square_loss, x, y, 1.0)
    assert not torch.isfinite(norms[0])
    for name in good:
        torch.testing.assert_close(mixed[name], good[name])


def test_a_generic_layer_takes_tensors_by_keyword_apart_and_refuses_what_brings_other_records_in() -> None:
    class Masked(nn.Module):
        def __init__(self, flat: bool) -> None:
            super().__init__()
            self.unit, self.flat = Unit(), flat

        def forward(self, x: Tensor) -> Tensor:
            mask = (x > 0).double() + 1
            return self.unit(x, mask=mask.flatten().view(-1, 4)[: len(x)].T if self.flat else mask)

    class Unit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4))

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x * self.weight.sin() * (mask if mask.shape == x.shape else mask.T)

    x = torch.randn(5, 4, dtype=torch.float64)
    check(Masked(flat=False), x)
    with pytest.raises(pp.InvalidInput, match=r"layer unit .*\(4, 3\): the first dimension .* must count records"):
        gradients.per_record_norms(Masked(flat=True).double(), square_loss, x, x)


def test_layers_that_mix_records_are_refused_with_the_mend() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    with pytest.raises(pp.InvalidInput, match=r"layer 1 \(BatchNorm2d\).*GroupNorm.*fix"):
        gradients.Recorder(model)


def test_random_layers_inside_a_generic_unit_are_refused() -> None:
    model = Attention()
    model.attend.dropout = 0.1
    with pytest.raises(pp.InvalidInput, match=r"attend.*dropout"):
        gradients.Recorder(model)


def test_a_loss_that_is_not_one_a_record_is_refused() -> None:
    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.randint(0, 2, (4,))
    with pytest.raises(pp.InvalidInput, match="one loss for each record"):
        gradients.per_record_norms(model, F.cross_entropy, x, y)
