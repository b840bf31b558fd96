"""Signs that people have purses in another ledger than a run names: their ε would count anew (rule 14)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from privypurse.errors import InvalidInput
from privypurse.ledger import anchors
from privypurse.ledger.private import Place, is_there, url_of
from privypurse.queries.earlier_purses import not_taken_in
from privypurse.queries.table_ledger import DATA_SET, apart, identity_of
from privypurse.runs.config import NO_LEDGER, RunConfig, Table

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger


def refuse_beside_ledger(config: RunConfig, ledger: Ledger | None = None) -> None:
    """Raise where files beside a run say that another ledger is kept, unless the configuration says "none".

    Noticed is the table's own ledger of questions, unless its purses were moved to the one that the run names; of a
    run that names none also anchors in folders beside its own, or beside its table, which runs and answers under a
    ledger leave there. What lies elsewhere is not. Budgets that nobody granted, and seeded runs, take nothing from
    anybody.
    """
    simulated = config.budgets is not None and config.budgets.simulate is not None
    takes_nothing = config.training.seed is not None or simulated
    if takes_nothing or not isinstance(config.data, Table):
        return
    if ledger is not None or config.ledger != NO_LEDGER:
        _refuse_earlier(config.data.table, ledger)
    if ledger is not None:
        path = _own_ledger(config.data.table)
        if (own := apart(path, ledger)) is not None:
            way = (
                "Move its purses: privypurse ledger import --purses (--help says how)"
                if DATA_SET in identity_of(own)
                else f"Train under it: --ledger {url_of(path)} --key {Place.at(path).key}"
            )
            raise InvalidInput(
                f"{path} is this table's own ledger, and what questions were charged there is not in the one that "
                f"the run names: ε's of both would add up. {way}. Or move it elsewhere, if it is about other people"
            )
    elif config.ledger != NO_LEDGER:
        for sign in _signs(config.training.out, config.data.table):
            raise InvalidInput(
                f"{sign}, and this run names no ledger: every ε would count as if nothing had been spent before. "
                'Name it: ledger = "sqlite:///FILE" above the first section (or --ledger, or PRIVYPURSE_LEDGER). If '
                f'these are other people, or it is meant so, write ledger = "{NO_LEDGER}" there'
            )


def _refuse_earlier(table: Path, ledger: Ledger | None) -> None:
    if (path := not_taken_in(table, ledger)) is not None:
        raise InvalidInput(
            f"{path} says what people spent on questions before there was a ledger, and none that this run names "
            "knows of it. Take it over: privypurse ledger import --purses (--help says how). Or move it elsewhere, "
            "if it is about other people"
        )


def _signs(out: Path, table: Path) -> Iterator[str]:
    whole, own = table.resolve(), _own_ledger(table)
    if is_there(Place.at(own)):
        yield f"{own} is the ledger of this table, which questions about it are charged to"
    for folder in (out, whole.parent / "run"):  # as one that is to lie there, beside all others
        for file, _ in anchors.of_runs(folder):
            yield f"{file} is the anchor of a ledger"


def _own_ledger(table: Path) -> Path:
    """Where the ledger of questions about a table lies."""
    whole = table.resolve()
    return whole.with_name(f"{whole.name}.ledger")
