"""bfloat16, torch.compile, class weights, layers with memory: right, or refused."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from made_once import made_once
from privypurse.training.gradients import Recorder, clip_factors, norms, recorded, sums
from privypurse.training.isolation.model import require_isolated

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
LOSS = partial(F.cross_entropy, reduction="none")


def data(n: int = 50, scale: float = 1.0) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = scale * torch.randn(n, 1, 8, 8, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (n,), generator=generator))


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 16), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(16, 3))


@made_once
def planned(n: int = 50, steps: int = 4) -> pp.Plan:
    budgets = pp.Budgets(np.where(np.arange(n) % 2 == 0, 1.0, 3.0), delta=1e-5)
    return pp.plan(budgets, "scale", steps=steps, batch_size=20, clip_norm=0.5, accountant="rdp")


def looped(
    make=lambda model: model, wrap=lambda model: model, loss=F.cross_entropy, autocast: bool = False, **options
):
    """The parameters after a seeded ordinary loop."""
    inner = network()
    sgd = torch.optim.SGD(inner.parameters(), lr=0.1)
    model, optimizer, loader = pp.make_private(make(inner), sgd, data(), planned(), seed=3, **options)
    model = wrap(model)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = loss(model(x), y)
        value.backward()
        optimizer.step()
    return [parameter.detach() for parameter in inner.parameters()]


def test_autocast_trains_the_same_model_to_bfloat16s_digits() -> None:
    exact, rough = looped(), looped(autocast=True)
    start = [parameter.detach() for parameter in network().parameters()]
    for a, b, c in zip(exact, rough, start, strict=True):
        assert b.dtype == torch.float32
        assert not torch.equal(b, c)
        assert float((a - b).norm() / (a - c).norm()) < 0.05


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_no_record_contributes_more_than_its_clip_norm_under_bfloat16(scale: float) -> None:
    """Each record alone, added up in float64; rounding the clipped sum to bfloat16 would break it."""
    model, (x, y) = network(), data(scale=scale).tensors
    generator, broken = torch.Generator().manual_seed(1), 0
    for i in range(x.shape[0]):
        limit = 10 ** float(torch.empty(()).uniform_(-3, 0, generator=generator))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            sums, norms = pp.clipped_sum(model, LOSS, x[i : i + 1], y[i : i + 1], limit)
        assert norms.dtype == torch.float32
        assert all(value.dtype == torch.float32 for value in sums.values())
        size = math.sqrt(sum(float(value.double().square().sum()) for value in sums.values()))
        assert size <= limit
        halves = math.sqrt(sum(float(value.bfloat16().double().square().sum()) for value in sums.values()))
        broken += halves > limit
    assert broken > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_small_floats(dtype: torch.dtype) -> None:
    model = network().to(dtype)
    x, y = data().tensors
    sums, norms = pp.clipped_sum(model, LOSS, x.to(dtype), y, 0.1)
    assert norms.dtype == torch.float32
    assert all(value.dtype == torch.float32 for value in sums.values())


@pytest.mark.parametrize("when", ["before", "after"])
def test_compiled_models_take_the_same_steps(when: str) -> None:
    compiled = partial(torch.compile, backend="eager")
    found = looped(make=compiled) if when == "before" else looped(wrap=compiled)
    for a, b in zip(looped(), found, strict=True):
        assert torch.equal(a, b)


def test_a_compiled_loss_is_fine() -> None:
    compiled = torch.compile(lambda out, y: F.cross_entropy(out, y), backend="eager")
    for a, b in zip(looped(), looped(loss=compiled), strict=True):
        assert torch.equal(a, b)


WEIGHTS = torch.tensor([1.0, 2.0, 3.0])


def _ignoring(y: Tensor, label: int) -> Tensor:
    return torch.where(y == label, -100, y)


@pytest.mark.parametrize(
    ("loss", "alone"),
    [
        (partial(F.cross_entropy, weight=WEIGHTS), lambda out, y: WEIGHTS[y] * LOSS(out, y)),
        (nn.CrossEntropyLoss(weight=WEIGHTS), lambda out, y: WEIGHTS[y] * LOSS(out, y)),
        (lambda out, y: F.cross_entropy(out, _ignoring(y, 0)), lambda out, y: LOSS(out, y) * (y != 0)),
        (partial(F.cross_entropy, ignore_index=1), lambda out, y: LOSS(out, y) * (y != 1)),
        (lambda out, y: F.cross_entropy(out / 1.0, y, weight=WEIGHTS), lambda out, y: WEIGHTS[y] * LOSS(out, y)),
        (lambda out, y: F.nll_loss(out.log_softmax(1), y, weight=WEIGHTS), lambda out, y: WEIGHTS[y] * LOSS(out, y)),
        (
            lambda out, y: F.cross_entropy(out.unsqueeze(2).flatten(1), y, ignore_index=1),
            lambda out, y: LOSS(out, y) * (y != 1),
        ),
    ],
    ids=["weights", "module", "ignored", "ignored label", "behind", "nll", "tokens"],
)
def test_a_mean_is_taken_over_records_whatever_labels_count(loss: object, alone: object) -> None:
    """Ignored labels count zero, class weights multiply, and nothing is divided by what the batch holds."""
    for a, b in zip(looped(loss=loss), looped(loss=lambda out, y: alone(out, y).mean()), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (partial(F.cross_entropy, reduction="sum"), 'loss_reduction="sum"'),
        (lambda out, y: F.mse_loss(out[:, :1], y.float()), "each other's labels"),
    ],
    ids=["sum for mean", "broadcast"],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_pairs_records_or_is_not_as_told_is_refused(loss: object, words: str) -> None:
    with pytest.raises(pp.InvalidInput, match=words):
        looped(loss=loss)


def test_why_torchs_own_mean_is_not_taken() -> None:
    """The gradient of one record under a class-weighted mean changes when another record's label does."""
    out = torch.randn(2, 3, requires_grad=True)

    def first(labels: list[int]) -> Tensor:
        return torch.autograd.grad(F.cross_entropy(out, torch.tensor(labels), weight=WEIGHTS), out)[0][0]

    assert not torch.allclose(first([0, 0]), first([0, 2]))


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: (WEIGHTS[y] * LOSS(out, y)).mean(),
        lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
        lambda out, y: F.nll_loss(F.log_softmax(out, dim=1), y),
        lambda out, y: F.mse_loss(out, F.one_hot(y, 3).float()),
        lambda out, y: (out * out).mean(),
    ],
    ids=["weighed by itself", "smoothed", "nll", "squares", "arithmetic"],
)
def test_other_losses_are_not(loss: object) -> None:
    looped(loss=loss)


class Remembers(nn.Module):
    def __init__(self, by_assignment: bool) -> None:
        super().__init__()
        self.layer, self.by_assignment = nn.Linear(4, 2), by_assignment
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.by_assignment:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        else:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(dim=0))
        return self.layer(x - self.mean)


@pytest.mark.parametrize(
    "model",
    [
        Remembers(True),
        Remembers(False),
        nn.Sequential(
            nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, affine=True, track_running_stats=True), nn.Flatten()
        ),
    ],
    ids=["assigned", "in place", "instance norm"],
)
def test_layers_that_remember_records_are_refused(model: nn.Module) -> None:
    with pytest.raises(pp.InvalidInput, match="remembers records"):
        pp.per_record_norms(model, lambda out, y: out.sum(dim=1), torch.randn(5, 4), torch.zeros(5))


def test_buffers_that_are_only_read_are_fine() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("shift", torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x + self.shift)

    assert pp.per_record_norms(
        Positions(), lambda out, y: out.sum(dim=1), torch.randn(5, 4), torch.zeros(5)
    ).shape == (5,)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.NAdam])
def test_any_optimizer(kind: type[torch.optim.Optimizer]) -> None:
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = kind(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=4, cycle_momentum=False)
    pp.train(model, optimizer, data(), planned(), LOSS, scheduler=schedule)
    assert all(not torch.equal(a, b.detach()) for a, b in zip(before, model.parameters(), strict=True))


class TokensAsRows(nn.Module):
    """Flattens (records, tokens, features) into rows before its layer, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.reshape(-1, 4)).reshape(x.shape[0], -1, 3).mean(dim=1)


class Positions(nn.Module):
    """Looks its positions up once for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(16, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = self.table(torch.arange(16))
        return self.layer(x.reshape(x.shape[0], 16, 4) + places).mean(dim=1)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((x - x.mean(dim=0)).flatten(1))


class Attends(nn.Module):
    """Attention over the wrong dimension: records attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.layer(x.flatten(1))
        return self.out(F.scaled_dot_product_attention(rows, rows, rows))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (TokensAsRows(), "must count records"),
        (Positions(), "positions for every record"),
        (Centred(), "changes with the other records"),
        (Attends(), "changes with the other records"),
    ],
    ids=["rows", "positions", "centred", "attention"],
)
@pytest.mark.parametrize("how", ["train", "loop"])
def test_a_model_that_mixes_records_is_refused(model: nn.Module, words: str, how: str) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private, _, loader = pp.make_private(model, optimizer, data(), planned())
    batches = iter(loader)
    if how == "train":
        with pytest.raises(pp.InvalidInput, match=words):
            pp.train(model, optimizer, data(), planned(), LOSS)
        return
    x = next(x for x, _ in batches if x.shape[0] > 1)
    with pytest.raises(pp.InvalidInput, match=words):
        private(x)
    assert private.training


def test_one_record_of_many_rows_is_not_taken_for_many_records() -> None:
    """A single record whose 16 tokens are rows: each row clipped by itself would add up to 16 clip norms."""
    x = torch.randn(1, 64)
    with pytest.raises(pp.InvalidInput, match=r"48 rows for 3 records.*must count records"):
        pp.clipped_sum(TokensAsRows(), LOSS, x, torch.zeros(1, dtype=torch.int64), 0.1)


class Noisy(nn.Module):
    """Random even in evaluation mode: it cannot be compared with itself, and is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1) + torch.randn(x.shape[0], 64))


def test_models_that_do_not_mix_are_let_through() -> None:
    for model in (Noisy(), network(), nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))):
        model.train()
        pp.train(model, torch.optim.SGD(model.parameters(), lr=0.1), data(), planned(), LOSS)
        assert model.training


def test_a_frozen_batch_norm_in_evaluation_mode_is_fine() -> None:
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten()).eval()
    for parameter in backbone.parameters():
        parameter.requires_grad = False
    model = nn.Sequential(backbone, nn.Linear(144, 3))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    before = backbone[1].running_mean.clone()
    pp.train(model, optimizer, data(), planned(), LOSS)
    assert torch.equal(backbone[1].running_mean, before)
    backbone.train()
    with pytest.raises(pp.InvalidInput, match="GroupNorm"):
        pp.train(model, optimizer, data(), planned(), LOSS)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [(), ("padding",), ("causal",), ("padding", "causal"), ("by head",)])
def test_fix_replaces_attention_by_an_equal_one(batch_first: bool, masked: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=batch_first).eval()
    fixed = pp.fix(layer)
    x = torch.randn(5, 7, 8) if batch_first else torch.randn(7, 5, 8)
    options = {}
    if "padding" in masked:
        options["key_padding_mask"] = torch.arange(7).expand(5, 7) >= torch.tensor([7, 3, 5, 1, 6])[:, None]
    if "causal" in masked:
        options["attn_mask"] = torch.triu(torch.ones(7, 7, dtype=torch.bool), diagonal=1)
    if "by head" in masked:
        options["attn_mask"] = torch.randn(10, 7, 7)
    for need in (True, False):
        ours, weights = fixed(x, x, x, need_weights=need, **options)
        theirs, expected = layer(x, x, x, need_weights=need, **options)
        torch.testing.assert_close(ours, theirs)
        assert (weights is None) == (expected is None)
        if need:
            torch.testing.assert_close(weights, expected)
    assert sum(p.numel() for p in fixed.parameters()) == sum(p.numel() for p in layer.parameters())


class Reader(nn.Module):
    """torch's own encoder over padded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(20, 8, padding_idx=0), nn.Embedding(6, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(6).expand(x.shape[0], -1))
        return self.head(self.encoder(self.table(x) + places, src_key_padding_mask=x == 0).mean(dim=1))


@pytest.mark.slow
def test_torchs_transformer_trains_once_fixed() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 20, (50, 6), generator=generator)
    tokens[:, 4:] *= torch.randint(0, 2, (50, 1), generator=generator)
    dataset = TensorDataset(tokens, torch.randint(0, 3, (50,), generator=generator))
    with pytest.raises(pp.InvalidInput, match=r"privypurse\.fix"):
        pp.train(Reader(), torch.optim.SGD(Reader().parameters(), lr=0.1), dataset, planned(), LOSS)
    model = pp.fix(Reader())
    assert pp.train(model, torch.optim.Adam(model.parameters()), dataset, planned(), LOSS).steps == 4
    model.eval()
    norms = pp.per_record_norms(model, LOSS, tokens[:5], dataset.tensors[1][:5])
    for i in range(5):
        loss = LOSS(model(tokens[i : i + 1]), dataset.tensors[1][i : i + 1]).sum()
        squares = [g.double().square().sum() for g in torch.autograd.grad(loss, list(model.parameters()))]
        assert float(norms[i]) == pytest.approx(math.sqrt(float(sum(squares))), rel=1e-5)


class InTrainingOnly(nn.Module):
    """Batch statistics by hand, in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.layer((x - x.mean(dim=0)) / (x.std(dim=0) + 1e-5) if self.training else x)


class Sorted(nn.Module):
    """Runs its rows in another order and puts them back: norms of one record would clip another."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        order = rows[:, 0].argsort()
        return self.out(self.inside(rows[order])[order.argsort()])


@pytest.mark.parametrize("model", [InTrainingOnly(), Sorted(), Centred()], ids=["training only", "sorted", "centred"])
def test_subtler_mixing_is_seen_too(model: nn.Module) -> None:
    """Also in a batch so large that a mean over it hardly moves."""
    people = 2_000
    budgets = pp.Budgets(np.full(people, 2.0), delta=1e-5)
    plan = pp.plan(budgets, "uniform", steps=1, batch_size=people, accountant="rdp")
    with pytest.raises(pp.InvalidInput, match="changes with the other records"):
        pp.train(model, torch.optim.SGD(model.parameters(), lr=0.1), data(people), plan, LOSS)


class Experts(nn.Module):
    """Two layers that are alike at first; the batch decides which of them learns, or how much is given."""

    def __init__(self, outputs: bool) -> None:
        super().__init__()
        self.one, self.other, self.outputs = nn.Linear(64, 3), nn.Linear(64, 3), outputs
        self.other.load_state_dict(self.one.state_dict())

    def forward(self, x: Tensor) -> Any:
        rows = x.flatten(1)
        chosen = int(rows.detach()[:, 0].argmax()) % 2 == 0
        if self.outputs:
            found = self.one(rows)
            return (found, found) if chosen else (found,)
        return (self.one if chosen else self.other)(rows)


@pytest.mark.parametrize("outputs", [False, True])
def test_which_layers_run_must_not_hang_on_the_batch(outputs: bool) -> None:
    """Every row is the same either way: one person more would move everybody's gradient to the other layer."""
    torch.manual_seed(0)
    recorder = Recorder(Experts(outputs))

    def looked() -> None:
        for _ in range(30):  # one sees it with a chance of a half or more
            require_isolated(recorder, (torch.randn(16, 64),), {}, 16)

    # Which is seen first hangs on the records: other rows, other places, or a layer that ran for few of them.
    with pytest.raises(pp.InvalidInput, match=r"changes with (the )?other records|its place|did not in passes"):
        looked()


def test_a_layer_with_two_parents_counts_once() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.net = nn.Sequential(self.layer, nn.Tanh(), nn.Linear(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    model, x, y = Two(), torch.randn(3, 4), torch.tensor([0, 1, 0])
    for i, found in enumerate(pp.per_record_norms(model, LOSS, x, y).tolist()):
        gradients = torch.autograd.grad(LOSS(model(x[i : i + 1]), y[i : i + 1]).sum(), list(model.parameters()))
        assert found == pytest.approx(math.sqrt(sum(float(g.square().sum()) for g in gradients)), rel=1e-5)


@pytest.mark.parametrize("option", [{"max_norm": 0.1}, {"scale_grad_by_freq": True}])
def test_embeddings_that_rewrite_or_count_rows_are_refused(option: dict) -> None:
    model = nn.Sequential(nn.Embedding(9, 4, **option), nn.Flatten())
    with pytest.raises(pp.InvalidInput, match="leave it out"):
        pp.per_record_norms(model, LOSS, torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))


class OwnRecurrence(nn.LSTM):
    """A subclass, which no rule knows."""


class LastState(nn.Module):
    def __init__(self, kind: type[nn.LSTM]) -> None:
        super().__init__()
        self.inside, self.out = kind(4, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inside(x)[1][0][0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_second_output_is_not_lost_in_silence() -> None:
    case = LOSS, torch.randn(3, 5, 4), torch.zeros(3, dtype=torch.int64)
    assert bool((pp.per_record_norms(LastState(nn.LSTM), *case) > 0).all())
    with pytest.raises(pp.InvalidInput, match="second output"):
        pp.per_record_norms(LastState(OwnRecurrence), *case)


class Fickle(nn.Module):
    """No rule knows it, and it never computes the same twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.calls = nn.Parameter(torch.ones(5)), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.weight * 10.0**self.calls


def test_a_layer_that_runs_differently_each_time_is_clipped_by_its_own_norm() -> None:
    for size in (1.0, 100.0):
        sums, _ = pp.clipped_sum(
            nn.Sequential(Fickle()), lambda out, y: out.sum(dim=1), size * torch.ones(1, 5), torch.zeros(1), 1.0
        )
        assert float(next(iter(sums.values())).double().norm()) <= 1.0


def contribution(model: nn.Module, x: Tensor, y: Tensor, limit: float) -> float:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return (out * y).flatten(1).sum(dim=1)

    sums, _ = pp.clipped_sum(model, loss, x, y, limit)
    return math.sqrt(sum(float(value.double().square().sum()) for value in sums.values()))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "kind", ["linear", "linear many", "embedding", "convolution", "convolution many", "underflow"]
)
def test_tokens_that_cancel_do_not_slip_past_the_clip_norm(kind: str, seed: int) -> None:
    """One record, in float32, whose terms are huge beside their sum: a bare Gram matrix finds a norm of about 0."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    sign = torch.tensor([1.0, -1.0] * 10)
    if kind.startswith("linear"):
        width = 256 if kind == "linear" else 8
        tokens = sign.repeat(1 if kind == "linear" else 10)
        x = normal(1, 1, width) + 1e-3 * normal(1, tokens.numel(), width)
        case = nn.Linear(width, width, bias=False), x, 10 * normal(1, 1, width) * tokens[None, :, None]
    elif kind == "embedding":
        y = 100 * normal(1, 1, 64) * sign[None, :, None] + 1e-2 * normal(1, 20, 64)
        case = nn.Embedding(5, 64), torch.zeros(1, 20, dtype=torch.int64), y
    elif kind.startswith("convolution"):
        channels, size = (256, 4) if kind == "convolution" else (4, 16)
        x = normal(1, channels, 1, 1).expand(-1, -1, size, size) + 1e-3 * normal(1, channels, size, size)
        places = (torch.arange(size - 2)[:, None] + torch.arange(size - 2)) % 2 * 2.0 - 1
        case = nn.Conv2d(channels, 64, 3, bias=False), x, 10 * normal(1, 64, 1, 1) * places
    else:
        case = nn.Linear(1, 10_000, bias=False), torch.full((1, 1), 1e18), torch.full((1, 10_000), 2.5e-23)
    for limit in (1e-1, 1e-2, 1e-3):
        assert contribution(*case, limit) <= limit


def test_a_record_that_cancels_swallows_nobody() -> None:
    """Huge terms with weight 1 in one product would take the digits of everybody else's contribution."""
    x, y = torch.randn(50, 2, 64), torch.randn(50, 2, 64)
    x[-1], y[-1, 0], y[-1, 1] = 1e6, 1e6, -1e6
    model = nn.Linear(64, 64, bias=False)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return (out * y).flatten(1).sum(dim=1)

    without, _ = pp.clipped_sum(model, loss, x[:-1], y[:-1], 1.0)
    among, _ = pp.clipped_sum(model, loss, x, y, 1.0)
    assert float((among["weight"].double() - without["weight"].double()).norm()) <= 1.0


def test_the_safety_costs_ordinary_records_little() -> None:
    """Norms of ordinary sequences are about half a percent above the truth."""
    x, y = torch.randn(6, 128, 256), torch.randn(6, 128, 256)
    found = pp.per_record_norms(nn.Linear(256, 256, bias=False), lambda out, y: (out * y).flatten(1).sum(dim=1), x, y)
    truth = torch.stack([(b.double().T @ a.double()).norm() for a, b in zip(x, y, strict=True)])
    assert bool((found.double() >= truth * (1 - 1e-6)).all())
    assert float((found.double() / truth).max()) < 1.006


@pytest.mark.slow
def test_dropout_is_never_taken_for_mixing() -> None:
    """Of a small layer two draws of dropout are often alike; that must not look like a model that mixes."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2), nn.Dropout(0.3), nn.Linear(2, 3))
    recorder = Recorder(model)
    for _ in range(50):
        require_isolated(recorder, (data(3).tensors[0],), {}, 3)


def _clipped_as(model: nn.Module, x: Tensor, y: Tensor, owner: Tensor, limit: float) -> float:
    """What the persons of a batch contribute together, by the parts that training uses."""
    recorder = Recorder(model)
    tape, _ = recorded(recorder, lambda out, y: (out * y).flatten(1).sum(dim=1), x, y)
    units = int(owner.max()) + 1
    found = norms(tape, owner, units)
    factors = clip_factors(found, torch.full((units,), limit))[owner]
    total: dict[str, Tensor] = {}
    for name, part in sums(tape, factors, found[owner]):
        total[name] = total[name] + part if name in total else part
    return math.sqrt(sum(float(value.double().square().sum()) for value in total.values()))


@pytest.mark.parametrize("seed", range(4))
def test_records_of_a_person_that_cancel_do_not_slip_past_the_clip_norm(seed: int) -> None:
    """Forty records, huge beside their sum, of one person."""
    torch.manual_seed(seed)
    x = (1e4 * torch.randn(1, 32)).expand(40, -1) + 1e-2 * torch.randn(40, 32)
    y = 1e4 * torch.randn(1, 16) * torch.tensor([1.0, -1.0] * 20)[:, None]
    for model in (nn.Linear(32, 16), nn.Linear(32, 16, bias=False)):
        assert _clipped_as(model, x, y, torch.zeros(40, dtype=torch.int64), 1e-3) <= 1e-3


class TokenByToken(nn.Module):
    """One layer, used once for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.layer(token) for token in x.unbind(1)], dim=1)


@pytest.mark.parametrize("seed", range(4))
def test_uses_of_a_layer_that_cancel_do_not_slip_past_the_clip_norm(seed: int) -> None:
    """One record, forty uses of the same weight that are huge beside their sum."""
    torch.manual_seed(seed)
    x = (1e4 * torch.randn(1, 1, 32)).expand(1, 40, -1) + 1e-2 * torch.randn(1, 40, 32)
    y = 1e4 * torch.randn(1, 1, 16) * torch.tensor([1.0, -1.0] * 20)[None, :, None]
    assert contribution(TokenByToken(), x, y, 1e-3) <= 1e-3


def test_tokens_that_cancel_in_a_bias_swallow_nobody() -> None:
    """With an input of zeros only the bias learns; the tokens of one record are huge and cancel."""
    x, y = torch.zeros(50, 2, 8), 1e-3 * torch.randn(50, 2, 8)
    model = nn.Linear(8, 8)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return (out * y).flatten(1).sum(dim=1)

    without, _ = pp.clipped_sum(model, loss, x[:-1], y[:-1], 1.0)
    y[-1, 0], y[-1, 1] = 1e8, -1e8
    among, _ = pp.clipped_sum(model, loss, x, y, 1.0)
    assert float((among["bias"].double() - without["bias"].double()).norm()) <= 1e-5
