"""A divisor that tells who is there, in Opacus and here: python -m benchmarks.opacus_divisor

Opacus up to 1.6.0 divides each step's noisy sum by int(N / len(loader)), N being how many records there are
(opacus#571, opacus#819). Where one person more moves that integer, the scale of the noise tells them, whatever ε was
claimed for presence. Two worlds, with N = 39 and 40 records and batches of 10: the divisor is 9 or 10. One step is a
run, all gradients are zero, and the score is the size of what comes out. Here the divisor is the plan's batch_size;
with noise_multiplier= given nothing public follows from who is there, and the worlds look alike. With σ solved from
the number of people its scale tells them, which is why such a plan promises to protect data, not presence.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privypurse as pp
from privypurse.accounting import PLD, SampledGaussian
from privypurse.audit.two_worlds import Bound, bound, by_counts
from privypurse.plans import Promise

WITHOUT, BATCH, LOADED = 39, 10, 4
SIGMA, DELTA, WIDTH = 2.0, 1e-5, 40_000


def opacus_noise(people: int, runs: int) -> np.ndarray:
    """The deviation of what one step of Opacus releases, for each of so many runs."""
    from opacus import PrivacyEngine

    found = []
    for _ in range(runs):
        model = nn.Linear(WIDTH, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loader = DataLoader(TensorDataset(torch.zeros(people, WIDTH)), batch_size=BATCH)
        private, stepping, batches = PrivacyEngine(accountant="rdp").make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=SIGMA, max_grad_norm=1.0
        )
        for (inputs,) in batches:
            private(inputs).mean().backward()
            stepping.step()
            break
        gradient = model.weight.grad
        assert gradient is not None
        found.append(float(gradient.std()))
    return np.array(found)


def our_noise(people: int, runs: int, noise_multiplier: float | None) -> np.ndarray:
    """The same of ours: as many steps of one plan, repeated, on records whose gradients are zero."""
    plan = our_plan(people, noise_multiplier)
    repeated = replace(plan, promise=Promise.PART, shape=replace(plan.shape, steps=runs))
    model, found = nn.Linear(WIDTH, 1, bias=False), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(lambda *_: found.append(float(model.weight.grad.std())))  # type: ignore[union-attr]
    data = TensorDataset(torch.zeros(people, WIDTH), torch.zeros(people))
    pp.train(model, optimizer, data, repeated, lambda score, _: score[:, 0])
    return np.array(found)


def our_plan(people: int, noise_multiplier: float | None) -> pp.Plan:
    """Everybody at ε = 1, one step: with σ given a rate follows from ε; else σ from how many they are."""
    budgets = pp.Budgets([1.0] * people, delta=DELTA)
    return pp.plan(budgets, "sample", steps=1, batch_size=BATCH, noise_multiplier=noise_multiplier)


def told(noise: Callable[[int], np.ndarray]) -> Bound:
    """What the scale of the noise gives away about the fortieth person, by (ε, δ) alone."""
    with_person, without = noise(WITHOUT + 1), noise(WITHOUT)
    scores = {"less noise": lambda trace: -trace, "more noise": lambda trace: trace}
    return bound(scores, with_person, without, by_counts(DELTA))


def claimed_by_opacus() -> float:
    """The ε of one step at its sampling rate, 1/4 in both worlds."""
    return float(PLD().epsilons([SampledGaussian(1 / LOADED, SIGMA, 1)], DELTA)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="of each world (default: 200)")
    runs = parser.parse_args().runs
    warnings.simplefilter("ignore")
    table = Table(title=f"39 people or 40, told by the scale of the noise; {runs} runs of each")
    for column in ("", "promise", "ε claimed", "ε at least", "for presence"):
        table.add_column(column)
    cases: dict[str, tuple[Callable[[int], np.ndarray], str, float]] = {
        "Opacus": (lambda people: opacus_noise(people, runs), "presence", claimed_by_opacus()),
        "ours, σ given": (lambda people: our_noise(people, runs, SIGMA), our_plan(40, SIGMA).promise, 1.0),
        "ours, σ solved": (lambda people: our_noise(people, runs, None), our_plan(40, None).promise, 1.0),
    }
    for name, (noise, promise, claimed) in cases.items():
        found = told(noise)
        verdict = "FLAGGED" if found.epsilon > claimed else "cleared"
        if promise == Promise.DATA:
            verdict += ", as its promise says"
        table.add_row(name, str(promise), f"{claimed:.2f}", f"{found.epsilon:.2f}", verdict)
    assert math.ceil(WITHOUT / BATCH) == math.ceil((WITHOUT + 1) / BATCH) == LOADED
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
