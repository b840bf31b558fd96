"""Where the purses of a table are: in a ledger that is named, or in a private one beside it; and older ones."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import privypurse as pp
from privypurse.arrays import AnyArray
from privypurse.budgets.budgets import DEFAULT_DELTA
from privypurse.cli.arguments import ledger_is_named, open_ledger, refuse_key_alone
from privypurse.runs.config import NO_LEDGER

if TYPE_CHECKING:
    from privypurse.queries.table_ledger import Kept

EPSILON = "epsilon"
"""The column of ε where none is named."""


def check_options(options: argparse.Namespace) -> None:
    """Raise where options do not fit the place that purses are kept in."""
    if not ledger_is_named(options):
        refuse_key_alone(options)
        return
    if options.epsilon is not None or options.delta is not None:
        raise pp.InvalidInput(
            "--epsilon and --delta are for the private ledger of a table: in a ledger that is named they are what "
            "people granted; leave them out"
        )
    if options.person is None:
        raise pp.InvalidInput("a ledger knows people by id; give --person, the column of ids")


def purses_of(options: argparse.Namespace, table: dict[str, Any], budgets: pp.Budgets) -> Kept:
    """The ledger for this table's people, and their budgets by id; purses of an earlier day that are not in it are
    named, or everybody would have a full one again.
    """
    from privypurse.ledger.private import Place, is_there
    from privypurse.queries.table_ledger import Kept, known_by, table_ledger

    path = Path(options.table)
    if ledger_is_named(options):
        ledger = open_ledger(options)
        _refuse_private(options, beside(path, "ledger"), ledger)
        refuse_earlier(options, path, ledger)
        return Kept(ledger, known_by(ledger, budgets))
    private = private_path(path)
    if not is_there(Place.at(private)):
        refuse_earlier(options, path, None)
        _refuse_new(options, path)
    kept = table_ledger(private, budgets, identity_of_table(options, table, private))
    refuse_earlier(options, path, kept.ledger)
    return kept


def budgets_of(options: argparse.Namespace, table: dict[str, Any]) -> pp.Budgets:
    """What people allow, as the table or the command says; a named ledger knows that already."""
    from privypurse.budgets.tables import FileColumns

    rows = len(next(iter(table.values())))
    if ledger_is_named(options):
        return pp.Budgets(np.ones(rows), person=_ids(options))
    epsilon = EPSILON if options.epsilon is None else options.epsilon
    delta = DEFAULT_DELTA if options.delta is None else options.delta
    if isinstance(epsilon, str):
        return pp.Budgets.read(options.table, epsilon=epsilon, delta=delta, person=options.person)
    deltas = FileColumns(Path(options.table)).numbers(delta) if isinstance(delta, str) else delta
    return pp.Budgets(np.full(rows, epsilon), delta=deltas, person=_ids(options))


def _ids(options: argparse.Namespace) -> AnyArray | None:
    from privypurse.budgets.tables import FileColumns

    return None if options.person is None else FileColumns(Path(options.table)).ids(options.person)


def identity_of_table(options: argparse.Namespace, table: dict[str, Any], private: Path) -> dict[str, str]:
    """Whose purses the private ledger of a table keeps, or is to keep, and where ε and δ come from."""
    from privypurse.ledger.private import Place, is_there
    from privypurse.queries.table_ledger import DATA_SET, identity_of, opened

    def said(value: Any) -> str:
        return f"column {value!r}" if isinstance(value, str) else repr(float(value))

    identity = {
        "ε": said(EPSILON if options.epsilon is None else options.epsilon),
        "δ": said(DEFAULT_DELTA if options.delta is None else options.delta),
    }
    if options.person is not None:
        return {"people": said(options.person), **identity}
    stated = identity_of(opened(private)).get(DATA_SET) if is_there(Place.at(private)) else None
    return {"people": "rows by number", DATA_SET: fingerprint_of(table, stated), **identity}


def fingerprint_of(table: dict[str, Any], stated: str | None) -> str:
    """Of the rows; in the form of an earlier version where that is the one ``stated`` by what keeps their purses."""
    from privypurse.queries.earlier_fingerprint import earlier_fingerprint
    from privypurse.queries.rows import rows_of

    found = rows_of(table).fingerprint()
    return found if stated in (None, found) or earlier_fingerprint(table) != stated else stated


def private_path(table: Path) -> Path:
    """Where the private ledger of a table is, or is to be made: the same by whatever link the table is reached."""
    path, whole = beside(table, "ledger"), table.resolve()
    if not path.exists() and whole.stat().st_nlink > 1:
        raise pp.InvalidInput(
            f"{whole} has other names too (hard links), and its purses may lie beside one of them; use that name, or "
            "name a ledger by --ledger"
        )
    return path


def beside(table: Path, ending: str) -> Path:
    """A file that goes with a table, by the name that the user knows."""
    whole = table.resolve()
    found, named = whole.with_name(f"{whole.name}.{ending}"), Path(f"{table}.{ending}")
    return named if named.resolve() == found.resolve() else found


def refuse_earlier(options: argparse.Namespace, table: Path, ledger: pp.Ledger | None) -> None:
    """Raise for a file of purses beside the table that this ledger, or the one to be made, has not taken in."""
    from privypurse.queries.earlier_purses import not_taken_in

    if (path := not_taken_in(table, ledger)) is not None:
        raise pp.InvalidInput(
            f"{path} says what people spent before there was a ledger, and without it everybody would have a full "
            f"purse again. Take it over: {import_command(options, path)}"
        )


def _refuse_new(options: argparse.Namespace, table: Path) -> None:
    """Raise where files show that people have purses elsewhere: a ledger made now would fill them again."""
    from privypurse.ledger import anchors
    from privypurse.ledger.private import Place, url_of
    from privypurse.queries.table_ledger import identity_of

    folder = table.resolve().parent
    for other in sorted(folder.glob("*.ledger")):
        key = Place.at(other).key
        if key.exists() and not other.with_suffix("").exists() and identity_of(pp.Ledger.open(url_of(other), key)):
            raise pp.InvalidInput(
                f"{other} is the ledger of a table that is not there any more. If {table} is that table, rename the "
                f"ledger too, with its key and its anchor: {table.name}.ledger, {table.name}.ledger.key and "
                f"{table.name}.ledger.anchor. If it is about other people, move it elsewhere"
            )
    if options.ledger == NO_LEDGER:
        return
    for place in dict.fromkeys((folder, Path.cwd())):
        for file, _ in anchors.of_runs(place / "run"):  # as one that is to lie there, beside all others
            raise pp.InvalidInput(
                f"{file} is the anchor of a ledger, and none is named: a new one beside {table} would fill "
                "everybody's purse again. Name it: --ledger, or PRIVYPURSE_LEDGER. If these are other people: "
                f"--ledger {NO_LEDGER}"
            )


def _refuse_private(options: argparse.Namespace, private: Path, ledger: pp.Ledger) -> None:
    """Raise where questions about this table were charged to its private ledger, and would not be added up."""
    from privypurse.ledger.private import Place, url_of
    from privypurse.queries.table_ledger import DATA_SET, apart, identity_of

    if (own := apart(private, ledger)) is None:
        return
    way = (
        f"Move them: {import_command(options, private)}"
        if DATA_SET in identity_of(own)
        else "Go on with it: " + shlex.join(["--ledger", url_of(private), "--key", str(Place.at(private).key)])
    )
    raise pp.InvalidInput(
        f"{private} is this table's own ledger, and what was charged there is not in the one that is named: ε's of "
        f"both would add up. {way}. Or move it elsewhere, if it is about other people"
    )


def import_command(options: argparse.Namespace, purses: Path) -> str:
    """How to take purses over into the ledger that these options mean."""
    words = ["privypurse", "ledger", "import", "--purses", str(purses), "--table", str(options.table)]
    for name in ("person", "epsilon", "delta", "ledger", "key"):
        value = getattr(options, name)
        words += [] if value is None else [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)
