"""privypurse experiment: the tables and figures of the papers, one command each."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from privypurse.cli.extras import need_training
from privypurse.cli.showing import as_it_is
from reproductions import grid as specs

if TYPE_CHECKING:
    from reproductions.grid import Experiment

SHORT = "repeat a table or a figure of the papers"
LONG = """\
Repeat a table or a figure of the papers on personalised privacy: plan, train and measure every cell, and write
results.json, table.md (the paper's figure beside ours, and what each group was promised and spent) and a plot.

Budgets are sound by default: everyone pays for every round, drawn or not. --as-published repeats the bookkeeping of
Heo et al. (2023), which charges only who was drawn, and says what each group really spent at most.

Every finished cell is kept: a run that was broken off goes on where it was, and more seeds add to what is there.
Image data is read from $PRIVYPURSE_DATA. Runs are seeded, so that they can be repeated: the models are for measuring,
not for publishing.

  privypurse experiment list
  privypurse experiment run boenisch-table-2-mnist --seeds 3 --device cuda --jobs 6
  privypurse experiment run heo-table-1-mnist --quick
"""


def add_options(run_: argparse.ArgumentParser) -> None:
    run_.add_argument("--seeds", type=int, help="how often each cell is trained (default: what the experiment says)")
    run_.add_argument("--jobs", type=int, default=1, help="cells that train side by side (default: 1)")
    run_.add_argument("--quick", action="store_true", help="a few steps on a few records: does it run?")
    run_.add_argument("--as-published", action="store_true", help="the published bookkeeping, which keeps no promise")
    run_.add_argument("--rows", nargs="+", metavar="ROW", help="these rows only")
    run_.add_argument("--columns", nargs="+", metavar="COLUMN", help="these columns only")
    run_.add_argument("--out", type=Path, help="folder for the results (default: results/NAME)")


def _list(console: Console) -> None:
    table = Table(Column("name", no_wrap=True), "what", "paper", "cells", "seeds")
    for path in specs.available():
        one = specs.read(path)
        table.add_row(one.name, one.title, f"{one.paper}, {one.table}", str(len(one.cells)), str(one.seeds))
    console.print(table)


def _run(options: argparse.Namespace, console: Console) -> None:
    experiment = specs.find(options.table)
    need_training("experiment")
    if importlib.util.find_spec("matplotlib") is None:
        console.print(
            "no plots, for they need matplotlib: pip install 'privypurse\\[reproductions]' and call this again, "
            "which trains nothing twice"
        )
    columns = options.columns
    if options.as_published and columns:  # as it is printed, or as it is in the file
        columns = [name.removesuffix(", as published") for name in columns]
    whole, experiment = experiment, experiment.only(options.rows, columns)
    if options.as_published:
        whole, experiment = whole.as_published(), experiment.as_published()
    if options.quick:
        whole = experiment = experiment.quickened()
    seeds = experiment.seeds if options.seeds is None else options.seeds
    kind = ("-as-published" if options.as_published else "") + ("-quick" if options.quick else "")
    folder = options.out or Path("results") / f"{experiment.name}{kind}"
    _execute(experiment, seeds, options.device or "cpu", options.jobs, folder, console)
    _tell(whole, seeds, folder, console)


def _execute(experiment: Experiment, seeds: int, device: str, jobs: int, folder: Path, console: Console) -> None:
    from reproductions import grid_running as running

    total = seeds * len(experiment.rows) * len(experiment.columns)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    done = 0
    try:
        with Progress(*columns, console=console) as bar:
            shown = bar.add_task(experiment.name, total=total)
            for task, before in running.run(experiment, seeds=seeds, device=device, jobs=jobs, folder=folder):
                outcome, done = task.finished, done + 1
                if not before and outcome is not None:
                    said = outcome.get("impossible") or (
                        f"accuracy {outcome['accuracy']:.2f} % in {outcome['seconds']:.1f} s"
                    )
                    bar.console.print(
                        f"{task.row} / {task.column}, seed {task.seed}: {said}", highlight=False, markup=False
                    )
                bar.advance(shown)
    except KeyboardInterrupt:
        console.print(f"stopped; {done} of {total} cells are kept, call this again to go on", highlight=False)
        raise SystemExit(130) from None


def _tell(experiment: Experiment, seeds: int, folder: Path, console: Console) -> None:
    """Everything that is finished, also what other calls for other rows and columns left."""
    from reproductions import grid_report as report
    from reproductions import grid_running as running

    results = running.collected(experiment, seeds, folder)
    paths = report.save(experiment, results, running.versions_of(experiment, seeds, folder), folder)
    console.print()
    console.print((folder / "table.md").read_text(encoding="utf-8"), markup=False, highlight=False, soft_wrap=True)
    console.print("written: " + as_it_is(", ".join(str(path) for path in paths)), highlight=False, soft_wrap=True)
