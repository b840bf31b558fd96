"""Gradient checkpointing: norms and sums as without, each layer once on the tape, nothing kept in between."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training import gradients
from privypurse.training.gradients import recomputation
from training_tools import LOSS, Keeping, quiet

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")

PEOPLE, TOKENS, WIDTH = 12, 5, 8
Part = Callable[..., Any]


def once(part: Part, *given: Any) -> Any:
    return part(*given)


def again(part: Part, *given: Any) -> Any:
    return checkpoint(part, *given, use_reentrant=False)


def reentrant(part: Part, *given: Any) -> Any:
    return checkpoint(part, *given, use_reentrant=True)


def other_numbers(part: Part, *given: Any) -> Any:
    return checkpoint(part, *given, use_reentrant=False, preserve_rng_state=False)


class Blocks(nn.Module):
    """An embedding, blocks that may be run again in the backward pass, a head."""

    def __init__(self, run: Part, block: Callable[[], nn.Module], blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.run, self.table = run, nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x.mean(dim=1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.rnn(x)[0]


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.layer(x.transpose(1, 2))).transpose(1, 2)


class Scaled(nn.Module):
    """No rule knows it: it is run for each record once more, in the middle of the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.scale)


class Twice(nn.Module):
    """A layer that is used twice, and a part inside of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.layer(x))
        return checkpoint(self.inner, self.layer(x), use_reentrant=False)


class Token(nn.Module):
    """A bare parameter with a leading dimension of 1, beside layers that draw."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.layer = nn.Parameter(torch.randn(1, TOKENS, WIDTH)), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(1e-300)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(torch.tanh(self.layer(x * self.place)))


def dense() -> nn.Module:
    first, second = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
    return nn.Sequential(nn.LayerNorm(WIDTH), first, nn.ReLU(inplace=True), second)


def transformer(dropout: float = 0.0) -> nn.Module:
    return pp.fix(nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout, batch_first=True))


BLOCKS = {
    "dense": dense,
    "transformer": transformer,
    "recurrent": Recurrent,
    "convolution": Convolution,
    "no rule": Scaled,
    "twice": Twice,
    "bare parameter": Token,
}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 20, (PEOPLE, TOKENS), generator=generator)
    return tokens, torch.randint(0, 3, (PEOPLE,), generator=generator)


def alone(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Every record's norm by plain autograd."""
    norms = []
    for i in range(len(x)):
        found = torch.autograd.grad(LOSS(model(x[i : i + 1]), y[i : i + 1]).sum(), list(model.parameters()))
        norms.append(torch.cat([each.flatten() for each in found]).norm())
    return torch.stack(norms)


@pytest.mark.parametrize("case", BLOCKS)
@pytest.mark.parametrize("early", [True, False])
def test_norms_and_sums_are_those_without_checkpointing(case: str, early: bool) -> None:
    x, y = data()
    with set_checkpoint_early_stop(early):
        sums, norms = pp.clipped_sum(Blocks(again, BLOCKS[case]).double(), LOSS, x, y, 0.1)
    plain = Blocks(once, BLOCKS[case]).double()
    expected, without = pp.clipped_sum(plain, LOSS, x, y, 0.1)
    assert torch.equal(norms, without)
    assert all(torch.equal(sums[name], value) for name, value in expected.items())
    assert len(sums) == len(list(plain.parameters()))
    torch.testing.assert_close(norms, alone(plain, x, y), rtol=1e-6, atol=0)


def test_where_torch_does_not_tell_that_it_is_checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older releases: every call lends its inputs, and all is as it was."""
    x, y = data()
    expected = {case: pp.per_record_norms(Blocks(once, BLOCKS[case]).double(), LOSS, x, y) for case in BLOCKS}
    monkeypatch.setattr(recomputation, "_top", None)
    for case, norms in expected.items():
        for run in (once, again):
            assert torch.equal(pp.per_record_norms(Blocks(run, BLOCKS[case]).double(), LOSS, x, y), norms), case


@pytest.mark.slow
def test_offloaded_activations_and_torchs_sequential_way() -> None:
    x, y = data()

    class Other(Blocks):
        def forward(self, tokens: Tensor) -> Tensor:
            with torch.autograd.graph.save_on_cpu():
                x = self.blocks[0](self.table(tokens))
            return self.head(checkpoint_sequential(self.blocks[1:], 2, x, use_reentrant=False).mean(dim=1))

    model = Other(once, dense, 4).double()
    expected = pp.per_record_norms(Blocks(once, dense, 4).double(), LOSS, x, y)
    assert torch.equal(pp.per_record_norms(model, LOSS, x, y), expected)


def test_without_the_watch_the_second_run_saves_other_things(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin, which is what a library sees that knows nothing of checkpointing."""
    monkeypatch.setattr(gradients.Recorder, "_record_again", lambda *_: None)
    with pytest.raises(torch.utils.checkpoint.CheckpointError):
        pp.per_record_norms(Blocks(again, dense), LOSS, *data())


@pytest.mark.slow
def test_each_layer_is_on_the_tape_once_and_inputs_are_forgotten_until_the_backward_pass() -> None:
    x, y = data()
    held: list[weakref.ref[Tensor]] = []

    def note(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        held.append(weakref.ref(given[0].untyped_storage()))

    def in_memory(run: Part) -> list[bool]:
        held.clear()
        model = Blocks(run, dense)
        for block in model.blocks:
            block[3].register_forward_pre_hook(note)
        recorder, tape = gradients.Recorder(model), gradients.Tape(PEOPLE)
        losses = LOSS(recorder.forward(tape, x), y)
        gc.collect()
        found = [each() is not None for each in held[-2:]]  # before, passes asked where records are
        calls = len(tape.calls)
        losses.sum().backward()
        assert len(tape.calls) == len(tape.finished()) == calls == 2 + 3 * 2
        assert all(call.inputs for call in tape.calls)
        return found

    assert in_memory(once) == [True, True]
    assert in_memory(again) == [False, False]


def seen(monkeypatch: pytest.MonkeyPatch, run: Part, *, parts: bool = False) -> list[Tensor]:
    """The clipped sums of two steps of one's own loop with dropout, the same coins and the same keys."""
    quiet(monkeypatch)
    x, y = data()
    model = Blocks(run, lambda: transformer(0.3))
    keeping = Keeping(model)
    plan = pp.plan(pp.Budgets(np.full(PEOPLE, 8.0), delta=1e-5), "scale", steps=2, batch_size=4, accountant="rdp")
    private, optimizer, loader = pp.make_private(model, keeping, TensorDataset(x, y), plan)
    for some, labels in loader:
        optimizer.zero_grad()
        if parts:
            LOSS(private(some[:5]), labels[:5]).mean().backward()
            LOSS(private(some[5:]), labels[5:]).mean().backward()
        else:
            LOSS(private(some), labels).mean().backward()
        optimizer.step()
    return keeping.seen


@pytest.mark.slow
@pytest.mark.parametrize("parts", [False, True])
def test_masks_of_dropout_are_the_same_numbers_in_the_second_run(
    monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    expected, found = (seen(monkeypatch, run, parts=parts) for run in (once, again))
    assert all(map(torch.equal, found, expected))
    twin = seen(monkeypatch, other_numbers, parts=parts)
    assert not all(map(torch.equal, twin, expected))


@pytest.mark.slow
def test_train_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(monkeypatch)
    x, y = data()
    plan = pp.plan(pp.Budgets(np.full(PEOPLE, 8.0), delta=1e-5), "scale", steps=2, batch_size=4, accountant="rdp")
    models = [Blocks(run, lambda: transformer(0.3)) for run in (once, again)]
    for model in models:
        pp.train(model, torch.optim.SGD(model.parameters(), lr=0.5), TensorDataset(x, y), plan, LOSS)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


def test_use_reentrant_is_refused_by_name() -> None:
    x, y = data()
    with pytest.raises(pp.InvalidInput, match="use_reentrant=False"):
        pp.per_record_norms(Blocks(reentrant, dense), LOSS, x, y)
    plan = pp.plan(pp.Budgets(np.full(PEOPLE, 8.0), delta=1e-5), "scale", steps=2, batch_size=4, accountant="rdp")
    model = Blocks(reentrant, dense)
    private, _, loader = pp.make_private(model, Keeping(model), TensorDataset(x, y), plan)
    with pytest.raises(pp.InvalidInput, match="use_reentrant=False"):
        private(next(iter(loader))[0])
    model.requires_grad_(False)
    model.head.requires_grad_(True)  # a frozen part has nothing to clip
    assert torch.isfinite(pp.per_record_norms(model, LOSS, x, y)).all()


def test_a_part_around_the_whole_private_model_is_refused() -> None:
    x, y = data()
    plan = pp.plan(pp.Budgets(np.full(PEOPLE, 8.0), delta=1e-5), "scale", steps=2, batch_size=4, accountant="rdp")
    model = Blocks(once, dense)
    private, _, loader = pp.make_private(model, Keeping(model), TensorDataset(x, y), plan)
    with pytest.raises(pp.InvalidInput, match="around the whole model"):
        again(private, next(iter(loader))[0])
    (some, _), gate = next(iter(loader)), torch.ones((), requires_grad=True)
    with pytest.raises(pp.InvalidInput, match="CheckpointFunction"):
        reentrant(lambda gate: private(some) * gate, gate).sum().backward()


def test_a_part_inside_of_a_layer_that_no_rule_knows_is_refused_by_name() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.blocks = nn.Parameter(torch.randn(TOKENS, WIDTH)), Blocks(again, dense)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.blocks(tokens) + self.places.sum()

    with pytest.raises(pp.InvalidInput, match=r"Whole.*checkpointing"):
        pp.per_record_norms(Whole(), LOSS, *data())


def test_records_that_mix_inside_of_a_part_are_seen() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x - x.mean(dim=0))

    x, y = data()
    plan = pp.plan(pp.Budgets(np.full(PEOPLE, 8.0), delta=1e-5), "scale", steps=2, batch_size=11, accountant="rdp")
    model = Blocks(again, Centred)
    with pytest.raises(pp.InvalidInput, match="changes with the other records"):
        pp.train(model, torch.optim.SGD(model.parameters(), lr=0.1), TensorDataset(x, y), plan, LOSS)


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ArithmeticError("broken off")


@pytest.mark.parametrize("broken", [False, True])
def test_nothing_of_the_watch_remains_in_the_model(broken: bool) -> None:
    x, y = data()
    model = Blocks(again, dense)
    recorder, tape = gradients.Recorder(model), gradients.Tape(PEOPLE)
    if broken:
        handle = model.blocks[0][1].register_forward_hook(lambda module, given, output: Raising.apply(output))
        with pytest.raises(ArithmeticError):
            LOSS(recorder.forward(tape, x), y).sum().backward()
        handle.remove()
        tape = gradients.Tape(PEOPLE)
    LOSS(recorder.forward(tape, x), y).sum().backward()
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    copy.deepcopy(model)
    pickle.loads(pickle.dumps(model))
    plain = Blocks(once, dense)
    assert torch.equal(gradients.norms(tape), pp.per_record_norms(plain, LOSS, x, y))


def test_a_second_backward_pass_is_refused_as_ever() -> None:
    x, y = data()
    tape = gradients.Tape(PEOPLE)
    loss = LOSS(gradients.Recorder(Blocks(again, dense)).forward(tape, x), y).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(pp.InvalidInput, match="run twice"):
        loss.backward()
