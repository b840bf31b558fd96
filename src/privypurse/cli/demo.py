"""privypurse demo: real people, three levels of consent, four ways to train."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from privypurse.cli.arguments import need
from privypurse.cli.showing import as_it_is, bar

if TYPE_CHECKING:
    from privypurse.runs.comparison import Trial

SHORT = "train on real people with three consent levels, and compare"
LONG = """\
Trains the same small network on the Adult census (UCI, CC BY 4.0), which ships with the package: 32,561 people, of
whom 34 % grant ε = 1, 43 % grant 2 and 23 % grant 3 (assigned at random: nobody in 1994 was asked). First with
everyone at the strictest ε, then by the methods sample and scale, then without privacy. Prints one table and saves
model, plan and metrics of each. Takes about a minute.

Accuracy is measured on the other 16,281 people, none of whom is in training.
"""

_WORDS = {
    "uniform": "everyone at the strictest ε",
    "sample": "who grants more is drawn more often",
    "scale": "who grants more is clipped less",
    "none": "no privacy: a model that tells about the people in it",
}


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", default="privypurse-demo", metavar="FOLDER", help="default: privypurse-demo")
    command.add_argument("--runs", type=int, default=3, help="trainings of each method (default: 3)")
    command.add_argument("--steps", type=int, default=1000, help="steps of each training (default: 1000)")
    command.add_argument("--accountant", choices=("pld", "rdp"), default="pld", help="who proves it (default: pld)")


def run(options: argparse.Namespace, console: Console) -> None:
    need("demo")
    import torch

    from privypurse.runs import comparison

    # A network this small is no faster on more threads, and many times slower where other programs want the cores.
    torch.set_num_threads(1)
    out = Path(options.out)
    comparison.check_out(out)
    records = comparison.census()
    assert records.test is not None
    console.print(
        f"[bold]{len(records.train):,} people of the 1994 census[/] (Adult; Becker & Kohavi 1996, UCI, CC BY 4.0), "
        f"each with a privacy budget of their own.\nFour ways to train the same network, {options.steps:,} steps, "
        f"{'once' if options.runs == 1 else f'{options.runs} times'} each.\n",
    )
    with bar(console, "training", patience=0.0) as report:
        found = comparison.trials(
            records, out, steps=options.steps, runs=options.runs, accountant=options.accountant, progress=report
        )
    for method, words in _WORDS.items():
        console.print(f"{method:8} {words}")
    console.print(_table(found))
    for line in _notes(len(records.test), options.runs):
        console.print(line, style="dim")
    console.print(f"model, plan and metrics of each are in {as_it_is(options.out)}/")


def _table(found: list[Trial]) -> Table:
    levels = found[0].plan.levels.epsilon.tolist() if found[0].plan else []
    table = Table()
    table.add_column("method")
    for name in ("test accuracy", "test loss", "noise σ", *(f"ε of {level:g}" for level in levels)):
        table.add_column(name, justify="right", no_wrap=True)
    for trial in found:
        mean, deviation = trial.accuracy
        table.add_row(
            trial.method,
            f"{100 * mean:.2f}" + (f" ± {100 * deviation:.2f}" if len(trial.scores) > 1 else "") + " %",
            f"{trial.loss:.4f}",
            "0" if trial.plan is None else f"{trial.plan.noise_multiplier:.3f}",
            *(["∞"] * len(levels) if trial.plan is None else [f"{x:.4f}" for x in trial.plan.spent_by_level()]),
        )
    return table


def _notes(tested: int, runs: int) -> list[str]:
    spread = f" Mean ± deviation of {runs} runs." if runs > 1 else ""
    return [
        f"Test accuracy and loss: on the {tested:,} people of the test half, none of whom is in training.{spread}",
        '"ε of 2": what one run is certified to cost at most whoever granted ε = 2. Each further run costs it again.',
        "What is said here of the people in training (ε, noise), and the saved plans, follow from their budgets. "
        "With real budgets they are sensitive: keep them as safe as the data.",
    ]
