"""Boenisch et al. (2023), Table 2 on MNIST: python -m benchmarks.mnist --device cuda

9,375 steps of 512 with the CNN of Tramèr & Boneh (26,010 parameters), learning rate 0.6, C = 0.2, δ = 1e-5; ε is
1, 2, 3 for 34, 43, 23 % of the records. Plans by Rényi accounting, as in the paper. Needs MNIST in $PRIVYPURSE_DATA.
Seeded, so that it can be repeated: these models are for measuring, not for publishing.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privypurse as pp
from privypurse import datasets, preferences
from privypurse.errors import PrivyPurseWarning
from privypurse.networks import TramerBoneh

PAPER = {"uniform": 96.75, "sample": 97.81, "scale": 97.78}


def train(plan: pp.Plan, data: TensorDataset, seed: int, device: str, steps: int) -> nn.Module:
    torch.manual_seed(seed)
    inner = TramerBoneh().to(device)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.6)
    pp.train(inner, optimizer, data, plan, partial(F.cross_entropy, reduction="none"), steps=steps, seed=seed)
    return inner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=9375, help="stop early, for a look")
    parser.add_argument("--methods", nargs="+", default=list(PAPER))
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore", PrivyPurseWarning)
    images = datasets.mnist()

    def tensors(pixels: np.ndarray, labels: np.ndarray) -> TensorDataset:
        x = torch.as_tensor(pixels.copy(), device=options.device)[:, None].float().div_(255)
        return TensorDataset(x, torch.as_tensor(labels.astype(np.int64), device=options.device))

    data = tensors(images.train_images, images.train_labels)
    test = tensors(images.test_images, images.test_labels)
    results = []
    for method in options.methods:
        for seed in range(options.seeds):
            epsilon = preferences.levels(len(data), (1.0, 2.0, 3.0), (0.34, 0.43, 0.23), np.random.default_rng(seed))
            budgets = pp.Budgets(epsilon, delta=1e-5)
            plan = pp.plan(budgets, method, steps=9375, batch_size=512, clip_norm=0.2, accountant="rdp")
            plan.check(budgets)
            begun = time.perf_counter()
            model = train(plan, data, seed, options.device, options.steps)
            with torch.no_grad():
                right = (model(test.tensors[0]).argmax(1) == test.tensors[1]).float().mean().item()
            row = {"method": method, "seed": seed, "accuracy": 100 * right, "seconds": time.perf_counter() - begun}
            results.append(
                {**row, "noise_multiplier": plan.noise_multiplier, "certified": plan.spent_by_level().tolist()}
            )
            print(json.dumps(results[-1]), flush=True)
        found = [row["accuracy"] for row in results if row["method"] == method]
        spread = np.std(found, ddof=1) if len(found) > 1 else 0.0
        print(
            f"{method}: {np.mean(found):.2f} ± {spread:.2f} over {len(found)} seeds; paper {PAPER[method]}",
            flush=True,
        )
    if options.out:
        report = {"torch": torch.__version__, "device": options.device, "results": results}
        options.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
