"""One training of a rival: a plan, a step length that follows from its noise, averages of the weights.

Settings are chosen by validation accuracy. The one function that opens the test set refuses without a finished
choice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse.training.without_privacy import train_ordinarily
from reproductions import centring, federated_rivals
from reproductions.averages import Averages
from reproductions.choice import CENTRED, Choice, Rivals, Settings, Unfinished
from reproductions.data import classes_of
from reproductions.feature_models import losses
from reproductions.plans import epsilon_of, plan_of
from reproductions.results import Job, Line
from reproductions.score import judged
from reproductions.sources import ENCODERS, source_of

_LARGE_MODEL = 500_000  # parameters from which fewer records go through at once
_MOST = 192
"""So many: about 13 MiB a record with LoRA and 25 with all layers trained, and ten processes share one GPU."""


def step_length(plan: pp.Plan, settings: Settings) -> float:
    """The learning rate with which noise alone moves a weight by ``walk`` in the whole run, whatever the method.

    A step adds noise of deviation lr·σ·C/B to each weight; momentum m multiplies what it does by 1/(1−m), and T
    independent steps by √T.
    """
    noise = plan.noise_multiplier * settings.clip_norm / settings.batch_size * math.sqrt(settings.steps)
    return settings.walk * (1 - settings.momentum) / noise


def trained(
    method: str,
    settings: Settings,
    network: Callable[[], nn.Module],
    records: tuple[Tensor, Tensor],
    epsilon: np.ndarray,
    delta: float,
    seed: int,
) -> tuple[nn.Module, Averages, dict[str, Any]]:
    """A trained model with its averages, and what there is to say about its plan."""
    torch.manual_seed(seed)
    model = network().to(records[0].device)
    sizes: dict[str, Any] = {"steps": settings.steps, "batch_size": settings.batch_size}
    plan = None if method == "none" else plan_of(method, epsilon, delta, clip_norm=settings.clip_norm, **sizes)
    rate = settings.learning_rate if plan is None else step_length(plan, settings)
    left = plan
    if settings.scaling == CENTRED:
        first, left = (None, None) if plan is None else centring.parts(plan)
        model = centring.Centred(centring.centre(records[0], first, seed), model)
    averages = Averages(model, settings.decays)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    large = sum(weight.numel() for weight in model.parameters()) > _LARGE_MODEL
    most = _MOST if large else None
    optimizer = torch.optim.SGD(weights, lr=rate, momentum=settings.momentum)
    if plan is None:
        optimizer.register_step_post_hook(lambda *_: averages.step())
        torch.manual_seed(seed)  # of the shuffles
        train_ordinarily(model, optimizer, records, losses, **sizes, max_physical_batch=most)
        return model, averages, {"learning_rate": rate}
    how: dict[str, Any] = {"execution": pp.Execution(max_physical_batch=most), "scheduler": averages, "seed": seed}
    assert left is not None
    done = pp.train(model, optimizer, TensorDataset(*records), left, losses, **how)
    said = {
        "learning_rate": rate,
        "noise_multiplier": plan.noise_multiplier,
        "people": int((plan.rates > 0).sum()),
        "spent": sorted({round(float(each), 4) for each in plan.spent_by_level()}),
        "how": done.how,
        "seconds": done.seconds,
    }
    return model, averages, said


def prepare(table: Rivals, folder: Path, device: str) -> None:
    """Make the records that trainings will see, once for all processes."""
    source_of(table.features).prepare(table, _of(table, folder), torch.device(device))


def _of(table: Rivals, folder: Path) -> Path:
    return folder / "quick" if table.quick else folder


def outcome(choice: Choice, job: Job, folder: Path, device: str) -> Line:
    """One training and its score: on validation records to choose by, on test records to report."""
    begun = time.monotonic()
    table, settings, method = choice.table, job.settings, job.place["method"]
    choosing = job.place["purpose"] == "choice"
    where = (_of(table, folder), torch.device(device))
    held = table.validation if choosing else 0
    x, y, other_x, other_y = _records(table.features, table.data, settings.of_records(), *where, held)
    epsilon = epsilon_of(table.budgets, y.cpu().numpy(), np.random.default_rng([job.seed, 3]))
    network = partial(source_of(table.features).network, settings, x, classes_of(table.data), where[0])
    train = trained if table.clients is None else partial(federated_rivals.trained, table.clients)
    with _products(table.features):
        model, averages, said = train(method, settings, network, (x, y), epsilon, table.delta, job.seed)
        if choosing:
            found = {}
            for decay in settings.decays:
                averages.put(decay)
                found[str(decay)] = _accuracy(model, other_x, other_y)
        else:
            found = test_accuracy(choice, job, model, averages, where[0])
    return {"accuracy": found, **said, "records": len(y), "wall": time.monotonic() - begun}


@contextmanager
def _products(features: str) -> Iterator[None]:
    """Large encoders go through TensorFloat-32. Norms and sums of gradients do not: their rules see to that."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if features in ENCODERS else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """In percent."""
    return 100 * int(judged(model, x, y, losses, chunk=1_000)[1].sum()) / len(y)


@lru_cache(maxsize=2)
def _records(
    features: str, name: str, settings: Settings, folder: Path, device: torch.device, held: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training records, and those of them held back to choose by; kept on the device from one job to the next."""
    source = source_of(features)
    x, y = source.load(name, "train", settings, folder, device)
    if not held:
        return x, y, x[:0], y[:0]
    rows = source.split(name, len(y), held, folder)
    trains, chooses = (torch.as_tensor(each, device=device) for each in rows)
    return x[trains], y[trains], x[chooses], y[chooses]


@lru_cache(maxsize=1)
def _test_records(
    features: str, name: str, settings: Settings, folder: Path, device: torch.device
) -> tuple[Tensor, Tensor]:
    return source_of(features).load(name, "test", settings, folder, device)


def test_accuracy(choice: Choice, job: Job, model: nn.Module, averages: Averages, folder: Path) -> dict[str, float]:
    """The one function that opens the test set: for a finished choice, and what it chose."""
    chosen = choice.chosen(job.place["method"])  # raises where scores are missing
    settings, table = job.settings, choice.table
    if settings != chosen.settings:
        raise Unfinished(f"method {job.place['method']} was trained with settings that the choice did not choose")
    device = next(model.parameters()).device
    x, y = _test_records(table.features, table.data, settings.of_records(), folder, device)
    averages.put(chosen.decay)
    return {str(chosen.decay): _accuracy(model, x, y)}
