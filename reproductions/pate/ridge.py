"""Kernel ridge classifiers, hundreds at once: what teachers and the supervised student are."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from privypurse.arrays import AnyArray


@dataclass(frozen=True)
class Ridge:
    """Records of length 1, kernel e^{sharpness·(cosine - 1)}, squared loss on the classes, and a penalty."""

    sharpness: float = 3.0
    penalty: float = 0.003

    def scores(self, x: Tensor, y: Tensor, held: Tensor, classes: int, inputs: Tensor) -> Tensor:
        """Of every model the score of each class for the inputs: [models, inputs, classes].

        ``x`` is [models, records, features]. Where ``held`` [models, records] is False there is no record: its row
        counts for nothing.
        """
        target = (F.one_hot(y, classes).to(x) - 1 / classes) * held[..., None]
        pairs = self._kernel(x @ x.mT) * (held[:, None] & held[..., None])
        factor = torch.linalg.cholesky(pairs + self.penalty * torch.eye(x.shape[1], dtype=x.dtype))
        return self._kernel(inputs @ x.mT) @ torch.cholesky_solve(target, factor)

    def _kernel(self, cosine: Tensor) -> Tensor:
        return (self.sharpness * (cosine - 1)).exp()


def votes(
    ridge: Ridge,
    x: Tensor,
    y: Tensor,
    person: AnyArray,
    teacher: AnyArray,
    teachers: int,
    inputs: Tensor,
    classes: int,
) -> Tensor:
    """Every teacher's class for each input, [teachers, inputs]. Shards are pairs of a record and its teacher."""
    order = torch.as_tensor(teacher).argsort(stable=True)
    sizes = torch.bincount(torch.as_tensor(teacher), minlength=teachers)
    shards = torch.split(torch.as_tensor(person)[order], sizes.tolist())
    out = []
    for some in [shards[k : k + 16] for k in range(0, teachers, 16)]:
        place = torch.nn.utils.rnn.pad_sequence(list(some), batch_first=True, padding_value=-1)
        held = place >= 0
        out.append(ridge.scores(x[place], y[place], held, classes, inputs).argmax(dim=2))
    return torch.cat(out)
