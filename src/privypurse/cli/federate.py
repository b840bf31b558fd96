"""privypurse federate: hospitals, banks or employers train together, each record within its own ε."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import privypurse as pp
from privypurse.cli.extras import need_training
from privypurse.cli.showing import as_it_is

if TYPE_CHECKING:
    from privypurse.federated.trials import Setting, Trial

SHORT = "train over several silos, each record within its own ε"
LONG = """\
Train one model over several silos whose data stays where it is, each record within its own ε (simulated budgets, all
silos on this machine). Every silo looks up its records' rates in a table that the server certified, trains with noise
of its own, and answers with the noisy update alone.

By default everybody's ε holds against the server, which sees each update: a silo joins a limited number of rounds,
and each costs in full. --adversary public counts on nobody seeing which silos joined.

adult ships with the package (four silos by employer); heart (four hospitals), mnist, mnist-noniid and cifar10 (ten
clients each; the last wants a GPU) are read from $PRIVYPURSE_DATA. These runs are seeded: for measuring, not for
publishing. docs/federated.md is about real machines.

  privypurse federate adult
  privypurse federate heart --preferences pareto --baselines
  privypurse federate adult --rates
  privypurse federate adult --flower
"""
DATA = ("adult", "heart", "mnist", "mnist-noniid", "cifar10")


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("data", choices=DATA)
    command.add_argument("--preferences", choices=("three-levels", "pareto", "mixture"), default="three-levels")
    command.add_argument(
        "--method", choices=("personalised", "minimum", "dropout", "privacy-free"), default="personalised"
    )
    command.add_argument("--adversary", choices=("server", "public"), default="server", help="whom ε holds against")
    command.add_argument("--baselines", action="store_true", help="all methods, and a plot beside each other")
    command.add_argument(
        "--rates", action="store_true", help="train nothing; the certified table beside the paper's fitted curve"
    )
    command.add_argument("--flower", action="store_true", help="on Flower's simulation engine, one process a silo")
    command.add_argument("--rounds", type=int, help="another number of rounds")
    command.add_argument("--seeds", type=int, default=1, help="with --baselines: trainings of each method")
    command.add_argument("--device", default="cpu")
    command.add_argument("--out", type=Path, help="folder for the plot, or with --flower for the silos' books")


def run(options: argparse.Namespace, console: Console) -> None:
    need_training("federate")
    from dataclasses import replace

    from privypurse.federated import silos, trials
    from privypurse.training.devices import device_of

    device = str(device_of(options.device))
    if options.seeds < 1:
        raise pp.InvalidInput(f"--seeds is {options.seeds}; train at least once")
    unused = {
        "--method": options.method != "personalised",
        "--baselines": options.baselines,
        "--seeds": options.seeds > 1,
        "--rates": options.rates,
    }
    if options.flower and any(unused.values()):
        wrong = next(name for name, given in unused.items() if given)
        raise pp.InvalidInput(f"{wrong} is for the simulation in one process; leave out --flower")
    if options.rates and (options.baselines or options.method != "personalised" or options.seeds > 1):
        raise pp.InvalidInput("--rates trains nothing; leave out --method, --baselines and --seeds")
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
        _show(found[method][-1], console)
    if options.baselines:
        _compare(found, options, console)


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


def _teller(bar: Progress, method: str, rounds: int) -> Callable[[object, float], None]:
    shown = bar.add_task(method, total=rounds)

    def told(held: object, accuracy: float) -> None:
        bar.update(shown, advance=1, description=f"{method} {accuracy:.1f} %")

    return told


def _show(trial: Trial, console: Console) -> None:
    terms = trial.terms
    console.print(
        f"\n[bold]{trial.method}[/]: test accuracy {trial.accuracy[-1]:.2f} % after {terms.rounds} rounds of "
        f"{terms.local_steps} steps",
        highlight=False,
    )
    if trial.method == "privacy-free":
        console.print("no privacy: the updates tell about the people in them\n")
        return
    table = Table("silo", "records", "rounds joined", "ε granted", "ε spent", "overdrawn", "accuracy there")
    for row in trial.clients:
        table.add_row(
            as_it_is(row.name),
            f"{row.records:,}",
            f"{row.joined} of at most {terms.cap}",
            f"{row.granted[0]:.3g} … {row.granted[1]:.3g}",
            f"{row.spent[0]:.3g} … {row.spent[1]:.3g}",
            str(row.overdrawn),
            f"{row.accuracy:.1f} %",
        )
    console.print(table)
    console.print(
        f"ε against the {terms.adversary}, noise multiplier {terms.noise_multiplier:.3g}, δ {terms.delta:g}. What is "
        "granted and spent, and accuracy on people in training, is each silo's secret; shown here because all of it "
        "is simulated.\n",
        highlight=False,
        style="dim",
    )


def _compare(found: dict[str, list[Trial]], options: argparse.Namespace, console: Console) -> None:
    import numpy as np

    from privypurse.federated import plots

    table = Table("method", "test accuracy", "noise multiplier")
    for method, runs in found.items():
        last = np.array([trial.accuracy[-1] for trial in runs])
        spread = f" ± {last.std(ddof=1):.2f}" if last.size > 1 else ""
        noise = "–" if method == "privacy-free" else f"{runs[0].terms.noise_multiplier:.3g}"
        table.add_row(method, f"{last.mean():.2f}{spread} %", noise)
    console.print(table)
    console.print("minimum and dropout need everybody's ε in one place: they exist in simulations only", style="dim")
    folder = options.out or Path("results")
    folder.mkdir(parents=True, exist_ok=True)
    courses = {method: [trial.accuracy for trial in runs] for method, runs in found.items()}
    paths = plots.save({f"{options.data}, {options.preferences}": courses}, folder / f"federate-{options.data}")
    console.print("written: " + as_it_is(", ".join(map(str, paths))), highlight=False, soft_wrap=True)


def _on_flower(options: argparse.Namespace, setting: Setting, console: Console) -> None:
    import tempfile

    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError:
        raise pp.PrivyPurseError("--flower needs Flower: pip install 'privypurse[federated]'") from None
    from privypurse.federated import engine, silos, simulation, trials

    federation = silos.federation(options.data)
    terms = trials.terms_of(setting, federation, adversary=options.adversary)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        state = engine.run(options.data, options.preferences, terms, folder, seed=0)
    model = simulation.load(federation.new_model(), state)
    console.print(
        f"test accuracy {silos.accuracy(model, federation.test):.2f} % after {terms.rounds} rounds on Flower"
    )
