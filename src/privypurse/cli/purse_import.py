"""privypurse ledger import --purses: what was spent before a ledger knew the people becomes charges in it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

import privypurse as pp
from privypurse._validate import real
from privypurse.cli.arguments import ledger_is_named, number_or_name, open_latest
from privypurse.cli.showing import say
from privypurse.cli.table_purses import budgets_of, check_options, fingerprint_of, identity_of_table, private_path


def add_options(command: argparse.ArgumentParser) -> None:
    earlier = command.add_argument_group("purses from before (instead of consents)")
    said = "a file of purses, or a private ledger of rows: what it says was spent is charged"
    earlier.add_argument("--purses", type=Path, metavar="FILE", help=said)
    said = "the .csv or .parquet file that they belong to, as it was then"
    earlier.add_argument("--table", type=Path, metavar="TABLE", help=said)
    said = "the public cap: what all of it could cost somebody (default: all of the public balances)"
    earlier.add_argument("--at-most", type=float, metavar="ε", help=said)
    said = "column of δ, or one δ for all, where the table's private ledger has to be made (default: 1e-5)"
    earlier.add_argument("--delta", metavar="COLUMN|δ", help=said)


def run(options: argparse.Namespace, console: Console) -> None:
    from privypurse.budgets.tables import read_table, unchanged
    from privypurse.queries.earlier_purses import charge_earlier_purses, read_earlier_purses
    from privypurse.queries.table_ledger import known_by

    if options.tables or options.table is None:
        raise pp.InvalidInput("--purses needs --table TABLE, the file that they belong to, and no table of consents")
    options.epsilon, options.delta = (text and number_or_name(text) for text in (options.epsilon, options.delta))
    check_options(options)
    earlier = read_earlier_purses(options.purses)
    with unchanged(options.table):
        table = read_table(options.table)
        budgets = budgets_of(options, table)
    fingerprint = "" if earlier.rows is None else fingerprint_of(table, earlier.rows)
    earlier.require_of(budgets, fingerprint)  # before anything is made
    if options.at_most is not None:
        real(options.at_most, "--at-most", above=0)

    def charge(ledger: pp.Ledger, dry_run: bool = False) -> bool:
        known = known_by(ledger, budgets)
        return charge_earlier_purses(earlier, ledger, known, fingerprint, options.at_most, dry_run=dry_run)

    ledger, new = _ledger(options, table, budgets, charge)
    if ledger is None:
        say(console, f"{options.purses} belongs to {options.table}, whose private ledger would be made")
    elif options.dry_run:
        known = "can be charged in it" if charge(ledger, dry_run=True) else "is in it already"
        say(console, f"the ledger {ledger.id}: {options.purses} {known}")
    elif new or charge(ledger):
        say(console, f"{options.purses}: what was spent from it is charged in the ledger {ledger.id}")
    else:
        say(console, f"{options.purses} is in the ledger {ledger.id} already; nothing was charged again")
    if options.dry_run:
        say(console, "nothing was written; leave --dry-run out to do so")


def _ledger(
    options: argparse.Namespace,
    table: dict[str, Any],
    budgets: pp.Budgets,
    charge: Callable[[pp.Ledger], bool],
) -> tuple[pp.Ledger | None, bool]:
    """Where it is to be charged, and whether that was made now and charged before anybody could find it.

    None where it is still to be made, and this is a dry run.
    """
    from privypurse.ledger.private import Place, is_there
    from privypurse.queries.table_ledger import opened, table_ledger

    if ledger_is_named(options):
        return open_latest(options, options.table.resolve().parent), False
    private = private_path(options.table)
    if private.exists() and private.samefile(options.purses):
        raise pp.InvalidInput(
            f"--purses {options.purses} is the private ledger of {options.table} itself; to go on by id, move it "
            "with its key and anchor to another name first: old.ledger, old.ledger.key and old.ledger.anchor"
        )
    if options.dry_run:
        return (opened(private) if is_there(Place.at(private)) else None), False
    new: list[bool] = []

    def first(made: pp.Ledger) -> None:
        new.append(charge(made))

    return table_ledger(private, budgets, identity_of_table(options, table, private), first).ledger, any(new)
