"""privypurse suggest: steps, batch size, clip norm and learning rate from a public guess. Trains nothing."""

from __future__ import annotations

import argparse
import json
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

import privypurse as pp
from privypurse.assignment import METHODS
from privypurse.assignment.suggest import TARGETS
from privypurse.budgets.budgets import DEFAULT_DELTA
from privypurse.budgets.tables import unchanged
from privypurse.cli.plan import add_grants, taken
from privypurse.cli.showing import say
from privypurse.errors import PrivyPurseWarning
from privypurse.runs.config import Grants
from privypurse.runs.planning import granted

SHORT = "steps, batch size, clip norm and learning rate from a public guess, without training"
LONG = """\
Suggest what a plan and an optimizer need: steps, batch size, clip norm, learning rate and momentum of SGD, each with
its reason. It follows from a public guess: about how many people there are, which share of them holds each ε, and how
many weights the model trains. Nothing is trained and nobody is looked at: it costs nothing.

With a table instead of --people and --shares it looks at the grants themselves. The answer is then internal, and a
plan by it promises `data`: each ε protects that person's data, given the list of budgets. What people have left in a
ledger decides nothing. Where consents are in a file of their own, that is the table to name.

The rule of the learning rate is for classes. For a number as target (range under [data], one output: --layers 30,1,
or --target number) it has no word: what is said then is lr = 0.1 without momentum, to begin with.

Last come the sections [plan] and [optimizer] for a configuration of `privypurse train`, to stand in place of those
that `init` wrote; --toml prints them alone. How near this comes to the
best of a grid, and what a grid on people's data would cost them: docs/suggest.md.

examples:
  privypurse suggest --people 10000 --shares 1=0.7,4=0.3 --parameters 26010
  privypurse suggest --people 3000 --shares 1=1 --layers 91,64,2 --toml > plan-and-optimizer.toml
  privypurse suggest people.csv --level consent --levels strict=1,relaxed=4 --layers 91,64,2 --json
"""


def shares(text: str) -> dict[float, float]:
    """1=0.7,4=0.3"""
    found: dict[float, float] = {}
    for part in text.split(","):
        epsilon, _, share = part.partition("=")
        try:
            key, value = float(epsilon), float(share)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form 1=0.7,4=0.3, ε=share") from None
        if key in found:
            raise argparse.ArgumentTypeError(f"ε = {key:g} is given twice")
        found[key] = value
    return found


class Layers(int):
    """How many numbers such layers train."""

    outputs: int


def layers(text: str) -> Layers:
    """91,64,2: the weights and biases of fully connected layers of these widths."""
    try:
        widths = [int(word) for word in text.split(",")]
    except ValueError:
        widths = []
    if len(widths) < 2 or min(widths) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of widths such as 91,64,2: inputs, hidden, outputs")
    found = Layers(sum((before + 1) * after for before, after in pairwise(widths)))
    found.outputs = widths[-1]
    return found


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "table", nargs="?", help="instead of a guess: the .csv or .parquet file of people (internal)"
    )
    guess = command.add_argument_group("a public guess")
    guess.add_argument("--people", type=int, metavar="N", help="about how many take part")
    guess.add_argument("--shares", type=shares, metavar="ε=SHARE,…", help="which share of them holds each ε")
    add_grants(command, delta="")
    size = command.add_argument_group("the model's size").add_mutually_exclusive_group(required=True)
    size.add_argument("--parameters", type=int, metavar="N", help="how many numbers it trains")
    size.add_argument(
        "--layers", type=layers, metavar="N,N,…", dest="parameters", help="widths of fully connected layers: 91,64,2"
    )
    said = "what is learned (default: with one output in --layers a number, else classes)"
    command.add_argument("--target", choices=TARGETS, help=said)
    how = command.add_argument_group("how to train")
    how.add_argument("--steps", type=int, help="kept, and the rest follows from it")
    how.add_argument("--batch-size", type=int, help="kept, and the rest follows from it")
    how.add_argument("--method", choices=list(METHODS), default="sample", help="as of `privypurse plan`")
    said = "noise multiplier from the guess as well: plans then protect presence and declared ε too"
    how.add_argument("--fixed-noise", action="store_true", help=said)
    how.add_argument(
        "--accountant", choices=("pld", "rdp"), default="pld", help="who proves it (default: pld, tighter)"
    )
    command.add_argument("--ledger", metavar="URL", help="refused: what people have left may decide nothing here")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead")
    form.add_argument("--toml", action="store_true", help="print the sections for `privypurse train` alone")


def run(options: argparse.Namespace, console: Console) -> None:
    names = ("parameters", "method", "steps", "batch_size", "fixed_noise", "accountant", "ledger")
    asked: dict[str, Any] = {name: vars(options)[name] for name in names}
    asked["target"] = options.target or ("number" if getattr(options.parameters, "outputs", None) == 1 else "classes")
    _refuse_what_grants_may_not(options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)  # of a large δ: plans say it
        found = pp.suggest(**asked, **(_guess(options) if options.table is None else _grants(options)))
    if options.json:
        console.file.write(json.dumps(found.to_dict(), ensure_ascii=False, indent=1) + "\n")
        return
    if not options.toml:
        for line in str(found).splitlines():
            say(console, line)
        console.print()
    console.file.write(found.toml())


def _refuse_what_grants_may_not(options: argparse.Namespace) -> None:
    """As `pp.suggest` does, with the guess as a command line gives it."""
    if options.ledger is not None:
        raise pp.InvalidInput(
            "--ledger is given, and what people have left in it may decide nothing that is one for all (steps, "
            "batch, clip norm, learning rate); give --people and --shares, a public guess, or the table of "
            "what they granted"
        )
    if options.fixed_noise and options.table is not None:
        raise pp.InvalidInput(
            "--fixed-noise is given beside a table: a noise multiplier that follows from the grants protects "
            "nobody's presence; give --people and --shares, a public guess, instead"
        )


def _guess(options: argparse.Namespace) -> dict[str, Any]:
    for name in ("epsilon", "level", "levels", "person"):
        if vars(options)[name] is not None:
            raise pp.InvalidInput(
                f"--{name} is about a table of people, and none is named; name it, or leave this out"
            )
    if options.people is None or options.shares is None:
        raise pp.InvalidInput(
            "--people or --shares is missing; give a public guess, as in --people 10000 --shares 1=0.7,4=0.3, or "
            "name a table"
        )
    delta = DEFAULT_DELTA if options.delta is None else options.delta
    if isinstance(delta, str):
        raise pp.InvalidInput(f"--delta is {delta!r}; without a table give a number")
    return {"people": options.people, "levels": options.shares, "delta": delta}


def _grants(options: argparse.Namespace) -> dict[str, Any]:
    if options.people is not None or options.shares is not None:
        raise pp.InvalidInput("--people or --shares is given beside a table; give a public guess, or the table")
    table = Path(options.table)
    with unchanged(table):
        return {"budgets": granted(taken(Grants, options), table)[0]}
