"""train(forgiving=True): whoever makes model or loss raise contributes nothing, and nobody else notices."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import privypurse as pp
from privypurse.plans import LevelTable, Plan, Promise, TrainingShape
from privypurse.training import failing_records, loop
from privypurse.training.gradients import clipping

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests
LOSS = partial(F.cross_entropy, reduction="none")
BAD = 7.0  # the first number of a record that makes something raise
PERSON = np.repeat(np.arange(6), [1, 3, 2, 1, 3, 2])


def planned(size: int, person: Any = None, rate: float = 0.6, steps: int = 5, noise: float = 0.5) -> Plan:
    people = size if person is None else int(person.max()) + 1
    one = np.ones(1)
    return Plan(
        method="test",
        accountant="rdp",
        promise=Promise.PART,  # no promise of its own: the noise is as small as the test needs it
        shape=TrainingShape(steps=steps, batch_size=3, clip_norm=0.5, noise_multiplier=noise),
        levels=LevelTable(epsilon=one, delta=1e-5 * one, rate=rate * one, clip_norm=0.5 * one, capped=one < 0),
        level_of=np.zeros(people, np.int64),
        owner=person,
    )


def data(size: int = 12, bad: tuple[int, ...] = ()) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 4, generator=generator)
    y = (x[:, 1] > 0).long()
    x[:, 0] = 0.0
    x[list(bad), 0] = BAD
    return TensorDataset(x, y)


class Layer(nn.Module):
    """Raises in the forward pass if a bad record is there."""

    def forward(self, x: Tensor) -> Tensor:
        if (x[:, 0] == BAD).any():
            raise ValueError("what is wrong with a record is not said")
        return x


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, losses: Tensor, bad: Tensor) -> Tensor:
        ctx.bad = bool(bad.any())
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.bad:
            raise FloatingPointError("in the backward pass")
        return gradients[0], None


def network(*first: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*first, nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def fails_in_loss(output: Tensor, label: Tensor) -> Tensor:
    if (label >= 100).any():
        raise RuntimeError("about somebody")
    return LOSS(output, label)


def fails_in_backward(output: Tensor, label: Tensor) -> Tensor:
    return _Backward.apply(LOSS(output, label % 100), label >= 100)  # type: ignore[no-any-return, no-untyped-call]


def trained(dataset: Dataset[Any], plan: Plan, how: str = "loss", **options: Any) -> Tensor:
    """The parameters after training; ``how`` says where a bad record raises."""
    loss: Callable[..., Tensor] = LOSS
    if how in ("loss", "backward") and isinstance(dataset, TensorDataset):
        x, y = dataset.tensors
        bad = x[:, 0] == BAD
        dataset = TensorDataset(torch.where(bad[:, None], x.clamp(max=1), x), y + 100 * bad)
        loss = fails_in_loss if how == "loss" else fails_in_backward
    model = network(*([Layer()] if how == "model" else []))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    settings: dict[str, Any] = {"seed": 3, "forgiving": True, **options}
    pp.train(model, optimizer, dataset, plan, settings.pop("loss_fn", loss), **settings)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


WHERE = pytest.mark.parametrize("how", ["loss", "model", "backward"])


@WHERE
def test_otherwise_the_run_ends(how: str) -> None:
    with pytest.raises((RuntimeError, ValueError, FloatingPointError)):
        trained(data(bad=(11,)), planned(12), how, forgiving=False)


@pytest.mark.each_value_once
@WHERE
@pytest.mark.parametrize("physical", [None, 4])
@pytest.mark.parametrize("bad", [(11,), (10, 11)])
def test_a_record_that_raises_contributes_nothing_and_the_others_all(
    how: str, physical: int | None, bad: tuple[int, ...]
) -> None:
    """The others have the same coins and the same noise with and without it."""
    few = 12 - len(bad)
    x, y = data().tensors
    without = trained(
        TensorDataset(x[:few], y[:few]), planned(few), how, execution=pp.Execution(max_physical_batch=physical)
    )
    found = trained(data(bad=bad), planned(12), how, execution=pp.Execution(max_physical_batch=physical))
    torch.testing.assert_close(found, without, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(
        found, trained(data(), planned(12), how, execution=pp.Execution(max_physical_batch=physical)), atol=1e-3
    )


@pytest.mark.each_value_once
@WHERE
@pytest.mark.parametrize("physical", [None, 4])
@pytest.mark.parametrize("bad", [(10,), (11,), (10, 11)])
def test_a_person_with_a_record_that_raises_contributes_nothing_and_the_others_all(
    how: str, physical: int | None, bad: tuple[int, ...]
) -> None:
    x, y = data().tensors
    without = trained(
        TensorDataset(x[:10], y[:10]),
        planned(10, PERSON[:10]),
        how,
        execution=pp.Execution(max_physical_batch=physical),
    )
    found = trained(data(bad=bad), planned(12, PERSON), how, execution=pp.Execution(max_physical_batch=physical))
    torch.testing.assert_close(found, without, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, trained(data(), planned(12, PERSON), how), atol=1e-3)


@pytest.mark.parametrize("person", [None, PERSON], ids=["records", "persons"])
def test_where_nothing_raises_nothing_changes(person: Any) -> None:
    plan = planned(12, person, noise=1e-9)  # sums are wide, so the noise is another
    found, usual = trained(data(), plan), trained(data(), plan, forgiving=False)
    torch.testing.assert_close(found, usual, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, trained(data(), planned(12, person, rate=1e-300, noise=1e-9)), atol=1e-3)


def test_where_everybody_raises_noise_is_left() -> None:
    found = trained(data(bad=tuple(range(12))), planned(12))
    assert torch.equal(found, trained(data(), planned(12, rate=1e-300)))


@WHERE
def test_a_record_that_stands_in_for_nobody_may_raise(how: str) -> None:
    """A step that draws nobody has a batch all the same, with the first record in it."""
    plan = planned(12, rate=1e-300)
    assert torch.equal(trained(data(bad=(0,)), plan, how), trained(data(), plan, how))


@pytest.mark.parametrize("forgiving", [True, False])
def test_whether_records_are_kept_apart_is_looked_at_elsewhere(
    forgiving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(loop, "require_isolated", lambda *_: calls.append("model"))
    monkeypatch.setattr(clipping, "require_own_losses", lambda *_: calls.append("loss"))
    trained(data(), planned(12), forgiving=forgiving)
    assert set(calls) == (set() if forgiving else {"model", "loss"})


class Panic(BaseException):
    """As of a library that is written in Rust."""


def test_whoever_makes_something_panic_contributes_nothing() -> None:
    def panics(output: Tensor, label: Tensor) -> Tensor:
        if (label >= 100).any():
            raise Panic
        return LOSS(output, label)

    x, y = data().tensors
    without = trained(TensorDataset(x[:11], y[:11]), planned(11))
    found = trained(TensorDataset(x, y + 100 * (torch.arange(12) == 11)), planned(12), loss_fn=panics)
    torch.testing.assert_close(found, without, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("alone", [False, True])
def test_what_is_no_error_of_a_record_ends_the_run(error: type[BaseException], alone: bool) -> None:
    def stopped(output: Tensor, label: Tensor) -> Tensor:
        if alone == bool((output == output[0]).all()):  # alone, a record fills the batch
            raise error
        return fails_in_loss(output, label + 100 * alone)

    with pytest.raises(error):
        trained(data(), planned(12), loss_fn=stopped)


def amplifier() -> nn.Module:
    """Parameters by which the last bits of the first product decide every gradient, as a server might choose them."""
    torch.manual_seed(1)
    model = nn.Sequential(Layer(), nn.Linear(130, 8, bias=False), nn.Linear(8, 2, bias=False))
    with torch.no_grad():
        half = torch.randn(8, 64)
        model[1].weight.copy_(torch.cat([torch.zeros(8, 2), half, half], dim=1))  # type: ignore[union-attr, operator]
        model[2].weight.mul_(1e12)  # type: ignore[union-attr, operator]
    return model


def cancelling(size: int) -> TensorDataset:
    """Records that the amplifier's first layer maps to 0, up to rounding."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(size, 64, generator=generator)
    x = torch.cat([torch.zeros(size, 2), half, -half], dim=1)
    return TensorDataset(x, torch.randint(2, (size,), generator=generator))


def moved(dataset: TensorDataset) -> Tensor:
    """What one step adds to the amplifier's first layer, in clip norms."""
    plan, model = planned(len(dataset), rate=1.0, steps=1, noise=1e-9), amplifier()
    before = model[1].weight.detach().clone()  # type: ignore[index, union-attr, operator]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    pp.train(model, optimizer, dataset, plan, LOSS, seed=3, forgiving=True)
    change = model[1].weight.detach() - before  # type: ignore[index, union-attr, operator]
    return change * plan.shape.batch_size / plan.shape.clip_norm


@pytest.mark.parametrize("size", [2, 5, 6, 8, 16, 17, 33, 64, 100])
def test_nobodys_presence_decides_how_others_round(size: int) -> None:
    """Neither by being there nor by raising: the parameters amplify every bit that changes."""
    x, y = cancelling(size).tensors
    whole, without = moved(TensorDataset(x, y)), moved(TensorDataset(x[1:], y[1:]))
    x = x.clone()
    x[0, 0] = BAD
    raising = moved(TensorDataset(x, y))
    assert float((whole - without).norm()) <= 1 + 1e-6
    assert float((raising - without).norm()) <= 1e-6


def test_one_who_raises_costs_a_few_passes_and_not_one_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that can make a record raise could otherwise stall a client, or tell from the time that it did."""
    passes: list[int] = []
    recorded = failing_records.recorded

    def counted(recorder: Any, loss_fn: Any, inputs: tuple[Tensor, ...], *rest: Any) -> Any:
        passes.append(len(inputs[0]))
        return recorded(recorder, loss_fn, inputs, *rest)

    monkeypatch.setattr(failing_records, "recorded", counted)
    monkeypatch.setattr(loop, "one_shape", lambda *_: 128)
    x, y = cancelling(128).tensors
    x[77, 0] = BAD
    moved(TensorDataset(x, y))
    assert set(passes) == {128}
    assert 2 < len(passes) <= 2 + 2 * 7  # the whole, all of them again, and both halves seven times


def test_a_person_with_more_records_than_a_batch_has_one_alone(recwarn: pytest.WarningsRecorder) -> None:
    """Of several times the shape; others keep theirs, and nobody is told to limit what nobody set."""
    person = np.repeat(np.arange(4), [2, 40, 2, 2])
    plan = planned(46, person, rate=1.0, steps=1, noise=1e-9)
    x, y = data(46).tensors
    found = trained(TensorDataset(x, y), plan)
    torch.testing.assert_close(found, trained(TensorDataset(x, y), plan, forgiving=False), rtol=1e-5, atol=1e-6)
    assert not any("max_physical_batch" in str(each.message) for each in recwarn)
    x[2:42, 0] = BAD  # they raise, and the others stay
    fewer = person != 1
    without = planned(6, np.repeat(np.arange(3), 2), rate=1.0, steps=1, noise=1e-9)
    expected = trained(TensorDataset(*(t[torch.as_tensor(fewer)] for t in (x, y))), without, "model")
    torch.testing.assert_close(trained(TensorDataset(x, y), plan, "model"), expected, rtol=1e-5, atol=1e-6)


def test_the_shape_of_a_batch_would_decide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: were somebody's trouble to change the others' shape, they would move by several clip norms."""
    found = moved(cancelling(100))
    monkeypatch.setattr(loop, "one_shape", lambda *_: 1)
    assert float((moved(cancelling(100)) - found).norm()) > 2


class Structured(Dataset[Any]):
    """Records whose label has parts."""

    def __init__(self, bad: tuple[int, ...] = (), size: int = 12) -> None:
        self._x, self._y = data(size).tensors
        self._y[list(bad)] = 100

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        return self._x[index], {"class": self._y[index], "weight": torch.ones(())}


def test_a_label_may_have_parts() -> None:
    def weighted(output: Tensor, label: dict[str, Tensor]) -> Tensor:
        return label["weight"] * fails_in_loss(output, label["class"])

    x, y = data().tensors
    assert torch.equal(trained(Structured(), planned(12), loss_fn=weighted), trained(data(), planned(12)))
    found = trained(Structured(bad=(11,)), planned(12), loss_fn=weighted)
    without = trained(TensorDataset(x[:11], y[:11]), planned(11))
    torch.testing.assert_close(found, without, rtol=1e-5, atol=1e-6)
