"""A configuration to fill in, from the names of a table's columns alone.

No cell is looked at: a kind, a range or a list of categories that was taken from cells would tell something about the
people in them that no budget pays for. A CSV file says nothing of kinds; Parquet states them, and a data dictionary
may know the rest.
"""

from __future__ import annotations

import csv
import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa

from privypurse.budgets import tables
from privypurse.errors import InvalidInput
from privypurse.runs.blanks import BLANK
from privypurse.runs.data_dictionary import LEFT_OUT
from privypurse.runs.estimated_columns import is_estimated
from privypurse.runs.sections import unknown

_IDS = {"id", "person", "personid", "customer", "customerid", "user", "userid", "patient", "patientid", "clientid"}
_NAMED = {"person": _IDS, "epsilon": {"epsilon", "eps", "ε"}, "level": {"consent", "consentlevel", "privacylevel"}}
_BY_NAME = "by its name: check it"
_CONSENTS = (
    '# table = "consents.csv"      # where that column is in a file of its own, a row for each person, with ids'
)
_ELSEWHERE = "; where grants are in a file of their own, name it: --consents FILE"
_SAME_NAME = "; the column of ids has one name in both files: rename it in one"


@dataclass(frozen=True)
class Roles:
    """The columns that a model does not simply take, as far as they are known."""

    label: str | None = None
    person: str | None = None
    epsilon: str | None = None
    level: str | None = None


def new_config(table: Path, dictionary: Mapping[str, Any], roles: Roles, consents: Path | None = None) -> str:
    """The text of a configuration for this table; what nobody knows yet is `BLANK`.

    ``consents`` is the file with what people granted, where that is not the table itself.
    """
    names = names_of(table)
    granted = names if consents is None else names_of(consents)
    _require(roles, table, names, consents, granted)
    taken, guessed = _completed(roles, names, granted)
    told = {**_stated(table), **dictionary}
    used = vars(taken).values() if consents is None else (taken.label, taken.person)
    features = [name for name in names if name not in used]
    text = resources.files("privypurse.runs").joinpath("new_config.toml").read_text(encoding="utf-8")
    return text.format(
        name=table.name,
        table=_toml(str(table)),
        person=_line("person", taken.person, guessed),
        label=_line("label", taken.label, guessed),
        target=_target(None if taken.label is None else told.get(taken.label)),
        features="\n".join(_feature(name, told.get(name, BLANK)) for name in features),
        consents=_CONSENTS if consents is None else f"table = {_toml(str(consents))}  # joined to the rows by id",
        granted=_granted(taken, guessed),
        asks="" if any(is_estimated(told.get(name)) for name in features) else "# ",
        rate="0.1" if _is_number(None if taken.label is None else told.get(taken.label)) else "0.5",
        blank=BLANK,
    )


def _require(roles: Roles, table: Path, names: list[str], consents: Path | None, granted: list[str]) -> None:
    """Raise unless every column that is named is where it belongs; that of ids is in both files."""
    for option, column in vars(roles).items():
        grant = option in ("epsilon", "level")
        where, there = (consents or table, granted) if grant else (table, names)
        if column is not None and column not in there:
            more = _ELSEWHERE if grant and consents is None else ""
            raise unknown(f"--{option}: {where} has no column", column, there, more)
    if consents is not None and roles.person is not None and roles.person not in granted:
        raise unknown(f"--person: --consents {consents} has no column", roles.person, granted, _SAME_NAME)


def names_of(table: Path) -> list[str]:
    """The names of a table's columns. The first line of a CSV file that may be no header is refused, not shown."""
    if tables.stated_types(table) is not None:
        return tables.column_names(table)
    try:
        names = next(csv.reader([_first_line(table).decode("utf-8-sig")]), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        raise InvalidInput(f"{table} cannot be read; is it a CSV file in UTF-8?") from None
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        raise InvalidInput(f"the first line of {table} names one column; cells must be separated by commas")
    odd = tables.not_names(names)
    if odd or not names:
        where = f": see its column {odd[0]}" if odd else ""
        raise InvalidInput(
            f"the first line of {table} does not look like names of columns{where}; give the table a first line that "
            "names every column, each differently"
        )
    return names


def _first_line(table: Path) -> bytes:
    """And the next ones, while a name in quotes goes on there."""
    with table.open("rb") as file:
        line = file.readline()
        while line.count(b'"') % 2 and (more := file.readline()):
            line += more
    return line


def _completed(roles: Roles, names: list[str], granted: list[str]) -> tuple[Roles, set[str]]:
    """The roles with columns that are called as such columns are, and which of them were found so.

    ``names`` are the table's, ``granted`` those of the file that says what people granted.
    """
    found = dict(vars(roles))
    guessed = set()
    for role, usual in _NAMED.items():
        other = {"level": "epsilon", "epsilon": "level"}.get(role)
        if other is not None and found[other] is not None:
            continue
        there = [each for each in names if each in granted] if role == "person" else granted
        if role == "person" and granted is not names and len(there) == 1:
            usual = {_plain(there[0])}  # the one column that two files share has the ids
        alike = [each for each in there if _plain(each) in usual]
        if found[role] is None and len(alike) == 1 and alike[0] not in found.values():
            found[role] = alike[0]
            guessed.add(role)
    return Roles(**found), guessed


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.casefold())


def _stated(table: Path) -> dict[str, Any]:
    """What a Parquet file states about its columns: kinds, and no more."""
    return {name: _kind(each) for name, each in (tables.stated_types(table) or {}).items()}


def _kind(stated: Any) -> Any:
    if pa.types.is_boolean(stated):
        return "flag"
    if pa.types.is_date(stated) or pa.types.is_timestamp(stated):
        return {"kind": "date"}
    if pa.types.is_integer(stated) or pa.types.is_floating(stated) or pa.types.is_decimal(stated):
        return {"kind": "number"}
    return {"kind": "category"}


def _feature(name: str, told: Any) -> str:
    if told == LEFT_OUT:
        return f"# {_key(name)} is left out, as the dictionary says"
    return f"{_key(name)} = {_toml(_with_blanks(told))}"


def _with_blanks(told: Any) -> Any:
    """With what its kind still needs."""
    if not isinstance(told, dict) or set(told) != {"kind"}:
        return told
    kind = told["kind"]
    if kind == "flag":
        return "flag"
    return (
        [BLANK] if kind == "category" else {**({"kind": kind} if kind == "date" else {}), "low": BLANK, "high": BLANK}
    )


def _target(told: Any) -> str:
    told = _with_blanks(told)
    if isinstance(told, dict) and "low" in told:
        kept = {key: each for key, each in told.items() if key in ("low", "high", "log")}
        return f"range = {_toml(kept)}                # public ends of what is learned: it is a number"
    values = told if isinstance(told, list) else BLANK
    if isinstance(told, dict):
        values = [*told["false"], *told["true"]] if "true" in told and "false" in told else told.get("values", BLANK)
    remark = '  # its two words, such as ["no", "yes"]' if told == "flag" else ""
    return f"classes = {_toml(values)}{remark}"


def _is_number(told: Any) -> bool:
    """Whether it is known that a number is to be learned."""
    return isinstance(told, dict) and ("low" in told or told.get("kind") == "number")


def _granted(roles: Roles, guessed: set[str]) -> str:
    if roles.level is None:
        return _line("epsilon", roles.epsilon, guessed)
    return f"{_line('level', roles.level, guessed)}\nlevels = {_toml(BLANK)}"


def _line(key: str, column: str | None, guessed: set[str]) -> str:
    remark = f"  # {_BY_NAME}" if key in guessed else ""
    return f"{key} = {_toml(BLANK if column is None else column)}{remark}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _toml(value: Any) -> str:
    """Plain data as TOML writes it, in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, datetime.date):
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False)
