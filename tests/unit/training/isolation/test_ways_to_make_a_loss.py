"""Ways in which ordinary code makes a loss: one person moves the sum by at most a clip norm, or it is refused.

Sixteen records whose gradients all point the same way, and one whose labels all count where those of others do not.
Noise is the same with and without this person, so what is left is how far the sum moves.
"""

from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp

torch.set_num_threads(1)
pytestmark = [
    pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning"),
    pytest.mark.filterwarnings("ignore:Using a target size"),
]
OTHERS, TOKENS, CLIP = 16, 40, 0.5
WEIGHTS = torch.tensor([1.0, 50.0], dtype=torch.float64)


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


class Pair(NamedTuple):
    logits: Tensor
    extra: Tensor


class ModelOutput(OrderedDict):
    """Entries are attributes too, as those of Hugging Face's outputs are."""

    def __init__(self, logits: Tensor, loss: Tensor | None = None) -> None:
        super().__init__(logits=logits) if loss is None else super().__init__(loss=loss, logits=logits)
        self.__dict__.update(self)


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda out: out,
    "tuple": lambda out: (out, out.detach()),
    "dict": lambda out: {"logits": out},
    "dataclass": Output,
    "named tuple": lambda out: Pair(out, out),
    "model output": ModelOutput,
    "user dict": lambda out: UserDict(logits=out),
}


class Tagger(nn.Module):
    """Two classes for every token; with labels it makes its own loss, as many models do."""

    def __init__(self, form: str = "tensor", inside: Callable[..., Tensor] | None = None) -> None:
        super().__init__()
        self.layer, self.form, self.inside = nn.Linear(1, 2, bias=False).double(), form, inside
        nn.init.zeros_(self.layer.weight)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        out = self.layer(x)
        if self.inside is not None:
            return Output(out, self.inside(out, labels))
        return FORMS[self.form](out)


def logits(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple):
        return output[0]
    return output["logits"] if isinstance(output, dict | UserDict) else output.logits


def dataset(with_person: bool, replaced: bool = False) -> TensorDataset:
    """Of the others one label counts; of the person all do, and they are of the heavy class."""
    x = torch.ones(OTHERS + 1, TOKENS, 1, dtype=torch.float64)
    labels = torch.full((OTHERS + 1, TOKENS), -100)
    labels[:, 0] = 0
    if not replaced:
        labels[0], x[0] = 1, 10.0
    first = 0 if with_person else 1
    return TensorDataset(x[first:], labels[first:])


def released(way: Callable[..., None], data: TensorDataset, model: nn.Module, **options: Any) -> Tensor:
    """The sum that one step releases, with the noise of seed 1."""
    n = len(data)
    plan = pp.plan(pp.Budgets(np.ones(n), delta=1e-5), "uniform", steps=1, batch_size=n, clip_norm=CLIP)
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    private, optimizer, loader = pp.make_private(model, sgd, data, plan, seed=1, **options)
    for x, y in loader:
        optimizer.zero_grad()
        way(private, optimizer, x, y)
        optimizer.step()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]) * n


def movement(way: Callable[..., None], make: Callable[[], nn.Module] = Tagger, **options: Any) -> float:
    """How far the person moves the released sum, in clip norms."""
    torch.manual_seed(0)
    with_person, without = (released(way, dataset(here), make(), **options) for here in (True, False))
    return float((with_person - without).norm()) / CLIP


def rows(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return out.reshape(-1, 2), y.reshape(-1)


def backward(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., None]:
    return lambda model, optimizer, x, y: loss(logits(model(x)), y).backward()


def _masked_mean(out: Tensor, y: Tensor) -> Tensor:
    mask = (y != -100).to(out.dtype)
    losses = F.cross_entropy(out.transpose(1, 2), y.clamp(min=0), reduction="none")
    return (losses * mask).sum() / mask.sum()


def _flat_masked_mean(out: Tensor, y: Tensor) -> Tensor:
    flat, labels = rows(out, y)
    losses, mask = F.cross_entropy(flat, labels, reduction="none", ignore_index=-100), labels.ne(-100)
    return losses.sum() / mask.sum().clamp(min=1)


def _chosen_rows(out: Tensor, y: Tensor) -> Tensor:
    flat, labels = rows(out, y)
    return F.cross_entropy(flat[labels != -100], labels[labels != -100])


def _contrastive(out: Tensor, y: Tensor) -> Tensor:
    z = out.mean(dim=1)
    return F.cross_entropy(z @ z.T, torch.arange(z.shape[0]))


def _standardised(out: Tensor, y: Tensor) -> Tensor:
    return ((out - out.mean(dim=0)) / (out.std(dim=0) + 1e-3)).sum(dim=(1, 2)).mean()


def _mixup(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    other = torch.randperm(x.shape[0])
    F.cross_entropy(model(0.5 * x + 0.5 * x[other]).transpose(1, 2), y).backward()


def _hard_examples(out: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(out.transpose(1, 2), y, reduction="none").sum(dim=1)
    return losses.topk(4).values.mean()


def _by_position(out: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(out.transpose(1, 2), y, reduction="none").sum(dim=1)
    return (losses * torch.linspace(0, 1, losses.shape[0], dtype=out.dtype)).mean()


def _balanced(out: Tensor, y: Tensor) -> Tensor:
    """Class weights made of the batch's own counts."""
    flat, labels = rows(out, y)
    counts = F.one_hot(labels.clamp(min=0), 2).sum(dim=0).to(out.dtype)
    return F.cross_entropy(flat, labels, weight=1 / (1 + counts))


def _dice(out: Tensor, y: Tensor) -> Tensor:
    p, t = out.softmax(-1)[..., 1], (y == 0).to(out.dtype)
    return 1 - 2 * (p * t).sum() / (p.sum() + t.sum())


def _ratio(out: Tensor, y: Tensor) -> Tensor:
    weight = 1.0 + 50 * (y == 1).to(out.dtype)
    return (weight * F.cross_entropy(out.transpose(1, 2), y, reduction="none")).sum() / weight.sum()


def _multi_task(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.transpose(1, 2), y) + 0.3 * F.mse_loss(out[..., 0], (y == 0).to(out.dtype))


def _penalty_on_parameters(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    loss = F.cross_entropy(model(x).transpose(1, 2), y)
    (loss + 0.1 * sum((p - 1).square().sum() for p in model.parameters())).backward()


def _each_by_itself(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    for i in range(x.shape[0]):
        F.cross_entropy(model(x[i : i + 1]).transpose(1, 2), y[i : i + 1]).backward()


def _through_numpy(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    y = torch.as_tensor(y.numpy())
    F.cross_entropy(model(x).transpose(1, 2), y).backward()


def _inside(loss: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    return lambda: Tagger(inside=loss)


def _its_loss(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    model(x, labels=y).loss.backward()


def _its_losses(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    optimizer.backward(model(x, labels=y).loss)


def _own_losses(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    optimizer.backward(F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").sum(dim=1))


def _rescaled(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    loss = F.cross_entropy(model(x).transpose(1, 2), y)
    (loss / loss.detach()).backward()


def _running_mean(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    """A loss divided by a memory of losses."""
    memory = torch.ones((), dtype=x.dtype)
    loss = F.cross_entropy(model(x).transpose(1, 2), y)
    memory.mul_(0.1).add_(0.9 * loss.detach())
    (loss / memory).backward()


def _accumulated(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    flat, labels = rows(logits(model(x)), y)
    torch.autograd.backward(F.cross_entropy(flat, labels) / 2)


def _tokens(loss: Callable[..., Tensor], **options: Any) -> Callable[..., None]:
    return backward(lambda out, y: loss(*rows(out, y), **options))


def _mean_over_tokens(out: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(out.reshape(-1, 2), labels.reshape(-1))


def _one_each(out: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(out.transpose(1, 2), labels, reduction="none").sum(dim=1)


def _binary(**options: Any) -> Callable[..., None]:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(out[..., 1], (y == 1).to(out.dtype), **options)

    return backward(loss)


ALLOWED, REFUSED = True, False
WAYS: dict[str, tuple[bool, Callable[..., None], Callable[[], nn.Module]]] = {
    "ignored labels": (ALLOWED, _tokens(F.cross_entropy), Tagger),
    "ignored labels, module": (ALLOWED, _tokens(nn.CrossEntropyLoss()), Tagger),
    "ignored labels, (records, classes, tokens)": (
        ALLOWED,
        backward(lambda out, y: F.cross_entropy(out.transpose(1, 2), y)),
        Tagger,
    ),
    **{
        f"ignored labels, {form}": (ALLOWED, _tokens(F.cross_entropy), lambda form=form: Tagger(form))
        for form in FORMS
        if form != "tensor"
    },
    "nll": (ALLOWED, _tokens(lambda out, y: F.nll_loss(out.log_softmax(-1), y)), Tagger),
    "label smoothing": (ALLOWED, _tokens(F.cross_entropy, label_smoothing=0.1), Tagger),
    "class weights": (ALLOWED, _tokens(F.cross_entropy, weight=WEIGHTS), Tagger),
    "class weights, module, smoothed": (
        ALLOWED,
        _tokens(nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1)),
        Tagger,
    ),
    "class weights of the batch's counts": (REFUSED, backward(_balanced), Tagger),
    "masked mean": (REFUSED, backward(_masked_mean), Tagger),
    "division by a mask's sum": (REFUSED, backward(_flat_masked_mean), Tagger),
    "masked mean, dict": (REFUSED, backward(_masked_mean), lambda: Tagger("dict")),
    "rows chosen by a mask": (ALLOWED, backward(_chosen_rows), Tagger),
    "ratio of sums": (REFUSED, backward(_ratio), Tagger),
    "dice over the batch": (REFUSED, backward(_dice), Tagger),
    "binary": (ALLOWED, _binary(), Tagger),
    "positive weight": (ALLOWED, _binary(pos_weight=torch.tensor(50.0, dtype=torch.float64)), Tagger),
    "several tasks": (ALLOWED, backward(_multi_task), Tagger),
    "regulariser on outputs": (
        ALLOWED,
        backward(lambda out, y: F.cross_entropy(out.transpose(1, 2), y) + 0.1 * out.square().mean()),
        Tagger,
    ),
    "penalty on parameters": (REFUSED, _penalty_on_parameters, Tagger),
    "contrastive": (REFUSED, backward(_contrastive), Tagger),
    "outputs standardised over the batch": (REFUSED, backward(_standardised), Tagger),
    "differences of neighbours": (REFUSED, backward(lambda out, y: (out[1:] - out[:-1]).square().mean()), Tagger),
    "mixup": (REFUSED, _mixup, Tagger),
    "hardest examples": (REFUSED, backward(_hard_examples), Tagger),
    "weights by position": (REFUSED, backward(_by_position), Tagger),
    "the first few": (REFUSED, backward(lambda out, y: out[:8].square().sum(dim=(1, 2)).mean()), Tagger),
    "labels paired with others": (
        REFUSED,
        backward(lambda out, y: F.mse_loss(out[:, :1, 0], (y[:, 0] == 0).to(out.dtype))),
        Tagger,
    ),
    "mean of a deviation": (REFUSED, backward(lambda out, y: (out - out.mean()).square().mean()), Tagger),
    "logarithm of a mean": (REFUSED, backward(lambda out, y: _one_each(out, y).mean().log()), Tagger),
    "loss over its own value": (REFUSED, _rescaled, Tagger),
    "loss over a running mean": (REFUSED, _running_mean, Tagger),
    "each record by itself": (ALLOWED, _each_by_itself, Tagger),
    "autograd.backward of half": (ALLOWED, _accumulated, Tagger),
    "labels through NumPy": (REFUSED, _through_numpy, Tagger),
    "loss inside the model": (REFUSED, _its_loss, _inside(_mean_over_tokens)),
    "masked mean inside the model": (REFUSED, _its_loss, _inside(_masked_mean)),
    "losses inside the model": (ALLOWED, _its_losses, _inside(_one_each)),
    "one loss for each record": (ALLOWED, _own_losses, Tagger),
}


@pytest.mark.parametrize("name", WAYS)
def test_one_person_moves_the_sum_by_at_most_a_clip_norm(name: str) -> None:
    allowed, way, make = WAYS[name]
    if allowed:
        assert movement(way, make) <= 1.0
        return
    with pytest.raises(pp.InvalidInput):
        pytest.fail(f"let through, and the sum moved by {movement(way, make):.1f} clip norms", pytrace=False)


def test_at_least_twenty_ways_were_tried() -> None:
    assert len(WAYS) >= 20
    assert sum(allowed for allowed, _, _ in WAYS.values()) >= 10


@pytest.mark.parametrize("name", [name for name, (allowed, _, _) in WAYS.items() if allowed and "itself" not in name])
def test_a_replaced_record_moves_it_by_at_most_two(name: str) -> None:
    _, way, make = WAYS[name]
    one, other = (released(way, dataset(True, replaced), make()) for replaced in (False, True))
    assert float((one - other).norm()) / CLIP <= 2.0


def test_whether_a_loss_is_refused_does_not_hang_on_labels() -> None:
    """Without a single ignored label, or with nothing else, the same ways pass and the same are refused."""
    x = torch.ones(5, TOKENS, 1, dtype=torch.float64)
    for label in (-100, 0):
        data = TensorDataset(x, torch.full((5, TOKENS), label))
        released(WAYS["ignored labels"][1], data, Tagger())
        with pytest.raises(pp.InvalidInput, match="mask's sum"):
            released(backward(_masked_mean), data, Tagger())


def test_what_stays_unseen() -> None:
    """The documented way around: a Python number read off the batch. (If this is refused one day, say so.)"""

    def by_number(out: Tensor, y: Tensor) -> Tensor:
        mask = (y != -100).to(out.dtype)
        losses = F.cross_entropy(out.transpose(1, 2), y.clamp(min=0), reduction="none")
        return (losses * mask).sum(dim=1).mean() / mask.sum().item()

    assert movement(backward(by_number)) > 0
