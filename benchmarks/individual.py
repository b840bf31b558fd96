"""Yu et al. (2023) on MNIST and CIFAR-10: python -m benchmarks.individual mnist --device cuda

What each record really spent. Trains without individual clipping (an estimate of the output-specific ε), with it as
in the paper (exact), and with headroom for gradients that grow; norms are looked at once an epoch (or --passes times;
Figure 4 of the paper has 0.5, 1 and 3) and rounded up to 100 levels. Compares each with the reference: the norms of
1,000 records (--watched) at every single step, rounded up to 10,000 levels (which is as good as not rounded). Prints
Pearson's r and the errors, the distribution of ε, its correlation with the log of the final training loss, averages
and test accuracy by class, and the private mean and quantiles at a total cost of (0.1, 1e-5).

mnist: the network of Tramèr & Boneh with 26,010 parameters, 100 epochs of 1,024, largest ε 2.4. cifar10: ResNet-20
with GroupNorm, 30 epochs of 4,096, largest ε 7.8. wrn-16-4: CIFAR-10 with the paper's network and settings, as in
reproductions/tables/yu-table-3-cifar10.toml; accuracy is that of the averaged weights. wrn-16-4-bfloat16: the same,
computed in bfloat16 on a GPU. δ = 1e-5. Seeded, so that it can be repeated: these models are for measuring, not for
publishing. Needs the data in $PRIVYPURSE_DATA.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse import datasets
from privypurse._storage import replace_file
from privypurse.accounting import Filter, Odometer
from privypurse.accounting.odometer import renyi_epsilons
from privypurse.datasets.images import Images
from privypurse.errors import PrivyPurseWarning
from privypurse.queries import statistics
from privypurse.training.cuda_graphs import capturing, warmed_up
from privypurse.training.gradients import Recorder, recorded
from privypurse.training.gradients import norms as per_record
from reproductions.analyses import by_group, correlation, correlation_with_loss
from reproductions.averages import Averages
from reproductions.networks import placed

DELTA = 1e-5
WATCHED = 1000
FINE = 10_000
BETWEEN = 60.0
"""Seconds from one checkpoint to the next."""
LOSS = partial(F.cross_entropy, reduction="none")


@dataclass(frozen=True)
class Task:
    """What is trained, and how."""

    images: Callable[[], Images]
    network: str
    epsilon: float
    batch_size: int
    epochs: int
    clip_norm: float
    learning_rate: float
    momentum: float
    physical: int
    average: float | None = None
    """The decay of the moving average of the weights that is judged, if it is not the weights themselves."""


TASKS = {
    "mnist": Task(datasets.mnist, "tramer-boneh-mnist", 2.4, 1024, 100, 2.0, 0.1, 0.0, 4096),
    "cifar10": Task(datasets.cifar10, "resnet-20", 7.8, 4096, 30, 10.0, 0.02, 0.9, 1024),
    "wrn-16-4": Task(datasets.cifar10, "wrn-16-4", 7.8, 4096, 300, 1.0, 4.0, 0.0, 2200, 0.9999),
}
TASKS["wrn-16-4-bfloat16"] = replace(TASKS["wrn-16-4"], network="wrn-16-4-bfloat16")


def tensors(pixels: np.ndarray, labels: np.ndarray, device: str) -> TensorDataset:
    x = torch.as_tensor(pixels.copy(), device=device).float().div_(255).sub_(0.5).mul_(4.0)
    x = x[:, None] if x.dim() == 3 else x.permute(0, 3, 1, 2).contiguous()
    return TensorDataset(x, torch.as_tensor(labels.astype(np.int64), device=device))


@dataclass(frozen=True)
class Course:
    """One training run, watched."""

    model: nn.Module
    spending: Any
    norms: np.ndarray
    """Of what each watched record contributed or would have, as shares of the clip norm: [steps, watched]."""
    seconds: float


@dataclass(eq=False)
class Saved:
    """A run's checkpoint, at most one a minute: a run that was broken off goes on from it to the same end."""

    path: Path | None
    parts: dict[str, Any]
    """What has a state: model, optimizer, averages."""
    saved: float = 0.0

    def resumed(self, device: str) -> tuple[list[Tensor], float]:
        """The norms so far, and when the run would have begun had it not been broken off."""
        self.saved = time.perf_counter()
        if self.path is None or not self.path.is_file():
            return [], self.saved
        state = torch.load(self.path, map_location=device, weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        return list(state["norms"]), self.saved - state["seconds"]

    def step(self, norms: list[Tensor], begun: float) -> None:
        if self.path is None or time.perf_counter() < self.saved + BETWEEN:
            return
        self.saved = time.perf_counter()
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"norms": torch.stack(norms), "seconds": self.saved - begun}
        replace_file(self.path, partial(torch.save, state))
        print(f"{len(norms):,} steps in {self.saved - begun:,.0f} s", flush=True)


def train(
    task: Task,
    plan: pp.Plan,
    data: TensorDataset,
    clip: bool,
    watched: np.ndarray,
    seed: int,
    device: str,
    headroom: float = 1.0,
    passes: float = 1.0,
    checkpoint: Path | None = None,
    physical: int | None = None,
) -> Course:
    torch.manual_seed(seed)
    inner = placed(task.network, tuple(data.tensors[0].shape[1:]), 10, torch.device(device))
    optimizer = torch.optim.SGD(inner.parameters(), lr=task.learning_rate, momentum=task.momentum)
    averages = None if task.average is None else Averages(inner, [task.average])
    every = max(1, round(len(data) / task.batch_size / passes))
    model, private, loader = pp.make_private(
        inner,
        optimizer,
        data,
        plan,
        individual=pp.Individual(every=every, exact=clip, headroom=headroom),
        loss_fn=LOSS,
        execution=pp.Execution(max_physical_batch=physical or task.physical),
        seed=seed,
    )
    some = torch.as_tensor(watched, device=device)
    x, y = (tensor[some] for tensor in data.tensors)
    parts = {"model": inner, "optimizer": private} | ({} if averages is None else {"averages": averages})
    saved = Saved(checkpoint, parts)
    norms, begun = saved.resumed(device)
    look = watch(inner, x, y)
    for inputs, label in loader:
        if len(norms) == private.steps_taken:  # the first batch of a step: the model is as the step finds it
            found = look() / plan.clip_norm
            meter = private.spending().meter
            assert isinstance(meter, Odometer)
            limit = torch.as_tensor(meter.shares()[watched], dtype=found.dtype, device=device)  # 1 without clipping
            norms.append(torch.minimum(found, limit))
        taken = private.steps_taken
        private.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(inputs), label))
        private.step()
        if private.steps_taken > taken:
            if averages is not None:
                averages.step()
            saved.step(norms, begun)
    spending = private.spending()
    if averages is not None and task.average is not None:
        averages.put(task.average)
    return Course(inner, spending, torch.stack(norms).cpu().numpy(), time.perf_counter() - begun)


def watch(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """Gives these records' norms with the weights as they are then; on a GPU by one graph.

    So few records are a matter of many calls that do little.
    """
    recorder = Recorder(model)

    def look() -> Tensor:
        return per_record(recorded(recorder, LOSS, x, y, check=False)[0])

    if x.device.type != "cuda":
        return look
    with recorder.captured():
        warmed_up(x.device, look)
    with recorder.captured(), capturing(torch.cuda.graph_pool_handle()) as graph, graph() as made:
        found = look()

    def again() -> Tensor:
        made.replay()
        return found.clone()

    return again


def reference(norms: np.ndarray, plan: pp.Plan) -> np.ndarray:
    """ε by Rényi divergences of what the watched records contributed at every step."""
    levels = np.ceil(norms.astype(np.float64) * FINE).clip(0, FINE).astype(np.int64)
    counts = np.zeros((norms.shape[1], FINE + 1), dtype=np.int64)
    np.add.at(counts, (np.broadcast_to(np.arange(norms.shape[1]), levels.shape), levels), 1)
    with np.errstate(divide="ignore"):
        noise = plan.noise_multiplier * FINE / np.arange(FINE + 1.0)
    return renyi_epsilons(counts, float(plan.levels.rate[0]), noise, np.full(norms.shape[1], DELTA))


def losses_and_right(model: nn.Module, data: TensorDataset) -> tuple[np.ndarray, np.ndarray]:
    losses, right = [], []
    model.eval()
    with torch.no_grad():
        for x, y in zip(*(torch.split(tensor, 2048) for tensor in data.tensors), strict=True):
            output = model(x)
            losses.append(LOSS(output, y))
            right.append(output.argmax(1) == y)
    return torch.cat(losses).cpu().numpy(), torch.cat(right).cpu().numpy()


VARIANTS = {"estimate": (False, 1.0), "exact": (True, 1.0), "headroom": (True, 1.5)}


def measure(
    name: str,
    seed: int,
    device: str,
    steps: int | None,
    variants: list[str],
    passes: float = 1.0,
    watch: int = WATCHED,
    folder: Path | None = None,
    physical: int | None = None,
) -> dict[str, Any]:
    task = TASKS[name]
    images = task.images()
    data = tensors(images.train_images, images.train_labels, device)
    test = tensors(images.test_images, images.test_labels, device)
    planned = steps or round(task.epochs * len(data) / task.batch_size)
    plan = pp.plan(
        pp.Budgets(np.full(len(data), task.epsilon), delta=DELTA),
        "uniform",
        steps=planned,
        batch_size=task.batch_size,
        clip_norm=task.clip_norm,
    )
    watched = np.random.default_rng(seed).choice(len(data), watch, replace=False)
    report: dict[str, Any] = {"task": name, "seed": seed, "steps": planned, "sigma": plan.noise_multiplier}
    report["norm_passes_per_epoch"] = passes
    for variant in variants:
        clip, headroom = VARIANTS[variant]
        checkpoint = None if folder is None else folder / f"{name}-{seed}-{variant}-{passes:g}-{watch}.pt"
        course = train(task, plan, data, clip, watched, seed, device, headroom, passes, checkpoint, physical)
        report[variant] = judged(course, plan, task, data, test, watched, seed)
        print(variant, json.dumps(report[variant], default=_plain), flush=True)
    return report


def judged(
    course: Course,
    plan: pp.Plan,
    task: Task,
    data: TensorDataset,
    test: TensorDataset,
    watched: np.ndarray,
    seed: int,
) -> dict[str, Any]:
    begun = time.perf_counter()
    by_rdp = course.spending.epsilon("rdp")
    rdp_seconds, begun = time.perf_counter() - begun, time.perf_counter()
    by_pld = course.spending.epsilon("pld")
    pld_seconds = time.perf_counter() - begun
    # Both without the plan's promise, which no reading is above: it would make those at the clip norm agree.
    measured = course.spending.meter.epsilon(np.full(watched.size, DELTA), "rdp", watched)
    truth = reference(course.norms, plan)
    losses, _ = losses_and_right(course.model, data)
    _, right = losses_and_right(course.model, test)
    labels, test_labels = (some.tensors[1].cpu().numpy() for some in (data, test))
    accuracy = {int(k): float(right[test_labels == k].mean()) for k in np.unique(labels)}
    reserve = Filter(np.full(len(data), 0.1), np.full(len(data), DELTA))
    released = statistics.release(by_pld, reserve, cap=task.epsilon, epsilon=0.1, delta=DELTA, seed=seed)
    return {
        "reading": course.spending.reading.text,
        "test_accuracy": 100 * float(right.mean()),
        "train_seconds": course.seconds,
        "rdp_seconds": rdp_seconds,
        "pld_seconds": pld_seconds,
        "pearson_with_every_step": correlation(measured, truth),
        "mean_error": float(np.abs(measured - truth).mean()),
        "worst_error": float(np.abs(measured - truth).max()),
        "below_every_step": int((measured < truth - 1e-9).sum()),
        "worst_case": {"pld": float(plan.spent_by_level()[0]), "rdp": float(by_rdp.max())},
        "epsilon_rdp": _distribution(by_rdp),
        "epsilon_pld": _distribution(by_pld),
        "pearson_with_log_loss": correlation_with_loss(by_pld, losses),
        "classes": [(group.name, group.mean_epsilon, group.accuracy) for group in by_group(by_pld, labels, accuracy)],
        "released": _figures(released),
        "mean_release_error": float(
            np.mean(np.abs(_figures(released) / np.array([by_pld.mean(), *np.quantile(by_pld, PROBABILITIES)]) - 1))
        ),
    }


PROBABILITIES = (0.1, 0.3, 0.5, 0.7, 0.9)


def _distribution(epsilon: np.ndarray) -> dict[str, float]:
    quantiles = np.quantile(epsilon, PROBABILITIES)
    return {
        "mean": float(epsilon.mean()),
        **{f"q{p}": float(q) for p, q in zip(PROBABILITIES, quantiles, strict=True)},
        "max": float(epsilon.max()),
    }


def _figures(released: statistics.Statistics) -> np.ndarray:
    return np.array([released.mean, *released.quantiles])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="another number of steps, for a look")
    parser.add_argument("--passes", type=float, default=1.0, help="norm passes in an epoch (default: 1)")
    parser.add_argument("--watched", type=int, default=WATCHED, help="records looked at in every step (1000)")
    parser.add_argument("--physical", type=int, help="records on the device at once (default: what 80 GB hold)")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="save there once a minute, and go on from it")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore", PrivyPurseWarning)
    if options.checkpoints:
        options.checkpoints.mkdir(parents=True, exist_ok=True)
    how = options.passes, options.watched, options.checkpoints, options.physical
    report = measure(options.task, options.seed, options.device, options.steps, options.variants, *how)
    if options.out:
        report |= {"torch": torch.__version__, "device": options.device}
        options.out.write_text(json.dumps(report, indent=1, default=_plain))


def _plain(value: Any) -> Any:
    return value.tolist()


if __name__ == "__main__":
    main()
