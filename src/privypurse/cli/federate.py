"""privypurse federate: hospitals, banks or employers train together, each record within its own ε."""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from rich.console import Console
from rich.table import Table

import privypurse as pp
from privypurse._validate import integer
from privypurse.cli.arguments import need
from privypurse.cli.showing import as_it_is, bar, say
from privypurse.runs.folder import RunFolder

if TYPE_CHECKING:
    from privypurse.arrays import FloatArray
    from privypurse.federated.federation_run import Purses, Setting, Trial
    from privypurse.federated.server import Aggregated
    from privypurse.federated.terms import Terms

SHORT = "train over several silos, each record within its own ε"
LONG = """\
Train one model over several silos whose data stays where it is, each record within its own ε (simulated budgets, all
silos on this machine). Every silo looks up its records' sampling rates in a table that the server certified, trains
with noise of its own, and answers with the noisy update alone.

By default everybody's ε holds against an honest-but-curious server, which sees each update: a silo joins a limited
number of rounds, and each costs in full. --adversary public counts on nobody seeing which silos joined.

adult ships with the package (four silos by employer); heart (four hospitals) is read from $PRIVYPURSE_DATA. These
runs are seeded: for measuring, not for publishing. Tables of your own, and real machines, go by pp.federated.Client
or examples/federated: see docs/federated.md.

  privypurse federate adult
  privypurse federate heart --preferences pareto
  privypurse federate adult --flower
  privypurse federate adult --ledgers purses --at-most 0.5

With --ledgers nobody's ε for this training is above --at-most, and whose purse pays for no rate takes no part. People
have no ids in these data; their ledger knows them as 'row 0 of …', and the command prints how to ask for a receipt.
"""
_SEEDED = "This federation was seeded, so its noise can be repeated and taken off: a test, NOT private."


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("data", choices=("adult", "heart"))
    command.add_argument(
        "--preferences",
        choices=("three-levels", "pareto", "mixture"),
        default="three-levels",
        help="how people choose ε: 0.1, 1 or 5, or a law that begins at 0.1",
    )
    command.add_argument("--adversary", choices=("server", "public"), default="server", help="whom ε holds against")
    command.add_argument("--flower", action="store_true", help="on Flower's simulation engine, one process a silo")
    command.add_argument("--rounds", type=int, help="another number of rounds")
    command.add_argument(
        "--ledgers",
        type=Path,
        metavar="FOLDER",
        help="people pay for life: every silo keeps a private ledger in this folder, for this and later trainings",
    )
    command.add_argument(
        "--at-most", type=float, metavar="EPSILON", help="with --ledgers: the training's public cap (default: all)"
    )
    command.add_argument("--purpose", default="", help="with --ledgers: what receipts say this training is for")
    command.add_argument("--device", default="cpu", help="cpu, cuda or auto (default: cpu); Flower's runs on the CPU")
    command.add_argument("--out", type=Path, help="folder for terms, model and accounts, and with --flower for books")


def run(options: argparse.Namespace, console: Console) -> None:
    need("federate")
    from privypurse.federated import federation_run

    if options.flower and options.device != "cpu":
        raise pp.InvalidInput("--device does not go with --flower; leave one of them out")
    if options.ledgers is None and (options.at_most is not None or options.purpose):
        raise pp.InvalidInput("--at-most and --purpose are about purses that last; name their --ledgers FOLDER too")
    setting = federation_run.SETTINGS[options.data]
    if options.rounds is not None:
        setting = replace(setting, rounds=integer(options.rounds, "rounds"))
    folder = None if options.out is None else RunFolder.begin(options.out, "federate")  # before anything takes long
    trial = (_on_flower if options.flower else _in_one_process)(options, setting, console)
    _show(trial, console, " on Flower" if options.flower else "")
    if options.ledgers is not None:
        _show_ledgers(trial, options, console)
    if folder is not None:
        _keep(trial, folder, options)
        say(console, f"written: {options.out}")


def _in_one_process(options: argparse.Namespace, setting: Setting, console: Console) -> Trial:
    from privypurse.federated import federation_run, silos
    from privypurse.training.devices import device_of

    federation = silos.federation(options.data, device=str(device_of(options.device)))
    granted, purses = silos.granted_in(federation, options.preferences, 0), _purses(options)
    with bar(console, "noise and rates", patience=0.0) as report:
        report(0, setting.rounds)
        terms = federation_run.terms_of(setting, len(federation.silos), adversary=options.adversary, purses=purses)

        def told(number: int, accuracy: float) -> None:
            report(number, setting.rounds, f"{accuracy:.1f} %")

        return federation_run.run(federation, terms, granted, purses=purses, told=told)


def _on_flower(options: argparse.Namespace, setting: Setting, console: Console) -> Trial:
    need("federate --flower", "flwr", extra="federated")
    from privypurse.federated import engine, federation_run, silos

    federation, purses = silos.federation(options.data), _purses(options)
    terms = federation_run.terms_of(setting, len(federation.silos), adversary=options.adversary, purses=purses)

    def told(number: int, outcome: Aggregated) -> None:
        console.print(f"round {number} of {terms.rounds}: {len(outcome.used)} answers")

    console.print("starting Flower's simulation engine, one process for each silo", style="dim")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        return engine.run(options.data, options.preferences, terms, folder, seed=0, purses=purses, told=told)


def _purses(options: argparse.Namespace) -> Purses | None:
    from privypurse.federated.federation_run import Purses

    if options.ledgers is None:
        return None
    return Purses(options.ledgers.resolve(), options.at_most, options.purpose)


def _keep(trial: Trial, folder: RunFolder, options: argparse.Namespace) -> None:
    folder.add_all()  # books are each silo's own
    folder.add_json("terms.json", asdict(trial.terms), public=True)
    facts = {"data": options.data, "unit": "record", "seeded": True, "promise": _SEEDED}
    under = {"under_ledger": options.ledgers is not None, "simulated_budgets": True}
    folder.add_json("facts.json", {**facts, **under}, public=True)
    course = [{"round": number, "accuracy": each / 100} for number, each in enumerate(trial.accuracy, 1)]
    folder.add_json("metrics.json", {**facts, **under, "rounds": course})
    # Nobody's ε holds for a seeded model before those who know the seed.
    folder.add("model.npz", lambda file: np.savez(file, **cast(dict[str, Any], trial.state)))
    accounts = {
        row.name: {
            "joined": row.joined,
            **{name: getattr(row, name).tolist() for name in ("granted", "rates", "spent")},
        }
        for row in trial.clients
    }
    folder.add("accounts.json", json.dumps(accounts) + "\n")


def _show(trial: Trial, console: Console, where: str) -> None:
    terms = trial.terms
    console.print(
        f"\n[bold]federated[/]{where}: test accuracy {trial.accuracy[-1]:.2f} % after "
        f"{'1 round' if terms.rounds == 1 else f'{terms.rounds} rounds'} of {terms.local_steps} steps"
    )
    table = Table("silo", "records", "joined", "ε granted", "ε spent", "overdrawn", "accuracy")
    for row in trial.clients:
        table.add_row(
            as_it_is(row.name),
            f"{row.granted.size:,}",
            f"{row.joined} of {terms.cap}",
            _range(row.granted),
            _range(row.spent),
            str(row.overdrawn),
            f"{row.accuracy:.1f} %",
        )
    console.print(table)
    console.print(
        f"ε against the {terms.adversary}, noise multiplier {terms.noise_multiplier:.3g}, δ {terms.delta:g}. Who is "
        "drawn in every step cannot spend more. What is granted and spent, and accuracy on people in training, is "
        f"each silo's secret; shown here because all of it is simulated.{_none(trial)}{_same(terms)}\n",
        style="dim",
    )


def _show_ledgers(trial: Trial, options: argparse.Namespace, console: Console) -> None:
    from privypurse.ledger.private import Place, url_of

    most = "all that was left" if options.at_most is None else f"ε = {options.at_most:g}"
    one = trial.clients[0]
    place = Place.in_folder(options.ledgers / one.name)
    runs = ["privypurse", "ledger", "runs", "--ledger", url_of(place.file)]
    receipt = ["privypurse", "receipt", *runs[3:], "--key", str(place.key), "--person", str(one.first_id)]
    console.print(
        f"Charged for life to the silos' own ledgers in {as_it_is(str(options.ledgers))}, at most {most}, at the "
        "orders that hold for every use, with more noise than one training alone would need. The ε above are this "
        "training's alone; what people paid in all is in their receipts. People have no ids in these data: a ledger "
        "knows them by the number of their record, from 0 on, and what the data are. The trainings of a silo, and "
        f"the receipt of its first record:\n\n  {as_it_is(shlex.join(runs))}\n  {as_it_is(shlex.join(receipt))}\n",
        style="dim",
        soft_wrap=True,
    )


def _none(trial: Trial) -> str:
    """What an ε spent of 0 means."""
    none = sum(int((row.spent == 0).sum()) for row in trial.clients)
    if not none:
        return ""
    return f" Where 0 is spent people take no part: {none:,} records, whose ε pays for no rate with this noise."


def _range(epsilon: FloatArray) -> str:
    low, high = float(epsilon.min()), float(epsilon.max())
    return f"{low:.3g}" if low == high else f"{low:.3g} … {high:.3g}"


def _same(terms: Terms) -> str:
    if terms.adversary == "server" or terms.client_rate < 1:
        return ""
    return " Every silo joins every round here: the public knows who joined, and spends them as the server does."
