"""The settings of the demonstration, chosen on validation people: python -m benchmarks.demo_settings

For the branch of 3,000 people and for the whole census, for each method by itself: every combination of network, clip
norm and step length, trained on people of the training half and scored on 6,561 of its others. Nobody of the half
that tests is looked at. The step length of a plan is given as the *walk*: how far noise alone moves a weight in the
whole run, so that lr = walk·B/(σ·C·√T). The census is public; on people's data every training here would be charged.

Prints every candidate, then the choice as `privypurse.runs.comparison` holds it.
"""

from __future__ import annotations

import argparse
import math
import warnings
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product

import numpy as np
import torch

from privypurse.errors import PrivyPurseWarning
from privypurse.runs.comparison import CROWDS, NONE, PRIVATE, Crowd, Setting, people_of, plan_for, trained

HELD = 6_561
FIRST_SEED = 1_000
HIDDEN, CLIP_NORMS = (0, 64), (1.0, 3.0)
WALKS = {"branch": (0.3, 0.5, 0.85, 1.4), "whole": (0.1, 0.3, 0.8)}
SEEDS = {"branch": 3, "whole": 1}
LEARNING_RATES = (0.1, 0.3, 1.0)
_plan = lru_cache(plan_for)


def candidates(crowd: Crowd, method: str) -> list[Setting]:
    """All that a method may choose from, with two digits of step length."""
    if method == NONE:
        return [Setting(hidden, 1.0, rate) for hidden, rate in product(HIDDEN, LEARNING_RATES)]
    made = _plan(
        method, crowd.people, steps=crowd.steps, batch_size=crowd.batch_size, clip_norm=1.0, accountant="pld"
    )
    noise = made.noise_multiplier * math.sqrt(crowd.steps) / crowd.batch_size
    return [
        Setting(hidden, clip_norm, float(f"{walk / (noise * clip_norm):.2g}"))
        for hidden, clip_norm, walk in product(HIDDEN, CLIP_NORMS, WALKS[crowd.name])
    ]


def scored(crowd: Crowd, method: str, setting: Setting, seeds: int) -> list[float]:
    """Validation accuracy in percent, one training a seed."""
    sizes = {"steps": crowd.steps, "batch_size": crowd.batch_size}
    made = None
    if method != NONE:
        made = _plan(method, crowd.people, **sizes, clip_norm=setting.clip_norm, accountant="pld")
    train_one = partial(trained, steps=crowd.steps, batch_size=crowd.batch_size)
    return [
        100 * train_one(people_of(crowd.people, seed, HELD), made, setting, seed).accuracy
        for seed in range(FIRST_SEED, FIRST_SEED + seeds)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crowds", nargs="+", choices=list(CROWDS), default=list(CROWDS))
    parser.add_argument("--methods", nargs="+", default=[*PRIVATE, NONE], help="exclude@1 too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", PrivyPurseWarning)
    for name, method in product(options.crowds, options.methods):
        crowd = CROWDS[name]
        crowd = replace(crowd, people=min(crowd.people, 32_561 - HELD))
        found = {}
        for setting in candidates(crowd, method):
            accuracy = scored(crowd, method, setting, SEEDS[name])
            found[setting] = float(np.mean(accuracy))
            print(f"{name} {method:8} {found[setting]:.2f} {[round(x, 2) for x in accuracy]} {setting}", flush=True)
        best = max(found, key=found.__getitem__)
        print(f'chosen  {name}  "{method}": {best}  {found[best]:.2f}', flush=True)


if __name__ == "__main__":
    main()
