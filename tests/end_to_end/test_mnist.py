"""A private model learns MNIST: a part of it, in seconds. The full run is the table boenisch-table-2-mnist."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse import datasets
from privypurse.runs.models import TramerBoneh


@pytest.mark.slow
@pytest.mark.needs("data/MNIST")
def test_a_private_model_learns_mnist() -> None:
    images = datasets.mnist()
    people = 6_000

    def tensors(pixels: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(pixels)[:, None].float() / 255, torch.tensor(labels.astype(np.int64))

    data = TensorDataset(*tensors(images.train_images[:people], images.train_labels[:people]))
    x, y = tensors(images.test_images[:2_000], images.test_labels[:2_000])
    budgets = pp.Budgets(np.where(np.arange(people) % 3 == 0, 4.0, 8.0), delta=1e-5)
    plan = pp.plan(budgets, "sample", steps=120, batch_size=256, clip_norm=0.5, accountant="rdp")
    plan.check(budgets)
    torch.manual_seed(0)
    model = TramerBoneh()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    pp.train(model, optimizer, data, plan, partial(F.cross_entropy, reduction="none"))
    with torch.no_grad():
        accuracy = float((model(x).argmax(dim=1) == y).float().mean())
    assert accuracy > 0.7  # guessing gives 0.1
