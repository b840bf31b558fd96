"""Sample and Scale with purses that outlast the plan, on Adult: python -m benchmarks.purses

Poisson-sampled training of the demonstration's network (64 hidden units) on 32,561 people with ε 1 / 2 / 3 at 34 / 43
/ 23 %, δ = 1e-5. Each method: so many fixed steps, without and with individual clipping; the same with extra steps
under the filter, ended by a private accuracy query or by their number; and as many fixed steps as those together.
Accuracy and loss are those of 16,281 others. Seeded, so that it can be repeated: these models are for measuring,
not for publishing.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import privypurse as pp
from privypurse.budgets import preferences
from privypurse.errors import PrivyPurseWarning
from privypurse.runs.comparison import census
from privypurse.runs.models import mlp
from privypurse.training.evaluation import losses, score

EPSILON, SHARES, DELTA = (1.0, 2.0, 3.0), (0.34, 0.43, 0.23), 1e-5
BATCH, CLIP_NORM, HIDDEN, LEARNING_RATE = 1024, 4.0, (64,), 0.3
EVERY = 25
STOP = pp.StopAtPlateau(noise=150.0, every=EVERY, most=13, patience=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--extra", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--headroom", type=float, default=1.5, help="1 is the individual clipping of Yu et al.")
    parser.add_argument("--methods", nargs="+", default=["uniform", "sample", "scale"])
    options = parser.parse_args()
    warnings.simplefilter("ignore", PrivyPurseWarning)
    records = census()
    epsilon = preferences.levels(len(records.train), EPSILON, SHARES, np.random.default_rng(0))
    budgets = pp.Budgets(epsilon, delta=DELTA)
    data = records.train.tensors(torch.device("cpu"))
    assert records.test is not None
    few, more = options.steps, options.extra
    ways: dict[str, tuple[int, int, pp.StopAtPlateau | None]] = {
        f"{few} steps": (few, 0, None),
        f"{few} steps, followed": (few, 0, None),
        f"{few} and a filter, to a plateau": (few, more, STOP),
        f"{few} and a filter, {more} more": (few, more, None),
        f"{few + more} steps": (few + more, 0, None),
    }
    table = Table(title=f"Adult, mean over {options.seeds} seeds")
    for column in (
        "method",
        "training",
        "steps",
        "test accuracy",
        "test loss",
        "median ε spent / granted",
        "out after the fixed steps",
        "overdrawn",
    ):
        table.add_column(column)
    for method in options.methods:
        for name, (steps, extra, stop) in ways.items():
            plan = pp.plan(
                budgets, method, steps=steps, extra_steps=extra, stop=stop, batch_size=BATCH, clip_norm=CLIP_NORM
            )
            found, taken, shares, out, over = [], [], [], [], 0
            for seed in range(options.seeds):
                torch.manual_seed(seed)
                model = mlp(records.shape, records.outputs, HIDDEN)
                optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
                followed = extra or name.endswith("followed")
                individual = pp.Individual(every=EVERY, headroom=options.headroom) if followed else None
                done = pp.train(model, optimizer, data, plan, losses, individual=individual, seed=seed)
                found.append(score(model, records.test.inputs, records.test.labels))
                taken.append(done.steps)
                if done.spending is not None:
                    spent = done.spending.epsilon()
                    shares.append(np.median(spent / budgets.epsilon))
                    over += int((spent > budgets.epsilon).sum())
                    out += [1 - people / len(data) for step, people in done.spending.active if step == steps]
            accuracy = [100 * each.accuracy for each in found]
            table.add_row(
                method,
                name,
                f"{np.mean(taken):.0f}",
                f"{np.mean(accuracy):.2f} ± {np.std(accuracy, ddof=1) if len(accuracy) > 1 else 0:.2f}",
                f"{np.mean([each.loss for each in found]):.4f}",
                f"{np.mean(shares):.2f}" if shares else "",
                f"{np.mean(out):.0%}" if out else "",
                f"{over}" if shares else "",
            )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
