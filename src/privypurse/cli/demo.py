"""privypurse demo: a branch with few people beside a whole census, three levels of consent, five ways to train."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from privypurse.cli.arguments import need
from privypurse.cli.showing import as_it_is, bar, say

if TYPE_CHECKING:
    from privypurse.arrays import FloatArray
    from privypurse.runs.comparison import Trial
    from privypurse.runs.workers import Submit

SHORT = "train on real people with three consent levels, and compare"
LONG = """\
Trains on the Adult census (UCI, CC BY 4.0), which ships with the package: a branch of 3,000 people, and all 32,561 of
the training half. 70 % grant ε = 0.1, 20 % grant 1 and 10 % grant 5 (assigned at random: nobody in 1994 was asked).
Everyone at the strictest ε; the strict left out, at the threshold with the largest expected signal to noise; the
methods scale and sample, which use what everybody granted; and no privacy. Prints what came of it, with the gains by
the same people, consents and first weights, saves model, plan and metrics of each, and writes a report of one run
(with the extra report). Takes less than a minute on two cores.

Accuracy is measured on the other 16,281 people, none of whom is in training. Each method has the settings that it
liked best on people of the training half (`python -m benchmarks.demo_settings` in a clone chooses them).
"""

_WORDS = {
    "uniform": "everyone at the strictest ε",
    "exclude": "the strict left out, the others alike",
    "scale": "who grants more is clipped less",
    "sample": "who grants more is drawn more often",
    "none": "no privacy: a model that tells about the people in it",
}
_CROWDS = {"branch": "a branch of 3,000 people", "whole": "all 32,561 people"}
LARGE = (
    "The gain is large where noise decides: few people, strict consents, a hard task. Where many people drown the "
    "noise nothing is left to win. With pictures there is: CIFAR-10 by scattering features, 50,000 records at ε 1, "
    "2 or 3, has 65.69 % by uniform, 66.68 by exclude, 68.77 by sample and 78.15 without privacy (docs/results.md)."
)


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", default="privypurse-demo", metavar="FOLDER", help="default: privypurse-demo")
    command.add_argument("--runs", type=int, default=5, help="trainings of each method, a seed each (default: 5)")
    command.add_argument("--steps", type=int, help="steps of each training (default: 200)")
    command.add_argument("--jobs", type=int, help="trainings side by side (default: 2; 1 on one core)")
    command.add_argument("--accountant", choices=("pld", "rdp"), default="pld", help="who proves it (default: pld)")


def run(options: argparse.Namespace, console: Console) -> None:
    need("demo")
    from privypurse._validate import integer
    from privypurse.runs.workers import workers

    jobs = min(2, os.cpu_count() or 1) if options.jobs is None else integer(options.jobs, "jobs")
    with workers(jobs) as submit:
        _compare(options, console, submit)


def _compare(options: argparse.Namespace, console: Console, submit: Submit) -> None:
    import torch

    from privypurse.runs import comparison

    # A network this small is no faster on more threads, and many times slower where other programs want the cores.
    torch.set_num_threads(1)
    out = Path(options.out)
    comparison.check_out(out)
    often = "once" if options.runs == 1 else f"{options.runs} times"
    console.print(
        "[bold]People of the 1994 census[/] (Adult; Becker & Kohavi 1996, UCI, CC BY 4.0), each with a privacy "
        f"budget of their own:\nε = 0.1 for 70 %, 1 for 20 %, 5 for 10 %. Five ways to train, {often} each, on "
        f"{_CROWDS['branch']} and on {_CROWDS['whole']}.\n",
    )
    with bar(console, "training", patience=0.0) as report:
        found = comparison.trials(
            out, runs=options.runs, submit=submit, steps=options.steps, accountant=options.accountant, progress=report
        )
    for method, words in _WORDS.items():
        console.print(f"{method:8} {words}")
    for name, words in _CROWDS.items():
        crowd = [trial for trial in found if trial.crowd.name == name]
        console.print(_accuracies(words, crowd))
        console.print(_plans(crowd))
    for line in _notes(options.runs):
        console.print(line, style="dim")
    console.print(LARGE)
    console.print(f"model, plan and metrics of each are in {as_it_is(options.out)}/")
    _report(out, console)


def _report(out: Path, console: Console) -> None:
    """The report of one of the runs, in both editions, and where it lies."""
    from privypurse.cli.report import write
    from privypurse.runs.comparison import REPORTS

    if importlib.util.find_spec("bokeh") is None:
        say(console, "for a report of a run: pip install '.[report]' in a clone, then privypurse report --help")
        return
    from privypurse.report.page import report

    for edition, name in REPORTS.items():
        write(out / name, report(out / "whole" / "sample", edition=edition), public=edition == "public")
    shown, inside = (out.resolve() / name for name in REPORTS.values())
    say(console, f"report of all people by sample, for everybody: {shown}")
    say(console, f"the same for those who keep the data: {inside}")


def _accuracies(title: str, found: Sequence[Trial]) -> Table:
    accuracy = {trial.method: trial.accuracy for trial in found}
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(("method", "test accuracy, %", "gain on uniform", "gain on exclude")):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    for method, each in accuracy.items():
        spread = f" ± {each.std(ddof=1):.2f}" if each.size > 1 else ""
        gains = ("" if method == rival else _gain(each, accuracy[rival]) for rival in ("uniform", "exclude"))
        table.add_row(method, f"{each.mean():.2f}{spread}", *gains)
    return table


def _gain(better: FloatArray, worse: FloatArray) -> str:
    from privypurse.runs.comparison import gain

    mean, low, high = gain(better, worse)
    return f"{mean:+.2f}" + (f" \\[{low:+.2f}, {high:+.2f}]" if better.size > 1 else "")


def _plans(found: Sequence[Trial]) -> Table:
    plans = {trial.method: trial.plan for trial in found if trial.plan is not None}
    levels = next(iter(plans.values())).levels.epsilon.tolist()
    table = Table()
    table.add_column("method")
    for name in ("noise σ", "signal to noise", *(f"ε of {level:g}" for level in levels)):
        table.add_column(name, justify="right", no_wrap=True)
    for method, plan in plans.items():
        signal = plan.people_by_level() @ (plan.levels.rate * plan.levels.clip_norm)
        table.add_row(
            method,
            f"{plan.noise_multiplier:.2f}",
            f"{signal / (plan.noise_multiplier * plan.clip_norm):.1f}",
            *(f"{spent:.4f}" for spent in plan.spent_by_level()),
        )
    return table


def _notes(runs: int) -> list[str]:
    spread = (
        f" Mean ± deviation of {runs} seeds; in brackets 95 % intervals of differences by the same seeds: they "
        "say what other noise and consents (in the branch other people, too) would have given, not other test people."
        if runs > 1
        else ""
    )
    return [
        f"Test accuracy: on 16,281 other people, none of whom is in training.{spread}",
        '"ε of 1": what one run is certified to cost at most whoever granted ε = 1. Each further run costs it again. '
        "Signal to noise: Σ q·c / (σ·C) of one step (docs/methods.md).",
        "What is said here of the people in training (ε, noise), and the saved plans, follow from their budgets. "
        "With real budgets they are sensitive: keep them as safe as the data.",
    ]
