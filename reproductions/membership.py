"""Membership inference by budget group on CIFAR-10: python -m reproductions.membership --device cuda

Boenisch et al. (2023), §4.2, Figure 2 and Table 10, at reduced size: Sample with budgets 10 and 20, each for half of
the records; 64 models on 25,000 records each (the paper: 512), all of them targets in turn (the paper: five).
Network, batch, learning rate and clip norm are those of Table 4 with the momentum of the authors' code; 30 epochs.
And Yu et al. (2023), Appendix D, Figure 11: the loss threshold by class, against these and models without privacy.
Every model is a file in --out, so that a run that was broken off goes on. Seeded: these models are for measuring.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import privypurse as pp
from privypurse.audit import lira
from privypurse.audit.by_group import by_group, paired_difference, score_difference
from privypurse.audit.loss_threshold import loss_threshold
from privypurse.audit.shadow_models import ShadowTraining, loss_of
from privypurse.errors import PrivyPurseWarning
from reproductions import data
from reproductions.networks import TramerBonehCifar10

EPSILON, DELTA = (10.0, 20.0), 1e-5
BATCH, EPOCHS, CLIP_NORM, LEARNING_RATE, MOMENTUM = 1024, 30, 0.4, 0.7, 0.5
PIXELS = 0.4734, 0.2009
PLAIN_LEARNING_RATE, PLAIN_MOMENTUM = 0.05, 0.9  # nothing is clipped there
PAPER = {"ε = 10": 0.537, "ε = 20": 0.581}
SEED = 20231


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=64, help="private models, an even number (default: 64)")
    parser.add_argument("--plain", type=int, default=2, help="models without privacy beside them (default: 2)")
    parser.add_argument("--epochs", type=float, default=EPOCHS)
    parser.add_argument("--method", default="sample", choices=("sample", "scale"))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no model after so many")
    parser.add_argument("--part", default="1/1", help="2/3: train the second third of the models; side by side, say")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("results/membership"))
    parser.add_argument("--quick", action="store_true", help="400 records, 6 models, 2 steps: does it run?")
    options = parser.parse_args(arguments)
    if options.quick:
        options.models, options.epochs = 6, 2 * BATCH / 25_000
    warnings.simplefilter("ignore", PrivyPurseWarning)
    training, member = _prepared(options)
    options.out.mkdir(parents=True, exist_ok=True)
    if not _trained(training, member, options):
        print("not all models are trained; call this again to go on")
        return 1
    if options.part != "1/1":
        return 0  # what is found needs all
    found = _found(training, member, options)
    (options.out / "membership.json").write_text(
        json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(json.dumps({name: value for name, value in found.items() if name != "roc"}, indent=1, ensure_ascii=False))
    return 0


def _prepared(options: argparse.Namespace) -> tuple[ShadowTraining, np.ndarray]:
    """The training of every model, and who is in which."""
    part = data.parts("cifar10", quick=options.quick)["train"]
    size = 400 if options.quick else len(part.labels)
    inputs = torch.from_numpy((part.inputs[:size].astype(np.float32) / 255 - PIXELS[0]) / PIXELS[1])
    labels = torch.from_numpy(part.labels[:size])
    rng = np.random.default_rng(SEED)
    level_of = rng.permutation(np.arange(size) % 2)
    budgets = pp.Budgets(np.repeat(EPSILON, size // 4), delta=DELTA)  # as every model's records hold them
    batch = min(BATCH, size // 8)
    steps = max(2, round(options.epochs * size / 2 / batch))
    plan = pp.plan(budgets, options.method, steps=steps, batch_size=batch, clip_norm=CLIP_NORM, accountant="rdp")
    training = ShadowTraining(
        plan=plan,
        level_of=level_of,
        inputs=inputs,
        labels=labels,
        model=TramerBonehCifar10,
        optimizer=lambda model: _sgd(model, LEARNING_RATE, MOMENTUM),
        device=options.device,
    )
    return training, lira.halves(level_of, options.models, rng)


def _sgd(model: torch.nn.Module, learning_rate: float, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)


def _file(options: argparse.Namespace, number: int, private: bool) -> Path:
    return Path(options.out) / f"{options.method if private else 'plain'}-{number:03d}.npy"


def _trained(training: ShadowTraining, member: np.ndarray, options: argparse.Namespace) -> bool:
    """Train what is not there yet; False where time was over before."""
    begun = time.monotonic()
    plain = replace(training, optimizer=lambda model: _sgd(model, PLAIN_LEARNING_RATE, PLAIN_MOMENTUM))
    wanted = [(number, True) for number in range(options.models)] + [
        (number, False) for number in range(options.plain)
    ]
    which, parts = map(int, options.part.split("/"))
    for number, private in wanted[which - 1 :: parts]:
        path = _file(options, number, private)
        if path.exists():
            continue
        if time.monotonic() - begun > 60 * options.minutes:
            return False
        torch.manual_seed(SEED + number)
        start = time.monotonic()
        model = (training if private else plain).trained(member[number], seed=SEED + number, private=private)
        phi = training.confidence(model)
        np.save(path, phi.astype(np.float32))
        right = phi > 0  # the label's probability is above a half: no accuracy, but near it
        of_members, of_others = right[member[number]].mean(), right[~member[number]].mean()
        seconds = time.monotonic() - start
        print(
            f"{path.stem}: {seconds:.1f} s, sure and right on members {of_members:.3f}, others {of_others:.3f}",
            flush=True,
        )
    return True


def _found(training: ShadowTraining, member: np.ndarray, options: argparse.Namespace) -> dict[str, object]:
    phi = np.stack([np.load(_file(options, number, True)) for number in range(options.models)]).astype(np.float64)
    names = [f"ε = {epsilon:g}" for epsilon in EPSILON]
    curves: dict[str, object] = {}
    found: dict[str, object] = {
        "models": options.models,
        "method": options.method,
        "steps": training.plan.steps,
        "noise_multiplier": training.plan.noise_multiplier,
        "rates": training.plan.levels.rate.tolist(),
        "paper": PAPER,
        "roc": curves,
    }
    for road in ("online", "offline"):
        scores = lira.scores(phi, member, road)
        groups = by_group(scores, member, training.level_of, names)
        everybody = by_group(scores, member, np.zeros_like(training.level_of), ["all"])
        difference, p_value = paired_difference(*groups)
        found[road] = {
            **{each.name: {"auc": each.auc, "interval": each.interval} for each in (*groups, *everybody)},
            "difference of AUC, paired over targets": [difference, p_value],
            "targets whose ε = 20 has the larger AUC": int((groups[1].areas > groups[0].areas).sum()),
            "Table 10: t and p of the first five targets": [
                score_difference(scores[target], member[target], training.level_of == 0, training.level_of == 1)
                for target in range(min(5, options.models))
            ],
        }
        curves[road] = {
            each.name: [each.false_positive_rate.tolist(), each.true_positive_rate.tolist()]
            for each in (*groups, *everybody)
        }
    found["loss threshold"] = _by_class(training, phi, member, options)
    return found


def _by_class(
    training: ShadowTraining, phi: np.ndarray, member: np.ndarray, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Success of the loss threshold by class and by budget, of the first models with privacy, and without."""
    rng, labels = np.random.default_rng(SEED), training.labels.numpy()
    plain = [np.load(_file(options, number, False)).astype(np.float64) for number in range(options.plain)]
    groups = {f"class {one}": labels == one for one in np.unique(labels)}
    groups |= {f"ε = {epsilon:g}": training.level_of == level for level, epsilon in enumerate(EPSILON)}
    found: dict[str, dict[str, float]] = {}
    for kind, models in (("private", phi[: max(2, options.plain)]), ("without privacy", plain)):
        for name, some in groups.items():
            rates = [
                loss_threshold(loss_of(one[some & inside]), loss_of(one[some & ~inside]), rng).success
                for one, inside in zip(models, member, strict=False)
            ]
            if rates:
                found.setdefault(kind, {})[name] = float(np.mean(rates))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
