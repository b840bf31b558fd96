"""Repeat the tables and figures of the papers, and our own: `python -m reproductions run boenisch-table-2-mnist`.

Every training is kept as a line of OUT/NAME.jsonl: a run that was broken off goes on where it was, and more seeds add
to what is there. Budgets are sound by default: everyone pays for every round, drawn or not. --as-published repeats
the bookkeeping of Heo et al. (2023), which charges only who was drawn, and says what each group really spent at most.
Image data is read from $PRIVYPURSE_DATA. Runs are seeded, so that they can be repeated: the models are for measuring,
not for publishing.
"""

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from privypurse.errors import InvalidInput, PrivyPurseError
from reproductions import catalogue, headline, progress, report, results
from reproductions.choice import Choice, Rivals
from reproductions.grid import Grid


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    try:
        return int(asked.act(asked))
    except PrivyPurseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # of a pager that was left, or head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("stopped; what is finished is kept, call this again to go on", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproductions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    actions.add_parser("list", help="the tables that there are").set_defaults(act=_list)
    run = actions.add_parser("run", help="train what is left of a table, then show it")
    run.add_argument("--device", default="auto", help="cpu, cuda or auto (default: auto)")
    run.add_argument("--jobs", type=int, default=1, help="trainings side by side (default: 1)")
    run.add_argument(
        "--minutes",
        type=float,
        help="stop after so many, also in the middle of a training of a paper's table; call it again to go on",
    )
    run.add_argument("--features", type=Path, default=Path("data/features"), help="where features are kept")
    run.set_defaults(act=_run)
    show = actions.add_parser("show", help="what a table came to, as far as it is trained")
    show.set_defaults(act=_show)
    plot = actions.add_parser("plot", help="draw a table with rows and columns as SVG and PNG")
    plot.set_defaults(act=_plot)
    for action in (run, show, plot):
        action.add_argument("table", help="of the list, or a .toml file of your own")
        action.add_argument("--out", type=Path, help="folder of results (default: results; the headline has its own)")
        action.add_argument("--seeds", type=int, help="how often each training is repeated (default: the table's)")
        action.add_argument("--quick", action="store_true", help="a few steps on a few records: does it run?")
        action.add_argument("--as-published", action="store_true", help="the bookkeeping that keeps no promise")
        action.add_argument("--rows", nargs="+", metavar="ROW", help="these rows only")
        action.add_argument("--columns", nargs="+", metavar="COLUMN", help="these columns only")
    for name, help_, act in (
        ("table", "write the headline table from the results in the repository", _table),
        ("check", "fail unless the headline table is what the results say", _check),
    ):
        action = actions.add_parser(name, help=help_)
        action.add_argument("--out", type=Path, default=catalogue.RESULTS, help="folder of results")
        action.set_defaults(act=act)
    return parser


def _asked_for(asked: argparse.Namespace) -> tuple[Grid | Rivals, Grid | Rivals, Path]:
    """The table as it is asked for; the same with all rows and columns, to be shown; and its folder."""
    whole = catalogue.load(asked.table)
    if asked.seeds is not None:
        if asked.seeds < 1:
            raise InvalidInput(f"--seeds is {asked.seeds}; it must be at least 1")
        whole = replace(whole, seeds=asked.seeds)
    kept = isinstance(whole, Rivals) and not asked.quick
    out = asked.out or (catalogue.RESULTS if kept else Path("results"))
    if isinstance(whole, Rivals):
        if asked.as_published or asked.rows or asked.columns:
            raise InvalidInput(f"{whole.name} has no rows and columns to choose; leave out what is for those")
        whole = whole.quickened() if asked.quick else whole
        return whole, whole, out
    columns = asked.columns
    if asked.as_published:  # columns as they are printed, or as they are in the file
        columns = columns and [name.removesuffix(", as published") for name in columns]
    part = whole.only(asked.rows, columns)
    if asked.as_published:
        whole, part = whole.as_published(), part.as_published()
    if asked.quick:
        whole = part = part.quickened()
    return part, whole, out


def _list(asked: argparse.Namespace) -> int:
    for path in catalogue.available():
        table = catalogue.read(path)
        if isinstance(table, Rivals):
            size = f"{len(table.methods)} methods with chosen settings"
        else:
            size = f"{len(table.cells)} cells; {table.paper}, {table.table}"
        print(f"{table.name:30} {table.title}: {table.seeds} seeds of {size}")
    return 0


def _run(asked: argparse.Namespace) -> int:
    from reproductions.running import Where, run

    table, whole, out = _asked_for(asked)
    begun = time.monotonic()
    for job, line in run(table, Where(out, asked.device, asked.jobs, asked.minutes, asked.features)):
        said = line.get("impossible") or f"accuracy {_short(line['accuracy'])}"
        print(f"{time.monotonic() - begun:6.1f} s  {job.name}, seed {job.seed}: {said}", flush=True)
    if table.left(results.read(results.path_of(table, out))):
        print("not done yet; call it again")
        return 3
    text = _told(whole, out)
    print(f"\n{text}", end="", flush=True)
    if isinstance(whole, Grid):
        (out / f"{whole.name}.md").write_text(text, encoding="utf-8")
        print(f"\nwritten: {out / whole.name}.md", flush=True)
        _draw(whole, out)
    return 0


def _short(accuracy: float | Mapping[str, float]) -> str:
    """In percent; by average, where there are several."""
    if isinstance(accuracy, Mapping):
        return ", ".join(f"{value:.2f} ({name})" for name, value in accuracy.items())
    return f"{accuracy:.2f}"


def _show(asked: argparse.Namespace) -> int:
    _, whole, out = _asked_for(asked)
    print(_told(whole, out), end="")
    return 0


def _told(table: Grid | Rivals, out: Path) -> str:
    """Everything that is finished, also what other calls for other rows and columns left."""
    path = results.path_of(table, out)
    lines = results.read(path)
    if not lines:
        raise InvalidInput(
            f"{path} has no trainings; name the folder of yours with --out (those kept in the repository lie in "
            f"{catalogue.RESULTS} and {catalogue.RESULTS / 'papers'}), or run the table first"
        )
    if isinstance(table, Grid):
        if not (found := table.found(lines)):
            raise InvalidInput(f"{path} has {len(lines)} trainings, none of them with the settings of the table now")
        return report.markdown(table, found)
    if table.left(lines):
        return progress.progress(table, lines)
    choice, said = Choice.of(table, lines), ""
    for method in table.methods:
        chosen = choice.chosen(method)
        said += f"{method}: validation {chosen.score:.2f}, average {chosen.decay}, {chosen.settings.plain()}\n"
        if edges := choice.at_edge(method):
            edge = ", ".join(f"{name} {value}" for name, value in edges.items())
            said += f"  at the edge of what was tried: {edge}\n"
    finished = headline.finished(table, out)
    said += headline.headline([finished])
    return said + (headline.against_uniform(finished) if "uniform" in finished.accuracy else "")


def _plot(asked: argparse.Namespace) -> int:
    _, whole, out = _asked_for(asked)
    if not isinstance(whole, Grid):
        raise InvalidInput(f"{whole.name} is a row of the headline; `python -m reproductions.picture` draws that")
    _draw(whole, out)
    return 0


def _draw(grid: Grid, out: Path) -> None:
    found = grid.found(results.read(results.path_of(grid, out)))
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot, for it needs matplotlib: pip install -e '.[reproductions]', then `plot` draws it")
    elif found:
        from reproductions import plots

        print("written: " + ", ".join(str(path) for path in plots.save(grid, found, out)))


def _built(folder: Path) -> str:
    """Of all tables of rivals in the folder; what is unfinished lies in a folder of its own."""
    tables = [catalogue.load(name) for name in sorted(path.stem for path in folder.glob("*.jsonl"))]
    return headline.headline([headline.finished(each, folder) for each in tables if isinstance(each, Rivals)])


def _table(asked: argparse.Namespace) -> int:
    text = _built(asked.out)
    (asked.out / headline.HEADLINE).write_text(text)
    print(text, end="")
    return 0


def _check(asked: argparse.Namespace) -> int:
    path, built = asked.out / headline.HEADLINE, _built(asked.out)
    if not path.is_file() or path.read_text() != built:
        print(f"{path} is not what the results say; run `python -m reproductions table`", file=sys.stderr)
        return 1
    print(f"{path}: all {built.count(chr(10)) - 2} rows are what the results say")
    return 0


if __name__ == "__main__":
    sys.exit(main())
