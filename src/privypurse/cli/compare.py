"""privypurse compare: what each method would make of everybody's ε. Trains nothing."""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

from rich.console import Console
from rich.table import Table

import privypurse as pp
from privypurse.budgets.tables import unchanged
from privypurse.cli.arguments import in_flags
from privypurse.cli.plan import add_grants, taken
from privypurse.cli.showing import bar, default_delta, say
from privypurse.errors import PrivyPurseWarning
from privypurse.runs.config import Grants
from privypurse.runs.planning import granted

SHORT = "which method? what each would make of everyone's ε, without training"
LONG = """\
Compare the methods that turn a table of people and their ε into a plan, before anything is trained: for each its
noise multiplier σ, a step's signal to noise, the share of the granted ε that is used, how many people with equal
weights would tell as much, and how often people of each level are drawn. One is recommended, with the reason.

Signal to noise is Σ q·c / (σ·C): what a step adds up if every gradient reaches its clip norm c, over the noise.
"exclude" has the threshold at which that is largest. What it rests on is said below the table, and docs/methods.md
shows what came of it in trainings.

It is a function of everybody's grants: internal, like them, and a plan by the method that it recommends promises
`data` (each ε protects that person's data, given the list of budgets). It looks at no ledger: what people have left
decides nothing that is one for all. Where consents are in a file of their own, that is the table to name.

examples:
  privypurse compare people.csv --steps 2000 --batch-size 512
  privypurse compare people.csv --level consent --levels strict=1,medium=2,relaxed=3 --epochs 20 --batch-size 512
  privypurse compare visits.parquet --person patient_id --steps 2000 --batch-size 512 --json
"""


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("table", help="the .csv or .parquet file of people")
    add_grants(command, delta="")
    how = command.add_argument_group("how to train")
    long = how.add_mutually_exclusive_group(required=True)
    long.add_argument("--steps", type=int, help="training steps: noisy sums of per-example gradients")
    long.add_argument("--epochs", type=float, help="instead: steps that draw everybody so often on average")
    how.add_argument("--batch-size", type=int, required=True, help="expected batch, and divisor of each step")
    how.add_argument("--clip-norm", type=float, default=1.0, help="reference clip norm C (default: 1.0)")
    how.add_argument(
        "--accountant", choices=("pld", "rdp"), default="pld", help="who proves it (default: pld, tighter)"
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(options: argparse.Namespace, console: Console) -> None:
    table = Path(options.table)
    with unchanged(table):
        budgets, _ = granted(taken(Grants, options), table)
    asked = {name: vars(options)[name] for name in ("steps", "epochs", "batch_size", "clip_norm", "accountant")}
    with bar(console, "comparing") as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)  # of a large δ: plans say it
        found = pp.compare(budgets, **asked, progress=None if options.json else progress)
    if options.json:
        console.file.write(json.dumps(found.to_dict(), ensure_ascii=False, indent=1) + "\n")
        return
    if options.delta is None:
        console.print(default_delta("--delta"))
    for head, *lines in (found.table(), found.draws_table()):
        shown = Table()
        for place, name in enumerate(head):
            shown.add_column(name, justify="right" if place else "left")
        for line in lines:
            shown.add_row(*line)
        console.print(shown)
    for note in found.notes():
        say(console, in_flags(note, options))
