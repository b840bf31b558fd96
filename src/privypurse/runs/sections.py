"""Sections of a TOML file, read key by key; whatever is left over or of the wrong kind is an error that helps."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from privypurse.errors import InvalidInput


class Section:
    """One table of the file. Take every key that may be there, then `finish`."""

    def __init__(self, name: str, values: Any) -> None:
        self.name = name
        if not isinstance(values, dict):
            raise InvalidInput(f"{name} is {values!r}; it must be a section or an inline table {{ … }}")
        self._left = dict(values)
        self._known: list[str] = []

    def left(self) -> list[str]:
        """What was not taken yet."""
        return list(self._left)

    def take(self, key: str) -> Any:
        """The value as it stands there, or None."""
        self._known.append(key)
        return self._left.pop(key, None)

    def text(self, key: str) -> str | None:
        value = self.take(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, value, "text in quotes")
        return value

    def whole(self, key: str) -> int | None:
        value = self.take(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.wrong(key, value, "a whole number")
        return value

    def number(self, key: str) -> float | None:
        value = self.take(key)
        if value is None:
            return None
        if not _is_number(value):
            raise self.wrong(key, value, "a number")
        return float(value)

    def flag(self, key: str) -> bool | None:
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of categories; whole numbers may stand for their digits."""
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(_is_category(item) for item in value):
            raise self.wrong(key, value, 'a list of texts, as in ["yes", "no"]')
        return tuple(map(str, value))

    def numbers(self, key: str) -> tuple[float, ...] | None:
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(map(_is_number, value)):
            raise self.wrong(key, value, "a list of numbers, as in [1.0, 2.0]")
        return tuple(map(float, value))

    def wholes(self, key: str) -> tuple[int, ...] | None:
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, int) and _is_number(item) for item in value):
            raise self.wrong(key, value, "a list of whole numbers, as in [64, 32]")
        return tuple(value)

    def section(self, key: str) -> Section | None:
        value = self.take(key)
        return None if value is None else Section(f"{self.name} {key}", value)

    def rest(self) -> dict[str, Any]:
        """Everything that was not taken: for keys that somebody else knows."""
        left, self._left = self._left, {}
        return left

    def need(self, key: str, what: str) -> InvalidInput:
        """The complaint that a key is missing."""
        return InvalidInput(f"{self.name} needs {key}, {what}")

    def wrong(self, key: str, value: Any, must: str) -> InvalidInput:
        """The complaint that a value is of the wrong kind."""
        return InvalidInput(f"{self.name} {key} is {value!r}; it must be {must}")

    def finish(self) -> None:
        """Raise for the first key that nobody took."""
        for key in self._left:
            raise unknown(f"{self.name} has no key", key, self._known)


def unknown(complaint: str, name: str, known: Iterable[str]) -> InvalidInput:
    """The complaint about a name that nobody knows, with the nearest ones that somebody does."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=2)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return InvalidInput(f"{complaint} {name!r}; {hint}it knows {', '.join(names)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_category(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)
