"""privypurse federate: hospitals, banks or employers train together, each record within its own ε."""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import privypurse as pp
from privypurse.cli.arguments import need_training
from privypurse.cli.showing import as_it_is

if TYPE_CHECKING:
    from privypurse.federated.server import Aggregated
    from privypurse.federated.terms import Terms
    from privypurse.federated.trials import Setting, Trial

SHORT = "train over several silos, each record within its own ε"
LONG = """\
Train one model over several silos whose data stays where it is, each record within its own ε (simulated budgets, all
silos on this machine). Every silo looks up its records' rates in a table that the server certified, trains with noise
of its own, and answers with the noisy update alone.

By default everybody's ε holds against the server, which sees each update: a silo joins a limited number of rounds,
and each costs in full. --adversary public counts on nobody seeing which silos joined.

adult ships with the package (four silos by employer); heart (four hospitals) is read from $PRIVYPURSE_DATA. These
runs are seeded: for measuring, not for publishing. docs/federated.md is about real machines.

  privypurse federate adult
  privypurse federate heart --preferences pareto --baselines
  privypurse federate adult --rates
  privypurse federate adult --flower
"""
DATA = ("adult", "heart")


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("data", choices=DATA)
    command.add_argument(
        "--preferences",
        choices=("three-levels", "pareto", "mixture"),
        default="three-levels",
        help="how people choose ε: 0.1, 1 or 5, or a law that begins at the lowest",
    )
    command.add_argument(
        "--method",
        choices=("personalised", "minimum", "dropout", "privacy-free"),
        default="personalised",
        help="each at their own ε; all at the smallest; all at the mean, without who grants less; no privacy",
    )
    command.add_argument("--adversary", choices=("server", "public"), default="server", help="whom ε holds against")
    command.add_argument("--baselines", action="store_true", help="all methods, and a plot beside each other")
    command.add_argument(
        "--rates", action="store_true", help="train nothing; the certified table beside the paper's fitted curve"
    )
    command.add_argument("--flower", action="store_true", help="on Flower's simulation engine, one process a silo")
    command.add_argument("--rounds", type=int, help="another number of rounds")
    command.add_argument("--seeds", type=int, default=1, help="with --baselines: trainings of each method")
    command.add_argument("--device", default="cpu", help="cpu, cuda or auto (default: cpu)")
    command.add_argument("--out", type=Path, help="folder for the plot, or with --flower for the silos' books")


def run(options: argparse.Namespace, console: Console) -> None:
    need_training("federate")
    from dataclasses import replace

    from privypurse.federated import silos, trials
    from privypurse.training.devices import device_of

    _check(options)
    device = str(device_of(options.device))
    setting = trials.SETTINGS[options.data]
    if options.rounds is not None:
        setting = replace(setting, rounds=options.rounds)
    if options.flower:
        _on_flower(options, setting, console)
        return
    if options.rates:
        _rates(options, setting, console)
        return
    methods = trials.METHODS if options.baselines else (options.method,)
    found: dict[str, list[Trial]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    for method in methods:
        for seed in range(options.seeds):
            federation = silos.federation(options.data, seed, device)
            with Progress(*columns, console=console) as bar:
                trial = trials.run(
                    *(federation, setting, options.preferences, method),
                    adversary=options.adversary,
                    seed=seed,
                    told=_teller(bar, method, setting.rounds),
                )
            found.setdefault(method, []).append(trial)
        _show(found[method][-1], console, f", seed {options.seeds - 1}" if options.seeds > 1 else "")
    if options.baselines:
        _compare(found, options, console)


def _check(options: argparse.Namespace) -> None:
    """Raise for what does not go together, and for what cannot be, before anything takes long."""
    if options.seeds < 1:
        raise pp.InvalidInput(f"--seeds is {options.seeds}; train at least once")
    if options.rounds is not None and options.rounds < 1:
        raise pp.InvalidInput(f"rounds is {options.rounds}; hold at least one")
    given = {
        "--method": options.method != "personalised",
        "--baselines": options.baselines,
        "--seeds": options.seeds > 1,
        "--rates": options.rates,
        "--out": options.out is not None,
        "--device": options.device != "cpu",
    }
    goes_with = {
        "--flower": (options.flower, {"--out"}),
        "--rates": (options.rates, {"--rates"}),
        "--baselines": (options.baselines, {"--baselines", "--seeds", "--out", "--device"}),
    }
    for name, (chosen, fine) in goes_with.items():
        if chosen and (wrong := [each for each, there in given.items() if there and each not in fine]):
            raise pp.InvalidInput(f"{wrong[0]} does not go with {name}; leave one of them out")
    if not (options.flower or options.baselines) and (given["--out"] or given["--seeds"]):
        wrong_one = "--out" if given["--out"] else "--seeds"
        raise pp.InvalidInput(f"{wrong_one} is for --baselines{' or --flower' if given['--out'] else ''}; add that")
    if (folder := _folder(options)) is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise pp.InvalidInput(f"{folder} cannot be written to ({error}); name another with --out") from None


def _folder(options: argparse.Namespace) -> Path | None:
    """Where something will be written, if anything will."""
    if options.baselines:
        return options.out or Path("results")
    return options.out if options.flower else None


def _rates(options: argparse.Namespace, setting: Setting, console: Console) -> None:
    import numpy as np

    from privypurse.federated import silos, trials

    federation = silos.federation(options.data)
    terms = trials.terms_of(setting, federation, adversary=options.adversary)
    rng = np.random.default_rng(0)
    granted = silos.budgets_of(options.preferences, federation.records, rng, federation.levels)
    found = trials.compare_rates(terms, granted)
    table = Table("rates by", "records overspent", "worst, spent of granted", "left on average")
    share = found.overspent_published / found.records
    table.add_row(
        "the certified table",
        f"{found.overspent_certified:,} of {found.records:,}",
        "≤ 1",
        f"{found.left_certified:.1%}",
    )
    table.add_row(
        "the fitted curve, as published",
        f"{found.overspent_published:,} of {found.records:,} ({share:.0%})",
        f"{found.worst_published:.2f}",
        f"{found.left_published:.1%}",
    )
    console.print(table)
    console.print(
        f"ε against the {terms.adversary}, {terms.rounds} rounds of {terms.local_steps} steps, noise multiplier "
        f"{terms.noise_multiplier:.3g}, δ {terms.delta:g}. Clients take the certified table only, and "
        "certify each rate again.",
        highlight=False,
        style="dim",
    )


def _teller(bar: Progress, method: str, rounds: int) -> Callable[[int, float], None]:
    waiting = "" if method == "privacy-free" else ": noise and rates"
    shown = bar.add_task(f"{method}{waiting}", total=rounds)

    def told(number: int, accuracy: float) -> None:
        bar.update(shown, advance=1, description=f"{method} {accuracy:.1f} %")

    return told


def _show(trial: Trial, console: Console, which: str = "") -> None:
    terms = trial.terms
    console.print(
        f"\n[bold]{trial.method}[/]{which}: test accuracy {trial.accuracy[-1]:.2f} % after "
        f"{_rounds(terms.rounds)} of {terms.local_steps} steps",
        highlight=False,
    )
    if trial.method == "privacy-free":
        console.print("no privacy: the updates tell about the people in them\n")
        return
    table = Table("silo", "records", "joined", "ε granted", "ε spent", "overdrawn", "accuracy")
    for row in trial.clients:
        table.add_row(
            as_it_is(row.name),
            f"{row.records:,}",
            f"{row.joined} of {terms.cap}",
            _range(*row.granted),
            _range(*row.spent),
            str(row.overdrawn),
            f"{row.accuracy:.1f} %",
        )
    console.print(table)
    console.print(
        f"ε against the {terms.adversary}, noise multiplier {terms.noise_multiplier:.3g}, δ {terms.delta:g}. Who is "
        "drawn in every step cannot spend more. What is granted and spent, and accuracy on people in training, is "
        f"each silo's secret; shown here because all of it is simulated.{_same(terms)}\n",
        highlight=False,
        style="dim",
    )


def _range(low: float, high: float) -> str:
    return f"{low:.3g}" if low == high else f"{low:.3g} … {high:.3g}"


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number} rounds"


def _same(terms: Terms) -> str:
    if terms.adversary == "server" or terms.client_rate < 1:
        return ""
    return " Every silo joins every round here: the public knows who joined, and spends them as the server does."


def _compare(found: dict[str, list[Trial]], options: argparse.Namespace, console: Console) -> None:
    import numpy as np

    table = Table("method", "test accuracy", "noise multiplier")
    for method, runs in found.items():
        last = np.array([trial.accuracy[-1] for trial in runs])
        spread = f" ± {last.std(ddof=1):.2f}" if last.size > 1 else ""
        noise = "–" if method == "privacy-free" else f"{runs[0].terms.noise_multiplier:.3g}"
        table.add_row(method, f"{last.mean():.2f}{spread} %", noise)
    console.print(table)
    console.print("minimum and dropout need everybody's ε in one place: they exist in simulations only", style="dim")
    folder = _folder(options)
    assert folder is not None
    if importlib.util.find_spec("matplotlib") is None:
        console.print("no plot, for it needs matplotlib: pip install 'privypurse\\[reproductions]'", style="dim")
        return
    from privypurse.federated import plots

    courses = {method: [trial.accuracy for trial in runs] for method, runs in found.items()}
    paths = plots.save({f"{options.data}, {options.preferences}": courses}, folder / f"federate-{options.data}")
    console.print("written: " + as_it_is(", ".join(map(str, paths))), highlight=False, soft_wrap=True)


def _on_flower(options: argparse.Namespace, setting: Setting, console: Console) -> None:
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError:
        raise pp.PrivyPurseError("--flower needs Flower: pip install 'privypurse[federated]'") from None
    from privypurse.federated import engine, silos, trials
    from privypurse.runs.folder import RunFolder

    federation = silos.federation(options.data)
    terms = trials.terms_of(setting, federation, adversary=options.adversary)

    def told(number: int, outcome: Aggregated) -> None:
        console.print(f"round {number} of {terms.rounds}: {len(outcome.used)} answers", highlight=False)

    console.print("starting Flower's simulation engine, one process for each silo", style="dim")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        trial = engine.run(options.data, options.preferences, terms, folder, seed=0, told=told)
        RunFolder.begin(folder, "federate").add_all()  # books are each silo's own, and these runs are seeded
    _show(trial, console, " on Flower")
