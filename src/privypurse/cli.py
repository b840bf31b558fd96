"""The command line: privypurse plan · demo."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import privypurse as pp
from privypurse import datasets, planfile, preferences, summaries
from privypurse.assignment import METHODS, Exclude, Method

_PLAN_HELP = """\
Turn a table of people and their ε into a training plan in which nobody's ε is overdrawn.

The table is a .csv or .parquet file with one row for each record. It holds either a column of budgets (--epsilon)
or a column of categories (--level) whose ε you give (--levels).

examples:
  privypurse plan people.csv --epsilon epsilon --steps 2000 --batch-size 512
  privypurse plan people.csv --level consent --levels strict=1,medium=2,relaxed=3 --steps 2000 --batch-size 512
  privypurse plan visits.parquet --epsilon epsilon --person patient_id --steps 2000 --batch-size 512
  privypurse plan people.csv --steps 2000 --batch-size 512 --noise-multiplier 1.1

methods:
  sample     whoever grants more privacy is drawn more often (the default)
  scale      whoever grants more privacy is clipped less
  uniform    everyone at the strictest ε: ordinary DP-SGD
  exclude    people below --threshold (default: the mean ε) take no part, the rest train uniformly
  curve-fit  rates by a fitted curve, checked and corrected
  curve-fit-as-published  the same curve, trusted: overspends, for comparison only

Without --noise-multiplier the noise is solved so that a batch holds --batch-size people on average; each ε then
protects a person's data, given the list of budgets. With it (sample, curve-fit) each rate follows from the person's
own ε alone, and ε protects presence and declared ε too.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 if it went well, 2 if the input was wrong (with a message that says how to mend it)."""
    options = _parser().parse_args(arguments)
    console = Console()
    try:
        options.run(options, console)
    except pp.PrivyPurseError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {_escaped(str(error))}", soft_wrap=True)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="privypurse",
        description="Everyone sets their own privacy budget ε; nobody's is overdrawn.",
    )
    parser.add_argument("--version", action="version", version=f"privypurse {pp.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_plan(
        commands.add_parser(
            "plan",
            help="from everyone's ε to a certified training plan",
            description=_PLAN_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    demo = commands.add_parser(
        "demo",
        help="plan training on 48,842 real people with three consent levels",
        description="Plans private training on the Adult census data (UCI, CC BY 4.0), which ships with the package: "
        "34 % of the people grant ε = 1, 43 % grant 2 and 23 % grant 3. Prints a table for each method.",
    )
    demo.add_argument("--accountant", choices=("pld", "rdp"), default="pld", help="who proves it (default: pld)")
    demo.set_defaults(run=_demo)
    return parser


def _add_plan(command: argparse.ArgumentParser) -> None:
    command.add_argument("table", help="the .csv or .parquet file of people")
    who = command.add_argument_group("who holds what")
    who.add_argument("--epsilon", metavar="COLUMN", help='column of budgets (default: "epsilon")')
    who.add_argument("--level", metavar="COLUMN", help="column of categories, instead of --epsilon")
    who.add_argument("--levels", metavar="NAME=ε,…", type=_levels, help="the ε of each category")
    who.add_argument("--delta", default=1e-5, type=_number_or_name, help="a number or a column (default: 1e-5)")
    who.add_argument("--person", metavar="COLUMN", help="column of ids: records of one person are one unit")
    how = command.add_argument_group("how to train")
    how.add_argument("--steps", type=int, required=True, help="number of training steps")
    how.add_argument(
        "--batch-size", type=int, required=True, help="people in a batch: the public divisor of each step"
    )
    how.add_argument("--clip-norm", type=float, default=1.0, help="reference clip norm C (default: 1.0)")
    how.add_argument("--noise-multiplier", type=float, help="fix σ instead of solving it")
    how.add_argument("--method", choices=list(METHODS), default="sample", help="see above (default: sample)")
    how.add_argument("--threshold", type=float, help="for --method exclude: the least ε that takes part")
    how.add_argument(
        "--accountant", choices=("pld", "rdp"), default="pld", help="who proves it (default: pld, tighter)"
    )
    command.add_argument(
        "--out", default="plan.json", metavar="FILE", help="where to write the plan (default: plan.json)"
    )
    command.set_defaults(run=_plan)


def _plan(options: argparse.Namespace, console: Console) -> None:
    _check_out(Path(options.out), Path(options.table))  # said before the work, not after it
    method: str | Method = options.method
    if options.threshold is not None:
        if options.method != "exclude":
            raise pp.InvalidInput(f"--threshold is for --method exclude, not {options.method}")
        method = Exclude(threshold=options.threshold)
    budgets = pp.Budgets.read(
        options.table,
        epsilon=options.epsilon,
        level=options.level,
        levels=options.levels,
        delta=options.delta,
        person=options.person,
    )
    with _progress(console) as progress:
        plan = pp.plan(
            budgets,
            method,
            steps=options.steps,
            batch_size=options.batch_size,
            clip_norm=options.clip_norm,
            noise_multiplier=options.noise_multiplier,
            accountant=options.accountant,
            progress=progress,
        )
        plan.spent_by_level(progress=progress)
    _show(plan, console)
    plan.save(options.out)
    console.print(f"written to {_escaped(options.out)}", highlight=False)


def _check_out(out: Path, table: Path) -> None:
    if out.is_dir() or not out.resolve().parent.is_dir():
        raise pp.InvalidInput(f"--out {out} is a folder, or in none that exists; name a file in an existing folder")
    if out.resolve() == table.resolve():
        raise pp.InvalidInput(f"--out {out} is the table itself and would be overwritten; name another file")
    if out.exists() and planfile.FORMAT.encode() not in out.read_bytes()[:200]:
        raise pp.InvalidInput(f"--out {out} exists and is no plan; name another file, or remove it first")


def _demo(options: argparse.Namespace, console: Console) -> None:
    people = datasets.adult().people
    epsilon = preferences.levels(people, (1.0, 2.0, 3.0), (0.34, 0.43, 0.23), np.random.default_rng(0))
    budgets = pp.Budgets(epsilon, delta=1e-5)
    console.print(
        f"[bold]{people:,} people of the 1994 census[/] (Adult; Becker & Kohavi 1996, UCI, CC BY 4.0), each with a "
        "privacy budget of their own.\nThree plans for 2,000 steps of 512 people; less noise means a better model.\n"
    )
    for method in ("uniform", "sample", "scale"):
        with _progress(console) as progress:
            plan = pp.plan(
                budgets, method, steps=2000, batch_size=512, accountant=options.accountant, progress=progress
            )
        _show(plan, console)
        console.print()


def _show(plan: pp.Plan, console: Console) -> None:
    """The table by level, with what holds for all above it and what is promised below."""
    table = Table(title=f"plan: {plan.method}", title_justify="left", caption_justify="left")
    for name in summaries.COLUMNS:
        table.add_column(name, justify="right")
    for row in plan.by_level():
        table.add_row(*summaries.cells(row))
    for line in summaries.facts(plan):
        console.print(_escaped(line), highlight=False, soft_wrap=True)
    console.print(table)
    for line in (plan.promise.text, summaries.ROUNDED, summaries.SENSITIVE):
        console.print(line, style="dim", highlight=False)


@contextmanager
def _progress(console: Console, patience: float = 1.0) -> Iterator[Callable[[int, int], None]]:
    """A bar that shows up only once the work has taken more than ``patience`` seconds."""
    bar = Progress(
        TextColumn("certifying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("certifying", total=None)
    begun = time.monotonic()

    def report(done: int, total: int) -> None:
        if not bar.live.is_started and time.monotonic() - begun > patience:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()


def _levels(text: str) -> dict[str, float]:
    levels: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.strip() in levels:
            raise argparse.ArgumentTypeError(f"level {name.strip()!r} is given twice")
        try:
            levels[name.strip()] = float(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form strict=1,medium=2,relaxed=3") from None
    return levels


def _number_or_name(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _escaped(text: str) -> str:
    """Text as it is: square brackets are no mark-up."""
    return text.replace("[", "\\[")


if __name__ == "__main__":
    sys.exit(main())
