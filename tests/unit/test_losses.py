"""Losses for language: one for each record, of its own tokens alone."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.isolation.loss_fn import require_own_losses

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")

RECORDS, TOKENS, WORDS = 6, 9, 7


def made(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of each token, and labels of which each record counts another share, the last record none."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(RECORDS, TOKENS, WORDS, generator=generator, dtype=torch.float64) * 3
    labels = torch.randint(0, WORDS, (RECORDS, TOKENS), generator=generator)
    for record in range(RECORDS):
        labels[record, torch.rand(TOKENS, generator=generator) < record / (RECORDS - 1)] = -100
    return logits, labels


def by_hand(logits: Tensor, labels: Tensor, tokens: str, shift: int) -> list[float]:
    """Word by word, in NumPy."""
    found = []
    for rows, words in zip(logits.numpy(), labels.tolist(), strict=True):
        terms = []
        for place, word in enumerate(words[shift:]):
            if word != -100:
                shares = np.exp(rows[place] - rows[place].max())
                terms.append(-np.log(shares[word] / shares.sum()))
        found.append(0.0 if not terms else float(np.mean(terms) if tokens == "mean" else np.sum(terms)))
    return found


@pytest.mark.parametrize("tokens", ["mean", "sum"])
@pytest.mark.parametrize(
    ("loss", "shift"),
    [
        (pp.losses.token_classification, 0),
        (pp.losses.masked_language_model, 0),
        (pp.losses.causal_language_model, 1),
    ],
)
def test_a_record_is_measured_by_its_own_tokens(loss, shift, tokens):
    logits, labels = made()
    logits.requires_grad_()
    found = loss(logits, labels, tokens=tokens)
    assert found.tolist() == pytest.approx(by_hand(logits.detach(), labels, tokens, shift), rel=1e-12)
    assert found[-1] == 0  # no token of it counts
    found.sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[-1].any()
    require_own_losses(lambda output, y: loss(output, y, tokens=tokens), logits, labels, RECORDS)


def test_the_mean_over_the_tokens_of_a_batch_is_another_loss():
    """What a model gives that is given labels: the broken twin of the test above."""
    logits, labels = made()
    mixed = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert not torch.isclose(mixed, pp.losses.token_classification(logits, labels).mean(), rtol=1e-2)

    def twin(output: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(output.transpose(1, 2), y, reduction="none")
        return each.sum(dim=1) / (y != -100).sum()

    with pytest.raises(pp.InvalidInput, match="changes with the other records"):
        require_own_losses(twin, logits, labels, RECORDS)


def test_a_label_for_each_record_is_a_class_several_or_a_number():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    classes = torch.tensor([2, 0, -100, 1])
    found = pp.losses.sequence_classification(logits, classes)
    assert found.tolist() == pytest.approx(by_hand(logits.unsqueeze(1), classes.unsqueeze(1), "mean", 0))
    several = torch.randint(0, 2, (4, 3), generator=generator).double()
    share = 1 / (1 + np.exp(-logits.numpy()))
    expected = -(several.numpy() * np.log(share) + (1 - several.numpy()) * np.log(1 - share)).mean(axis=1)
    np.testing.assert_allclose(pp.losses.sequence_classification(logits, several), expected, rtol=1e-12)
    numbers = torch.tensor([0.5, 1.0, -1.0, 2.0], dtype=torch.float64)
    squares = (logits[:, 0].numpy() - numbers.numpy()) ** 2
    np.testing.assert_allclose(pp.losses.sequence_classification(logits[:, :1], numbers), squares, rtol=1e-12)


def test_an_answer_is_measured_by_where_it_begins_and_ends():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(2, 4, TOKENS, generator=generator, dtype=torch.float64).requires_grad_()
    ends = torch.tensor([[0, 3], [2, TOKENS], [-100, 1], [-1, TOKENS + 5]])  # places outside do not count
    expected = []
    for start, end in ([0, 3], [2, None], [None, 1], [None, None]):
        rows, record = logits.detach().numpy(), len(expected)
        shares = np.exp(rows[:, record]) / np.exp(rows[:, record]).sum(axis=1, keepdims=True)
        terms = [-np.log(shares[k, place]) for k, place in enumerate((start, end)) if place is not None]
        expected.append(sum(terms) / 2)
    found = pp.losses.question_answering(tuple(logits), ends)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    found.sum().backward()
    assert torch.isfinite(logits.grad).all()
    require_own_losses(pp.losses.question_answering, tuple(logits), ends, 4)
    with pytest.raises(pp.InvalidInput, match=r"labels have shape \(4,\); .* \(4, 2\)"):
        pp.losses.question_answering(tuple(logits), ends[:, 0])
    with pytest.raises(pp.InvalidInput, match="without start_logits and end_logits"):
        pp.losses.question_answering(logits[0], ends)


def test_short_floats_are_measured_in_float32():
    logits, labels = made()
    found = pp.losses.causal_language_model(logits.bfloat16(), labels)
    assert found.dtype == torch.float32
    assert torch.equal(found, pp.losses.causal_language_model(logits.bfloat16().float(), labels))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pp.losses.token_classification(*made(), tokens="max"), "tokens is 'max'"),
        (lambda: pp.losses.token_classification(made()[0], made()[1][:, 1:]), r"labels have shape \(6, 8\)"),
        (lambda: pp.losses.token_classification(made()[0][0], made()[1]), "needed are"),
        (lambda: pp.losses.sequence_classification(*made()), "needs \\(records, classes\\)"),
        (lambda: pp.losses.sequence_classification(made()[0][:, 0], made()[1]), "labels have shape"),
        (lambda: pp.losses.token_classification({"scores": made()[0]}, made()[1]), "a dict without logits"),
        (lambda: pp.losses.for_model(nn.Linear(1, 1)), "model is a Linear"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises((pp.InvalidInput, pp.Unsupported), match=message):
        call()


class Speaking(nn.Module):
    """Logits of each word, and, if it is given labels, the mean over all words of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, words: Tensor, labels: Tensor | None = None):
        logits = self.head(self.table(words))
        if labels is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def loop(loss_of, steps: int = 3) -> nn.Module:
    """A seeded run of a loop of one's own; ``loss_of`` does its backward pass."""
    _, labels = made()
    words = labels.clamp(min=0)
    plan = pp.plan(pp.Budgets([1.0, 3.0] * 3), "sample", steps=steps, batch_size=3, clip_norm=0.1, accountant="rdp")
    torch.manual_seed(0)
    model = Speaking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private, optimizer, loader = pp.make_private(model, optimizer, TensorDataset(words, labels), plan, seed=3)
    for x, y in loader:
        optimizer.zero_grad()
        loss_of(private, optimizer, x, y)
        optimizer.step()
    return model


def test_both_ways_back_are_the_same_in_a_loop():
    loss = pp.losses.causal_language_model
    one = loop(lambda model, optimizer, x, y: optimizer.backward(loss(model(x), y)))
    other = loop(lambda model, optimizer, x, y: loss(model(x), y).mean().backward())
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("how", ["loss.backward()", "optimizer.backward(loss)"])
def test_a_loss_made_inside_the_model_is_refused_and_the_message_names_the_helper(how):
    def inside(model, optimizer, x, y):
        loss, _ = model(x, labels=y)
        loss.backward() if how.startswith("loss") else optimizer.backward(loss)

    with pytest.raises(pp.InvalidInput, match=r"pp\.losses"):
        loop(inside)
