"""Records in several views, and the truth about their gradients: autograd, one record at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privypurse.training.gradients import Recorder, Tape, clip_factors, norms, recorded, sums
from privypurse.training.step_randomness import keyed

RECORDS, VIEWS, KEY = 4, 3, bytes(32)


def losses(output: Tensor, target: Tensor) -> Tensor:
    return (output.flatten(1) * target.flatten(1)).sum(dim=1).square() / 2 + output.flatten(1).sin().sum(dim=1)


class Jitter(nn.Module):
    """An augmentation: other noise for every row."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def passes(layer: nn.Module, shape: tuple[int, ...], views: int = VIEWS) -> tuple[Tape, list[dict[str, Tensor]]]:
    """What was recorded of augmented records, and the truth: each record's mean loss, by autograd."""
    torch.manual_seed(0)
    model = nn.Sequential(Jitter(), layer).double()
    x = torch.randn(RECORDS, *shape, dtype=torch.float64)
    target = torch.randn_like(layer(x)).detach()
    recorder = Recorder(model)
    recorder.views, recorder.key = views, lambda: KEY
    tape, found = recorded(recorder, losses, x, target)
    with keyed(KEY):
        seen = Jitter()(x.repeat_interleave(views, dim=0))
    names, truth = dict(model.named_parameters()), []
    for record in range(RECORDS):
        mine = [seen[row : row + 1] for row in range(record * views, (record + 1) * views)]
        loss = torch.cat([losses(layer(view), target[record : record + 1]) for view in mine]).mean()
        torch.testing.assert_close(found[record], loss.detach())
        truth.append(dict(zip(names, torch.autograd.grad(loss, list(names.values())), strict=True)))
    return tape, truth


def compare(tape: Tape, truth: list[dict[str, Tensor]]) -> None:
    exact = torch.stack([torch.cat([each.flatten() for each in mine.values()]).norm() for mine in truth])
    found = norms(tape)
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)
    factors = clip_factors(found, exact * torch.linspace(0.3, 1.7, RECORDS, dtype=torch.float64))
    total: dict[str, Tensor] = {}
    for name, part in sums(tape, factors, found):
        total[name] = total[name] + part if name in total else part
    for name in truth[0]:
        expected = sum(factor * mine[name] for factor, mine in zip(factors, truth, strict=True))
        torch.testing.assert_close(total[name], expected, rtol=1e-10, atol=1e-10)
