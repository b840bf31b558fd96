"""Accuracy: on validation records while choosing, on test records once, by what was chosen."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from reproductions import features
from reproductions.choice import Choice, Job, Unfinished
from reproductions.heads import predictions
from reproductions.training import Averages

_CHUNK = 5_000


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """In percent."""
    model.eval()
    with torch.no_grad():
        right = sum(
            int((predictions(model(x[first : first + _CHUNK])) == y[first : first + _CHUNK]).sum())
            for first in range(0, len(y), _CHUNK)
        )
    return 100 * right / len(y)


def validation_accuracies(model: nn.Module, averages: Averages, job: Job, x: Tensor, y: Tensor) -> dict[str, float]:
    """The accuracy of every average that is tried."""
    out = {}
    for decay in job.settings.decays:
        averages.put(decay)
        out[str(decay)] = accuracy(model, x, y)
    return out


@lru_cache(maxsize=1)
def _test_records(name: str, views: str, scaling: str, folder: Path, device: torch.device) -> tuple[Tensor, Tensor]:
    return features.load(name, "test", views, scaling, folder, device)


def test_accuracy(choice: Choice, job: Job, model: nn.Module, averages: Averages, folder: Path) -> dict[str, float]:
    """The one function that opens the test set: for a finished choice, and what it chose."""
    chosen = choice.chosen(job.method)  # raises where scores are missing
    if job.settings != chosen.settings:
        raise Unfinished(f"method {job.method} was trained with settings that the choice did not choose")
    device = next(model.parameters()).device
    settings = job.settings
    x, y = _test_records(choice.spec.data, settings.views, settings.scaling, folder, device)
    averages.put(chosen.decay)
    return {str(chosen.decay): accuracy(model, x, y)}
