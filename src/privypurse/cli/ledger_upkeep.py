"""The commands of `privypurse ledger` about the ledger itself: make, show, recover, verify and copy it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

import privypurse as pp
from privypurse.budgets.budgets import DEFAULT_DELTA
from privypurse.cli.arguments import (
    anchor_of,
    ledger_url,
    numbers,
    open_latest,
    open_ledger,
    require_key,
    writing,
)
from privypurse.cli.ledger_command import Command
from privypurse.cli.showing import as_it_is, say
from privypurse.errors import PromiseBroken
from privypurse.ledger.database import Database

_LARGE_DELTA = 1e-3


def _nothing_more(command: argparse.ArgumentParser) -> None:
    """For commands that take the ledger alone."""


def _init_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--epsilons", type=numbers, required=True, metavar="ε,…", help="the rungs, at most 8, rising"
    )
    command.add_argument(
        "--delta", type=float, default=DEFAULT_DELTA, help=f"of all rungs (default: {DEFAULT_DELTA:g})"
    )
    command.add_argument(
        "--adversary",
        choices=("server", "public"),
        default="server",
        help="whom the promise holds against: who runs the computations too, or who sees what is published "
        "(default: server)",
    )
    command.add_argument(
        "--set-apart",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of every purse, for releases that are known only as (ε, δ) (default: 0)",
    )


def _init(options: argparse.Namespace, console: Console) -> None:
    Database(ledger_url(options)).require_new()  # before a key or an anchor is asked for
    require_key(options)
    ledger = pp.Ledger.create(
        ledger_url(options),
        epsilons=options.epsilons,
        delta=options.delta,
        adversary=options.adversary,
        set_apart=options.set_apart,
        key=options.key,
        anchor=anchor_of(options),
    )
    say(console, f"made ledger {ledger.id}")
    _show_rungs(ledger, console)
    if options.delta >= _LARGE_DELTA:
        say(
            console,
            f"warning: δ = {options.delta:g} would be kept by publishing all about one person in "
            f"{1 / options.delta:,.0f}; it is fixed for good, so make another ledger, with a δ "
            "well below 1 / people, before anybody joins",
        )
    say(
        console, "Keep the key elsewhere than the ledger, and keep both: without the key nobody's purse can be found."
    )


def _show_rungs(ledger: pp.Ledger, console: Console) -> None:
    table = Table()
    for name in ("rung", "ε", "δ", "Rényi order for life"):
        table.add_column(name, justify="right")
    for place, rung in enumerate(ledger.rungs, 1):
        table.add_row(str(place), f"{rung.epsilon:g}", f"{rung.delta:g}", f"{rung.order:g}")
    console.print(table)


def _show(options: argparse.Namespace, console: Console) -> None:
    ledger = open_ledger(options)
    shown = ledger.show()
    each = "row (other rows of the same person have purses of their own)" if ledger.by_row else shown.unit
    say(console, f"ledger {shown.id}, one purse for each {each}, against: {shown.adversary}")
    _show_rungs(ledger, console)
    if shown.set_apart:
        say(console, f"set apart for releases known only as (ε, δ): {shown.set_apart:.0%} of every purse")
    say(console, f"runs: {shown.runs:,}, of which not settled: {shown.open_runs:,}")


def _runs_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="as JSON, with whole names")


def _runs(options: argparse.Namespace, console: Console) -> None:
    runs = open_ledger(options).runs()
    if options.json:
        say(console, json.dumps([asdict(one) for one in runs], indent=2, ensure_ascii=False, default=str))
        return
    table = Table()
    table.add_column("run", overflow="fold", min_width=14)  # never cut: `recover` takes it, or how it begins
    for name in ("what", "purpose", "reserved (UTC)", "at most ε", "settled (UTC)"):
        table.add_column(name)
    for one in runs:
        cap = "all that was left" if one.at_most is None else f"{one.at_most:g}"
        times = ("not yet" if time is None else f"{time:%Y-%m-%d %H:%M}" for time in (one.reserved, one.settled))
        reserved, settled = times
        table.add_row(*map(as_it_is, (one.run_id, one.what, one.purpose, reserved, cap, settled)))
    console.print(table)


_RUN = "what died, by its name or how that begins; without it: an old copy, by --anchor"


def _recover_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_id", nargs="?", metavar="RUN", help=_RUN)
    said = "the checkpoint folder of a training that died: charged are the steps that it may have taken"
    command.add_argument("--checkpoint", type=Path, metavar="FOLDER", help=said)
    command.add_argument("--export", type=Path, metavar="FILE", help="an export that has later entries than the copy")
    command.add_argument(
        "--yes", action="store_true", help="go on with an old copy, although people are frozen by it"
    )


def _recover(options: argparse.Namespace, console: Console) -> None:
    if options.checkpoint is not None:
        from privypurse.training.ledger_account import recover

        steps = recover(options.checkpoint, open_ledger(options))
        say(console, f"the run in {options.checkpoint} is settled, at the {steps:,} steps that it may have taken")
        return
    if options.run_id is not None:
        ledger = open_ledger(options)
        run_id = _whole_name(ledger, options.run_id)
        ledger.recover(run_id)
        say(console, f"run {run_id} is settled, at all that was reserved for it")
        return
    if options.anchor is None:
        raise pp.InvalidInput("name the RUN that died, or --anchor FILE to go on with an old copy of the ledger")
    _recover_copy(options, console)


def _recover_copy(options: argparse.Namespace, console: Console) -> None:
    url, given = ledger_url(options), {"anchor": options.anchor, "export": options.export}
    loss = pp.Ledger.loss_of_copy(url, **given)
    if not loss.entries:
        pp.Ledger.recover_copy(url, **given)
        say(console, "the copy is in use again: the export has all later entries, and nobody is frozen")
        return
    told = f"{loss.entries:,} later entries are lost with this copy, and all {loss.frozen:,} people in it are frozen"
    told += ": nothing more can be charged to them, ever" + ("; nobody new can join" if loss.people else "")
    if not options.yes:
        raise pp.InvalidInput(
            f"{told}. Nothing was done. Look for the latest copy, or for an export of it (--export); to go on with "
            "this one all the same, add --yes"
        )
    pp.Ledger.recover_copy(url, **given)
    say(console, f"the copy is in use again. {told}")
    how = "tells the two no longer apart" if options.anchor.is_dir() else "is this copy's now and refuses it"
    say(console, f"Should the latest copy turn up, put it away: {options.anchor} {how}")


def _whole_name(ledger: pp.Ledger, begins: str) -> str:
    """The run of this name, or the only one whose name begins so."""
    names = [one.run_id for one in ledger.runs()]
    alike = [begins] if begins in names else [name for name in names if name.startswith(begins)]
    if len(alike) > 1:
        raise pp.InvalidInput(
            f"RUN {begins!r} is how {len(alike)} names begin: {', '.join(alike[:3])}; write more of it"
        )
    return alike[0] if alike else begins


def _verify_options(command: argparse.ArgumentParser) -> None:
    said = "begin the file that --anchor names: only where this is the latest copy of the ledger for certain"
    command.add_argument("--new-anchor", action="store_true", help=said)


def _verify(options: argparse.Namespace, console: Console) -> None:
    anchor = anchor_of(options)
    if options.new_anchor and anchor is None:
        raise pp.InvalidInput("--new-anchor begins the file that --anchor names; give --anchor FILE too")
    ledger = open_latest(options)
    found = ledger.verify()
    if found.problems:
        raise PromiseBroken(f"the ledger is not what it should be: {'; '.join(found.problems)}")
    say(
        console,
        f"{found.entries:,} entries, {found.runs:,} runs: the chain is whole, and nobody's purse is overdrawn",
    )
    if anchor is None and ledger.anchor_file is None:  # the one beside the file was asked where none was named
        say(
            console,
            "Whether this is the latest copy of the ledger cannot be told without its anchor: name that file, or the "
            "folder of its latest run, by --anchor",
        )


def _file_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE", help="where to write it; only you can read it")


def _export(options: argparse.Namespace, console: Console) -> None:
    ledger = open_ledger(options)
    if options.file.exists():
        raise pp.InvalidInput(f"{options.file} is there already; name another file")
    with writing(options.file):
        ledger.export(options.file)
    say(console, f"written to {options.file}")


def _backup(options: argparse.Namespace, console: Console) -> None:
    open_ledger(options).backup(options.file)
    say(console, f"written to {options.file}")


COMMANDS = {
    "init": Command(
        "make a new ledger",
        """
Make a new ledger. Its rungs (the ε that people can choose from), δ, adversary and the share set apart are fixed for
good: every rung has a Rényi order for life that follows from them, and every release is charged at all of them.

--key names the key file, which is written if it is not there. Keep it elsewhere than the ledger. --anchor names a new
file, also elsewhere, by which an old copy of the ledger is told: name it with every command from then on, or once
for all in PRIVYPURSE_LEDGER_ANCHOR.

  privypurse ledger init --ledger sqlite:///purses.db --key ledger.key --epsilons 0.5,1,2,4 --delta 1e-5
""",
        _init_options,
        _init,
    ),
    "show": Command(
        "what the ledger is: rungs, adversary, runs",
        """
Say what the ledger is: its rungs, whom its promise holds against, how many runs there were. Nobody's balance is
shown, nor how many people are on a rung.

  privypurse ledger show --ledger sqlite:///purses.db
""",
        _nothing_more,
        _show,
        needs_key=False,
    ),
    "runs": Command(
        "every use so far",
        """
List every use so far: what it was, when, its public cap (an ε fixed beforehand), and whether it is settled. What it
really took is each person's own affair, and on their receipt.

  privypurse ledger runs --ledger sqlite:///purses.db
  privypurse ledger runs --ledger sqlite:///purses.db --json
""",
        _runs_options,
        _runs,
        needs_key=False,
    ),
    "recover": Command(
        "settle a run that died, or go on with an old copy",
        """
Settle a run that died: charged is all that was reserved for it. Of a training with a checkpoint, name that instead:
charged are the steps that its journal counts, or that the ledger has handed out, if these are more.

Without RUN, go on with an old copy of the ledger, which --anchor told from the latest one. Entries that --export
proves are taken in. Whoever may have been charged since is frozen: nothing more is charged to them, ever. It is first
said how many entries are lost and how many people are frozen; --yes then does it. From then on the anchor is that of
this copy, and refuses the ledger that it was of. The anchor in the folder of a run stays as it is and takes both: put
the other one away.

  privypurse ledger runs
  privypurse ledger recover run-2026-03-01
  privypurse ledger recover --checkpoint FOLDER
  privypurse ledger recover --anchor anchor.json --export entries.jsonl
  privypurse ledger recover --anchor anchor.json --yes
""",
        _recover_options,
        _recover,
        needs_key=False,
    ),
    "verify": Command(
        "recompute everything from raw entries",
        """
Recompute the chain of entries, every cap and everybody's sums from raw entries, by other code than that which
charges. Exit code 1: something does not fit, and the error names it. --anchor also finds out that the end of the
ledger is missing (exit code 2, as of every command); so does the folder of any run under it. Looked at unasked are
the anchor that lies beside the ledger's file (people.csv.ledger.anchor), and folders of runs in the working folder
and beside that file. A ledger that was made without an anchor gets one by --new-anchor.

  privypurse ledger verify --ledger sqlite:///purses.db --anchor anchor.json
  privypurse ledger verify --ledger sqlite:///purses.db --anchor my-run
  privypurse ledger verify --ledger sqlite:///purses.db --anchor anchor.json --new-anchor
""",
        _verify_options,
        _verify,
        needs_key=False,
    ),
    "export": Command(
        "all entries as JSON lines",
        """
Write all entries and keyed hashes of ids as JSON lines: for audits, and to recover an old copy with. Sensitive.

  privypurse ledger export entries.jsonl --ledger sqlite:///purses.db
""",
        _file_option,
        _export,
        needs_key=False,
    ),
    "backup": Command(
        "a copy as of one moment",
        """
Copy the whole ledger, as of one moment, into a SQLite file. Going on with an old copy would fill purses again: keep
an anchor (--anchor, with every command) outside of the database, by which an old copy is told and refused.

  privypurse ledger backup purses-2026-03.db --ledger sqlite:///purses.db
""",
        _file_option,
        _backup,
        needs_key=False,
    ),
}
