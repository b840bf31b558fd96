"""The grammar: what passes keeps records apart and has each one's own gradient; nothing else passes."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import privypurse as pp
from privypurse.training.isolation.tracking.states import Drawn, Mixed, Places, Rows, Total, plain, state_of
from privypurse.training.isolation.tracking.structures import handed
from privypurse.training.isolation.tracking.tensor import Tracked

torch.set_num_threads(1)
RECORDS, TOKENS, WIDTH = 5, 4, 3
WEIGHT = torch.arange(12, dtype=torch.float64).view(WIDTH, 4) / 10
TABLE = torch.arange(1.0, 4.0, dtype=torch.float64)


def drawn(records: int = RECORDS, reduction: str = "mean") -> Drawn:
    return Drawn(records, reduction, lambda: bytes(32))


def values(records: int = RECORDS, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(records, TOKENS, WIDTH, generator=generator, dtype=torch.float64) + 0.1


def labels(records: int = RECORDS) -> Tensor:
    return torch.arange(records * TOKENS).view(records, TOKENS) % WIDTH


def followed(value: Tensor, places: Places, output: bool = False) -> Tensor:
    return handed(value, places, [] if output else None)


Way = Callable[[Tensor, Tensor], Any]
KEEPS: dict[str, Way] = {
    "arithmetic": lambda out, y: (2 - out) * out / 3 + out**2 - 1 / (out + 2),
    "constants": lambda out, y: out * TABLE + torch.ones(RECORDS, 1, 1, dtype=torch.float64)[: out.shape[0]],
    "own labels": lambda out, y: out * y.unsqueeze(-1),
    "a table by labels": lambda out, y: out * TABLE[y].unsqueeze(2),
    "table by index_select": lambda out, y: TABLE.index_select(0, y[:, 0]) * out[:, 0, 0],
    "gather": lambda out, y: out.gather(2, y.unsqueeze(2)),
    "entries by own label": lambda out, y: out[:, 0][torch.arange(out.shape[0]), y[:, 0]],
    "softmax": lambda out, y: out.softmax(-1) + out.log_softmax(dim=1),
    "sums": lambda out, y: out.sum(2) + out.mean(dim=-1) + out.sum(dim=(1, 2), keepdim=True)[:, 0],
    "largest": lambda out, y: out.max(2).values + out.amax(dim=1)[:, :1] + torch.max(out, out * 2)[..., 0],
    "deviation": lambda out, y: out.std(2) + out.var(1, False)[:, :1] + out.norm(dim=2) + torch.norm(out, 2, 2),
    "sort": lambda out, y: out.sort(2).values + out.topk(3, dim=2).values + out.cumsum(1).flip(1) + out.roll(1, 2),
    "norms": lambda out, y: F.normalize(out, dim=2) + torch.linalg.vector_norm(out, 2, 2, keepdim=True),
    "similarity": lambda out, y: F.cosine_similarity(out, out * TABLE, dim=2) + F.pairwise_distance(out, 2 * out),
    "times a matrix": lambda out, y: out @ WEIGHT + F.linear(out, WEIGHT.T),
    "times a vector": lambda out, y: out @ TABLE + torch.matmul(out, TABLE) + out[:, 0] @ TABLE[:, None],
    "own products": lambda out, y: out @ out.transpose(1, 2) + torch.bmm(out, out.mT),
    "matrix from the left": lambda out, y: torch.ones(2, TOKENS, dtype=out.dtype) @ out,
    "einsum": lambda out, y: (
        torch.einsum("btv,vw->bwt", out, WEIGHT) + torch.einsum("btv,btv->b", out, out)[:, None, None]
    ),
    "transposed": lambda out, y: (out.transpose(0, 1) * 2).permute(1, 2, 0) + out.movedim(0, 2).movedim(2, 0).mT,
    "flattened": lambda out, y: out.view(-1, WIDTH) * y.reshape(-1, 1),
    "flattened and back": lambda out, y: (out.flatten(0, 1) * 2).view(-1, TOKENS, WIDTH) + out,
    "all in a row": lambda out, y: out.reshape(-1) * 2,
    "regrouped": lambda out, y: out.reshape(-1, TOKENS * WIDTH).unflatten(1, (WIDTH, TOKENS)),
    "squeezed": lambda out, y: out[:, :1].squeeze() + out[:, :1, 0].squeeze(1).unsqueeze(1) + out[:, 0, None][:, 0],
    "expanded": lambda out, y: out.unsqueeze(1).expand(-1, 2, -1, -1).sum(1) + out.repeat(1, 1, 2)[..., :WIDTH],
    "every row twice": lambda out, y: out.repeat_interleave(2, dim=0) * y.repeat_interleave(2, 0).unsqueeze(2),
    "pieces": lambda out, y: out.split(2, dim=1)[0] + out.chunk(2, 1)[1] + out.narrow(1, 0, 2) + out[:, -2:],
    "slices": lambda out, y: out[:, 1:] - out[..., :-1, :] + out.select(2, 0)[:, 1:, None] + out[:, [0, 2, 1]],
    "cat and stack": lambda out, y: torch.cat([out, 2 * out], 1)[:, :TOKENS] + torch.stack([out, out]).sum(0),
    "one after the other": lambda out, y: torch.cat([out, out * 2]),
    "masked": lambda out, y: out.masked_fill((y == 0).unsqueeze(2), 0.0) + torch.where(y[..., None] == 1, out, 0.0),
    "by a mask": lambda out, y: out[y == 1] * TABLE,
    "records by a mask": lambda out, y: out[y[:, 0] == 0],
    "in place": lambda out, y: torch.zeros_like(out).add_(out.detach()).mul_(2) * out,
    "written by a mask": lambda out, y: _written(out, y),
    "one hot": lambda out, y: out * F.one_hot(y, WIDTH) + out * torch.zeros_like(out).scatter_(2, y[..., None], 1.0),
    "one hot into zeros": lambda out, y: out * torch.zeros(out.shape, dtype=out.dtype).scatter_(2, y[..., None], 1.0),
    "in another order": lambda out, y: out[list(reversed(range(out.shape[0])))],
    "padded": lambda out, y: F.pad(out, (0, 1, 1, 0)) ** 2,
    "casts": lambda out, y: out.float().to(torch.float64).type_as(out).clone().contiguous(),
    "layers": lambda out, y: (
        F.layer_norm(out, (WIDTH,)) + F.conv1d(out, torch.ones(TOKENS, TOKENS, 1, dtype=out.dtype))
    ),
    "entries' losses": lambda out, y: (
        F.mse_loss(out, 2 * out.detach(), reduction="none")
        + F.binary_cross_entropy(out.sigmoid(), F.one_hot(y, WIDTH).to(out.dtype), reduction="none")
    ),
    "labels' losses": lambda out, y: F.cross_entropy(out.transpose(1, 2), y, reduction="none"),
    "rows' losses": lambda out, y: F.multi_margin_loss(out.view(-1, WIDTH), y.view(-1), reduction="none"),
}


def _written(out: Tensor, y: Tensor) -> Tensor:
    changed = out.clone()
    changed[y == 1] = 0.0
    changed[:, 0] = changed[:, 1] * 2
    return changed


@pytest.mark.parametrize("name", KEEPS)
@pytest.mark.parametrize("records", [0, 1, 2, RECORDS])
def test_gradients_are_those_of_records_by_themselves(name: str, records: int) -> None:
    """Σ over records of the gradient of each one's own mean, for any number of records, none included."""
    inputs, y = values(records).requires_grad_(), labels(records)
    places = Places(drawn(records))
    result = KEEPS[name](followed(inputs, places, output=True), followed(y, places))
    state = state_of(result)
    assert isinstance(state, Rows)
    result.mean().backward()
    expected = torch.zeros_like(inputs)
    for i in range(records):
        alone = values(records)[i : i + 1].requires_grad_()
        own = KEEPS[name](alone, y[i : i + 1])
        if own.numel():
            expected[i] = torch.autograd.grad(own.mean(), alone)[0][0]
    torch.testing.assert_close(inputs.grad, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("records", [1, 2, RECORDS])
def test_a_batchmean_is_divided_by_a_records_own_rows(records: int, flat: bool) -> None:
    """Torch divides by all rows that were drawn; each record has the gradient that it has by itself."""

    def loss(out: Tensor) -> Tensor:
        rows = out.flatten(0, 1) if flat else out
        return F.kl_div(rows.log(), 2 * rows.detach(), reduction="batchmean")

    inputs = values(records).requires_grad_()
    loss(followed(inputs, Places(drawn(records)), output=True)).backward()
    for i in range(records):
        alone = values(records)[i : i + 1].requires_grad_()
        torch.testing.assert_close(inputs.grad[i], torch.autograd.grad(loss(alone), alone)[0][0])


@pytest.mark.parametrize("name", KEEPS)
def test_no_row_hangs_on_another_record(name: str) -> None:
    """One record's values are changed: rows of others stay as they are, bit for bit."""
    changed = values()
    changed[2] += 1.0
    found = []
    for inputs in (values(), changed):
        places = Places(drawn())
        found.append(KEEPS[name](followed(inputs.requires_grad_(), places, output=True), followed(labels(), places)))
    state = state_of(found[0])
    assert isinstance(state, Rows)
    others = torch.as_tensor(np.flatnonzero(state.places.rows() != 2))
    one, other = (plain(each).index_select(state.dim, others) for each in found)
    assert torch.equal(one, other)


STEPS: list[Way] = [
    lambda out, y: out.tanh() * 2,
    lambda out, y: out * out.sum(dim=-1, keepdim=True).tanh(),
    lambda out, y: out + y.view(*y.shape, *[1] * (out.dim() - 2)) if out.dim() > 2 else out * 1.5,
    lambda out, y: out.unsqueeze(1).flatten(1, 2) if out.dim() > 2 else out.unsqueeze(1),
    lambda out, y: out.flatten(1),
    lambda out, y: out.flatten(1).sort(dim=1).values,
    lambda out, y: torch.cat([out, out.sigmoid()], dim=-1),
    lambda out, y: out[y[:, 0] >= 0],
    lambda out, y: out.flip(-1) if out.dim() > 1 else out,
    lambda out, y: out.log_softmax(dim=-1) if out.dim() > 1 else out,
    lambda out, y: torch.where(out > 0.3, out, -out),
]


@settings(max_examples=150, deadline=None)
@given(program=st.lists(st.integers(0, len(STEPS) - 1), max_size=7), records=st.integers(0, 4), kind=st.booleans())
def test_programs_of_allowed_operations(program: list[int], records: int, kind: bool) -> None:
    reduction = "mean" if kind else "sum"

    def run(out: Tensor, y: Tensor) -> Tensor:
        for step in program:
            out = STEPS[step](out, y)
        return out.mean() if kind else out.sum()

    inputs, y = values(records).requires_grad_(), labels(records)
    places = Places(drawn(records, reduction))
    total = run(followed(inputs, places, output=True), followed(y, places))
    assert isinstance(state_of(total), Total)
    total.backward()
    for i in range(records):
        alone = values(records)[i : i + 1].requires_grad_()
        run(alone, y[i : i + 1]).backward()
        torch.testing.assert_close(inputs.grad[i], alone.grad[0], rtol=1e-9, atol=1e-12)


REFUSED: dict[str, Way] = {
    "over records": lambda out, y: out.softmax(0),
    "over all": lambda out, y: out.max(),
    "sorted over records": lambda out, y: out.sort(0).values,
    "flipped, both dimensions": lambda out, y: out.flip(1, 0) + out,
    "not by record in memory": lambda out, y: out.transpose(0, 1).reshape(-1, WIDTH),
    "two records in a row": lambda out, y: (
        out.reshape(-1, 2 * TOKENS * WIDTH) if out.shape[0] % 2 == 0 else out.T.max()
    ),
    "pairs": lambda out, y: out[:, 0] @ out[:, 0].T,
    "sum over records by a product": lambda out, y: torch.ones(out.shape[0], dtype=out.dtype) @ out[:, 0],
    "einsum": lambda out, y: torch.einsum("btv,ctv->bc", out, out),
    "distances": lambda out, y: torch.cdist(out[:, 0], out[:, 0]),
    "broadcast": lambda out, y: out[:, 0, :1] - y[:, 0],
    "neighbours": lambda out, y: out[1:] - out[:-1],
    "by position": lambda out, y: out[:1] * 2,
    "each": lambda out, y: [row.mean() for row in out],
    "another order": lambda out, y: out + out[torch.arange(out.shape[0]).flip(0)],
    "rolled": lambda out, y: out.roll(1, 0),
    "entries by others' labels": lambda out, y: out[:, :, y[:, 0]],
    "others' labels by index_select": lambda out, y: out.index_select(2, y[:, 0]),
    "entries by others' masks": lambda out, y: out[:, :, (y[:, 0] == 0)[:WIDTH]],
    "the batch's favourite": lambda out, y: out[..., out.detach().sum((0, 1)).argmax()],
    "the batch's order of classes": lambda out, y: out[:, 0, out.detach().sum((0, 1)).argsort()],
    "written where others' labels say": lambda out, y: out.clone().__setitem__((slice(None), 0, y[:, 0]), 0.0),
    "of a mean": lambda out, y: out - out.detach().mean(0),
    "total and rows": lambda out, y: out * out.mean(),
    "total squared": lambda out, y: out.mean() ** 2,
    "product of totals": lambda out, y: out.mean() * out.mean(),
    "over a total": lambda out, y: 1 / out.mean(),
    "sum and mean": lambda out, y: out.mean() + out.sum(),
    "weights by position": lambda out, y: out * torch.arange(float(out.shape[0]), dtype=out.dtype)[:, None, None],
    "unknown": lambda out, y: torch.fft.fft(out),
    "ctc": lambda out, y: F.ctc_loss(out.transpose(0, 1), y, torch.full((5,), TOKENS), torch.full((5,), 1)),
    "a hook": lambda out, y: out.register_hook(lambda g: g - g.mean(0)),
    "into another tensor": lambda out, y: torch.add(out, 1, out=torch.empty(out.shape, dtype=out.dtype)),
    "a parameter": lambda out, y: out * nn.Parameter(torch.ones(1, dtype=out.dtype)),
    "mixed positions": lambda out, y: out[y[:, 0]],
    "rows into rows": lambda out, y: out.clone().copy_(out[[4, 3, 2, 1, 0]]),
    "written by position": lambda out, y: out.clone().__setitem__(0, 0.0),
    "backward of rows": lambda out, y: out.backward(torch.ones(out.shape)),
    "a table that is shortened": lambda out, y: out[..., 0] * F.embedding(y, WEIGHT.clone(), max_norm=0.1).sum(2),
    "one hot of the batch": lambda out, y: out * F.one_hot(y),
    "shifted by padding": lambda out, y: F.pad(out, (0, 0, 0, 0, 1, -1)),
    "normalised over all": lambda out, y: F.layer_norm(out, out.shape),
    "backward scaled by the batch": lambda out, y: out.mean().backward(out.detach().max()),
    "scaled by the batch, in a list": lambda out, y: torch.autograd.backward([out.mean()], [out.detach().max()]),
    "backward to be gone through again": lambda out, y: out.mean().backward(create_graph=True),
    "backward to something else": lambda out, y: out.mean().backward(inputs=[torch.ones(1, requires_grad=True)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_records_is_refused(name: str) -> None:
    places = Places(drawn())
    with pytest.raises(pp.InvalidInput):
        REFUSED[name](followed(values().requires_grad_(), places, output=True), followed(labels(), places))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        return out * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.mean(dim=0, keepdim=True).expand_as(gradient)


def test_a_backward_pass_of_ones_own_is_refused() -> None:
    out = followed(values().requires_grad_(), Places(drawn()), output=True)
    with pytest.raises(pp.InvalidInput, match="DoubledBackward"):
        Doubled.apply(out).mean().backward()


def test_a_gradient_that_does_not_come_from_a_crossing_is_refused() -> None:
    out = followed(values().requires_grad_(), Places(drawn()), output=True)
    with pytest.raises(pp.InvalidInput, match="not of a loss over records"):
        plain(out).mean().backward()


def test_statistics_may_be_looked_at() -> None:
    places = Places(drawn())
    out, y = followed(values().requires_grad_(), places, output=True), followed(labels(), places)
    right = (out.argmax(-1) == y).double().mean()
    assert isinstance(state_of(right), Mixed)
    assert 0.0 <= float(right) <= 1.0
    assert f"{right:.3f}" == f"{right.item():.3f}"
    loss = out.square().mean()
    running = torch.zeros((), dtype=torch.float64)
    running += loss.detach()
    assert isinstance(state_of(running), Mixed)
    assert "Tracked" not in repr(loss)
    assert copy.deepcopy(y).shape == y.shape
    assert isinstance(state_of(y.bincount()) if y.dim() == 1 else state_of(y.flatten().bincount()), Mixed)
    loss += 0.5 * out.abs().mean()
    loss /= 2
    loss.backward()


def test_rows_with_grad_stay_ordinary_tensors_in_all_else() -> None:
    out = followed(values().requires_grad_(), Places(drawn()), output=True)
    assert isinstance(out, Tensor)
    assert isinstance(out, Tracked)
    assert out.shape == (RECORDS, TOKENS, WIDTH)
    assert len(out) == RECORDS
    assert out.detach().numpy().shape == out.shape
