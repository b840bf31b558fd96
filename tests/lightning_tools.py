"""What tests of Lightning share: a module, data, a plan, a trainer that says little, and scripts in processes."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import privypurse as pp
from made_once import made_once
from privypurse.errors import PrivyPurseWarning
from privypurse.lightning import PrivateDataModule

PEOPLE = 60


def records(n: int = PEOPLE, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator))


@made_once
def planned(steps: int = 6, n: int = PEOPLE, **options: Any) -> pp.Plan:
    budgets = pp.Budgets(np.where(np.arange(n) % 2 == 0, 1.0, 3.0), delta=1e-5)
    return pp.plan(
        budgets, "sample", steps=steps, accountant="rdp", **{"batch_size": 12, "clip_norm": 0.5, **options}
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))


class Classifier(L.LightningModule):
    """As one writes it without Privy Purse."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def trainer(**options: Any) -> L.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return L.Trainer(**{"max_epochs": 1, "accelerator": "cpu", "enable_model_summary": False, **quiet, **options})


def public(seed: int = 9) -> DataLoader:
    return DataLoader(records(20, seed), batch_size=10)


def fit(
    module: L.LightningModule,
    plan: pp.Plan,
    trained_by: L.Trainer | None = None,
    *,
    data: Any = None,
    ckpt_path: str | None = None,
    **options: Any,
) -> L.Trainer:
    """Train the module by the plan, seeded unless ``seed`` says otherwise; gives the trainer."""
    used = trained_by or trainer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        private = PrivateDataModule(data or records(), plan, **{"seed": 3, **options})
        used.fit(module, datamodule=private, ckpt_path=ckpt_path)
    return used


def by_make_private(
    plan: pp.Plan, dtype: torch.dtype = torch.float32, autocast: bool = False, **options: Any
) -> nn.Module:
    """The same network by the loop that one writes oneself."""
    bare, (inputs, labels) = network().to(dtype), records().tensors
    data = TensorDataset(inputs.to(dtype), labels)
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)
        model, optimizer, loader = pp.make_private(bare, optimizer, data, plan, **{"seed": 3, **options})
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    return bare


def run_script(script: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script of its own in a process of its own, with these tools at hand."""
    path = folder / "script.py"
    path.write_text(script, encoding="utf-8")
    places = os.pathsep.join([str(Path(__file__).parent), str(Path(pp.__file__).parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
