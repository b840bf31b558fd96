"""Sections of a TOML file as dataclasses: msgspec judges types and limits; errors name key, value and what to do."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from privypurse.errors import InvalidInput

T = TypeVar("T")
_WORDS: dict[Any, str] = {
    str: "text in quotes",
    Path: "text in quotes",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    datetime.date: "a date, as in 2025-12-31",
    tuple[str, ...]: 'a list of texts, as in ["yes", "no"]',
    tuple[str | int, ...]: 'a list of texts, as in ["yes", "no"]',
    tuple[float, ...]: "a list of numbers, as in [1.0, 2.0]",
}
"""What a value has to be; ``Meta(description=…)`` of a field says it better where there are limits."""


@dataclasses.dataclass(frozen=True)
class By:
    """Marks a type whose values are made by a function of their own, from what stands in the file and its place."""

    make: Callable[[Any, str], Any]


def read(kind: type[T], given: Any, place: str, keys: Iterable[str] | None = None) -> T:
    """The section as this dataclass, whose fields are its keys (or only ``keys``).

    A field without a default is needed, and ``Meta(title=…)`` says what it means. ``place`` names the section in
    errors, as in "[plan]".
    """
    _require_table(given, place)
    types = get_type_hints(kind, include_extras=True)
    known = list(types if keys is None else keys)
    for key in given:
        if key not in known:
            raise unknown(f"{place} has no key", key, known)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in given and field.default is field.default_factory is dataclasses.MISSING:
            plain, about = _parted(types[field.name])
            raise InvalidInput(f"{place} needs {field.name}, {about.get('title') or _WORDS.get(plain, '')}")
    found = {key: value(types[key], each, f"{place} {key}") for key, each in given.items()}
    try:
        return kind(**found)
    except InvalidInput as error:
        raise InvalidInput(f"{place}: {error}") from None


def value(kind: Any, given: Any, place: str) -> Any:
    """One value as this type, or an error that says what it must be."""
    plain, about = _parted(kind)
    if "make" in about:
        return about["make"](given, place)
    if dataclasses.is_dataclass(plain):
        return read(plain, given, place)  # type: ignore[arg-type]
    if get_origin(plain) is Literal and given not in get_args(plain):
        raise unknown(f"{place}: there is no", str(given), get_args(plain))
    if get_origin(plain) is Mapping:
        _require_table(given, place)
        return {key: value(get_args(plain)[1], each, f"{place} {key}") for key, each in given.items()}
    try:
        return msgspec.convert(given, kind, dec_hook=lambda path, text: path(text))
    except msgspec.ValidationError:
        must = about.get("description") or _WORDS[plain]
        raise InvalidInput(f"{place} is {given!r}; it must be {must}") from None


def _require_table(given: Any, place: str) -> None:
    if not isinstance(given, dict):
        raise InvalidInput(f"{place} is {given!r}; it must be a section or an inline table {{ … }}")


def _parted(kind: Any) -> tuple[Any, dict[str, Any]]:
    """A type without None and annotations, and what these said."""
    about: dict[str, Any] = {}
    while True:
        if get_origin(kind) is Annotated:
            kind, *marks = get_args(kind)
            for mark in marks:
                named = {name: getattr(mark, name, None) for name in ("make", "title", "description")}
                about |= {name: said for name, said in named.items() if said is not None}
            continue
        options = [each for each in get_args(kind) if each is not NoneType]
        if get_origin(kind) not in (Union, UnionType) or len(options) != 1:
            return kind, about
        kind = options[0]


def unknown(complaint: str, name: str, known: Iterable[str], more: str = "") -> InvalidInput:
    """The complaint about a name that nobody knows, with the nearest ones that somebody does."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=2)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return InvalidInput(f"{complaint} {name!r}; {hint}it knows {', '.join(names)}{more}")
