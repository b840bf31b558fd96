"""Group norm by kernels of our own, beside torch's: what it gives, what comes back, and each record's gradients."""

import pytest
import torch
from torch import nn

from privypurse.training.gradients import check_rule
from reproductions.group_norm import GroupNorm, GroupNormOfRelu, _by_kernels

EACH_KIND = pytest.mark.parametrize("kind", [GroupNorm, GroupNormOfRelu])
SIZES = [(16, 16, (8, 8)), (64, 16, (32, 32)), (8, 2, (5, 7)), (32, 8, (1, 1)), (256, 16, (8, 8)), (16, 1, (6, 6))]


def layers_of(kind, channels, groups):
    """The same layer twice, torch's in float64."""
    torch.manual_seed(0)
    layer = kind(groups, channels)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    twin = nn.GroupNorm(groups, channels).double()
    twin.load_state_dict(layer.state_dict())
    return layer, twin if kind is GroupNorm else nn.Sequential(nn.ReLU(), twin)


@EACH_KIND
@pytest.mark.parametrize(("channels", "groups", "places"), SIZES)
def test_elsewhere_it_is_torch_s(kind, channels, groups, places):
    layer, twin = layers_of(kind, channels, groups)
    x = torch.randn(3, channels, *places)
    assert not _by_kernels(layer, x)
    torch.testing.assert_close(layer(x).double(), twin(x.double()), rtol=1e-4, atol=1e-5)
    check_rule(layer.double(), x.double())


@pytest.mark.needs("cuda")
@EACH_KIND
@pytest.mark.parametrize("layout", ["last", "first", "last, in bfloat16"])
@pytest.mark.parametrize(("channels", "groups", "places"), SIZES)
def test_on_a_gpu_it_gives_what_torch_s_gives_and_keeps_channels_last(kind, channels, groups, places, layout):
    layer, twin = (each.cuda() for each in layers_of(kind, channels, groups))
    order = torch.contiguous_format if layout == "first" else torch.channels_last
    short = layout == "last, in bfloat16"
    x = (torch.randn(5, channels, *places, device="cuda") + 0.5).contiguous(memory_format=order)
    x = x.bfloat16() if short else x
    assert _by_kernels(layer, x) == x.is_contiguous(memory_format=torch.channels_last)
    back = torch.randn_like(x)
    x.requires_grad_()
    wide = x.detach().double().requires_grad_()
    found, wanted = layer(x), twin(wide)
    assert found.is_contiguous(memory_format=order)
    found.backward(back)
    wanted.backward(back.double())
    assert found.dtype == x.dtype
    for mine, theirs in ((found, wanted), (x.grad, wide.grad)):
        torch.testing.assert_close(mine.double(), theirs, rtol=2**-8 if short else 1e-4, atol=1e-4)
    for mine, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.needs("cuda")
@EACH_KIND
@pytest.mark.parametrize(("channels", "groups", "places"), SIZES)
def test_on_a_gpu_each_record_s_gradients_are_those_of_autograd(kind, channels, groups, places):
    layer, _ = layers_of(kind, channels, groups)
    x = torch.randn(5, channels, *places, device="cuda").contiguous(memory_format=torch.channels_last)
    check_rule(layer.cuda(), x)


@pytest.mark.needs("cuda")
def test_what_the_kernels_do_not_take_goes_through_torch_s():
    layer = GroupNorm(3, 12).cuda()  # groups of four channels, but three of them
    x = torch.randn(2, 12, 4, 4, device="cuda").contiguous(memory_format=torch.channels_last)
    assert not _by_kernels(layer, x)
    assert not _by_kernels(GroupNorm(1, 16).cuda(), torch.randn(1, 16, 64, 64, device="cuda"))  # does not fit
    torch.testing.assert_close(layer(x), nn.GroupNorm(3, 12).cuda()(x))
    wide = torch.randn(2, 32, 4, 4, device="cuda").contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError):
        GroupNorm(4, 16).cuda()(wide)  # as torch's, which would read past the end of the scales
    small, square = GroupNorm(4, 16).cuda(), lambda x: small(x).square().sum()
    x = torch.randn(2, 16, 4, 4, device="cuda").contiguous(memory_format=torch.channels_last)
    twice = torch.func.grad(lambda x: torch.func.grad(square)(x).square().sum())(x)
    assert torch.isfinite(twice).all()


def test_what_is_no_number_stays_so_and_negative_infinity_does_not():
    layer, x = GroupNormOfRelu(2, 4), torch.randn(3, 4, 2, 2)
    x[0, 0, 0, 0], x[1, 0, 0, 0] = float("nan"), -float("inf")
    assert torch.isfinite(layer(x)).flatten(1).all(dim=1).tolist() == [False, True, True]


@pytest.mark.needs("cuda")
def test_on_a_gpu_too():
    layer, x = GroupNormOfRelu(2, 4).cuda(), torch.randn(3, 4, 2, 2, device="cuda")
    x[0, 0, 0, 0], x[1, 0, 0, 0] = float("nan"), -float("inf")
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    assert _by_kernels(layer, x)
    found = layer(x)
    found.sum().backward()
    for values in (found, x.grad):
        assert torch.isfinite(values).flatten(1).all(dim=1).tolist() == [False, True, True]
