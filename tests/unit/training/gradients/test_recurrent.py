"""Recurrent layers against torch's own and autograd, one record at a time, in float64."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import privypurse as pp
from privypurse.training.gradients import Recorder, Tape, numerics, recurrent, recurrent_steps
from privypurse.training.gradients.check_rule import check_rule
from privypurse.training.gradients.clipping import MARGIN, clip_factors, norms, sums
from privypurse.training.gradients.linear import LinearRule

RECORDS, PLACES, SIZE = 5, 6, 4
LENGTHS = torch.tensor([2, 6, 1, 4, 3])


@pytest.fixture(autouse=True)
def _without_the_safety_for_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas are compared to 1e-10; tests of what is added for rounding take this back."""
    monkeypatch.setattr(numerics, "rounding", lambda terms, dtype: 0.0)


class Reader(nn.Module):
    """A recurrent layer of whose outputs and last states everything goes into the output: (records, numbers)."""

    def __init__(self, layer: nn.RNNBase, packed: bool = False, starts: bool = False) -> None:
        super().__init__()
        self.layer, self.packed = layer, packed
        rows = layer.num_layers * (1 + layer.bidirectional)
        sizes = [layer.proj_size or layer.hidden_size, layer.hidden_size][: 1 + isinstance(layer, nn.LSTM)]
        self.starts = nn.ModuleList(nn.Linear(SIZE, rows * size) for size in sizes) if starts else []

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        rows = self.layer.num_layers * (1 + self.layer.bidirectional)
        first: Any = tuple(start(x[:, 0]).unflatten(1, (rows, -1)).transpose(0, 1) for start in self.starts)
        first = None if not first else first if isinstance(self.layer, nn.LSTM) else first[0]
        given: Any = x if self.layer.batch_first else x.transpose(0, 1)
        if self.packed:
            given = pack_padded_sequence(given, lengths, batch_first=self.layer.batch_first, enforce_sorted=False)
        output, last = self.layer(given, first)
        if self.packed:
            output = pad_packed_sequence(output, self.layer.batch_first, total_length=PLACES)[0]
        output = output if self.layer.batch_first else output.transpose(0, 1)
        states = last if isinstance(last, tuple) else (last,)
        return torch.cat([output.flatten(1), *(state.transpose(0, 1).flatten(1) for state in states)], dim=1)


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output * target).sum(dim=1).square() / 2 + output.sin().sum(dim=1)


KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": partial(nn.LSTM, SIZE, 3),
    "gru": partial(nn.GRU, SIZE, 3),
    "rnn": partial(nn.RNN, SIZE, 3),
    "relu": partial(nn.RNN, SIZE, 3, nonlinearity="relu"),
    "projected": partial(nn.LSTM, SIZE, 3, proj_size=2),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"batch_first": True},
    "time first": {},
    "both ways": {"batch_first": True, "bidirectional": True},
    "no bias": {"batch_first": True, "bias": False},
    "deep, both ways, time first": {"num_layers": 3, "bidirectional": True},
}


def made(kind: str, options: str, **how: bool) -> tuple[Reader, tuple[Tensor, Tensor], Tensor]:
    torch.manual_seed(1)
    model = Reader(KINDS[kind](**OPTIONS[options]), **how).double()
    x = torch.randn(RECORDS, PLACES, SIZE, dtype=torch.float64)
    return model, (x, LENGTHS), torch.randn(model(x, LENGTHS).shape, dtype=torch.float64)


def one_at_a_time(model: nn.Module, x: tuple[Tensor, ...], target: Tensor) -> dict[str, Tensor]:
    """Every record's gradient by torch's own layers, from a pass of its own."""
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    found = []
    for i in range(len(target)):
        output = model(*(each[i : i + 1] for each in x))
        found.append(torch.autograd.grad(loss(output, target[i : i + 1]).sum(), list(parameters.values())))
    return {name: torch.stack(each) for name, each in zip(parameters, zip(*found, strict=True), strict=True)}


def check(model: nn.Module, x: tuple[Tensor, ...], target: Tensor, owner: Tensor | None = None) -> None:
    """The output is torch's; norms and weighted sums are those of every record's gradient, or of every owner's."""
    truth = one_at_a_time(model, x, target)
    tape = Tape(len(target))
    output = Recorder(model).forward(tape, *x)
    torch.testing.assert_close(output, model(*x), rtol=1e-12, atol=1e-12)
    loss(output, target).sum().backward()
    found = norms(tape) if owner is None else norms(tape, owner, int(owner.max()) + 1)
    of_records = torch.cat([value.flatten(1) for value in truth.values()], dim=1)
    whose = torch.arange(len(target)) if owner is None else owner
    exact = torch.zeros(len(found), of_records.shape[1], dtype=torch.float64).index_add_(0, whose, of_records)
    torch.testing.assert_close(found, exact.norm(dim=1), rtol=1e-10, atol=0.0)
    weights = torch.rand(len(target), dtype=torch.float64)
    total: dict[str, Tensor] = {}
    for name, part in sums(tape, weights, found):
        total[name] = total.get(name, 0.0) + part
    assert total.keys() == truth.keys()
    for name, value in truth.items():
        torch.testing.assert_close(total[name], torch.tensordot(weights, value, 1), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_layers_equal_autograd_one_record_at_a_time(kind: str, options: str, packed: bool) -> None:
    check(*made(kind, options, packed=packed))


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_made_the_first_states_gets_its_gradient(kind: str, packed: bool) -> None:
    check(*made(kind, "both ways", packed=packed, starts=True))
    check(*made(kind, "time first", packed=packed, starts=True))


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_persons_records_are_clipped_as_one_sum(kind: str, packed: bool) -> None:
    model, x, target = made(kind, "plain", packed=packed)
    check(model, x, target, owner=torch.tensor([0, 0, 1, 2, 2]))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_frozen_gets_nothing(kind: str) -> None:
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_hh_l0"):
        model, x, target = made(kind, "plain", starts=True)
        model.layer.get_parameter(name).requires_grad_(False)
        check(model, x, target)


class Twice(nn.Module):
    """A layer that reads its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.relu(self.layer(x)[0], inplace=True))[0].flatten(1)


def test_a_layer_used_twice_and_written_into() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    check(Twice().double(), (x,), torch.randn(4, 15, dtype=torch.float64))


class PackedTwice(nn.Module):
    """The same over packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 3, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return torch.cat([each.flatten(1) for each in self.layer(self.layer(packed)[0])[1]], dim=1)


class Cells(nn.Module):
    """A cell in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        state = None
        for place in x.unbind(1):
            state = self.cell(place, state)
        return state


@pytest.mark.parametrize("kind", [PackedTwice, Cells])
def test_many_uses_are_counted_as_one_over_all_places(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = kind().double(), (torch.randn(5, 6, 3, dtype=torch.float64), LENGTHS)
    target = torch.randn(5, 3, dtype=torch.float64)
    check(model, x, target)
    check(model, x, target, owner=torch.tensor([0, 0, 1, 2, 2]))
    tape = Tape(5)
    loss(Recorder(model).forward(tape, *x), target).sum().backward()
    assert len(tape.calls) > 2
    norms(tape)
    assert sorted(name for call in tape.calls for name in call.names.values()) == sorted(
        name for name, _ in model.named_parameters()
    )


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_masks_of_dropout_between_layers_are_those_of_the_pass(kind: str) -> None:
    """With the same seed they are torch's own, so each record's gradient is that of its loss in torch's pass."""
    torch.manual_seed(2)
    layer = KINDS[kind](num_layers=3, dropout=0.5, batch_first=True, bidirectional=True)
    model = Reader(layer).double()
    x = torch.randn(RECORDS, PLACES, SIZE, dtype=torch.float64)
    tape = Tape(RECORDS)
    torch.manual_seed(3)
    output = Recorder(model).forward(tape, x, LENGTHS)
    target = torch.randn(output.shape, dtype=torch.float64)
    loss(output, target).sum().backward()
    torch.manual_seed(3)
    whole = model(x, LENGTHS)
    torch.testing.assert_close(output, whole, rtol=1e-12, atol=1e-12)
    truth = [
        torch.autograd.grad(each, list(model.parameters()), retain_graph=True)
        for each in loss(whole, target).unbind()
    ]
    exact = torch.stack([torch.cat([value.flatten() for value in each]).norm() for each in truth])
    torch.testing.assert_close(norms(tape), exact, rtol=1e-10, atol=0.0)


def _without_the_bias_of_a_gate(patch: pytest.MonkeyPatch) -> None:
    bias = LinearRule.bias
    patch.setattr(LinearRule, "bias", lambda self, call: bias(self, call).index_fill(1, torch.arange(3), 0.0))


def _reset_gate_of_the_sum(patch: pytest.MonkeyPatch) -> None:
    back = recurrent_steps.Gated.back
    patch.setattr(recurrent_steps.Gated, "back", lambda *given: (back(*given)[0],) * 2)


def _forget_gate_of_the_next_state(patch: pytest.MonkeyPatch) -> None:
    begun = recurrent_steps.LongShort.back

    def back(self: Any, *given: Any) -> Any:
        self.cells = self.cells.roll(-1, dims=0)
        return begun(self, *given)

    patch.setattr(recurrent_steps.LongShort, "back", back)


def _without_last_states(patch: pytest.MonkeyPatch) -> None:
    back = recurrent_steps.Recurrence.backward
    patch.setattr(recurrent_steps.Recurrence, "backward", lambda ctx, every, *last: back(ctx, every, None))


def _states_that_do_not_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recurrent_steps.Walk, "pass_back", lambda *_: None)


def _records_by_length(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recurrent.Sequences, "by_record", lambda self, values: values.transpose(0, 1))


@pytest.mark.parametrize(
    ("twin", "kind", "packed"),
    [
        (_without_the_bias_of_a_gate, "lstm", False),
        (_reset_gate_of_the_sum, "gru", False),
        (_forget_gate_of_the_next_state, "lstm", False),
        (_without_last_states, "rnn", False),
        (_states_that_do_not_stay, "gru", True),
        (_records_by_length, "lstm", True),
    ],
)
def test_broken_twins_are_caught(
    twin: Callable[[pytest.MonkeyPatch], None], kind: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = made(kind, "plain", packed=packed)
    check(*case)
    twin(monkeypatch)
    with pytest.raises((AssertionError, pp.InvalidInput)):
        check(*case)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_cancels_over_time_is_clipped_by_what_is_added(
    kind: str, packed: bool, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, places whose gradients cancel up to rounding: their sum never exceeds the clip norm."""
    monkeypatch.undo()
    torch.manual_seed(0)
    model = Reader(KINDS[kind](batch_first=True), packed)
    width = model.layer.proj_size or model.layer.hidden_size
    nn.init.zeros_(model.layer.get_parameter("weight_hh_l0"))  # all places of a simple layer are alike
    for large in (1.0, 2.0**20, 2.0**34):
        weighing = torch.zeros(1, PLACES, 1)
        weighing[0, :3, 0] = torch.tensor([large, large * 2.0**-25, -large])
        tape = Tape(1)
        output = Recorder(model).forward(tape, torch.ones(1, PLACES, SIZE), torch.tensor([PLACES]))
        (output[:, : PLACES * width].unflatten(1, (PLACES, width)) * weighing).sum().backward()
        found = norms(tape)
        parts: dict[str, Tensor] = {}
        for name, part in sums(tape, clip_factors(found, torch.ones(1)), found, wide):
            parts[name] = parts.get(name, 0.0) + part.double()
        assert float(torch.cat([part.flatten() for part in parts.values()]).norm()) <= 1.0


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_is_never_below_what_is_added(kind: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, every record alone among the others: up to the rounding that clip factors leave a margin for."""
    monkeypatch.undo()
    model, (x, lengths), target = made(kind, "both ways", packed=packed)
    model, x, target = model.float(), x.float(), target.float()
    for alone in torch.eye(RECORDS):
        tape = Tape(RECORDS)
        loss(Recorder(model).forward(tape, x, lengths), target).sum().backward()
        found = norms(tape)
        added = torch.cat([part.flatten() for _, part in sums(tape, alone, found, wide=True)]).norm()
        assert float(added) <= float(found @ alone) * (1 + MARGIN / 100)


@pytest.mark.parametrize("autocast", [False, True], ids=["bfloat16", "autocast"])
@pytest.mark.parametrize("kind", KINDS)
def test_short_floats(kind: str, autocast: bool) -> None:
    """What comes back to the gates is in float32, and near the truth."""
    model, (x, lengths), target = made(kind, "both ways")
    truth = one_at_a_time(model, (x, lengths), target)
    exact = torch.cat([value.flatten(1) for value in truth.values()], dim=1).norm(dim=1)
    model = model.float() if autocast else model.bfloat16()
    tape = Tape(RECORDS)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        try:
            model(x.float() if autocast else x.bfloat16(), lengths)
        except RuntimeError as error:
            pytest.skip(f"torch by itself cannot, on this processor: {error}")
        output = Recorder(model).forward(tape, x.float() if autocast else x.bfloat16(), lengths)
    assert output.dtype == torch.bfloat16
    loss(output.double(), target).sum().backward()
    assert {call.output_gradient.dtype for call in tape.calls} == {torch.float32}
    torch.testing.assert_close(norms(tape).double(), exact, rtol=0.05, atol=0.0)


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn", "relu", "projected"])
def test_the_rule_passes_the_public_check(kind: str) -> None:
    check_rule(KINDS[kind](batch_first=True, num_layers=2, bidirectional=True), torch.randn(4, PLACES, SIZE))
