"""The commands of `privypurse ledger` about people: their consents, a form for them, and forgetting."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import privypurse as pp
from privypurse.cli import purse_import
from privypurse.cli.arguments import levels, open_latest, open_ledger, person_id, writing
from privypurse.cli.ledger_command import Command
from privypurse.cli.showing import say

_LISTED = ("joining", "returning", "raising", "lowering", "renewing", "left", "ended", "kept")


def _import_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("tables", nargs="*", type=Path, metavar="TABLE", help=".csv or .parquet files of consents")
    command.add_argument("--person", metavar="COLUMN", help='column of ids (default: "person")')
    command.add_argument("--epsilon", metavar="COLUMN", help='column of ε (default: "epsilon")')
    command.add_argument("--level", metavar="COLUMN", help="column of choices, instead of --epsilon")
    command.add_argument("--levels", metavar="NAME=ε,…", type=levels, help="the ε of each choice")
    _said_options(command, "where the table has no such column")
    back = "who has withdrawn or been forgotten comes back (default: they stay out, whatever a table says)"
    command.add_argument("--returning", action="store_true", help=back)
    up = "raise also above what was recorded since by another way than a table of this recorder (default: lower only)"
    command.add_argument("--raising", action="store_true", help=up)
    command.add_argument("--dry-run", action="store_true", help="say what would change, and change nothing")
    command.add_argument("--list", action="store_true", help="also say for whom, by id")
    purse_import.add_options(command)


def _said_options(command: argparse.ArgumentParser, when: str, said: str | None = "") -> None:
    purpose = "what the data are for, in words or as a DPV term: recorded and shown, compared with no use"
    command.add_argument("--purpose", default=said, help=f"{purpose}; {when}")
    command.add_argument("--recorded-by", default="", metavar="WHO", help=f"who recorded the consent; {when}")


def _import(options: argparse.Namespace, console: Console) -> None:
    if options.purses is not None:
        purse_import.run(options, console)
        return
    if not options.tables:
        raise pp.InvalidInput("no table is named; give TABLE, a file of consents, or --purses FILE --table TABLE")
    if (options.level is None) != (options.levels is None) or (options.level and options.epsilon):
        raise pp.InvalidInput(
            "give --epsilon, a column of ε, or --level, a column of choices, with --levels, their ε; given is "
            + ", ".join(f"--{name}" for name in ("epsilon", "level", "levels") if vars(options)[name])
        )
    ledger = open_latest(options, *(table.resolve().parent for table in options.tables))
    found = ledger.import_tables(
        options.tables,
        person=options.person or "person",
        epsilon=options.level or options.epsilon or "epsilon",
        levels=options.levels,
        purpose=options.purpose,
        recorded_by=options.recorded_by,
        returning=options.returning,
        raising=options.raising,
        dry_run=options.dry_run,
    )
    for table, difference in zip(options.tables, found, strict=True):
        say(console, f"{table}: {difference}")
        for what in _LISTED if options.list else ():
            for person in getattr(difference, what):
                say(console, f"  {what}: {person}")
    if options.dry_run:
        say(console, "nothing was written; leave --dry-run out to do so")


_UNTIL = "the last day, such as 2030-12-31, to its end (UTC), or 'until withdrawn'"


def _consent_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--person", type=person_id, required=True, metavar="ID", help="whose consent")
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument("--epsilon", type=float, metavar="ε", help="one of the ledger's rungs: raises or lowers")
    what.add_argument("--withdraw", action="store_true", help="nothing more is charged; what is spent stays spent")
    what.add_argument("--merge", metavar="ID", help="another id of the same person: refused, with the reason")
    command.add_argument("--join", action="store_true", help="somebody new, whom the ledger does not know yet")
    back = "somebody who has withdrawn or been forgotten comes back, with what they had spent"
    command.add_argument("--returning", action="store_true", help=back)
    command.add_argument("--valid-until", metavar="DATE", help=_UNTIL)
    _said_options(command, "kept with the consent", said=None)


def _consent(options: argparse.Namespace, console: Console) -> None:
    ledger = open_latest(options)
    if options.merge is not None:
        ledger.merge(options.person, options.merge)
    if options.withdraw:
        if options.join or options.returning:
            option = "--join" if options.join else "--returning"
            raise pp.InvalidInput(f"{option} goes with --epsilon, not with --withdraw; leave one of the two out")
        ledger.withdraw([options.person], recorded_by=options.recorded_by)
        say(console, "withdrawn: nothing more is charged")
        return
    before = _granted(ledger, options.person)
    _refuse_wrong_join(options, before)
    said = {"valid_until": options.valid_until, "recorded_by": options.recorded_by}
    if before is None or before.left:
        ledger.join([options.person], options.epsilon, purpose=options.purpose or "", **said)
    else:
        ledger.change([options.person], options.epsilon, purpose=options.purpose, **said)
    say(console, _recorded(before, options.epsilon))
    if before is not None and before.frozen:
        say(
            console, "but frozen since an old copy of the ledger was recovered: nothing more is charged to them, ever"
        )


@dataclass(frozen=True)
class _Granted:
    """What somebody whom the ledger knows said last."""

    epsilon: float
    left: bool
    """Whether they withdrew, or were forgotten, since."""
    frozen: bool
    """Whether an old copy of the ledger was recovered that may not know all they spent."""


def _granted(ledger: pp.Ledger, person: str) -> _Granted | None:
    """None for a stranger."""
    from privypurse.ledger.history import was_frozen

    if not ledger.knows(person):
        return None
    events = ledger.history(person)
    said = [event.kind for event in events if event.kind in ("join", "consent", "withdraw", "forget")]
    rung = [event.rung for event in events if event.rung is not None][-1]
    return _Granted(
        ledger.rungs[rung].epsilon,
        said[-1] in ("withdraw", "forget"),
        was_frozen(events),
    )


def _refuse_wrong_join(options: argparse.Namespace, before: _Granted | None) -> None:
    """A mistyped id must not become a new person with a full purse, nor bring back somebody who has left."""
    if before is None and not options.join:
        raise pp.InvalidInput(
            f"--person {options.person!r} never joined this ledger; check the id, or add --join for somebody new"
        )
    if before is not None and before.left and not options.returning:
        raise pp.InvalidInput(
            f"--person {options.person!r} has withdrawn or been forgotten; check the id, or add --returning (without "
            "--join) if they come back, with what they had spent"
        )
    if options.returning and (before is None or not before.left):
        raise pp.InvalidInput(f"--person {options.person!r} has not left this ledger; leave --returning out")
    if before is not None and options.join:
        raise pp.InvalidInput(
            f"--person {options.person!r} is in this ledger already, with ε = {before.epsilon:g}; leave --join out"
        )


def _recorded(before: _Granted | None, epsilon: float) -> str:
    if before is None:
        return f"joined with ε = {epsilon:g}"
    if before.left:
        return f"came back with ε = {epsilon:g}: what was spent before stays spent"
    if epsilon > before.epsilon:
        return f"raised from ε = {before.epsilon:g} to {epsilon:g}"
    if epsilon < before.epsilon:
        return f"lowered from ε = {before.epsilon:g} to {epsilon:g}: what was spent stays spent"
    return f"recorded anew: ε = {epsilon:g}, as before"


def _forget_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--person", type=person_id, required=True, metavar="ID", help="whom")
    command.add_argument("--recorded-by", default="", metavar="WHO", help="who recorded it")


def _forget(options: argparse.Namespace, console: Console) -> None:
    open_latest(options).forget([options.person], recorded_by=options.recorded_by)
    say(console, "forgotten: receipts show only what was spent in all (pseudonymous, not erased: see forget --help)")


def _form_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--out", type=Path, default=Path("consent.html"), metavar="FILE", help="the page")
    command.add_argument(
        "--purpose", required=True, help="what the data are for, as people will read it; compared with no use"
    )
    command.add_argument("--names", metavar="A,B,…", help="what the rungs are called, from the strictest on")
    command.add_argument("--contact", default="", help="whom to give the record to")
    command.add_argument("--valid-until", default="", metavar="DATE", help="the last day, to its end (UTC)")


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
Take consents from .csv or .parquet files: who is new joins, who has another ε than before is raised or lowered, who
has another purpose or end with the same ε renews. Columns purpose, valid_until and recorded_by are read where there
are such; where the table says nothing of them they stay. Nobody leaves by being absent: see `consent --withdraw`.
The records that a consent form gives are such files, and many can be named at once: all of them are taken in, or,
where a row is wrong or an id comes twice, none.

  privypurse ledger import people.csv --person customer_id --purpose "to plan bus lines" --dry-run
  privypurse ledger import consents.csv --person customer_id --level consent --levels strict=0.5,medium=1,relaxed=2
  privypurse ledger import forms/*.csv

With --purses, take over what people spent before: from a file of purses, as earlier versions kept beside a table, or
from a table's private ledger that knows rows by number. What it says was spent is charged, at every order, to the
people whom --person names in --table; whoever spent more than they granted is left with nothing. Twice charges once.
Without --ledger it goes into the table's private ledger, which is made if there is none. Public balances are gone
with it, unless --at-most says what all those questions could cost.

  privypurse ledger import --purses people.csv.purses --table people.csv --person customer_id --dry-run
""",
        _import_options,
        _import,
    ),
    "consent": Command(
        "record what one person says",
        """
Record what one person says: that they allow another ε than before, or the same one for longer or for something else,
or that they withdraw. Purpose and end stay as they were where they are not given. Somebody new needs --join, so that
a mistyped id becomes no new person with a full purse; somebody who had withdrawn or been forgotten comes back only
with --returning. Lowered below what is spent already, nothing more is charged.

  privypurse ledger consent --join --person C0431 --epsilon 1 --purpose "to plan bus lines" --recorded-by "desk 4"
  privypurse ledger consent --person C0431 --epsilon 2 --valid-until 2030-12-31
  privypurse ledger consent --person C0431 --withdraw
  privypurse ledger consent --person C0431 --epsilon 1 --returning
""",
        _consent_options,
        _consent,
    ),
    "forget": Command(
        "withdraw somebody, and show no more than what was spent in all",
        """
Withdraw somebody. From then on receipts and history of this id say no more than that they were forgotten, and what
was spent in all. That is pseudonymous, not erased: entries cannot be taken out of the chain, or they could come back
with a full purse. In the file, and in copies and exports of it, stay: a keyed hash of the id; the ε they granted, how
much each run charged them, and when. Purpose, end and recorded-by are those of whole entries: of all who were in the
same import, or of this person alone where `consent` recorded them. Whoever has the key and knows the id finds it all.

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
