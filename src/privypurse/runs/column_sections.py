"""Columns of a table as a configuration names them: what goes in and what is to be learned, by public constants."""

from __future__ import annotations

import datetime
import re
from typing import Any

from privypurse.datasets.encoding import KINDS, Categories, Encoding, Flag, Range
from privypurse.errors import InvalidInput
from privypurse.runs.estimated_columns import Estimated, estimated, is_estimated
from privypurse.runs.sections import read, unknown, value

WHY_PUBLIC = (
    "Privy Purse takes ranges, categories or classes from no row for nothing: that would tell something about the "
    "people in them that no budget pays for"
)
HOW = (
    "its range, as in { low = 0, high = 100 } or { low = 2015-01-01, high = 2025-12-31 }, its categories, as in "
    f'["female", "male"], or "flag" for true and false. {WHY_PUBLIC}'
)


def features(given: Any, place: str) -> dict[str, Encoding | Estimated]:
    """[data.features], a column a key."""
    if not isinstance(given, dict) or not given:
        raise InvalidInput(f"[data.features] must name the columns that go in, each with {HOW}")
    return {column: encoding(how, f"[data.features] {column}") for column, how in given.items()}


def encoding(given: Any, place: str) -> Encoding | Estimated:
    """One column: a list of categories, "flag", or a table of the arguments of its kind, or of what to estimate."""
    if is_estimated(given):
        return estimated(given, place)
    if isinstance(given, list):
        return categories(given, place)
    if given == Flag.kind:
        return Flag()
    if not isinstance(given, dict):
        raise InvalidInput(f"{place} is {given!r}; give {HOW}")
    rest = {key: each for key, each in given.items() if key != "kind"}
    kind = given.get("kind", _kind(rest))
    if kind not in list(KINDS):
        raise unknown(f"{place}: there is no kind", str(kind), KINDS)
    needed = {"number": ("low", "high"), "date": ("low", "high"), "category": ("values",), "flag": ()}[kind]
    if set(rest) <= set(KINDS[kind].__dataclass_fields__) and not set(needed) <= set(rest):
        raise InvalidInput(f"{place} is {given!r}; give {HOW}")
    if "values" in rest and kind == Categories.kind:
        rest["values"] = texts(rest["values"], f"{place} values")
    _refuse_quoted_dates(rest, place)
    return read(KINDS[kind], rest, place)


def _refuse_quoted_dates(given: dict[str, Any], place: str) -> None:
    """TOML writes dates without quotes, which nobody remembers."""
    for end in ("low", "high"):
        if re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", str(given.get(end))) and isinstance(given[end], str):
            raise InvalidInput(f"{place} {end} is a date in quotes; write it without them, as in {end} = 2025-12-31")


def _kind(given: dict[str, Any]) -> str:
    """What an inline table is meant to be, by its keys."""
    if "values" in given:
        return "category"
    if {"true", "false"} & set(given):
        return "flag"
    dated = "form" in given or any(isinstance(given.get(end), datetime.date) for end in ("low", "high"))
    return "date" if dated else "number"


def texts(given: Any, place: str) -> list[str]:
    """Public words; whole numbers may stand for their digits."""
    return list(map(str, value(tuple[str | int, ...], given, place)))


def categories(given: Any, place: str) -> Categories:
    return read(Categories, {"values": texts(given, place)}, place)


def classes(given: Any, place: str) -> tuple[str, ...]:
    if isinstance(given, list) and len(given) < 2:
        raise InvalidInput(f"{place} is {given!r}; it must be a list of at least two values")
    return categories(given, place).values


def target_range(given: Any, place: str) -> Range:
    found = encoding(given, place) if isinstance(given, dict) else None
    if not isinstance(found, Range):
        raise InvalidInput(f"{place} is {given!r}; it must be a range of numbers, as in {{ low = 0, high = 5000 }}")
    return found


def groups(given: Any, place: str) -> dict[str, Categories]:
    """[data.groups], a column a key, each with its categories."""
    if not isinstance(given, dict):
        raise InvalidInput(f'[data.groups] is {given!r}; name columns with their categories, as in sex = ["F", "M"]')
    return {column: categories(each, f"[data.groups] {column}") for column, each in given.items()}


def words(given: Any, place: str) -> tuple[str, ...]:
    return tuple(texts(given, place))
