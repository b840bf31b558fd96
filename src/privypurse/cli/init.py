"""privypurse init: a configuration to train by."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from privypurse._storage import replace_text
from privypurse.cli.arguments import writing
from privypurse.cli.showing import say
from privypurse.errors import InvalidInput
from privypurse.runs.blanks import BLANK
from privypurse.runs.config import example
from privypurse.runs.data_dictionary import read_dictionary
from privypurse.runs.new_config import Roles, names_of, new_config

SHORT = "write a configuration to train by, from the names of a table's columns"
LONG = f"""\
Write a configuration for `privypurse train`, to be filled in.

It is made from the names of the table's columns alone: the first line of a CSV file, and what a Parquet file states
about kinds. No cell is looked at, since ranges and categories that are taken from rows tell about the people in them,
and no budget pays for that. What nobody knows yet says "{BLANK}"; comments say what belongs there, and `privypurse
train` names each line that is left.

--dictionary FILE fills in what is known publicly. As CSV, with the first line column,kind,low,high,categories (log
and form too; others are passed over), and | between categories:

  column,kind,low,high,categories,description
  age,number,17,90,,in years
  job,category,,,clerk|farmer|teacher,as on the form
  joined,date,2015-01-01,2025-12-31,,
  member,flag,,,,
  smoker,flag,,,nein|ja,"no" first where the words are its own
  notes,none,,,,left out

As TOML, the lines of [data.features]: age = {{ low = 17, high = 90 }}, job = ["clerk", "farmer"], member = "flag".
There pay = {{ range = "estimated", within = [0, 1e7] }} and town = {{ values = "estimated" }} have the people asked,
privately, for a share of everyone's ε (docs/tables.md).

Without a table it prints an example that runs as it stands, on the census data inside the package.

examples:
  privypurse init people.csv -o config.toml
  privypurse init people.csv --dictionary columns.csv --label left --person customer_id -o config.toml
  privypurse init visits.csv --person customer_id --consents consents.csv --level consent -o config.toml
  privypurse init > example.toml"""

_ROLES = ("label", "person", "epsilon", "level")


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("table", nargs="?", type=Path, help="a .csv or .parquet file; only its names are read")
    command.add_argument("--dictionary", metavar="FILE", type=Path, help="what is known about columns, .csv or .toml")
    command.add_argument("--label", metavar="COLUMN", help="the column that is to be learned")
    command.add_argument("--person", metavar="COLUMN", help="the column of ids: whose each row is")
    said = "where what people granted is in a file of its own, a row for each person, with the same ids: that file"
    command.add_argument("--consents", metavar="FILE", type=Path, help=said)
    command.add_argument("--epsilon", metavar="COLUMN", help="the column of everyone's own ε")
    command.add_argument("--level", metavar="COLUMN", help="the column of choices, instead of --epsilon")
    command.add_argument("-o", "--out", metavar="FILE", type=Path, help="a new file (default: print it)")


def run(options: argparse.Namespace, console: Console) -> None:
    given = {name: getattr(options, name) for name in _ROLES}
    if options.table is None:
        for name, value in {"dictionary": options.dictionary, "consents": options.consents, **given}.items():
            if value is not None:
                raise InvalidInput(f"--{name} {value} goes with a table; name it: privypurse init people.csv …")
        text = example()
    else:
        if options.epsilon is not None and options.level is not None:
            raise InvalidInput(f"--epsilon {options.epsilon} beside --level {options.level}; keep one")
        dictionary = {} if options.dictionary is None else read_dictionary(options.dictionary)
        text = new_config(options.table, dictionary, Roles(**given), options.consents)
        _say_unused(dictionary, options)
    if options.out is None:
        print(text, end="")
        return
    if options.out.exists():
        raise InvalidInput(f"--out {options.out} exists; name another file, or remove it")
    with writing(options.out):
        replace_text(options.out, text)
    left = text.count(f'"{BLANK}"') - 1 if options.table is not None else 0
    places = "1 place" if left == 1 else f"{left} places"
    say(console, f"written to {options.out}" + (f"; {places} to fill in" if left else ""))


def _say_unused(dictionary: Iterable[str], options: argparse.Namespace) -> None:
    """Lines of a dictionary about columns that the table has not; apart from the configuration, which is printed."""
    names = names_of(options.table)
    for column in [each for each in dictionary if each not in names]:
        near = difflib.get_close_matches(column, names, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        said = f"--dictionary {options.dictionary} tells of {column!r}, and {options.table} has no such column: "
        say(Console(stderr=True, highlight=False, emoji=False), f"{said}{meant}it is passed over")
