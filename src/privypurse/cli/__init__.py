"""The commands of privypurse: init · compare · plan · train · verify, predict and export, query, ledger, demo."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Sequence

from rich.console import Console

import privypurse as pp
from privypurse import _totals
from privypurse.cli import (
    audit,
    compare,
    demo,
    export,
    federate,
    init,
    ledger,
    plan,
    predict,
    query,
    receipt,
    report,
    suggest,
    train,
    verify,
)
from privypurse.cli.arguments import in_flags
from privypurse.cli.showing import as_it_is
from privypurse.errors import PromiseBroken


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Gives 0 if it went well, 1 if it went well and found that a promise is broken, 2 if the input was wrong (with a
    message that says how to mend it), 3 where it broke down itself, which has to mean nothing else, 130 after Ctrl-C.
    """
    options = _parser().parse_args(arguments)
    _totals.said()  # by each command in its own words
    console, complaints = (Console(stderr=stderr, highlight=False, emoji=False) for stderr in (False, True))
    try:
        found: int | None = options.run(options, console)
    except pp.PrivyPurseError as error:
        complaints.print(f"[bold red]error:[/] {as_it_is(in_flags(str(error), options))}", soft_wrap=True)
        return 1 if isinstance(error, PromiseBroken) else 2
    except KeyboardInterrupt as stopped:
        complaints.print(as_it_is(str(stopped) or "stopped"), soft_wrap=True)
        return 130
    except Exception:
        traceback.print_exc()
        return 3
    return found or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="privypurse",
        description="Personalised differential privacy: everyone sets their own ε, and nobody's is overdrawn.",
        epilog="Begin with `privypurse demo`. Each command has a --help of its own, with examples. "
        "Exit codes: 0 done, 1 a promise found broken, 2 wrong input, 3 a fault of the program, 130 Ctrl-C.",
    )
    parser.add_argument("--version", action="version", version=f"privypurse {pp.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (
        init,
        compare,
        suggest,
        plan,
        train,
        verify,
        audit,
        predict,
        export,
        query,
        ledger,
        receipt,
        report,
        federate,
        demo,
    ):
        command = commands.add_parser(
            module.__name__.rpartition(".")[2],
            help=module.SHORT,
            description=module.LONG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_options(command)
        command.set_defaults(run=module.run)
    return parser
