"""Layers, optimizers and data that need a word of their own: they work, or are refused by name and with the mend."""

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.data import IterableDataset, TensorDataset

import privypurse as pp

pytestmark = [
    pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning"),
    pytest.mark.filterwarnings("ignore:.*weight_norm.*"),
]
LOSS = partial(F.cross_entropy, reduction="none")


def data(size: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 5, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 2, (size,), generator=generator)


def alone(model: nn.Module, x: Tensor, y: Tensor) -> tuple[list[Tensor], list[float]]:
    """Every record's gradient clipped to 0.1 and added up, and their norms, one record at a time."""
    parameters = list(model.parameters())
    total, norms = [torch.zeros_like(value) for value in parameters], []
    for i in range(len(x)):
        found = torch.autograd.grad(LOSS(model(x[i : i + 1]), y[i : i + 1]).sum(), parameters)
        norms.append(sum(float(value.square().sum()) for value in found) ** 0.5)
        for sum_, value in zip(total, found, strict=True):
            sum_ += value * min(1.0, 0.1 * (1 - 1e-4) / norms[-1])
    return total, norms


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inside = kind(4, 3, batch_first=True, **options)
        self.last = nn.Linear(3 * (1 + self.inside.bidirectional), 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inside(x)[0].mean(1))


class Cells(nn.Module):
    def __init__(self, kind: type[nn.RNNCellBase], start: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.last, self.start = kind(4, 3), nn.Linear(3, 2), start  # type: ignore[call-arg]

    def forward(self, x: Tensor) -> Tensor:
        zeros, both = x.new_zeros(len(x), 3), isinstance(self.cell, nn.LSTMCell)
        state: Any = ((zeros, zeros) if both else zeros) if self.start else None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.last(state[0] + 0.5 * state[1] if both else state)


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    **{
        f"{kind.__name__} {options}": partial(Recurrent, kind, **options)
        for kind in (nn.GRU, nn.RNN, nn.LSTM)
        for options in ({}, {"bidirectional": True}, {"num_layers": 2}, {"bias": False})
    },
    "RNN relu": partial(Recurrent, nn.RNN, nonlinearity="relu", num_layers=2, bidirectional=True),
    **{
        f"{kind.__name__} {start}": partial(Cells, kind, start)
        for kind in (nn.GRUCell, nn.RNNCell, nn.LSTMCell)
        for start in (True, False)
    },
    "weight_norm": lambda: nn.Sequential(nn.Flatten(), parametrizations.weight_norm(nn.Linear(20, 2))),
    "weight_norm, no bias": lambda: nn.Sequential(
        nn.Flatten(), parametrizations.weight_norm(nn.Linear(20, 2, bias=False))
    ),
}


@pytest.mark.parametrize("case", RECURRENT)
def test_recurrent_layers_and_parametrizations_are_clipped_record_by_record(case: str) -> None:
    model, (x, y) = RECURRENT[case]().double(), data()
    expected, norms = alone(model, x, y)
    sums, found = pp.clipped_sum(model, LOSS, x, y, 0.1)
    np.testing.assert_allclose(found.numpy(), norms, rtol=1e-8)
    for (name, _), theirs in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(sums[name], theirs, rtol=1e-6, atol=1e-10)


def test_a_recurrent_network_trains() -> None:
    x, y = data(30)
    plan = pp.plan(pp.Budgets(np.full(30, 3.0), delta=1e-3), steps=3, batch_size=8, accountant="rdp")
    for build in (partial(Recurrent, nn.GRU), partial(Cells, nn.LSTMCell, False)):
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert pp.train(model, optimizer, TensorDataset(x.float(), y), plan, LOSS).steps == 3


class Deep(nn.Module):
    """A layer two levels down."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"layer": layer})
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body["layer"](x)
        return self.last((out[0] if isinstance(out, tuple) else out).flatten(1)[:, :3])


class Positions(nn.Module):
    """Looks positions up once for all records."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(x.shape[1])).unsqueeze(0)


def loop(model: nn.Module, x: Tensor, optimizer: Any = None, dataset: Any = None) -> None:
    plan = pp.plan(pp.Budgets(np.full(30, 3.0), delta=1e-3), steps=3, batch_size=20, accountant="rdp")
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    y = torch.zeros(30, dtype=torch.int64)
    pp.train(model, optimizer, dataset or TensorDataset(x, y), plan, LOSS)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda: nn.utils.weight_norm(nn.Linear(4, 3)), r"body\.layer \(Linear\).*WeightNorm.*remove_weight_norm"),
        (lambda: nn.utils.spectral_norm(nn.Linear(4, 3)), r"body\.layer \(Linear\).*SpectralNorm"),
        (lambda: parametrizations.spectral_norm(nn.Linear(4, 3)), r"body\.layer\.parametrizations"),
        (lambda: nn.GRU(4, 3), r"body\.layer \(GRU\).*batch_first=True"),
        (Positions, r"body\.layer\.table \(Embedding\).*expand\(records"),
    ],
    ids=["weight_norm", "spectral_norm", "spectral_norm, new", "time first", "positions"],
)
def test_what_is_refused_is_named_by_its_path_and_with_the_mend(layer: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(pp.InvalidInput, match=words):
        loop(Deep(layer()), torch.randn(30, 5, 4))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_what_has_no_private_way_is_unsupported_by_name() -> None:
    model, x = nn.Linear(4, 2), torch.randn(30, 4)
    with pytest.raises(pp.errors.Unsupported, match=r"LBFGS.*SGD or Adam"):
        loop(model, x, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(pp.errors.Unsupported, match=r"Stream.*__getitem__"):
        loop(model, x, dataset=Stream())
    with pytest.raises(pp.errors.Unsupported, match=r"weight.*meta device.*to_empty"):
        loop(nn.Linear(4, 2, device="meta"), x)


def test_a_scheduler_that_asks_how_training_goes_is_refused() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plan = pp.plan(pp.Budgets(np.full(30, 3.0), delta=1e-3), steps=3, batch_size=8, accountant="rdp")
    dataset = TensorDataset(torch.randn(30, 4), torch.zeros(30, dtype=torch.int64))
    asking: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(pp.InvalidInput, match=r"ReduceLROnPlateau decides by metrics.*StepLR"):
        pp.train(model, optimizer, dataset, plan, LOSS, scheduler=asking)
    pp.train(model, optimizer, dataset, plan, LOSS, scheduler=torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 3))


def test_the_bar_says_that_its_loss_is_internal() -> None:
    from privypurse.training.progress import _RichBar

    bar = _RichBar(pp.plan(pp.Budgets(np.full(30, 3.0), delta=1e-3), steps=3, batch_size=8, accountant="rdp"))
    bar.update(1, 0.25)
    assert "loss 0.250 (internal)" in bar.progress.tasks[0].fields["figures"]


def test_the_bar_shows_steps_loss_and_spending_whole_on_a_narrow_terminal() -> None:
    from rich.console import Console

    from privypurse.training.progress import _RichBar

    budgets = pp.Budgets(np.repeat([1.0, 2.0, 3.0, 4.0], 10), delta=1e-3)
    bar = _RichBar(pp.plan(budgets, steps=20_000, batch_size=8, noise_multiplier=9.0, accountant="rdp"))
    bar.update(12_345, loss=0.25)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(bar.progress.get_renderable())
    words = console.export_text().split()
    assert {"12345/20000", "loss", "0.250", "(internal)"} <= set(words)
    assert sum("/" in word for word in words) == 5  # the steps, and what each of the four levels has spent
    assert "…" not in " ".join(words)


@pytest.mark.parametrize("physical", [None, 7])
def test_who_is_left_out_for_a_gradient_that_is_not_finite_is_counted(physical: int | None) -> None:
    """Everyone is drawn: 3 of 30 people in each of 4 steps. A step that is broken off is not counted twice."""
    x = torch.randn(30, 4)
    x[[2, 5, 20]] = torch.tensor([[torch.nan], [torch.inf], [-torch.inf]]).expand(3, 4)
    plan = pp.plan(pp.Budgets(np.full(30, 3.0), delta=1e-3), "scale", steps=4, batch_size=30, accountant="rdp")
    dataset = TensorDataset(x, torch.arange(30) % 2)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert (
        pp.train(model, optimizer, dataset, plan, LOSS, execution=pp.Execution(max_physical_batch=physical)).left_out
        == 12
    )
    private, stepping, loader = pp.make_private(
        model, optimizer, dataset, plan, execution=pp.Execution(max_physical_batch=physical)
    )
    for attempt in range(2):
        for some, y in loader:
            F.cross_entropy(private(some), y).backward()
            stepping.step()
            if attempt == 0:
                break
    assert stepping.left_out == 12


class Transformer(nn.Module):
    """Positions and a class token as bare parameters, around torch's encoder with dropout."""

    def __init__(self, how: str = "broadcast", dropout: float = 0.3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.positions = nn.Parameter(torch.randn((6, 4) if how == "flat" else (1, 6, 4)))
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        x = x + (self.positions[0] if self.how == "one row" else self.positions)
        return self.last(self.encoder(x)[:, 0])


def test_positions_as_a_bare_parameter_train_in_a_fixed_transformer() -> None:
    x, y = data()
    model = pp.fix(Transformer()).double()
    quiet = pp.fix(Transformer(dropout=0.0)).double()  # the same weights, through the other rule
    expected, norms = alone(quiet, x, y)
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 1e-300  # drops nothing, and is a layer that draws
        if hasattr(layer, "dropout") and isinstance(layer.dropout, float):
            layer.dropout = 0.0
    sums, found = pp.clipped_sum(model, LOSS, x, y, 0.1)
    np.testing.assert_allclose(found.numpy(), norms, rtol=1e-6)
    for (name, _), theirs in zip(quiet.named_parameters(), expected, strict=True):
        torch.testing.assert_close(sums[name], theirs, rtol=1e-5, atol=1e-9)
    order = list(model.state_dict())
    loop(pp.fix(Transformer()), torch.randn(30, 5, 4))
    assert list(model.state_dict()) == order


def test_a_bare_parameter_that_is_not_used_record_by_record_is_refused() -> None:
    with pytest.raises(pp.InvalidInput, match="positions is used by one record for another"):
        loop(pp.fix(Transformer("one row")), torch.randn(30, 5, 4))
    with pytest.raises(pp.InvalidInput, match="leading dimension of 1") as refused:
        loop(pp.fix(Transformer("flat")), torch.randn(30, 5, 4))
    assert "fix(model)" not in str(refused.value)  # it is fixed
    with pytest.raises(pp.InvalidInput, match=r"fix\(model\)"):
        loop(Transformer(), torch.randn(30, 5, 4))
