"""A data dictionary: what is publicly known about the columns of a table, as a CSV or TOML file.

Both give, for each column, what stands under [data.features] of a configuration: a range, a list of categories, a
flag, or the kind alone where no more is known. It describes the table and was not made from it, so what it says may
be shown.
"""

from __future__ import annotations

import csv
import datetime
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from privypurse.datasets.encoding import KINDS
from privypurse.errors import InvalidInput
from privypurse.runs import column_sections
from privypurse.runs.sections import unknown

LEFT_OUT = "none"
_SEPARATOR = "|"
_HEADER = ("column", "kind", "low", "high", "log", "form", "categories")


def read_dictionary(path: Path) -> dict[str, Any]:
    """For each column what a configuration says of it, {"kind": …} where only that is known, or `LEFT_OUT`."""
    if path.suffix.lower() not in (".csv", ".toml"):
        raise InvalidInput(f"--dictionary {path} is neither .csv nor .toml; give it such an ending")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = tomllib.loads(file.read()) if path.suffix.lower() == ".toml" else _rows(file, path)
    except OSError as error:
        raise InvalidInput(f"--dictionary {path} cannot be read: {error.strerror or error}; name a file") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, csv.Error) as error:
        raise InvalidInput(f"--dictionary {path} cannot be read: {error}") from None
    return {column: _checked(given, f"--dictionary {path}: {column}") for column, given in found.items()}


def _checked(given: Any, place: str) -> Any:
    if given == LEFT_OUT:
        return given
    if isinstance(given, dict) and set(given) == {"kind"}:
        if given["kind"] == LEFT_OUT:
            return LEFT_OUT
        if given["kind"] not in KINDS:
            raise unknown(f"{place}: there is no kind", str(given["kind"]), (*KINDS, LEFT_OUT))
        return given
    column_sections.encoding(given, place)
    return given


def _rows(file: Any, path: Path) -> dict[str, Any]:
    rows = csv.DictReader(file)
    if "column" not in (rows.fieldnames or ()):
        raise InvalidInput(
            f"--dictionary {path} has no column 'column'; its first line has to name {', '.join(_HEADER[:4])} and "
            f"categories (with {_SEPARATOR} between them), as far as there are any"
        )
    found: dict[str, Any] = {}
    for row in rows:
        cells = {name: (row.get(name) or "").strip() for name in _HEADER}
        column, place = cells.pop("column"), f"--dictionary {path}, line {rows.line_num}"
        if not column:
            raise InvalidInput(f"{place} names no column; fill it in, or remove the line")
        if column in found:
            raise InvalidInput(f"{place}: {column!r} stands there twice; remove one")
        found[column] = _meant({name: cell for name, cell in cells.items() if cell}, place)
    return found


def _meant(cells: dict[str, str], place: str) -> Any:
    """What the cells of a row say, in the words of a configuration."""
    if not cells or cells == {"kind": LEFT_OUT}:
        return LEFT_OUT
    kind = cells.get("kind")
    said: dict[str, Any] = {name: cell for name, cell in cells.items() if name in ("kind", "form")}
    for end in ("low", "high"):
        if end in cells:
            said[end] = _read(cells[end], (int, float, datetime.date.fromisoformat), f"{place}: {end}")
    if "log" in cells:
        said["log"] = _read(cells["log"].lower(), ({"true": True, "false": False}.__getitem__,), f"{place}: log")
    if "categories" in cells:
        said["values"] = [each.strip() for each in cells["categories"].split(_SEPARATOR)]
    if kind == "flag" and "values" in said:
        if len(said["values"]) != 2:
            raise InvalidInput(f"{place}: categories of a flag are two words, that for no first: no{_SEPARATOR}yes")
        said["false"], said["true"] = ([word] for word in said.pop("values"))
    return (
        said["values"]
        if set(said) <= {"kind", "values"} and "values" in said and kind in (None, "category")
        else said
    )


def _read(text: str, ways: tuple[Callable[[str], Any], ...], place: str) -> Any:
    for way in ways:
        try:
            return way(text)
        except (ValueError, KeyError):
            continue
    raise InvalidInput(f"{place} is {text!r}; give a number or a date such as 2025-12-31, for log true or false")
