"""privypurse ledger: purses that last, from a table of consents to verified sums."""

from __future__ import annotations

import argparse

from rich.console import Console

from privypurse.cli import ledger_people, ledger_upkeep
from privypurse.cli.arguments import add_ledger_options

SHORT = "purses that last: who allowed what, and what was taken out of it"
LONG = """\
Keep one purse for each person, for life: all trainings, questions and rounds are charged to it, and nobody's is
overdrawn. A ledger is one SQLite file, or a PostgreSQL database for many machines. It keeps keyed hashes instead of
ids; its key is a file that belongs elsewhere.

from a table of consents to a receipt:
  privypurse ledger init --ledger sqlite:///purses.db --key ledger.key --epsilons 0.5,1,2,4 --delta 1e-5
  privypurse ledger import people.csv --ledger sqlite:///purses.db --key ledger.key --dry-run
  privypurse ledger import people.csv --ledger sqlite:///purses.db --key ledger.key
  privypurse receipt --person C0431 --ledger sqlite:///purses.db --key ledger.key

--ledger, --key and --anchor may be left out where PRIVYPURSE_LEDGER, PRIVYPURSE_LEDGER_KEY and
PRIVYPURSE_LEDGER_ANCHOR are set. Each command has a --help of its own. Commands that show something tell nobody's
balance, nor how many people chose what; a receipt is for the person whom it is about.
"""
_ORDER = ("init", "import", "consent", "show", "runs", "recover", "verify", "export", "forget", "backup", "form")
_COMMANDS = ledger_upkeep.COMMANDS | ledger_people.COMMANDS


def add_options(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name in _ORDER:
        one = _COMMANDS[name]
        sub = commands.add_parser(
            name,
            help=one.short,
            description=one.long.strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.add_options(sub)
        add_ledger_options(sub, key=one.needs_key)
        sub.set_defaults(act=one.run)


def run(options: argparse.Namespace, console: Console) -> None:
    options.act(options, console)
