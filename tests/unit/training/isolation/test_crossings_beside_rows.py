"""Ways for a record to reach others that no row shows.

A number for all, what is not finite, outputs from which nothing comes back, norms that are measured between steps, a
model that is asked in evaluation mode.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.queries import statistics
from training_tools import LOSS

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests
REFUSED = "changes with the other records|for 2: the first dimension|changes with other records"
PEOPLE = 40
PLAN = pp.plan(pp.Budgets(np.full(PEOPLE, 2.0), delta=1e-5), steps=4, batch_size=PEOPLE, clip_norm=1.0)


def people(scale: float = 1.0) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(PEOPLE, 5, generator=generator)
    x[7] *= scale
    return TensorDataset(x, (x[:, 0] > 0).long())


def by_train(model: nn.Module, loss: Callable[..., Tensor], data: TensorDataset, **options: Any) -> None:
    pp.train(model, torch.optim.SGD(model.parameters(), lr=0.0), data, PLAN, loss, seed=0, **options)


def by_own_loop(
    model: nn.Module, loss: Callable[..., Tensor], data: TensorDataset, plan: pp.Plan = PLAN, **options: Any
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer, loader = pp.make_private(model, optimizer, data, plan, seed=0, **options)  # type: ignore[assignment]
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), y).mean().backward()
        optimizer.step()


BOTH = pytest.mark.parametrize("way", [by_train, by_own_loop])


class WithNumber(nn.Module):
    """Logits, and beside them a number for the whole batch."""

    def __init__(self, number: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.number = nn.Linear(5, 2), number

    def forward(self, x: Tensor) -> dict[str, Any]:
        logits = self.layer(x)
        return {"logits": logits, "number": self.number(logits)}


def of_logits(out: dict[str, Any], y: Tensor) -> Tensor:
    return F.cross_entropy(out["logits"], y, reduction="none")


@pytest.mark.parametrize(
    "number",
    [
        lambda logits: logits.mean(0).square().sum(),
        lambda logits: logits.detach().abs().max(),
        lambda logits: float(logits.detach().abs().max()),
        lambda logits: int(logits.detach().argmax()),
        len,
    ],
    ids=["balance", "largest", "float", "int", "records"],
)
def test_a_number_for_all_that_hangs_on_records_is_refused(number: Callable[[Tensor], Any]) -> None:
    with pytest.raises(pp.InvalidInput, match=REFUSED):
        by_train(WithNumber(number), lambda out, y: of_logits(out, y) * out["number"], people(300.0))


@pytest.mark.parametrize(
    "number", [lambda logits: 0.5, lambda logits: torch.tensor(2.0), lambda logits: None, lambda logits: "name"]
)
def test_a_number_for_all_that_is_always_the_same_is_not(number: Callable[[Tensor], Any]) -> None:
    by_train(WithNumber(number), of_logits, people(300.0))


def of_the_loss(use: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda out, y: of_logits(out, y) * use(out["number"])


def test_a_loop_of_ones_own_follows_the_number_so_it_may_be_there_but_not_be_used() -> None:
    """As models of Hugging Face give a loss of their own, a mean over the batch, beside the logits."""

    def mean(logits: Tensor) -> Tensor:
        return logits.square().mean()

    by_own_loop(WithNumber(mean), of_logits, people(300.0))
    uses: list[Callable[[Tensor], Tensor]] = [
        lambda number: number,
        lambda number: number.detach(),
        lambda number: number.data,
        lambda number: torch.ones(()).copy_(number.detach()),
    ]
    for use in uses:
        with pytest.raises(pp.InvalidInput, match="brings what"):
            by_own_loop(WithNumber(mean), of_the_loss(use), people(300.0))
    with pytest.raises(pp.InvalidInput, match=REFUSED):
        by_own_loop(WithNumber(lambda logits: float(mean(logits))), of_logits, people(300.0))


def test_a_learned_number_is_a_parameter_of_the_model_and_may_be_given_back() -> None:
    """As CLIP gives its temperature, here frozen."""
    model = WithNumber(lambda logits: None)
    model.temperature = nn.Parameter(torch.tensor(0.7), requires_grad=False)
    model.number = lambda logits: model.temperature.exp()
    optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.0)
    pp.train(model, optimizer, people(), PLAN, of_logits, seed=0)


class Stable(nn.Module):
    """A softmax by hand, stable for the loudest record alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        powers = (hidden - hidden.max()).exp()
        out: Tensor = self.second(powers / powers.sum(1, keepdim=True))
        return out


class SwitchedOff(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out + 0.0 * out.square().mean()


@BOTH
@pytest.mark.parametrize(("make", "scale"), [(Stable, 1e4), (lambda: SwitchedOff(5, 2), float("nan"))])
def test_a_record_that_makes_others_not_finite_is_found(
    way: Callable[..., None], make: Callable[[], nn.Module], scale: float
) -> None:
    torch.manual_seed(0)
    with pytest.raises(pp.InvalidInput, match=REFUSED):
        way(make(), LOSS, people(scale))


@BOTH
@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 1e30])
def test_a_wild_record_that_stays_by_itself_is_let_through(way: Callable[..., None], scale: float) -> None:
    torch.manual_seed(0)
    way(nn.Sequential(nn.Linear(5, 3), nn.Softmax(1), nn.LayerNorm(3), nn.Linear(3, 2)), LOSS, people(scale))


class Attending(nn.Module):
    """Gives its attention's weights too, from which no gradient may come back."""

    def __init__(self, weights: bool, clipped: bool) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(5, 1, batch_first=True), nn.Linear(5, 2)
        self.weights, self.clipped = weights, clipped

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        places = x[:, None, :].expand(-1, 3, -1)
        mixed, weights = self.attention(places, places, places)
        out = self.last(mixed.mean(1))
        if self.clipped and out.requires_grad:
            out.register_hook(lambda gradient: gradient * min(1.0, 1e-3 / float(gradient.norm())))
        return (out, weights) if self.weights else (out,)


@BOTH
@pytest.mark.parametrize("weights", [False, True])
def test_outputs_from_which_nothing_comes_back_do_not_hide_the_others(
    way: Callable[..., None], weights: bool
) -> None:
    def loss(out: tuple[Tensor, ...], y: Tensor) -> Tensor:
        return LOSS(out[0], y)

    way(Attending(weights, clipped=False), loss, people())
    with pytest.raises(pp.InvalidInput, match=REFUSED):
        way(Attending(weights, clipped=True), loss, people(100.0))


def whether_all_are_quiet(out: Tensor, y: Tensor) -> Tensor:
    return LOSS(out, y) * (out.detach().abs().max() < 50).double()


def by_number(out: Tensor, y: Tensor) -> Tensor:
    return LOSS(out, y) / len(y)


@pytest.mark.parametrize("loss", [whether_all_are_quiet, by_number])
def test_the_loss_of_norm_passes_is_asked_in_a_loop_of_ones_own(loss: Callable[..., Tensor]) -> None:
    """It decides how much everybody may contribute, and the loop itself uses another one."""
    model = nn.Linear(5, 2)
    plan = pp.plan(pp.Budgets(np.full(PEOPLE, 2.0), delta=1e-5), steps=4, batch_size=20, clip_norm=1.0)
    by_own_loop(model, LOSS, people(1000.0), plan, individual=pp.Individual(exact=True), loss_fn=LOSS)
    with pytest.raises(pp.InvalidInput, match="the loss of a record changes with the other records"):
        by_own_loop(model, LOSS, people(1000.0), plan, individual=pp.Individual(exact=True), loss_fn=loss)


class CentredWhenAsked(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if self.training else x - x.mean(0))


def test_a_model_that_mixes_in_evaluation_mode_answers_no_question() -> None:
    rule = pp.StopAtPlateau(every=2, noise=30.0, most=3)
    plan = pp.plan(
        pp.Budgets(np.full(PEOPLE, 8.0), delta=1e-5), steps=2, batch_size=8, clip_norm=1.0, extra_steps=4, stop=rule
    )
    for make, fine in ((nn.Linear, True), (CentredWhenAsked, False)):
        model = make(5, 2)
        run = (model, torch.optim.SGD(model.parameters(), lr=0.0), people(100.0), plan, LOSS)
        if fine:
            assert len(pp.train(*run, seed=0).spending.told) > 0
        else:
            with pytest.raises(pp.InvalidInput, match=REFUSED):
                pp.train(*run, seed=0)


@pytest.fixture
def norms(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What the private median is told of everybody."""
    seen: list[np.ndarray] = []
    asked = statistics.quantiles

    def quantiles(values: Any, *given: Any, **options: Any) -> Any:
        seen.append(np.array(values))
        return asked(values, *given, **options)

    monkeypatch.setattr(statistics, "quantiles", quantiles)
    return seen


def median(model: nn.Module) -> None:
    purses = pp.Filter(np.full(PEOPLE, 8.0), np.full(PEOPLE, 1e-5))
    pp.median_gradient_norm(model, LOSS, people(100.0), purses, cap=20.0, noise=30.0)


def test_the_median_of_norms_is_asked_of_records_that_stay_apart() -> None:
    class Standardised(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward((x - x.mean(0)) / x.std(0))

    with pytest.raises(pp.InvalidInput, match=REFUSED):
        median(Standardised(5, 2))


def test_the_masks_of_the_median_of_norms_are_secret(norms: list[np.ndarray]) -> None:
    """With numbers that somebody knows, one absence would shift everybody's mask, and everybody's norm."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    for _ in range(2):
        torch.manual_seed(0)
        before = torch.get_rng_state()
        median(model)
        assert torch.equal(torch.get_rng_state(), before)
    assert (norms[0] != norms[1]).mean() > 0.9
    median(model.eval())
    median(model)
    assert (norms[2] == norms[3]).all()


class Freezing(pp.Callback):
    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def on_step(self, figures: pp.Figures) -> None:
        self.layer.requires_grad_(False)


def test_layers_that_are_frozen_later_are_refused() -> None:
    """A step would move them all the same."""
    model = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2))
    with pytest.raises(pp.InvalidInput, match=r"0\.weight was frozen after training began"):
        by_train(model, LOSS, people(), callbacks=[Freezing(model[0])])
