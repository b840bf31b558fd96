"""privypurse verify: what a finished run certified, recomputed, and every file compared with what was written."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

import privypurse as pp
from privypurse.cli.arguments import LEDGER_VARIABLE, ledger_if_named
from privypurse.cli.showing import as_it_is, bar, say
from privypurse.errors import PromiseBroken
from privypurse.runs.verification.findings import BEYOND, Verdict, Verified
from privypurse.runs.verification.people import ALLOWED, GRANTS

SHORT = "recompute what a run certified, and check every file of its folder"
LONG = """\
Look again at the folder that train, federate, query --out or demo --out left behind.

Every file is compared with its digest in run.json. Each level's ε is computed anew from noise, rates, clip norms and
steps, by the accountant that the plan names, and compared with what was promised and with what the run wrote. What
each person is said to have spent is compared with their promise. Then every claim fits, does not fit, or could not be
checked, and why. With the files that lie outside of the folder more can be: the table of people (did each of them
grant what they were promised?), the checkpoint folder (its journal counted the steps), the ledger that was charged.

What it cannot show: digests find damage and oversight, but whoever rewrites all files can rewrite the digests with
them. Keep the digest of run.json in another place (sha256sum run.json). Nobody can rewrite what an ε costs: rates
that were raised, or a claim that was lowered, do not fit whatever the digests say. And no file proves that a model
was trained as its plan says.

Exit code: 0 nothing that was checked is wrong, 1 something does not fit, 2 wrong input (no run's folder, no such
table, a checkpoint without a journal).
What was not checked changes no exit code: the last line says what it was.

examples:
  privypurse verify privypurse-run
  privypurse verify privypurse-run --table people.csv --checkpoint checkpoint
  privypurse verify privypurse-run --ledger sqlite:///purses.db
  privypurse verify privypurse-run --json
"""
_COLOURS = {Verdict.FITS: "green", Verdict.WRONG: "bold red", Verdict.OPEN: "yellow"}


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="RUN", type=Path, help="the folder of a run, or the public files of one")
    said = "the .csv or .parquet file of the people that it was trained on"
    command.add_argument("--table", metavar="FILE", type=Path, help=said)
    command.set_defaults(by_flag={"table"})
    said = "where the run was saved while it trained, with its journal of steps"
    command.add_argument("--checkpoint", metavar="FOLDER", type=Path, help=said)
    said = f"the ledger that was charged (default: ${LEDGER_VARIABLE}, for a run that names one)"
    command.add_argument("--ledger", metavar="URL", help=said)
    command.add_argument("--json", action="store_true", help="print what was found as JSON")


def run(options: argparse.Namespace, console: Console) -> None:
    options.anchor = None
    charged = options.ledger is not None or (options.folder / "ledger.json").exists()
    ledger = ledger_if_named(options) if charged else None
    with bar(console, "certifying") as progress:
        found = pp.verify(
            options.folder, table=options.table, checkpoint=options.checkpoint, ledger=ledger, progress=progress
        )
    if options.json:
        console.print(json.dumps(found.to_json(), ensure_ascii=False), markup=False, soft_wrap=True)
    else:
        _show(found, console)
    if not found.sound:
        raise PromiseBroken(_accused(found, options, by_table={ALLOWED} if ledger is not None else {GRANTS}))


def _accused(found: Verified, options: argparse.Namespace, by_table: set[str]) -> str:
    """What is wrong, and whether it may be the table that was named rather than the run."""
    wrong = [each.what for each in found.of(Verdict.WRONG)]
    if "table" in wrong and set(wrong) <= {"table", *by_table}:
        return (
            f"{options.folder} and --table {options.table} do not fit each other: {', '.join(wrong)}. It is not the "
            "file that the run was trained on; name that one. Nothing else that was checked is wrong"
        )
    return f"{options.folder} is not what it should be: {', '.join(wrong)}"


def _show(found: Verified, console: Console) -> None:
    table = Table("", "what", "found", box=None, pad_edge=False, show_header=False)
    for each in found.findings:
        shown = f"[{_COLOURS[each.verdict]}]{each.verdict.value}[/]"
        table.add_row(shown, as_it_is(each.what), as_it_is(each.said))
    console.print(table)
    say(console, f"What no folder can prove: {'; '.join(BEYOND)}.")
    if found.edition == "internal":
        console.print("This follows from internal files: keep it as safe as the data.", style="dim")
    if found.sound:
        say(
            console, f"Nothing that was checked is wrong: {len(found.of(Verdict.FITS))} of {len(found.findings)} fit."
        )
    if left := found.of(Verdict.OPEN):
        say(console, f"{len(left)} of {len(found.findings)} not checked: {', '.join(each.what for each in left)}.")
