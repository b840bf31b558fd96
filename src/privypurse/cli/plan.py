"""privypurse plan: from everyone's ε to a certified training plan."""

from __future__ import annotations

import argparse
import warnings
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

from rich.console import Console

import privypurse as pp
from privypurse.assignment import METHODS
from privypurse.budgets.budgets import DEFAULT_DELTA
from privypurse.budgets.tables import unchanged
from privypurse.cli.arguments import add_ledger_options, ledger_if_named, levels, number_or_name
from privypurse.cli.showing import as_it_is, bar, default_delta, show_plan
from privypurse.errors import PrivyPurseWarning
from privypurse.plans.file import FORMAT
from privypurse.runs.config import Grants, NewPlan
from privypurse.runs.planning import granted, made

T = TypeVar("T")
SHORT = "from everyone's ε to a certified training plan"
LONG = """\
Turn a table of people and their ε into a training plan that is certified to spend at most each person's own (ε, δ).

A plan fixes, before training begins, the noise multiplier σ, the steps, and for each record its sampling rate
(Poisson subsampling) and the norm that its gradient is clipped to. `privypurse train` trains by it.

The table is a .csv or .parquet file with one row for each record. It holds either a column of budgets (--epsilon)
or a column of categories (--level) whose ε you give (--levels).

examples:
  privypurse plan people.csv --epsilon epsilon --steps 2000 --batch-size 512
  privypurse plan people.csv --level consent --levels strict=1,medium=2,relaxed=3 --steps 2000 --batch-size 512
  privypurse plan visits.parquet --epsilon epsilon --person patient_id --steps 2000 --batch-size 512
  privypurse plan people.csv --steps 2000 --batch-size 512 --noise-multiplier 1.1

With --person the plan keeps keyed digests of the ids, and `privypurse train` applies it by id: rows may come in
another order, be edited, come and go. Without, it holds for this file, byte for byte. The plan is as sensitive as the
budgets and written so that only you can read it.

With --ledger each ε is what a person allows now; rates cost nobody more than their purse holds, and the run at most
--at-most of anybody's. What is printed then tells nothing of what people have left. `privypurse train` charges them.

methods:
  sample     a sampling rate that grows with ε, one clip norm (the default)
  scale      a clip norm that grows with ε, one sampling rate
  uniform    everyone at the strictest ε: ordinary DP-SGD
  exclude    people below --threshold (default: the mean ε) take no part, the rest train uniformly
  curve-fit  sampling rates by a fitted curve, checked and corrected

Without --noise-multiplier the noise is solved so that a batch holds --batch-size people on average; each ε then
protects a person's data, given the list of budgets. With it (sample, curve-fit) each rate follows from the person's
own ε alone, and ε protects presence and declared ε too.
"""


def add_grants(command: argparse.ArgumentParser, delta: str = "the ledger's, or ") -> None:
    """Which columns of a table say who holds what; ``delta``: what stands before the default."""
    who = command.add_argument_group("who holds what")
    who.add_argument("--epsilon", metavar="COLUMN", help='column of budgets (default: "epsilon")')
    who.add_argument("--level", metavar="COLUMN", help="column of categories, instead of --epsilon")
    who.add_argument("--levels", metavar="NAME=ε,…", type=levels, help="the ε of each category")
    who.add_argument("--delta", type=number_or_name, help=f"a number or a column (default: {delta}{DEFAULT_DELTA:g})")
    who.add_argument(
        "--person",
        metavar="COLUMN",
        help="column of ids: the privacy unit is a person with all their records, and the plan follows ids, not rows",
    )


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("table", help="the .csv or .parquet file of people")
    add_grants(command)
    how = command.add_argument_group("how to train")
    long = how.add_mutually_exclusive_group(required=True)
    long.add_argument("--steps", type=int, help="training steps: noisy sums of per-example gradients")
    long.add_argument("--epochs", type=float, help="instead: steps that draw everybody so often on average")
    said = "with --epochs: a public number of people; needed where ε protects presence (--noise-multiplier)"
    how.add_argument("--people", type=int, metavar="N", help=said)
    how.add_argument(
        "--batch-size", type=int, required=True, help="public divisor of each step; expected batch where σ is solved"
    )
    how.add_argument("--clip-norm", type=float, default=1.0, help="reference clip norm C (default: 1.0)")
    how.add_argument("--noise-multiplier", type=float, help="fix σ instead of solving it")
    how.add_argument(
        "--extra-steps",
        type=int,
        default=0,
        metavar="N",
        help="steps that may follow, under a filter, for those whose small gradients left something in their purse",
    )
    how.add_argument("--method", choices=list(METHODS), default="sample", help="see above (default: sample)")
    how.add_argument("--threshold", type=float, help="for --method exclude: the least ε that takes part")
    how.add_argument(
        "--accountant", choices=("pld", "rdp"), default="pld", help="who proves it (default: pld, tighter)"
    )
    how.add_argument(
        "--at-most", type=float, metavar="ε", help="public cap on anyone's ε (default: what they grant, or have left)"
    )
    add_ledger_options(command)
    command.add_argument(
        "-o", "--out", default="plan.json", metavar="FILE", help="where to write the plan (default: plan.json)"
    )


def run(options: argparse.Namespace, console: Console) -> None:
    _check_out(Path(options.out), Path(options.table))  # said before the work, not after it
    if options.threshold is not None and options.method != "exclude":
        raise pp.InvalidInput(f"--threshold is for --method exclude, not {options.method}")
    table, asked, ledger = Path(options.table), taken(NewPlan, options), ledger_if_named(options)
    with unchanged(table):
        budgets, seal = granted(taken(Grants, options), table, ledger=ledger)
    with bar(console, "certifying") as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)  # of a large δ: the plan's facts say it
        shown = progress if ledger is None else None  # how many levels there are follows from real balances
        plan = made(asked, budgets, seal, shown, ledger)
        plan.spent_by_level(progress=shown)
    if options.delta is None:
        console.print(default_delta("--delta", ledger))
    show_plan(plan, console)
    plan.save(options.out)
    console.print(f"written to {as_it_is(options.out)}")


def taken(kind: type[T], options: argparse.Namespace) -> T:
    """The options that a section of a run's configuration has too."""
    return kind(**{field.name: vars(options)[field.name] for field in fields(kind) if field.name in options})  # type: ignore[arg-type]


def _check_out(out: Path, table: Path) -> None:
    if out.is_dir() or not out.resolve().parent.is_dir():
        raise pp.InvalidInput(f"--out {out} is a folder, or in none that exists; name a file in an existing folder")
    if out.resolve() == table.resolve():
        raise pp.InvalidInput(f"--out {out} is the table itself and would be overwritten; name another file")
    if out.exists() and FORMAT.encode() not in out.read_bytes()[:200]:
        raise pp.InvalidInput(f"--out {out} exists and is no plan; name another file, or remove it first")
