"""Ways around the isolation of records beside model and loss: memory, generators, data sets, other optimizers.

Twenty-four people alike and one unlike them. Where numbers are drawn, a run is repeated: what comes out the same
twice was drawn from numbers that somebody knows.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset, TensorDataset

import privypurse as pp
from privypurse.training.grid_noise import GridNoise

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
OTHERS, FEATURES, CLIP = 24, 8, 0.5
Step = Callable[[nn.Module, Any, Tensor, Tensor], None]


def people(with_person: bool = True) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(OTHERS + 1, FEATURES, generator=generator) + 1.0
    x[0] = 30.0
    first = 0 if with_person else 1
    return x[first:], -100.0 * x[first:, 0]


def linear() -> nn.Module:
    layer = nn.Linear(FEATURES, 1)
    nn.init.constant_(layer.weight, 0.3)
    nn.init.zeros_(layer.bias)
    return layer


def released(step: Step, model: nn.Module, data: Dataset[Any], seed: int | None = 1, **options: Any) -> Tensor:
    n = len(data)  # type: ignore[arg-type]
    plan = pp.plan(pp.Budgets(np.ones(n), delta=1e-5), "uniform", steps=1, batch_size=n, clip_norm=CLIP)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    private, optimizer, loader = pp.make_private(
        model, torch.optim.SGD(trained, lr=0.0), data, plan, seed=seed, **options
    )
    for x, y in loader:
        optimizer.zero_grad()
        step(private, optimizer, x, y)
        optimizer.step()
    return torch.cat([torch.as_tensor(each.grad).flatten() for each in trained]) * n


def moved(step: Step, make: Callable[[], nn.Module] = linear) -> float:
    one, other = (released(step, make(), TensorDataset(*people(here))) for here in (True, False))
    return float((one - other).norm()) / CLIP


def refused(match: str, step: Step, make: Callable[[], nn.Module] = linear) -> None:
    with pytest.raises(pp.InvalidInput, match=match):
        pytest.fail(f"let through, and the sum moved by {moved(step, make):.1f} clip norms", pytrace=False)


# --- Memory outside of the model ------------------------------------------------------------------------------

WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "itself": lambda centre, mean: centre.copy_(mean),
    ".data": lambda centre, mean: centre.data.mul_(0.1).add_(0.9 * mean),
    ".detach()": lambda centre, mean: centre.detach().copy_(mean),
    "a view": lambda centre, mean: centre[:].copy_(mean),
    "another view": lambda centre, mean: centre.view(-1).add_(mean),
}


@pytest.mark.parametrize("how", WRITES)
def test_a_centre_of_the_batch_is_refused_however_it_is_written(how: str) -> None:
    """19 clip norms, but for the first."""

    def step(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        out, centre = model(x), torch.zeros(1)
        WRITES[how](centre, out.detach().mean(0))
        (out - 1.0 * centre).square().mean().backward()

    refused("several records|another tensor", step)


def test_weights_are_not_written_past_the_optimizer() -> None:
    def step(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        out = model(x)
        model.bias.data.sub_(out.detach().mean(0))  # type: ignore[union-attr, operator]
        out.square().mean().backward()

    refused("another tensor", step)


def test_metrics_may_be_kept_in_tensors() -> None:
    seen, table, rows = torch.zeros(()), torch.zeros(2, 2), torch.zeros(3)

    def step(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        loss = F.mse_loss(model(x)[:, 0], y)
        loss.backward()
        nonlocal seen
        seen += loss.detach()
        rows[1] += loss.detach()
        rows[2:].add_(loss.detach())
        guess = (x[:, 0] > 0).long()
        table.index_put_((guess, (y > 0).long()), torch.ones(len(y)), accumulate=True)

    released(step, linear(), TensorDataset(*people()))
    assert float(rows[1]) == float(rows[2]) == float(seen) > 0
    assert float(table.sum()) == OTHERS + 1


# --- What trains beside the model -----------------------------------------------------------------------------


class Prompted(nn.Module):
    def __init__(self, prompt: Tensor | None = None) -> None:
        super().__init__()
        self.layer, self.held = linear(), [prompt]

    def forward(self, x: Tensor, prompt: Tensor | None = None) -> Tensor:
        return self.layer(x + (prompt if prompt is not None else self.held[0]))  # type: ignore[no-any-return]


@pytest.mark.parametrize("given", [True, False])
def test_a_learned_tensor_beside_the_model_is_refused(given: bool) -> None:
    """Its gradient would move by as much as the data does, without noise."""
    prompt = nn.Parameter(torch.zeros(FEATURES))

    def step(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        (model(x, prompt) if given else model(x)).square().mean().backward()

    refused("neither clipped nor noisy", step, lambda: Prompted(None if given else prompt))
    assert prompt.grad is None


def test_it_is_refused_in_train_too() -> None:
    n = OTHERS + 1
    prompt, data = nn.Parameter(torch.zeros(FEATURES)), TensorDataset(*people())
    plan = pp.plan(pp.Budgets(np.ones(n), delta=1e-5), "uniform", steps=1, batch_size=n, clip_norm=CLIP)
    model = Prompted(prompt)
    with pytest.raises(pp.InvalidInput, match="neither clipped nor noisy"):
        pp.train(model, torch.optim.SGD(model.parameters(), 0.1), data, plan, lambda out, y: (out[:, 0] - y).square())
    assert prompt.grad is None


def test_layers_that_are_thawed_later_are_refused() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES).requires_grad_(False), linear())

    def step(private: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        model[0].requires_grad_(True)
        private(x).square().mean().backward()

    refused("0.weight requires gradients", step, lambda: model)
    assert model[0].weight.grad is None


def test_a_loss_of_what_was_kept_on_the_way_is_refused() -> None:
    """A probe beside the output, whose loss no gate sees: 1.6 clip norms."""
    kept: dict[str, Tensor] = {}

    class Probed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.probe = linear(), linear()

        def forward(self, x: Tensor) -> Tensor:
            kept["probe"] = self.probe(x)
            return self.layer(x)  # type: ignore[no-any-return]

    def step(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        out = model(x)
        (kept["probe"] - kept["probe"].mean()).square().mean().backward()
        out.square().mean().backward()

    refused("past the model's output", step, Probed)


# --- What comes back ------------------------------------------------------------------------------------------


class OfNormOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Tensor:
        return 0.6 * gradient[0] / gradient[0].norm()


class Backwards(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.how = nn.Linear(FEATURES, FEATURES, bias=False), how
        self.last = linear().requires_grad_(False)
        nn.init.eye_(self.first.weight)
        if how == "hook of a module":
            self.last.register_full_backward_hook(lambda _, given, __: (0.6 * given[0] / given[0].norm(),))
        if how == "each by itself":
            self.last.register_full_backward_hook(lambda _, given, __: (given[0].clamp(-0.1, 0.1),))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.how == "hook of a tensor" and x.requires_grad:
            x.register_hook(lambda gradient: 0.6 * gradient / gradient.norm())
        return self.last(OfNormOne.apply(x) if self.how == "function" else x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["hook of a module", "hook of a tensor", "function"])
def test_gradients_that_mix_on_their_way_back_are_refused(how: str) -> None:
    """9.7 clip norms."""
    refused("gradient that comes back to layer first", _plain, lambda: Backwards(how))


def test_gradients_may_be_clipped_one_by_one() -> None:
    assert moved(_plain, lambda: Backwards("each by itself")) <= 1.0


class Remembering(nn.Module):
    """A hook writes a number of what comes back, or of nobody."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(FEATURES, FEATURES, bias=False), linear()
        nn.init.eye_(self.first.weight)
        self.what, self.where = what, where
        self.register_buffer("seen", torch.zeros(()))
        self.kept = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.layer.register_full_backward_hook(self.write)

    def write(self, _: Any, __: Any, back: tuple[Tensor, ...]) -> None:
        number = float(back[0].norm()) if self.what == "its norm" else 1.0
        if self.where == "attribute":
            self.number = number
        else:
            (self.seen if self.where == "buffer" else self.kept).data.fill_(number)  # type: ignore[union-attr, operator]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.first(x)) + 0 * self.kept  # type: ignore[no-any-return]


@pytest.mark.parametrize("where", ["buffer", "parameter", "attribute"])
def test_what_comes_back_may_not_stay_in_the_model(where: str) -> None:
    refused("the backward pass keeps something of the records in", _plain, lambda: Remembering("its norm", where))


class Masked(nn.Module):
    """Keeps its mask, which is drawn without a look at anybody."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()

    def forward(self, x: Tensor) -> Tensor:
        self.mask = F.dropout(torch.ones(x.shape[-1]), 0.5, self.training)
        return self.layer(x * self.mask)  # type: ignore[no-any-return]


def test_masks_that_are_drawn_for_all_may_stay() -> None:
    released(_plain, Masked(), TensorDataset(*people()))


def test_numbers_of_nobody_s_may_be_written_on_the_way_back() -> None:
    assert moved(_plain, lambda: Remembering("one", "buffer")) <= 1.0


# --- Numbers that somebody knows ------------------------------------------------------------------------------


class Seeding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return self.layer(F.dropout(x, 0.5, self.training))  # type: ignore[no-any-return]


def _drops(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
    public = torch.Generator().manual_seed(0)
    model(x * torch.bernoulli(torch.full_like(x, 0.5), generator=public)).square().mean().backward()


def _shifts(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
    public = torch.Generator().manual_seed(0)
    model(x + torch.empty_like(x).normal_(generator=public)).square().mean().backward()


def _plain(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
    model(x).square().mean().backward()


@pytest.mark.parametrize(("step", "make"), [(_drops, linear), (_shifts, linear), (_plain, Seeding)])
def test_generators_of_known_seeds_are_refused(step: Step, make: Callable[[], nn.Module]) -> None:
    """4.5 to 5.8 clip norms."""
    with pytest.raises(pp.InvalidInput, match=r"generator|bernoulli"):
        released(step, make(), TensorDataset(*people()), seed=None)


class Augmented(Dataset[Any]):
    """Draws from a generator of its own, one record after the other."""

    def __init__(self, kind: str) -> None:
        self.x, self.y = people()
        numpy, torchs, pythons = np.random.default_rng(0), torch.Generator().manual_seed(0), random.Random(0)
        old = np.random.RandomState(0)
        self.held = {
            "numpy": (numpy, lambda: torch.as_tensor(numpy.normal(size=FEATURES))),
            "torch": (torchs, lambda: torch.randn(FEATURES, generator=torchs)),
            "python": (pythons, lambda: torch.tensor([pythons.gauss(0, 1) for _ in range(FEATURES)])),
            "old numpy": (old, lambda: torch.as_tensor(old.normal(size=FEATURES))),
        }[kind]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> Any:
        return (self.x[number] + 3 * self.held[1]()).float(), self.y[number]


@pytest.mark.each_value_once
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["numpy", "torch", "python", "old numpy"])
def test_a_data_sets_own_generator_gives_secret_numbers(
    kind: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An absence would shift the numbers of all records behind it: 3.9 to 5.4 clip norms."""
    monkeypatch.setattr(GridNoise, "to_grid", lambda self, values, _: values.div_(self.step).round_())
    one, other = (
        released(_plain, linear(), Augmented(kind), seed=None, execution=pp.Execution(num_workers=workers))
        for _ in range(2)
    )
    assert float((one - other).norm()) / CLIP > 0.1
    again = [
        released(_plain, linear(), Augmented(kind), seed=3, execution=pp.Execution(num_workers=workers))
        for _ in range(2)
    ]
    assert torch.equal(*again)  # a seeded run's follow from its seed


def test_a_data_sets_own_generator_is_given_back() -> None:
    data = Augmented("numpy")
    expected = np.random.default_rng(0).normal(size=3)
    released(_plain, linear(), data)
    assert np.array_equal(data.held[0].normal(size=3), expected)


# --- Data sets that give whole batches ------------------------------------------------------------------------


class AtOnce(Dataset[Any]):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self.x, self.y = people()
        self.change = change

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        return list(zip(self.change(self.x[numbers]), self.y[numbers], strict=True))


def test_a_data_set_that_mixes_what_it_gives_at_once_is_refused() -> None:
    """4.5 clip norms."""
    for change in (lambda x: x - x.mean(0), lambda x: x / x.abs().max()):
        for data in (AtOnce(change), Subset(AtOnce(change), range(OTHERS + 1))):
            with pytest.raises(pp.InvalidInput, match="transform of whole batches"):
                released(_plain, linear(), data)


def test_one_that_does_not_is_let_through() -> None:
    for change in (lambda x: x / 30.0, lambda x: x + torch.randn_like(x)):
        released(_plain, linear(), AtOnce(change))
        released(_plain, linear(), Subset(AtOnce(change), range(OTHERS + 1)))


# --- Losses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [F.gaussian_nll_loss, F.multilabel_soft_margin_loss])
def test_losses_that_broadcast_without_a_word_do_not_pair_records(loss: Any) -> None:
    """(records, 1) beside (records,) makes records × records."""

    def step(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        out = model(x)
        more = [torch.ones_like(out)] if loss is F.gaussian_nll_loss else []
        loss(out, y, *more).backward()

    refused("pairs records", step)


@pytest.mark.parametrize("alike", [True, False])
def test_whether_rows_are_refused_does_not_hang_on_who_is_left_out(alike: bool) -> None:
    """A mask made of the batch, or its numbers, once with everybody in it and once not."""
    x, y = people(with_person=not alike)

    def by_mask(losses: Tensor) -> Tensor:
        return losses[losses.detach() < 3 * losses.detach().mean()]

    def by_number(losses: Tensor) -> Tensor:
        return losses[(losses.detach() < 1e9).nonzero().squeeze(1)]

    for chosen in (by_mask, by_number):

        def step(model: nn.Module, _: Any, x: Tensor, y: Tensor, chosen: Any = chosen) -> None:
            chosen((model(x)[:, 0] - 0.1 * y.clamp(-1, 1)).abs()).mean().backward()

        with pytest.raises(pp.InvalidInput, match="takes records by what"):
            released(step, linear(), TensorDataset(x, y))


def test_ordinary_losses_that_were_refused() -> None:
    def masks(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        mask = x[:, 0] > 0
        mask &= y < 0
        mask |= x[:, 1] > 1
        mask ^= x[:, 2] > 1
        (model(x)[:, 0] * mask).mean().backward()

    def smooth(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        torch.diff(model(x).expand(-1, 3) * torch.arange(3.0), dim=1).square().mean().backward()

    def in_order(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        losses, order = model(x)[:, 0], y.argsort()
        losses[order].mean().backward()

    for step in (masks, smooth, in_order):
        assert moved(step) <= 1.0


def test_what_the_loop_draws_is_the_same_if_a_step_is_begun_again() -> None:
    """Otherwise one could choose among masks."""
    data, model = TensorDataset(*people()), linear()
    plan = pp.plan(pp.Budgets(np.ones(len(data)), delta=1e-5), "uniform", steps=2, batch_size=25, clip_norm=CLIP)
    _, _, loader = pp.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, plan)

    def drawn() -> Tensor:
        for x, _ in loader:
            return torch.as_tensor(torch.rand_like(x).numpy())
        raise AssertionError

    assert torch.equal(drawn(), drawn())


# --- Ordinary programs ----------------------------------------------------------------------------------------


class Attending(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.last = how, nn.Linear(2, 1)
        self.layer: Any = {
            "encoder": lambda: nn.TransformerEncoderLayer(2, 1, 4, batch_first=True),
            "heads": lambda: nn.MultiheadAttention(2, 1, batch_first=True),
            "time first": lambda: nn.MultiheadAttention(2, 1),
            "lstm": lambda: nn.LSTM(2, 2, batch_first=True, num_layers=2),
            "gru": lambda: nn.GRU(2, 1, batch_first=True, bidirectional=True),
            "last state": lambda: nn.LSTM(2, 2, batch_first=True),
        }.get(how, nn.Identity)()

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(len(x), -1, 2)
        padded = x[..., 0] > 2.5
        padded = padded & padded.new_ones(x.shape[1]).index_fill(0, torch.tensor([0]), False)
        if self.how == "product":
            x = F.scaled_dot_product_attention(x, x, x, attn_mask=~padded.unsqueeze(1))
        elif self.how == "encoder":
            x = self.layer(x, src_key_padding_mask=padded)
        elif self.how == "heads":
            x = self.layer(x, x, x, key_padding_mask=padded)[0]
        elif self.how == "time first":
            x = self.layer(x.transpose(0, 1), x.transpose(0, 1), x.transpose(0, 1))[0].transpose(0, 1)
        else:
            out, state = self.layer(x)
            x = state[0][-1].unsqueeze(1) if self.how == "last state" else out
        return self.last(x)[:, -1]  # type: ignore[no-any-return]


TEACHERS = ["product", "encoder", "heads", "time first", "lstm", "gru", "last state"]


@pytest.mark.parametrize("how", TEACHERS)
def test_a_frozen_teacher_beside_the_model_is_followed(how: str) -> None:
    torch.manual_seed(0)
    teacher = Attending(how).eval()

    def step(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            target = teacher(x)
        F.mse_loss(model(x), target).backward()

    assert moved(step) <= 1.0


def test_a_teacher_that_pays_attention_to_other_records_is_not() -> None:
    teacher = nn.MultiheadAttention(FEATURES, 1).eval()  # takes (records, 1, features) for one sequence

    def step(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            target = teacher(x.unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1))[0][:, 0, :1]
        F.mse_loss(model(x), target).backward()

    def by_product(model: nn.Module, _: Any, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            target = F.scaled_dot_product_attention(x, x, x)[:, :1]
        F.mse_loss(model(x), target).backward()

    refused("several records", step)
    refused("several records", by_product)


def test_grad_scaler_is_refused_with_a_mend() -> None:
    scaler = torch.amp.GradScaler("cpu")

    def step(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
        scaler.scale(model(x).square().mean()).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)

    refused("leave it out", step)


class Tempered(nn.Module):
    """A learned number without dimensions, and inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.temperature = linear(), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Any) -> Tensor:
        return self.layer(x["x"] if isinstance(x, dict) else x) * self.temperature  # type: ignore[no-any-return]


@pytest.mark.parametrize("people_of", [1, 2])
def test_a_single_number_may_be_learned(people_of: int) -> None:
    x, y = people()
    n, ids = len(x), np.arange(len(x)) // people_of
    budgets = pp.Budgets(np.ones(n), delta=1e-3, person=ids)
    plan = pp.plan(budgets, "uniform", steps=1, batch_size=len(set(ids)), clip_norm=CLIP)
    model = Tempered()
    pp.train(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        TensorDataset(x, y),
        plan,
        lambda out, y: (out[:, 0] - y).square(),
        person=ids,
    )
    assert model.temperature.item() != 1.5
    assert moved(_plain, Tempered) <= 1.0


class Named(Dataset[Any]):
    def __len__(self) -> int:
        return OTHERS + 1

    def __getitem__(self, number: int) -> Any:
        x, y = people()
        return {"x": x[number]}, y[number]


def test_train_takes_inputs_by_name() -> None:
    n, model = OTHERS + 1, Tempered()
    plan = pp.plan(pp.Budgets(np.ones(n), delta=1e-5), "uniform", steps=2, batch_size=n, clip_norm=CLIP)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert pp.train(model, optimizer, Named(), plan, lambda out, y: (out[:, 0] - y).square()).steps == 2
