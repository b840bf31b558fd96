"""The fast path on a GPU: the same steps as eager ones, fresh noise at every replay, ChaCha20 as in RFC 8439."""

import math
import struct
from collections.abc import Callable
from itertools import starmap

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.plans import LevelTable, Plan, Promise, TrainingShape
from privypurse.randomness import Randomness, SecureRandomness, SeededRandomness
from privypurse.training.captured import sizes_of
from training_tools import LOSS

pytestmark = [
    pytest.mark.needs("cuda"),
    pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning"),
]
STRICT = 1e-6


def data(n: int = 300) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 1, 12, 12, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (n,), generator=generator))


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(100, 3)]
    return nn.Sequential(*layers).cuda()


def planned(n: int = 300, steps: int = 30, batch_size: int = 40, **options: object) -> pp.Plan:
    budgets = pp.Budgets(np.where(np.arange(n) % 3 == 0, 1.0, 3.0), delta=1e-5)
    return pp.plan(budgets, "scale", steps=steps, batch_size=batch_size, accountant="rdp", **options)


def trained(plan: pp.Plan, dataset: TensorDataset, **options: object) -> tuple[nn.Module, object]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    return model, pp.train(model, optimizer, dataset, plan, LOSS, scheduler=schedule, **options)


@pytest.mark.parametrize("physical", [None, 16])
@pytest.mark.parametrize("wide", [False, True])
def test_captured_steps_are_the_eager_steps(physical: int | None, wide: bool) -> None:
    """With one seed; a static shape of 16 splits most draws of 40 over several replays, and loses nobody."""
    plan, dataset = planned(), data()
    fast, how = trained(plan, dataset, seed=5, execution=pp.Execution(max_physical_batch=physical), wide_sums=wide)
    slow, _ = trained(plan, dataset, seed=5, execution=pp.Execution(capture=False), wide_sums=wide)
    assert how.how == "captured"
    assert how.steps == plan.steps
    for one, other in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("batch_size", "physical"), [(40, None), (300, 100)])
def test_captured_steps_are_limited_as_the_eager_steps(batch_size: int, physical: int | None) -> None:
    """Levels, purses and the last drop, in Poisson and in full-batch training, through the filter's steps."""
    plan, dataset = planned(batch_size=batch_size, extra_steps=40), data()
    individual = pp.Individual(every=7)
    fast, how = trained(
        plan, dataset, seed=5, individual=individual, execution=pp.Execution(max_physical_batch=physical)
    )
    slow, other_how = trained(plan, dataset, seed=5, individual=individual, execution=pp.Execution(capture=False))
    assert how.how == "captured"
    assert how.steps == other_how.steps == 70
    assert how.spending.active[-1][1] < 300  # some purses are empty
    # A norm at the edge of a level may fall on either side of it in another order of summing.
    np.testing.assert_allclose(how.spending.epsilon("rdp"), other_how.spending.epsilon("rdp"), rtol=0.02)
    for one, other in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-3)


def test_a_plan_by_id_is_captured_too() -> None:
    """Rows in another order than the plan's, and some people absent: the eager steps are the yardstick."""
    n, ids = 300, np.array([f"C{number:04}" for number in range(300)])
    budgets = pp.Budgets(np.where(np.arange(n) % 3 == 0, 1.0, 3.0), delta=1e-5, person=ids)
    plan = pp.plan(budgets, "scale", steps=20, batch_size=40, accountant="rdp")
    order = np.random.default_rng(0).permutation(n)[:280]
    x, y = data(n).tensors
    dataset = TensorDataset(x[order], y[order])
    fast, how = trained(plan, dataset, seed=5, person=ids[order])
    slow, _ = trained(plan, dataset, seed=5, person=ids[order], execution=pp.Execution(capture=False))
    assert how.how == "captured"
    for one, other in zip(fast.parameters(), slow.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class Twice(nn.Module):
    """One layer that is used two times: its norm takes another way, which has to be captured too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.again, self.last = nn.Linear(144, 144), nn.Linear(144, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.again(torch.tanh(self.again(x.flatten(1))))))


def test_a_layer_that_is_used_twice_is_captured() -> None:
    plan, made = planned(steps=5), []
    for capture in (True, False):
        model = Twice().cuda()
        pp.train(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            data(),
            plan,
            LOSS,
            seed=5,
            execution=pp.Execution(capture=capture),
        )
        made.append(model)
    for one, other in zip(made[0].parameters(), made[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_static_shape_comes_from_public_numbers_only() -> None:
    few, many = planned(300, batch_size=40), planned(30_000, batch_size=40)
    assert sizes_of(few, None) == sizes_of(many, None)
    assert sizes_of(few, None)[0] >= 40 + 6 * math.sqrt(40)


def test_a_wild_record_is_silent_in_a_graph() -> None:
    dataset, plan = data(), planned()
    dataset.tensors[0][::7] = math.inf
    dataset.tensors[0][0] = math.nan  # also what stands in for nobody
    model, _ = trained(plan, dataset, seed=1)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_every_replay_draws_fresh_noise() -> None:
    """A model whose gradient is zero moves by noise alone: no two steps alike, and of the planned deviation."""
    n, steps = 64, 200
    plan = planned(n, steps=steps, batch_size=8)
    dataset = TensorDataset(torch.zeros(n, 500), torch.zeros(n, dtype=torch.int64))
    layer = nn.Linear(500, 2, bias=False).cuda()
    moves = []

    class Watch(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            moves.append(layer.weight.grad.flatten().cpu())
            super().step()

    how = pp.train(layer, Watch(layer.parameters(), lr=0.1), dataset, plan, LOSS)
    assert how.how == "captured"
    noise = torch.stack(moves).double().numpy() * plan.batch_size / (plan.noise_multiplier * plan.clip_norm)
    assert stats.kstest(noise.ravel(), "norm").pvalue > STRICT
    assert stats.kstest(noise.ravel() * 1.05, "norm").pvalue < STRICT
    alike = np.corrcoef(noise) - np.eye(steps)
    assert np.abs(alike).max() < 6.5 / math.sqrt(1000)
    repeated = np.corrcoef(np.vstack([noise, noise[:1]]))  # a replay that repeats its noise is caught
    assert repeated[0, -1] > 0.99


def test_norms_on_the_device_are_those_of_float64() -> None:
    """Also over two million elements of one sign, where adding them up one after the other would lose digits."""
    from privypurse.training.gradients.numerics import square_sum

    for values in (torch.rand(3, 2_000_000), torch.randn(500, 40_000), torch.full((2, 3_000_000), 0.1)):
        exact = values.double().square().sum(dim=1)
        found = square_sum(values.cuda()).double().cpu()
        assert float((found / exact - 1).abs().max()) < 5e-6


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_no_record_exceeds_its_clip_norm_where_tensor_floats_are_allowed(scale: float) -> None:
    """A record alone, in float64: with TensorFloat-32 everywhere in the user's settings, and under autocast."""
    model, (x, y) = network(), data(40).tensors
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        for i in range(40):
            for short in (False, True):
                limit = 10.0 ** -(i % 4)
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=short):
                    sums, _ = pp.clipped_sum(model, LOSS, scale * x[i : i + 1].cuda(), y[i : i + 1].cuda(), limit)
                assert math.sqrt(sum(float(value.double().square().sum()) for value in sums.values())) <= limit
    finally:
        torch.set_float32_matmul_precision(before)


def chacha_block(key: list[int], counter: int, nonce: list[int]) -> list[int]:
    """RFC 8439, section 2.3, one word at a time."""
    state = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *key, counter & 0xFFFFFFFF, counter >> 32, *nonce]
    x = list(state)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for target, other, third, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[target] = (x[target] + x[other]) & 0xFFFFFFFF
            mixed = x[third] ^ x[target]
            x[third] = ((mixed << turn) | (mixed >> (32 - turn))) & 0xFFFFFFFF

    for _ in range(10):
        for k in range(4):
            quarter(k, 4 + k, 8 + k, 12 + k)
        for k in range(4):
            quarter(k, 4 + (k + 1) % 4, 8 + (k + 2) % 4, 12 + (k + 3) % 4)
    return [(a + b) & 0xFFFFFFFF for a, b in zip(x, state, strict=True)]


def test_where_a_server_chooses_parameters_nobody_s_second_record_decides_on_graphs() -> None:
    """People with ids are never captured there, whether or not each has one record."""
    dataset, ids = data(), np.arange(300).astype(str)
    budgets = pp.Budgets(np.full(300, 2.0), delta=1e-5, person=ids)
    plan = pp.plan(budgets, "uniform", steps=3, batch_size=40, accountant="rdp")
    assert trained(plan, dataset, person=ids, seed=5, forgiving=True)[1].how == "eager"
    assert trained(plan, dataset, person=ids, seed=5)[1].how == "captured"
    assert trained(planned(steps=3), dataset, seed=5, forgiving=True)[1].how == "captured"


def test_the_key_stream_is_chacha20() -> None:
    from privypurse._chacha import ChaCha

    # The RFC's example: key 00 01 … 1f, counter 1, nonce 09000000 4a000000 00000000.
    key = struct.unpack("<8I", bytes(range(32)))
    rfc = chacha_block(list(key), 1 | 0x09000000 << 32, [0x4A000000, 0])
    assert rfc[:4] == [0xE4E7F110, 0x15593BD1, 0x1FDD0F50, 0xC47120A3]
    nonce = struct.pack("<2I", 0x4A000000, 7)
    stream = ChaCha(torch.device("cuda"), bytes(range(32)) + nonce)
    expected = [word for counter in range(8) for word in chacha_block(list(key), counter, [0x4A000000, 7])]
    found = torch.cat([stream.words(4), stream.words(4)]).cpu().numpy().view(np.uint32)
    assert found.tolist() == expected
    stream._counter.fill_((1 << 32) - 2)  # over the end of the low word
    expected = [w for c in range((1 << 32) - 2, (1 << 32) + 2) for w in chacha_block(list(key), c, [0x4A000000, 7])]
    assert stream.words(4).cpu().numpy().view(np.uint32).tolist() == expected


SOURCES = [pytest.param(SecureRandomness, id="secure"), pytest.param(lambda: SeededRandomness(7), id="seeded")]


@pytest.mark.parametrize("made", SOURCES)
def test_noise_on_the_device_is_standard_normal(made: Callable[[], Randomness]) -> None:
    source = made()
    draws = source.normal(400_003, "cuda")
    assert draws.is_cuda
    assert draws.dtype == torch.float64
    assert not torch.equal(draws, source.normal(400_003, "cuda"))
    values = draws.cpu().numpy()
    assert stats.kstest(values, "norm").pvalue > STRICT
    assert stats.kstest(values * 1.05, "norm").pvalue < STRICT
    assert stats.kstest(values + 0.02, "norm").pvalue < STRICT
    eighths = values[:400_000].reshape(8, -1)  # a number and its own square are not independent, so not in one table
    for rows in (eighths, eighths**2):
        assert np.abs(np.corrcoef(rows) - np.eye(8)).max() < 6 / math.sqrt(50_000)
    many = source.normal(8_000_000, "cuda").abs()
    beyond = int((many > 4).sum())
    assert stats.binomtest(beyond, 8_000_000, float(2 * stats.norm.sf(4))).pvalue > STRICT


def test_a_seeds_noise_on_the_device_follows_from_seed_and_step() -> None:
    """In whatever order steps are asked for, as a run that goes on does; other seeds, steps and ranks have others."""

    def drawn(source: Randomness) -> bytes:
        return source.normal(1_000, "cuda").cpu().numpy().tobytes()

    one, again = SeededRandomness(7), SeededRandomness(7)
    later, first = again.for_step(2), again.for_step(1)
    second = one.for_step(2)
    assert drawn(one.for_step(1)) == drawn(first)
    assert drawn(second) == drawn(later)
    assert drawn(second) == drawn(later)  # what a step goes on with
    assert drawn(one) == drawn(again)
    steps = [(1, 0), (2, 0), (1, 1)]
    sources = [source for whole in (one, SeededRandomness(8)) for source in (whole, *starmap(whole.for_step, steps))]
    whole = [drawn(source) for source in sources] + [drawn(sources[-1])]
    assert len(set(whole)) == len(whole)


@pytest.mark.parametrize("made", SOURCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_on_the_device_lies_on_the_grid(dtype: torch.dtype, made: Callable[[], Randomness]) -> None:
    """Made and added in one kernel, it is the rounded sum plus rounded normals of the planned deviation."""
    from privypurse.training.grid_noise import GridNoise

    noise, source = GridNoise(0.3, 400_003), made()
    before = torch.linspace(-2, 3, 400_003, dtype=dtype, device="cuda")
    after = before.clone()
    noise.to_grid(after, source)
    assert torch.equal(after, after.round())
    moved = after.double() * noise.step - before.double()
    values = (moved / noise.deviation).cpu().numpy()
    assert stats.kstest(values, "norm").pvalue > STRICT
    assert stats.kstest(values * 1.05, "norm").pvalue < STRICT
    if dtype == torch.float64:  # nothing but the noise is added to the rounded sum
        whole = after - (before / noise.step).round()
        assert torch.equal(whole, whole.round())
        assert (whole % 2 == 1).float().mean().item() == pytest.approx(0.5, abs=0.01)


def everybody(n: int, steps: int) -> Plan:
    """Steps that draw everybody, without noise to speak of: what differs between them is drawn by the model."""
    one = np.ones(1)
    return Plan(
        method="test",
        accountant="rdp",
        promise=Promise.PART,  # no promise of its own: the noise is as small as the test needs it
        shape=TrainingShape(steps=steps, batch_size=n, clip_norm=0.5, noise_multiplier=1e-9),
        levels=LevelTable(epsilon=one, delta=1e-5 * one, rate=one, clip_norm=0.5 * one, capped=one < 0),
        level_of=np.zeros(n, np.int64),
    )


@pytest.mark.parametrize("capture", [True, False])
def test_masks_of_dropout_are_secret_and_fresh_at_every_replay(capture: bool) -> None:
    """From a public seed: no two steps and no two runs share their masks; with a seed of the run they repeat."""
    n, steps = 64, 5
    dataset = TensorDataset(torch.ones(n, 64), torch.arange(n) % 2)

    def sums(seed: int | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 2, bias=False)).cuda()
        seen: list[torch.Tensor] = []

        class Watch(torch.optim.SGD):
            def step(self, closure: object = None) -> None:
                seen.append(model[1].weight.grad.clone())

        before = torch.cuda.get_rng_state(), torch.get_rng_state()
        optimizer = Watch(model.parameters(), lr=0.1)
        how = pp.train(
            model, optimizer, dataset, everybody(n, steps), LOSS, seed=seed, execution=pp.Execution(capture=capture)
        )
        assert how.how == ("captured" if capture else "eager")
        assert torch.equal(before[0], torch.cuda.get_rng_state())  # the user's generators are left alone
        assert torch.equal(before[1], torch.get_rng_state())
        return seen

    one, other = sums(None), sums(None)
    found = torch.stack([*one, *other]).flatten(1)
    apart = torch.cdist(found, found) + torch.eye(2 * steps, device="cuda")
    assert float(apart.min()) > 1e-3
    for first, again in zip(sums(5), sums(5), strict=True):
        assert torch.allclose(first, again, rtol=1e-5, atol=1e-7)


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 2)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.mean.clone()
        self.mean.data.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.last(x - before)


@pytest.mark.parametrize("capture", [True, False])
def test_memory_and_mixing_losses_are_refused_before_a_graph_is_made_of_them(capture: bool) -> None:
    dataset = TensorDataset(torch.randn(64, 64), torch.arange(64) % 2)
    model = Remembers().cuda()
    with pytest.raises(pp.InvalidInput, match="keeps something of the records in mean"):
        pp.train(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            dataset,
            everybody(64, 3),
            LOSS,
            execution=pp.Execution(capture=capture),
        )

    def differences(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        each = LOSS(output, y)
        return torch.cat([each[:1], each[1:] - each[:-1]])

    layer = nn.Linear(64, 2).cuda()
    with pytest.raises(pp.InvalidInput, match="the loss of a record changes"):
        pp.train(layer, torch.optim.SGD(layer.parameters(), lr=0.1), dataset, everybody(64, 3), differences)


def test_who_is_left_out_in_a_graph_is_counted() -> None:
    x = torch.randn(64, 64)
    x[[3, 9]] = torch.inf
    layer = nn.Linear(64, 2).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    done = pp.train(layer, optimizer, TensorDataset(x, torch.arange(64) % 2), everybody(64, 3), LOSS)
    assert (done.how, done.left_out) == ("captured", 6)


def test_validation_leaves_a_captured_run_as_it_was() -> None:
    """To the bit, with masks from the generator of the GPU, also where it draws and leaves gradients behind."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.3), nn.Linear(32, 2)).cuda()
    state = {name: value.clone() for name, value in layers.state_dict().items()}
    dataset = TensorDataset(torch.randn(64, 64), torch.arange(64) % 2)

    def draws(model: nn.Module) -> float:
        model.train()
        with torch.enable_grad():
            model(torch.randn(7, 64, device="cuda")).sum().backward()
        return float(torch.rand((), device="cuda"))

    others, found = TensorDataset(torch.randn(50, 64), torch.arange(50) % 2), []
    for validate in (None, draws, others):
        layers.load_state_dict(state)
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
        asked = None if validate is None else pp.Validation(validate, every=2)
        done = pp.train(layers, optimizer, dataset, everybody(64, 9), LOSS, seed=5, validate=asked)
        assert done.how == "captured"
        found.append([value.detach().clone() for value in layers.parameters()])
    assert all(map(torch.equal, found[0], found[1]))
    assert all(map(torch.equal, found[0], found[2]))
