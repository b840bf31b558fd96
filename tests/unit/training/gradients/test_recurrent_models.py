"""Recurrent layers in whole models: packed sequences, both loops, and what is refused."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.cuda_graphs import NotCapturable, require_one_pass
from privypurse.training.gradients import Recorder, Tape, norms, recurrent
from privypurse.training.gradients.check_rule import compare_with_autograd
from privypurse.training.isolation.model import require_isolated
from training_tools import CUDA, LOSS

PLACES, SIZE = 6, 4


class Packing(nn.Module):
    """The mean over a record's own places, in float32, of records of any length."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.LSTM(SIZE, 8, **options), nn.Linear(8 * (1 + ("bidirectional" in options)), 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        time_first = not self.layer.batch_first
        given = x.transpose(0, 1) if time_first else x
        packed = pack_padded_sequence(given, lengths.cpu(), batch_first=not time_first, enforce_sorted=False)
        output, lengths = pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.head(output.sum(dim=1) / lengths.unsqueeze(1))


def _by_all_places(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        recurrent.OwnPlacesRule, "summands", lambda _, call: torch.full_like(call.inputs[1], call.inputs[0].shape[1])
    )


@pytest.mark.parametrize("twin", [None, _by_all_places], ids=["own places", "all places"])
def test_a_norm_does_not_change_with_how_long_others_are(
    twin: Callable[[pytest.MonkeyPatch], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds of rounding are by a record's own places: those of the longest would shift everybody's clip factor."""
    if twin is not None:
        twin(monkeypatch)
    model, x = Packing(batch_first=True), torch.randn(3, 2000, SIZE)
    found = []
    for longest in (7, 2000):
        lengths = torch.tensor([5, 7, longest])
        tape = Tape(3)
        output = Recorder(model).forward(tape, x[:, :longest], lengths)
        F.cross_entropy(output, torch.tensor([0, 1, 1]), reduction="sum").backward()
        tape.calls = [call for call in tape.calls if isinstance(call.rule, recurrent.OwnPlacesRule)]
        found.append(norms(tape)[:2].double())
    apart = float(((found[1] - found[0]) / found[0]).abs().max())
    assert (apart < 1e-6) == (twin is None), apart


MODELS: dict[str, Callable[[], nn.Module]] = {
    "time first": partial(Packing),
    "packed": partial(Packing, batch_first=True, bidirectional=True),
    "packed, dropout": partial(Packing, num_layers=2, dropout=0.5),
}


def data(records: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    lengths = torch.randint(1, PLACES + 1, (records,))
    return torch.randn(records, PLACES, SIZE), lengths, torch.randint(0, 2, (records,))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
@pytest.mark.parametrize("name", MODELS)
def test_models_with_packed_sequences_train_in_both_loops(name: str) -> None:
    x, lengths, y = data()
    plan = pp.plan(pp.Budgets(np.full(40, 3.0), delta=1e-3), steps=4, batch_size=16, accountant="rdp")
    dataset = TensorDataset(x, lengths, y)
    model = MODELS[name]()
    assert pp.train(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, plan, LOSS).steps == 4
    model = MODELS[name]()
    before = [value.detach().clone() for value in model.parameters()]
    ours, optimizer, loader = pp.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, plan)
    for inputs, length, label in loader:
        optimizer.backward(LOSS(ours(inputs, length), label))
        optimizer.step()
    assert all(bool((value != was).any()) for value, was in zip(model.parameters(), before, strict=True))


def test_a_captured_graph_refuses_what_has_other_shapes_for_every_batch() -> None:
    x, lengths, _ = data()
    for model, packs in ((Packing(batch_first=True), True), (nn.LSTM(SIZE, 3, batch_first=True), False)):
        recorder = Recorder(model)
        recorder.forward(Tape(40), *((x, lengths) if packs else (x,)))
        if packs:
            with pytest.raises(NotCapturable, match="packed sequence"):
                require_one_pass(recorder)
        else:
            require_one_pass(recorder)


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
def test_recurrent_layers_in_a_captured_graph(device: str) -> None:
    x, _, y = (each.to(device) for each in data())
    plan = pp.plan(pp.Budgets(np.full(40, 3.0), delta=1e-3), steps=4, batch_size=16, accountant="rdp")
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        model = Last(kind).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert pp.train(model, optimizer, TensorDataset(x, y), plan, LOSS).how == "captured"


class Last(nn.Module):
    """The last state of the layer on top."""

    def __init__(self, kind: Callable[..., nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(SIZE, 8, 2, dropout=0.5), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        last = self.layer(x.transpose(0, 1))[1]
        return self.head((last[0] if isinstance(last, tuple) else last)[-1])


class Sorting(nn.Module):
    """Gives the first record the last state of the longest."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(SIZE, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        order = lengths.argsort(descending=True)
        return self.head(self.layer(pack_padded_sequence(x[order], lengths[order], batch_first=True))[1][0])


class TimeFirst(nn.Module):
    """Reads the batch as one sequence of records."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(SIZE, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.head(self.layer(x)[0].mean(dim=1))


@pytest.mark.parametrize(
    ("kind", "words"), [(Sorting, "changes with the other records"), (TimeFirst, "batch_first=True")]
)
def test_recurrent_layers_that_mix_records_are_refused(kind: Callable[[], nn.Module], words: str) -> None:
    for places in (PLACES, 16):  # as many places as records, too
        x, lengths = torch.randn(16, places, SIZE), torch.randint(1, places, (16,))
        with pytest.raises(pp.InvalidInput, match=words):
            require_isolated(Recorder(kind()), (x, lengths), {}, 16)


class Own(nn.LSTM):
    """A subclass may do anything, and no rule knows it."""


def test_what_the_rule_does_not_know_is_refused_by_name() -> None:
    x = torch.randn(3, PLACES, SIZE)
    with pytest.raises(pp.InvalidInput, match=r"LSTM was given a tensor of shape \(6, 4\), one sequence alone"):
        Recorder(nn.LSTM(SIZE, 3)).forward(Tape(1), x[0])
    with pytest.raises(pp.InvalidInput, match=r"LSTMCell was given a tensor of shape \(4,\)"):
        Recorder(nn.LSTMCell(SIZE, 3)).forward(Tape(1), x[0, 0])
    with pytest.raises(pp.InvalidInput, match=r"Own.*batch_first=True"):
        Recorder(Own(SIZE, 3))
    packed = pack_padded_sequence(x, torch.tensor([3, 2, 1]), batch_first=True)
    with pytest.raises(pp.InvalidInput, match="PackedSequence"):
        Recorder(Own(SIZE, 3, batch_first=True)).forward(Tape(3), packed)
    layer = nn.GRU(SIZE, 3, batch_first=True)
    layer.forward = lambda x: (x, x)  # type: ignore[method-assign,assignment]
    with pytest.raises(pp.InvalidInput, match="forward of a GRU was replaced"):
        Recorder(layer).forward(Tape(3), x)
    with pytest.raises(RuntimeError, match="Expected hidden"):
        Recorder(nn.GRU(SIZE, 3, batch_first=True)).forward(Tape(3), x, torch.zeros(1, 1, 3))


def test_a_subclass_goes_the_way_for_any_layer_and_a_second_pass_back_is_refused() -> None:
    compare_with_autograd(Own(SIZE, 3, batch_first=True), torch.randn(3, PLACES, SIZE))
    output = Recorder(nn.GRU(SIZE, 3, batch_first=True)).forward(Tape(3), torch.randn(3, PLACES, SIZE))[0]
    output.sum().backward(retain_graph=True)
    with pytest.raises(pp.InvalidInput, match="backward was run twice"):
        output.sum().backward()
