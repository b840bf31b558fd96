"""The networks of the papers: their sizes, their shapes, and that each can be trained privately."""

import re
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import privypurse as pp
from privypurse.errors import InvalidInput
from privypurse.training.gradients import Recorder
from privypurse.training.gradients.generic import GENERIC
from privypurse.training.isolation.model import require_isolated
from reproductions import networks
from reproductions.networks import NAMES, network, placed

GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def conv(inside, outside, side, bias=True):
    return inside * outside * side * side + (outside if bias else 0)


def linear(inside, outside):
    return inside * outside + outside


def norm(channels):
    return 2 * channels


SMALL = conv(1, 16, 8) + conv(16, 32, 4) + linear(32 * 4 * 4, 32) + linear(32, 10)
LENET = conv(3, 6, 5) + conv(6, 16, 5) + linear(16 * 5 * 5, 120) + linear(120, 84) + linear(84, 10)
TRAMER_BONEH = (
    sum(conv(a, b, 3) for a, b in [(3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)])
    + linear(128 * 4 * 4, 128)
    + linear(128, 10)
)


def resnet(channels):
    """Of each width three blocks of two convolutions, the first from the width before; a norm after each."""
    total = conv(channels, 16, 3, bias=False) + norm(16) + linear(64, 10)
    for before, after in [(16, 16), (16, 32), (32, 64)]:
        total += conv(before, after, 3, bias=False) + 5 * conv(after, after, 3, bias=False) + 6 * norm(after)
    return total


def wide(channels, width=4):
    """Of each width two blocks; a norm before each convolution, and one in the shortcut where filters change.

    Every filter of a convolution has a gain.
    """
    last = 64 * width
    total = conv(channels, 16, 3) + 16 + norm(last) + linear(last, 10)
    for before, after in [(16, 16 * width), (16 * width, 32 * width), (32 * width, 64 * width)]:
        total += conv(before, after, 3) + 3 * conv(after, after, 3) + norm(before) + 3 * norm(after) + 4 * after
        if before != after:
            total += conv(before, after, 1) + norm(before) + after
    return total


CASES = {
    "heo-mnist": (GREY, SMALL),
    "heo-svhn": (COLOUR, LENET),
    "logistic": ((9,), linear(9, 10)),
    "opacus-example": (GREY, SMALL),
    "opacus-example-tanh": (GREY, SMALL),
    "resnet-20": (COLOUR, resnet(3)),
    "tramer-boneh-cifar10": (COLOUR, TRAMER_BONEH),
    "tramer-boneh-mnist": (GREY, SMALL),
    "wrn-16-1": (COLOUR, wide(3, 1)),
    "wrn-16-4": (COLOUR, wide(3)),
    "wrn-16-4-bfloat16": (COLOUR, wide(3)),
}


def parameters(model):
    return sum(each.numel() for each in model.parameters())


def test_every_name_is_tried():
    assert set(CASES) == set(NAMES)


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_parameters_is_that_by_hand(name):
    shape, expected = CASES[name]
    assert parameters(network(name, shape, 10)) == expected


def test_the_numbers_that_docstrings_and_papers_print():
    assert SMALL == 26_010  # Tramèr & Boneh; Liu et al. (2024), Table 1
    assert LENET == 62_006
    assert TRAMER_BONEH == 550_570
    assert (resnet(3), resnet(1)) == (269_722, 269_434)
    assert wide(3) == 2_753_818
    for model, printed in [
        (networks.TramerBoneh, "26,010"),
        (networks.TramerBonehCifar10, "550,570"),
        (networks.OpacusExample, "26,010"),
        (networks.HeoSvhn, "62,006"),
        (networks.ResNet20, "269,722"),
        (networks.WideResNet16, "2,753,818"),
    ]:
        assert printed in model.__doc__
        assert f"{parameters(model()):,}" == printed


def test_the_strides_of_heo_et_al_give_the_mean_that_their_table_2_prints():
    """38,009 parameters over MNIST, Fashion-MNIST and SVHN: stride 1 on grey images, stride 2 on SVHN."""
    grey, svhn = parameters(network("heo-mnist", GREY, 10)), parameters(network("heo-svhn", COLOUR, 10))
    assert round((2 * grey + svhn) / 3) == 38_009


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("classes", [2, 10])
def test_there_is_one_output_for_each_class(name, classes):
    shape, _ = CASES[name]
    assert network(name, shape, classes)(torch.randn(3, *shape)).shape == (3, classes)


@pytest.mark.parametrize("name", ["resnet-20", "wrn-16-4"])
def test_residual_networks_take_grey_images_too(name):
    assert network(name, GREY, 10)(torch.randn(2, *GREY)).shape == (2, 10)


class ByPlace(torch.autograd.Function):
    """What comes back at every other place weighs a fifth more."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        every_other = torch.arange(len(gradient), device=gradient.device) % 2
        return gradient * (1 + 0.2 * every_other).unsqueeze(1)


class ComesBackByPlace(nn.Module):
    def forward(self, x):
        return ByPlace.apply(x)


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("name", ["wrn-16-4", "wrn-16-4-bfloat16"])
@pytest.mark.parametrize("seed", range(4))
def test_a_deep_network_is_let_through_on_a_gpu_and_refused_where_places_count(seed, name):
    """Its many units at a kink were taken for places where products had the few bits of TensorFloat-32."""
    torch.manual_seed(seed)
    model, x = placed(name, COLOUR, 10, torch.device("cuda")), torch.randn(64, *COLOUR, device="cuda")
    require_isolated(Recorder(model), (x,), {}, len(x))
    by_place = nn.Sequential(model, ComesBackByPlace())
    with pytest.raises(InvalidInput, match="for a record changes with its place in the batch"):
        require_isolated(Recorder(by_place), (x,), {}, len(x))


@pytest.mark.needs("cuda")
def test_in_bfloat16_norms_are_near_those_of_float32_and_what_is_kept_is_of_float32():
    torch.manual_seed(0)
    exact, short = (placed(name, COLOUR, 10, torch.device("cuda")) for name in ("wrn-16-4", "wrn-16-4-bfloat16"))
    short[1].network.load_state_dict(exact[1].state_dict())
    x, y = torch.randn(64, *COLOUR, device="cuda"), torch.arange(64, device="cuda") % 10
    loss = partial(F.cross_entropy, reduction="none")
    one, other = (pp.per_record_norms(model, loss, x, y) for model in (exact, short))
    assert other.dtype == torch.float32
    error = (other / one - 1).abs()
    assert 1e-5 < float(error.mean()) < 0.02
    limit = 0.5 * float(other[0])
    parts, _ = pp.clipped_sum(short, loss, x[:1], y[:1], limit)
    length = float(torch.stack([part.double().square().sum() for part in parts.values()]).sum().sqrt())
    assert all(part.dtype == torch.float32 for part in parts.values())
    assert 0.999 * limit < length <= limit


def test_logistic_regression_takes_any_shape():
    assert parameters(network("logistic", GREY, 10)) == 7_850
    assert network("logistic", (3, 2), 2)(torch.randn(4, 3, 2)).shape == (4, 2)


def test_heo_mnist_is_opacus_example_with_relu_and_the_other_has_tanh():
    relu, tanh, heo = (network(name, GREY, 10) for name in ("opacus-example", "opacus-example-tanh", "heo-mnist"))
    tanh.load_state_dict(relu.state_dict())
    heo.load_state_dict(relu.state_dict())
    x = torch.randn(2, *GREY)
    assert torch.equal(relu(x), heo(x))
    assert not torch.allclose(relu(x), tanh(x))


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(InvalidInput, match="network is 'resnet-18'; choose one of ") as caught:
        network("resnet-18", COLOUR, 10)
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("tramer-boneh-mnist", COLOUR, "'tramer-boneh-mnist' takes records of shape (1, 28, 28), not (3, 32, 32)"),
        ("heo-mnist", (28, 28), "takes records of shape (1, 28, 28), not (28, 28)"),
        ("heo-svhn", GREY, "takes records of shape (3, 32, 32), not (1, 28, 28)"),
        ("tramer-boneh-cifar10", GREY, "takes records of shape (3, 32, 32), not (1, 28, 28)"),
        ("resnet-20", (28, 28), "takes records of shape (channels, height, width), not (28, 28)"),
        ("wrn-16-4", (3, 0, 32), "takes records of shape (channels, height, width), not (3, 0, 32)"),
        ("logistic", (), "takes records of shape at least one number, and none below 1, not ()"),
    ],
)
def test_a_wrong_shape_is_told_the_right_one(name, shape, words):
    with pytest.raises(InvalidInput, match=re.escape(words)):
        network(name, shape, 10)


def test_a_single_class_is_refused():
    with pytest.raises(InvalidInput, match="classes is 1; a network needs at least two"):
        network("logistic", (9,), 1)


def one_at_a_time(model, loss_fn, x, y):
    """The norm of each record's whole gradient, by plain autograd."""
    found = []
    for each, label in zip(x, y, strict=True):
        model.zero_grad()
        loss_fn(model(each[None]), label[None]).sum().backward()
        found.append(torch.sqrt(sum((p.grad.double() ** 2).sum() for p in model.parameters())))
    model.zero_grad()
    return torch.stack(found)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if "wrn" in name else name for name in CASES]
)
def test_norms_of_three_records_are_those_of_one_at_a_time(name):
    torch.manual_seed(0)
    shape, _ = CASES[name]
    require_norms(network(name, shape, 10), shape)


@pytest.mark.parametrize("name", ["tramer-boneh-cifar10", "resnet-20"])
def test_norms_are_the_same_with_channels_last_in_memory(name):
    torch.manual_seed(0)
    seen = []
    model = nn.Sequential(networks.ChannelsLast(), network(name, COLOUR, 10))
    last = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)][-1]
    with last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        require_norms(model, COLOUR)
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in seen)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.needs("cuda"))])
def test_large_networks_have_channels_last_on_a_gpu(device):
    where = torch.device(device)
    large, small = (networks.placed(name, COLOUR, 10, where) for name in ("tramer-boneh-cifar10", "heo-svhn"))
    assert isinstance(large[0], networks.ChannelsLast) == (device == "cuda")
    assert not isinstance(small[0], networks.ChannelsLast)
    assert {value.device.type for model in (large, small) for value in model.parameters()} == {device}


def require_norms(model, shape):
    model = model.double()
    x, y = torch.randn(3, *shape, dtype=torch.float64), torch.tensor([1, 7, 3])
    loss_fn = partial(F.cross_entropy, reduction="none")
    expected = one_at_a_time(model, loss_fn, x, y)
    assert (expected > 0).all()
    assert expected.unique().numel() == 3
    torch.testing.assert_close(pp.per_record_norms(model, loss_fn, x, y), expected, rtol=1e-10, atol=0.0)
    # In float32, as they are trained, norms err upwards only, the more the deeper the network, and never by much.
    rounded = pp.per_record_norms(model.float(), loss_fn, x.float(), y).double()
    assert ((rounded > expected * (1 - 1e-6)) & (rounded < expected * (1 + 1e-2))).all()


@pytest.mark.parametrize("name", CASES)
def test_only_layers_with_rules_of_their_own_have_parameters(name):
    shape, _ = CASES[name]
    watched = Recorder(network(name, shape, 10)).layers
    assert all(isinstance(layer, nn.Linear | nn.Conv2d | nn.GroupNorm) for _, layer, _ in watched)
    assert all(rule is not GENERIC for _, _, rule in watched)


def test_images_are_shifted_and_mirrored_each_by_itself_while_training():
    torch.manual_seed(0)
    layer, size = networks.ShiftedAndMirrored(), 12
    image = torch.arange(2 * size * size, dtype=torch.float32).reshape(2, size, size)
    padded = F.pad(image[None], [4] * 4, mode="reflect")[0]
    cut = [padded[:, i : i + size, j : j + size] for i in range(9) for j in range(9)]
    known = {each.numpy().tobytes() for one in cut for each in (one, one.flip(2).contiguous())}
    out = layer(image.expand(400, -1, -1, -1))
    seen = {each.numpy().tobytes() for each in out.contiguous()}
    assert seen <= known
    assert len(seen) > 100  # of 162, 400 draws miss 14 on average
    mirrored = sum(bool(each[0, 0, 5] > each[0, 0, 6]) for each in out)  # where only a flip turns round
    assert 100 < mirrored < 300
    assert torch.equal(layer.eval()(image[None]), image[None])
