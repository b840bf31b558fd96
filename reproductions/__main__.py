"""`python -m reproductions`: run a table, show what was chosen, build and check the headline table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from privypurse.errors import InvalidInput, PrivyPurseError
from reproductions import grid_command, report, results, specs


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    try:
        return int(asked.act(asked))
    except PrivyPurseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reproductions", description=__doc__)
    parser.add_argument("--results", type=Path, default=specs.RESULTS, help="folder of results")
    acts = parser.add_subparsers(required=True)
    run = acts.add_parser("run", help="choose settings on validation records, then train every row and seed")
    run.add_argument("table")
    grid_command.add_options(run)
    acts.add_parser("list", help="the tables that there are").set_defaults(act=_list)
    run.add_argument("--device", default=None, help="cpu or cuda; default: cuda where there is one")
    run.add_argument("--workers", type=int, default=1, help="trainings side by side")
    run.add_argument("--minutes", type=float, default=None, help="stop after so many; call it again to go on")
    run.add_argument("--features", type=Path, default=Path("data/features"), help="where features are kept")
    run.set_defaults(act=_run)
    show = acts.add_parser(
        "show", help="what was chosen for a table, and its row of the headline once it is complete"
    )
    show.add_argument("table")
    show.set_defaults(act=_show)
    table = acts.add_parser("table", help="write the headline table from the results")
    table.set_defaults(act=_table)
    check = acts.add_parser("check", help="fail unless the headline table is what the results say")
    check.set_defaults(act=_check)
    return parser


def _list(asked: argparse.Namespace) -> int:
    grid_command._list(Console())
    return 0


def _run(asked: argparse.Namespace) -> int:
    if not asked.table.startswith("scattering"):
        grid_command._run(asked, Console())
        return 0
    import torch

    from reproductions.running import Where, run

    device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    where = Where(asked.features, asked.results, device, asked.workers, asked.minutes)
    done = run(specs.load(asked.table), where)
    print("done" if done else "not done yet; call it again")
    return 0 if done else 3


def _show(asked: argparse.Namespace) -> int:
    spec = specs.load(asked.table)
    choice = results.choice_of(spec, results.read(results.path_of(spec, asked.results)))
    for method in spec.methods:
        chosen = choice.chosen(method)
        print(f"{method}: validation {chosen.score:.2f}, average {chosen.decay}, {chosen.settings.plain()}")
    try:
        print(report.headline([report.finished(spec, asked.results)]), end="")
    except InvalidInput as missing:
        print(missing)
    return 0


def _built(folder: Path) -> str:
    names = sorted(path.stem for path in folder.glob("*.jsonl"))
    return report.headline([report.finished(specs.load(name), folder) for name in names])


def _table(asked: argparse.Namespace) -> int:
    text = _built(asked.results)
    (asked.results / report.HEADLINE).write_text(text)
    print(text, end="")
    return 0


def _check(asked: argparse.Namespace) -> int:
    path = asked.results / report.HEADLINE
    if not path.is_file() or path.read_text() != _built(asked.results):
        print(f"{path} is not what the results say; run `python -m reproductions table`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
