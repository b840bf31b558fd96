"""Convolutions with standardised filters: the formula, and each record's gradient beside autograd's."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import privypurse as pp
from privypurse.training.evaluation import losses as cross_entropy
from privypurse.training.gradients import Recorder, Tape, check_rule, clip_factors, norms, recorded, sums
from reproductions import standardised
from reproductions.networks import ShiftedAndMirrored
from reproductions.standardised import StandardisedConv2d, StandardisedRule


class Formula(nn.Module):
    """Brock et al. (2021), eq. 1, with a gain: by the variance of a filter, as it is printed."""

    def __init__(self, gain):
        super().__init__()
        self.gain = nn.Parameter(gain.detach().clone())

    def forward(self, weight):
        flat = weight.flatten(1)
        spread = (flat.shape[1] * flat.var(dim=1, correction=0)).clamp(min=1e-4).sqrt()
        return ((flat - flat.mean(dim=1, keepdim=True)) * (self.gain / spread).unsqueeze(1)).view_as(weight)


def layer_of(*sizes, dtype=torch.float64, seed=0):
    """Gains of either sign, a filter of nearly no length, and one far from mean 0."""
    torch.manual_seed(seed)
    layer = StandardisedConv2d(*sizes).to(dtype)
    with torch.no_grad():
        layer.gain.copy_(2 * torch.rand(sizes[1]) - 0.5)
        layer.bias.normal_()
        layer.weight[0] *= 1e-4
        layer.weight[1] += 3
    return layer


def by_parametrize(layer):
    """The same by torch's own means, which the library handles without a rule."""
    twin = nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding)
    twin = twin.to(layer.weight.dtype)
    twin.load_state_dict({"weight": layer.weight.detach(), "bias": layer.bias.detach()})
    return parametrize.register_parametrization(twin, "weight", Formula(layer.gain), unsafe=True)


SIZES = [(3, 16, 3, 1), (16, 32, 3, 2), (8, 4, 1, 1), (4, 6, 5, 2)]


@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_the_formula(sizes):
    layer, x = layer_of(*sizes), torch.randn(3, sizes[0], 9, 9, dtype=torch.float64)
    torch.testing.assert_close(layer(x), by_parametrize(layer)(x), rtol=1e-10, atol=1e-12)


def test_standardised_filters_have_mean_zero_and_the_length_of_their_gain():
    layer = layer_of(3, 4, 3)
    made = layer.standardised().flatten(1)
    torch.testing.assert_close(made.mean(dim=1), torch.zeros(4).double())
    torch.testing.assert_close(made[1:].norm(dim=1), layer.gain.detach().abs()[1:])
    assert made[0].norm() < 0.2 * layer.gain[0].abs()  # of nearly no length: N σ² counts as 1e-4


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("sizes", SIZES)
def test_norms_and_sums_are_those_of_autograd_on_a_gpu(sizes):
    check_rule(layer_of(*sizes).cuda(), torch.randn(6, sizes[0], 9, 9, dtype=torch.float64, device="cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("frozen", [(), ("weight",), ("gain", "bias"), ("weight", "gain")])
def test_norms_and_sums_are_those_of_autograd_one_record_at_a_time(dtype, sizes, frozen):
    layer = layer_of(*sizes, dtype=dtype)
    for name in frozen:
        layer.get_parameter(name).requires_grad_(False)
    check_rule(layer, torch.randn(6, sizes[0], 9, 9, dtype=dtype))


@pytest.mark.needs("cuda")
@pytest.mark.parametrize(("steps", "entries"), [(1, 1), (1, 27), (3, 12), (3, 768), (5, 30)])
def test_a_kernel_projects_as_torch_does(steps, entries, monkeypatch):
    g, u = torch.randn(5, steps, 6, entries, device="cuda"), torch.randn(steps, 6, entries, device="cuda")
    u -= u.mean(dim=(0, 2), keepdim=True)
    u /= u.norm(dim=(0, 2), keepdim=True).clamp(min=1e-30)
    inside, twin = torch.arange(6, device="cuda") % 3 > 0, g.clone()
    found = standardised._projected(g, u, inside)
    monkeypatch.setattr(standardised, "has_kernels", lambda values: False)
    wanted = standardised._projected(twin, u, inside)
    torch.testing.assert_close(g, twin, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1].double(), g.double().square().sum(dim=(1, 3)), rtol=1e-5, atol=1e-30)


ORDERS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.needs("cuda"))])
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize(("inside", "stride"), [(3, 1), (16, 1), (64, 2)])
def test_gradients_are_right_in_every_order_in_which_products_leave_them(inside, stride, order, device):
    """By windows and step by step, with channels first and last."""
    layer = layer_of(inside, 8, 3, stride, dtype=torch.float32).to(device)
    x = torch.randn(3, inside, 24, 24).contiguous(memory_format=order).to(device)
    check_rule(layer, x)
    tape = Tape(3)
    Recorder(layer).forward(tape, x).sum().backward()
    kept = tape.calls[0].way.order
    assert kept.last == (order == torch.channels_last)
    assert kept.whole == (inside == 3)


def flat_of(layer):
    return nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(5)).double()


@pytest.mark.parametrize("sizes", SIZES)
def test_clipped_sums_are_those_of_the_same_layer_by_parametrize(sizes):
    torch.manual_seed(1)
    x, y = torch.randn(7, sizes[0], 8, 8).double(), torch.arange(7) % 5
    ours = flat_of(layer_of(*sizes))
    ours(x)
    theirs = nn.Sequential(by_parametrize(ours[0]), *ours[1:])
    found = [pp.per_record_norms(model, cross_entropy, x, y) for model in (ours, theirs)]
    torch.testing.assert_close(*found, rtol=1e-10, atol=0.0)
    clip = float(found[0].median())
    mine, wanted = (pp.clipped_sum(model, cross_entropy, x, y, clip)[0] for model in (ours, theirs))
    inside = {"weight": "parametrizations.weight.original", "gain": "parametrizations.weight.0.gain"}
    for name, value in mine.items():
        layer, _, local = name.partition(".")
        twin = f"{layer}.{inside[local]}" if layer == "0" and local in inside else name
        torch.testing.assert_close(value, wanted[twin], rtol=1e-9, atol=1e-12)


def contributions(layer, x, back, change=lambda: None):
    """The length of what each record alone adds to the sum, in clip norms, all of them far below a record's norm."""
    found = []
    for each, direction in zip(x, back, strict=True):
        tape = Tape(1)
        recorder = Recorder(layer)
        torch.autograd.backward((recorder.forward(tape, each[None]) * direction).sum())
        change()
        length = norms(tape)
        clip = 1e-3 * length
        parts = [part for _, part in sums(tape, clip_factors(length, clip), length)]
        found.append(torch.cat([part.double().flatten() for part in parts]).norm() / clip)
    return torch.stack(found)


def nearly_all_taken_away(dtype, mean=0.0):
    """Windows that are made of a constant and of the filter itself: all but rounding goes with mean and length."""
    found = []
    for seed in range(10):
        layer = layer_of(200, 4, 1, dtype=dtype, seed=seed)
        with torch.no_grad():
            layer.weight += mean
        layer.gain.requires_grad_(False)
        layer.bias.requires_grad_(False)
        level, along = torch.randn(2, 12, 1, 1, 1, dtype=dtype)
        own = layer.weight.detach()[2] - mean
        x = level + along * own + 1e-7 * torch.randn(12, 200, 1, 1, dtype=dtype)
        back = torch.zeros(12, 4, 1, 1, dtype=dtype)
        back[:, 2] = torch.randn(12, 1, 1, dtype=dtype)
        found.append(contributions(layer, x, back))
    return torch.cat(found)


def by_identity(g, directions, inside):
    """‖g‖² − ⟨g, e⟩² − ⟨g, u⟩² in place of what is kept: the same but for rounding."""
    whole, sums = g.square().sum(dim=(1, 3)), g.sum(dim=(1, 3)) * directions[:, 0].numel() ** -0.5
    along, _ = PROJECTED(g, directions, inside)
    return along, (whole - sums.square() - (along * inside).square()).clamp(min=0)


PROJECTED = standardised._projected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nobody_is_past_the_clip_norm_where_nearly_all_of_a_gradient_is_taken_away(dtype, monkeypatch):
    assert (nearly_all_taken_away(dtype) <= 1).all()
    assert (nearly_all_taken_away(dtype, mean=1e4) <= 1).all()
    monkeypatch.setattr(standardised, "_projected", by_identity)
    assert (nearly_all_taken_away(dtype, mean=0.0 if dtype == torch.float32 else 1e4) > 1.1).any()


@pytest.mark.parametrize(("pixels", "gain"), [(1e18, 1.0), (3e18, 1.0), (1e17, 1e-25), (1e15, 2e-23)])
def test_nobody_is_past_the_clip_norm_where_squares_are_past_what_floats_hold(pixels, gain):
    torch.manual_seed(0)
    layer = StandardisedConv2d(1, 4, 3)
    with torch.no_grad():
        layer.gain.fill_(gain)
    layer.gain.requires_grad_(False)
    layer.bias.requires_grad_(False)
    x, back = pixels * (1 + 0.3 * torch.randn(6, 1, 3, 3)), torch.zeros(6, 4, 3, 3)
    back[:, :, 1, 1] = 1
    clip = 1.0 if gain == 1 else 1e-12
    for each, direction in zip(x, back, strict=True):
        tape = Tape(1)
        torch.autograd.backward((Recorder(layer).forward(tape, each[None]) * direction).sum())
        length = norms(tape)
        parts = [part for _, part in sums(tape, clip_factors(length, torch.tensor([clip])), length)]
        assert torch.cat([part.double().flatten() for part in parts]).norm() <= clip


def one_among_others(seed):
    """How much a sum moves by one record beside others of whose gradients nearly all is taken away, in clip norms."""
    torch.manual_seed(seed)
    layer = StandardisedConv2d(3, 4, 1)
    layer.gain.requires_grad_(False)
    layer.bias.requires_grad_(False)
    x = torch.cat([torch.randn(1, 3, 1, 1), (1 + torch.rand(512, 1, 1, 1)).expand(512, 3, 1, 1)])
    back, totals = torch.ones(513, 4, 1, 1), []
    for who in (slice(0, 513), slice(1, 513)):
        tape = Tape(len(x[who]))
        torch.autograd.backward((Recorder(layer).forward(tape, x[who]) * back[who]).sum())
        length = norms(tape)
        factors = clip_factors(length, torch.full_like(length, 1e-4))
        totals.append(torch.cat([part.double().flatten() for _, part in sums(tape, factors, length)]))
    return (totals[0] - totals[1]).norm() / 1e-4


def test_a_sum_moves_by_no_more_than_a_clip_norm_beside_gradients_that_are_nearly_all_taken_away():
    assert max(one_among_others(seed) for seed in range(5)) <= 1


def test_a_weight_that_changes_after_the_backward_pass_changes_nobody_s_bound(monkeypatch):
    layer = layer_of(3, 4, 3, dtype=torch.float32)
    layer.gain.requires_grad_(False)

    def change():
        with torch.no_grad():
            layer.weight.normal_()
            layer.gain.mul_(7)

    given = torch.randn(8, 3, 6, 6), torch.randn(8, 4, 6, 6)
    found = contributions(layer, *given, change)
    assert (found <= 1).all()
    assert (found > 0.99).all()
    adds = StandardisedRule.weighted_sum

    def as_it_is_now(self, call, weights):
        call.way = call.way._replace(factor=layer.gain.detach() / layer.weight.detach().flatten(1).std(dim=1))
        return adds(self, call, weights)

    monkeypatch.setattr(StandardisedRule, "weighted_sum", as_it_is_now)
    assert (contributions(layer, *given, change) > 1).any()


def test_a_record_that_is_not_finite_has_no_finite_norm_and_adds_nothing():
    model = flat_of(layer_of(3, 4, 3))
    x, y = torch.randn(5, 3, 6, 6).double(), torch.arange(5)
    model(x)
    x[2, 0, 1, 1] = torch.inf

    def loss(outputs, labels):
        return outputs.gather(1, labels[:, None]).squeeze(1)

    found = pp.per_record_norms(model, loss, x, y)
    assert torch.isfinite(found).tolist() == [True, True, False, True, True]
    others = [0, 1, 3, 4]
    mine = pp.clipped_sum(model, loss, x, y, 1.0)[0]
    wanted = pp.clipped_sum(model, loss, x[others], y[others], 1.0)[0]
    for name, value in mine.items():
        torch.testing.assert_close(value, wanted[name])


def test_views_of_a_record_add_up_before_the_norm_is_taken():
    model = flat_of(layer_of(3, 4, 3))
    x, y = torch.randn(6, 3, 6, 6).double(), torch.arange(6) % 5
    model(x)
    found = []
    for layer in (model[0], by_parametrize(model[0])):
        recorder = Recorder(nn.Sequential(ShiftedAndMirrored(), layer, *model[1:]))
        recorder.views = 3
        torch.manual_seed(5)
        found.append(norms(recorded(recorder, cross_entropy, x, y)[0]))
    torch.testing.assert_close(*found, rtol=1e-10, atol=0.0)
    alone = pp.per_record_norms(model, cross_entropy, x, y)
    assert not torch.allclose(found[0], alone, rtol=1e-3)
