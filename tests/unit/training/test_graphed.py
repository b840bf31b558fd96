"""The ordinary loop on a GPU: passes that are captured and replayed do what passes as they are do."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.errors import InvalidInput
from privypurse.training import current_batch as current
from privypurse.training.graphed import Replay, _Rows
from privypurse.training.physical_batches import few_shapes

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
CUDA = pytest.mark.needs("cuda")
PEOPLE, STEPS = 400, 14


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.LayerNorm(144), nn.Linear(144, 3))


class Named(nn.Module):
    """Gives a dictionary, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.inner(x)
        return {"logits": out, "classes": out.argmax(dim=1)}


def data(device: str = "cuda") -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(PEOPLE, 1, 8, 8, device=device), torch.randint(0, 3, (PEOPLE,), device=device))


def planned(**options: object) -> pp.Plan:
    epsilons = np.resize([1.0, 2.0, 4.0], PEOPLE)
    options = {"steps": STEPS, "batch_size": 96, "clip_norm": 0.3, "accountant": "rdp", **options}
    return pp.plan(pp.Budgets(epsilons, delta=1e-3), "sample", **options)


def trained(
    model: nn.Module,
    capture: bool | None,
    plan: pp.Plan | None = None,
    each: Callable[[nn.Module, int], None] | None = None,
    **options: object,
) -> tuple[nn.Module, list[bool]]:
    """The model after the loop, and which of its passes were replayed."""
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private, optimizer, loader = pp.make_private(
        model, optimizer, data(), plan or planned(), seed=3, execution=pp.Execution(capture=capture), **options
    )
    replayed = []
    for step, (x, y) in enumerate(loader):
        if each is not None:
            each(model, step)
        optimizer.zero_grad()
        out = private(x)
        out = out["logits"] if isinstance(out, dict) else out
        replayed.append(isinstance(private._current_batch._passes[-1].tape, Replay))
        F.cross_entropy(out, y).backward()
        optimizer.step()
    return model, replayed


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(mine, theirs, rtol=1e-3, atol=1e-4) for mine, theirs in pairs)


@CUDA
@pytest.mark.parametrize("make", [small, Named])
@pytest.mark.parametrize("wide", [False, True])
def test_replays_take_the_steps_of_passes_as_they_are(make: Callable[[], nn.Module], wide: bool) -> None:
    one, replayed = trained(make(), None, wide_sums=wide)
    other, as_it_is = trained(make(), False, wide_sums=wide)
    assert all(replayed[3:])
    assert not any(as_it_is)
    assert same(one, other)
    assert not same(one, make().cuda())


@CUDA
def test_parts_of_a_step_are_added_up() -> None:
    """Steps of several physical batches, the first of which came before anything was captured."""
    results = []
    for capture in (None, False):
        model = small().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        execution = pp.Execution(capture=capture, max_physical_batch=32)
        private, optimizer, loader = pp.make_private(model, optimizer, data(), planned(), seed=3, execution=execution)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(private(x), y).backward()
            optimizer.step()
        results.append(model)
    assert same(*results)


@CUDA
def test_a_batch_that_is_larger_than_expected_makes_room() -> None:
    """Graphs of smaller batches are captured anew, so that all have the same memory around them."""
    results = []
    for capture in (None, False):
        model = small().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        execution = pp.Execution(capture=capture)
        plan = planned(steps=40, batch_size=32)
        private, optimizer, loader = pp.make_private(model, optimizer, data(), plan, seed=3, execution=execution)
        graphs, largest = private._current_batch._graphs, 0
        graphs._rows = _Rows(8)  # as if so many had been expected
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(private(x), y).backward()
            optimizer.step()
            largest = max(largest, len(x))
        results.append(model)
        if capture is None:
            memory = {each.untyped_storage().data_ptr() for graph in graphs._made.values() for each in graph._gave}
            assert graphs._rows.room >= largest > 32
            assert len(graphs._made) > 1
            assert len(memory) == 1
    assert same(*results)


@CUDA
def test_what_a_replay_adds_up_is_of_the_masks_that_it_gave() -> None:
    """An identity behind dropout: what it gives tells the mask, which the gradient has to be of, and is a new one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 6, bias=False)).cuda()
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(6))
    x = torch.rand(PEOPLE, 6, device="cuda") + 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    private, optimizer, loader = pp.make_private(
        model, optimizer, TensorDataset(x, x), planned(clip_norm=1e6, steps=8)
    )
    checked, masks = 0, set()
    for given, _ in loader:
        optimizer.zero_grad()
        out = private(given)
        optimizer.backward(out.sum(dim=1))
        now = private._current_batch
        real, replayed = now._batch.real, isinstance(now._passes[-1].tape, Replay)
        seen = out.detach().as_subclass(Tensor)[:real].double()
        now.clip()
        found = now.run._sums["1.weight"].double()
        torch.testing.assert_close(found, seen.sum(dim=0).expand(6, 6), rtol=1e-3, atol=1e-3)
        checked += replayed
        masks.add(tuple((seen[:4] != 0).flatten().tolist()))
        now.run.release()
    assert checked >= 4
    assert len(masks) == 8


@CUDA
def test_no_record_contributes_more_than_its_clip_norm_in_a_replay() -> None:
    """One record in a batch is 1,000 times as loud; the sum without it differs by its clip norm and no more."""
    found = []
    for loud in (1.0, 1000.0):
        model = small().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        x, y = data().tensors
        x = x.clone()
        x[7] *= loud
        private, optimizer, loader = pp.make_private(model, optimizer, TensorDataset(x, y), planned(), seed=6)
        sums = []
        for given, label in loader:
            optimizer.zero_grad()
            F.cross_entropy(private(given), label).backward()
            now = private._current_batch
            now.clip()
            sums.append(torch.cat([value.flatten() for value in now.run._sums.values()]).double())
            now.run.release()
        found.append(sums)
    apart = [float((one - other).norm()) for one, other in zip(*found, strict=True)]
    assert max(apart[3:]) > 0.05  # it was drawn
    assert max(apart) <= 2 * 0.3 * (1 + 1e-3)


class Scheduled(nn.Module):
    """Goes by a number that is changed from outside: of its own, or elsewhere."""

    elsewhere: ClassVar[list[float]] = [1.0]

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.factor = small(), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.factor * self.elsewhere[0]


@CUDA
def test_numbers_of_a_module_may_change() -> None:
    def change(model: nn.Module, step: int) -> None:
        model.factor = 1.0 if step < 8 else 0.25

    one, replayed = trained(Scheduled(), None, each=change)
    other, _ = trained(Scheduled(), False, each=change)
    assert replayed[-1]
    assert same(one, other)
    assert not same(one, trained(Scheduled(), None)[0])


@CUDA
def test_a_model_that_goes_by_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduled, "elsewhere", [1.0])
    monkeypatch.setattr(current, "_LATER", 1.0)

    def change(model: nn.Module, step: int) -> None:
        Scheduled.elsewhere[0] = 1.0 if step < 8 else 0.25

    with pytest.raises(InvalidInput, match="capture=False"):
        trained(Scheduled(), None, each=change)


class Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = small(), 0

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * (1.0 if random.random() < 0.5 else 0.5)


class Asking(Skipping):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if float(x.sum(dim=(1, 2, 3)).amax()) > -1e9 else self.inner(-x)


class Counting(Skipping):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(x)


@CUDA
@pytest.mark.parametrize("kind", [Skipping, Asking, Counting])
def test_what_no_graph_can_hold_goes_through_as_it_is(kind: type[nn.Module]) -> None:
    one, replayed = trained(kind(), None)
    assert not any(replayed)
    other, _ = trained(kind(), False)
    assert same(one, other)


@CUDA
def test_wild_records_are_silent_in_a_replay_and_change_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first layer's input, and behind it, where the graph writes over its own memory."""
    calm = data()

    def wild() -> TensorDataset:
        x, y = calm.tensors
        x = x.clone()
        x[::9, 0, 0, 0], x[1::9] = float("inf"), 3e38
        return TensorDataset(x, y)

    monkeypatch.setitem(globals(), "data", wild)
    one, replayed = trained(small(), None)
    other, _ = trained(small(), False)
    assert all(replayed[3:])
    assert all(torch.isfinite(value).all() for value in one.parameters())
    assert same(one, other)


class Several(nn.Module):
    """Gives what it made on the way too, in an object, as the caches of transformers are."""

    class Cache:
        def __init__(self, hidden: Tensor) -> None:
            self.hidden = hidden

    def __init__(self) -> None:
        super().__init__()
        self.inner = small()

    def forward(self, x: Tensor) -> dict[str, object]:
        hidden = self.inner[:4](x)
        return {"cache": self.Cache(hidden), "logits": self.inner[4](hidden), "hidden": hidden}


@CUDA
def test_outputs_to_which_nothing_comes_back_stay_beside() -> None:
    one, replayed = trained(Several(), None)
    other, _ = trained(Several(), False)
    assert all(replayed[3:])
    assert same(one, other)


@CUDA
@pytest.mark.parametrize("capture", [None, False])
def test_a_loss_of_another_output_is_taken_or_refused(capture: bool | None) -> None:
    """Gradients of an output that no graph expects must not be lost."""
    model = Several().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    execution = pp.Execution(capture=capture)
    private, optimizer, loader = pp.make_private(model, optimizer, data(), planned(), seed=3, execution=execution)
    for step, (x, y) in enumerate(loader):
        out = private(x)
        losses = F.cross_entropy(out["logits"], y, reduction="none")
        if step == 8:
            losses = losses + out["hidden"].square().sum(dim=1)
            if capture is None:
                with pytest.raises(InvalidInput, match="another output"):
                    optimizer.backward(losses)
                return
        optimizer.zero_grad()
        optimizer.backward(losses)
        optimizer.step()
    assert capture is False


@CUDA
def test_a_loss_of_several_outputs_comes_back_to_each() -> None:
    results = []
    for capture in (None, False):
        model = Several().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        execution = pp.Execution(capture=capture)
        private, optimizer, loader = pp.make_private(model, optimizer, data(), planned(), seed=3, execution=execution)
        replayed = []
        for x, y in loader:
            optimizer.zero_grad()
            out = private(x)
            replayed.append(isinstance(private._current_batch._passes[-1].tape, Replay))
            losses = F.cross_entropy(out["logits"], y, reduction="none") + out["hidden"].square().sum(dim=1)
            optimizer.backward(losses)
            optimizer.step()
        assert all(replayed[3:]) == (capture is None)
        results.append(model)
    assert same(*results)


@CUDA
def test_whoever_looks_on_sees_every_batch() -> None:
    model, seen = small().cuda(), []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    _, replayed = trained(model, None)
    assert not any(replayed)
    assert len(seen) >= STEPS


@CUDA
def test_parameters_that_move_are_found() -> None:
    def move(model: nn.Module, step: int) -> None:
        if step == 8:
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()

    one, replayed = trained(small(), None, each=move)
    other, _ = trained(small(), False, each=move)
    assert replayed[-1]
    assert same(one, other)


@CUDA
def test_two_backward_passes_and_late_ones_are_refused() -> None:
    model = small().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private, optimizer, loader = pp.make_private(model, optimizer, data(), planned())
    batches = iter(loader)
    for x, y in islice(batches, 6):
        optimizer.zero_grad()
        loss = F.cross_entropy(private(x), y)
        loss.backward(retain_graph=True)
        if isinstance(private._current_batch._passes[-1].tape, Replay):
            with pytest.raises(InvalidInput, match="twice"):
                loss.backward()
        optimizer.step()
        with pytest.raises((InvalidInput, RuntimeError)):
            loss.backward()


@CUDA
def test_a_batch_in_two_parts_and_one_that_is_begun_again() -> None:
    def loop(capture: bool | None) -> nn.Module:
        model = small().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        private, optimizer, loader = pp.make_private(
            model, optimizer, data(), planned(), seed=3, execution=pp.Execution(capture=capture)
        )
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            if step % 3 == 1:  # in two parts
                half = len(x) // 2
                for part, label in ((x[:half], y[:half]), (x[half:], y[half:])):
                    F.cross_entropy(private(part), label).backward()
            else:
                F.cross_entropy(private(x), y).backward()
                if step % 3 == 2:  # thought better of it
                    optimizer.zero_grad()
                    F.cross_entropy(private(x), y).backward()
            optimizer.step()
        return model

    assert same(loop(None), loop(False))


@pytest.mark.parametrize(
    ("batch_size", "asked", "most", "multiple"),
    [
        *((size, None, None, multiple) for size, multiple in ((1, 1), (15.5, 1), (16, 2), (64, 4), (512, 32))),
        (4096, None, None, 256),
        (4096, 96, 96, 32),
        (4096, 100, 96, 32),
        (4096, 2000, 1792, 256),  # padded to 16, the last of three batches would have a score of sizes
        (4096, 1, 1, 1),
        (10, 7, 7, 1),
    ],
)
def test_padding_is_little(batch_size: float, asked: int | None, most: int | None, multiple: int) -> None:
    assert few_shapes(batch_size, asked) == (most, multiple)
    assert batch_size < 32 or multiple <= batch_size / 16
    if asked is not None and most is not None:
        assert most % multiple == 0
        assert 7 / 8 * asked <= most <= asked
