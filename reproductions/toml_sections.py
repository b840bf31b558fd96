"""Dataclasses from the tables of a TOML file: what is unknown or missing is named in the words of the file."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from privypurse.errors import InvalidInput

Made = TypeVar("Made")


def check_keys(where: str, given: Any, known: set[str], needed: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Raise unless this is a table with these keys and no others."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{where} is {given!r}; it must be a table")
    if unknown := given.keys() - known:
        raise InvalidInput(f"{where} has no {min(unknown)!r}; it has {', '.join(sorted(known))}")
    if missing := needed - given.keys():
        raise InvalidInput(f"{where} needs {', '.join(sorted(missing))}")


def made(kind: type[Made], where: str, given: Mapping[str, Any]) -> Made:
    """An object of this dataclass."""
    every = fields(kind)  # type: ignore[arg-type]
    needed = {each.name for each in every if each.default is MISSING and each.default_factory is MISSING}
    check_keys(where, given, {each.name for each in every}, needed)
    return kind(**given)
