"""Ledgers of rows: a purse for each record of data that never change, and none for anybody who comes later (rule 13).

Such a ledger says so itself, in its terms, which are fixed when it is made. Somebody who was named by id in it would
have a full purse beside those of their rows, and several rows of one person have a purse each: what it promises is
about one row.
"""

from __future__ import annotations

import json
from typing import NoReturn

from privypurse.errors import InvalidInput

DATA_SET = "data set"
"""The name under which an identity has the fingerprint of rows that are known by number."""
NAMED_ROWS = "made for the rows of data that never change, each named by its place in them: nobody joins later"
"""What a ledger is about whose ids are rows that name their data (`private.row_ids`)."""
UNIT = "record"


def identity_of(about: str) -> dict[str, str]:
    """Whose purses a table's own ledger has; empty for any other."""
    try:
        said = json.loads(about or "{}")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def by_number(about: str) -> bool:
    """Whether ids are bare numbers of rows, which an id of somebody may look like."""
    return DATA_SET in identity_of(about)


def by_row(about: str) -> bool:
    """Whether a ledger that is about this has purses of rows and not of people."""
    return about == NAMED_ROWS or by_number(about)


def refuse(what: str, about: str) -> NoReturn:
    """Raise for people who are named in a ledger of rows, and tell how to go on by id."""
    way = (
        "To go on by id, move its purses to another ledger: privypurse ledger import --purses FILE --table TABLE "
        "--person COLUMN --ledger URL, where FILE is this ledger and URL that one, which these people have joined"
        if by_number(about)
        else "To go on by id, make another ledger, and mind that ε's of both add up"
    )
    raise InvalidInput(
        f"{what}, but this ledger has a purse for each row of one data set, by its place there, and nobody joins "
        f"it later: whoever has rows in it would have another full purse. {way}"
    )
