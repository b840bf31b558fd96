"""The commands of `privypurse ledger` about people: their consents, a form for them, and forgetting."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

import privypurse as pp
from privypurse.cli.arguments import open_ledger, writing
from privypurse.cli.ledger_command import Command, say


def _import_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help=".csv or .parquet files of consents")
    command.add_argument("--person", default="person", metavar="COLUMN", help='column of ids (default: "person")')
    command.add_argument("--epsilon", default="epsilon", metavar="COLUMN", help='column of ε (default: "epsilon")')
    _said_options(command, "where the table has no such column")
    command.add_argument("--dry-run", action="store_true", help="say what would change, and change nothing")
    command.add_argument("--list", action="store_true", help="also say for whom, by id")


def _said_options(command: argparse.ArgumentParser, when: str) -> None:
    command.add_argument("--purpose", default="", help=f"what the data are for, in words or as a DPV term; {when}")
    command.add_argument("--recorded-by", default="", metavar="WHO", help=f"who recorded the consent; {when}")


def _import(options: argparse.Namespace, console: Console) -> None:
    ledger = open_ledger(options)
    for table in options.tables:
        difference = ledger.import_table(
            table,
            person=options.person,
            epsilon=options.epsilon,
            purpose=options.purpose,
            recorded_by=options.recorded_by,
            dry_run=options.dry_run,
        )
        say(console, f"{table}: {difference}")
        for what in ("joining", "returning", "raising", "lowering") if options.list else ():
            for person in getattr(difference, what):
                say(console, f"  {what}: {person}")
    if options.dry_run:
        say(console, "nothing was written; leave --dry-run out to do so")


def _consent_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--person", required=True, metavar="ID", help="whose consent")
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument("--epsilon", type=float, metavar="ε", help="one of the ledger's rungs: joins, raises or lowers")
    what.add_argument("--withdraw", action="store_true", help="nothing more is charged; what is spent stays spent")
    command.add_argument("--valid-until", metavar="DATE", help="such as 2030-12-31 (default: until withdrawn)")
    _said_options(command, "kept with the consent")


def _consent(options: argparse.Namespace, console: Console) -> None:
    ledger = open_ledger(options)
    if options.withdraw:
        ledger.withdraw([options.person], recorded_by=options.recorded_by)
        say(console, "withdrawn: nothing more is charged")
        return
    grant = ledger.change if _takes_part(ledger, options.person) else ledger.join
    grant(
        [options.person],
        options.epsilon,
        purpose=options.purpose,
        valid_until=options.valid_until,
        recorded_by=options.recorded_by,
    )
    say(console, f"recorded: ε = {options.epsilon:g}")


def _takes_part(ledger: pp.Ledger, person: str) -> bool:
    """Whether they joined, and have not withdrawn since."""
    try:
        events = ledger.history(person)
    except pp.InvalidInput:  # never heard of, or no key: join says so
        return False
    said = [event.kind for event in events if event.kind in ("join", "consent", "withdraw", "forget")]
    return said[-1] in ("join", "consent")


def _forget_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--person", required=True, metavar="ID", help="whom")
    command.add_argument("--recorded-by", default="", metavar="WHO", help="who recorded it")


def _forget(options: argparse.Namespace, console: Console) -> None:
    open_ledger(options).forget([options.person], recorded_by=options.recorded_by)
    say(console, "forgotten: a keyed hash of the id stays, with what was spent (pseudonymous, not erased)")


def _form_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--out", type=Path, default=Path("consent.html"), metavar="FILE", help="the page")
    command.add_argument("--purpose", required=True, help="what the data are for, as people will read it")
    command.add_argument("--names", metavar="A,B,…", help="what the rungs are called, from the strictest on")
    command.add_argument("--contact", default="", help="whom to give the record to")
    command.add_argument("--valid-until", default="", metavar="DATE", help="when consent ends at the latest")


def _form(options: argparse.Namespace, console: Console) -> None:
    from privypurse.ledger.consent_form import consent_form

    ledger = open_ledger(options)
    html = consent_form(
        ledger.rungs,
        purpose=options.purpose,
        adversary=ledger.adversary,
        names=None if options.names is None else options.names.split(","),
        contact=options.contact,
        valid_until=options.valid_until,
    )
    with writing(options.out):
        options.out.write_text(html, encoding="utf-8")
    say(console, f"written to {options.out}; `privypurse ledger import` reads the records that it gives")


COMMANDS = {
    "import": Command(
        "take consents from tables",
        """
Take consents from .csv or .parquet files: who is new joins, who has another ε than before is raised or lowered.
Columns purpose, valid_until and recorded_by are read where there are such. Nobody leaves by being absent: see
`consent --withdraw`. The records that a consent form gives are such files, and many can be named at once.

  privypurse ledger import people.csv --person customer_id --purpose "to plan bus lines" --dry-run
  privypurse ledger import forms/*.csv
""",
        _import_options,
        _import,
    ),
    "consent": Command(
        "record what one person says",
        """
Record what one person says: that they allow an ε (they join, or raise or lower what they allowed before), or that
they withdraw. Lowered below what is spent already, nothing more is charged.

  privypurse ledger consent --person C0431 --epsilon 1 --purpose "to plan bus lines" --recorded-by "desk 4"
  privypurse ledger consent --person C0431 --withdraw
""",
        _consent_options,
        _consent,
    ),
    "forget": Command(
        "withdraw somebody, and keep no more than a keyed hash",
        """
Withdraw somebody and keep no more than the keyed hash of their id with what was spent. That is pseudonymous, not
erased: without it they could come back with a full purse.

  privypurse ledger forget --person C0431
""",
        _forget_options,
        _forget,
    ),
    "form": Command(
        "a consent form as one page",
        """
Write a consent form: one self-contained page with the ledger's rungs in plain words and risks as frequencies. It
loads and sends nothing; the browser lets people save their record, which `ledger import` reads.

  privypurse ledger form -o consent.html --purpose "to plan bus lines" --contact "desk 4"
""",
        _form_options,
        _form,
        needs_key=False,
    ),
}
