"""What several commands take, and what they need."""

from __future__ import annotations

import argparse
import importlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from privypurse.errors import InvalidInput, PrivyPurseError
from privypurse.ledger.keys import VARIABLE as KEY_VARIABLE
from privypurse.runs.config import NO_LEDGER

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

LEDGER_VARIABLE = "PRIVYPURSE_LEDGER"
ANCHOR_VARIABLE = "PRIVYPURSE_LEDGER_ANCHOR"
_BY_PLACE = {"run", "table", "tables", "config", "column", "data", "file", "folder", "holding", "question", "subject"}
"""What a command line has no flag for, unless its `by_flag` names it."""
_ARGUMENT = re.compile(
    r"(?<![\w'\"`./:-])(?P<name>[a-z]+(?:_[a-z]+)*)(?P<sign>=(?=[\s,.;:)]|$))?(?![\w'\"`/=-]|\.\w)"
)
_SAYS = re.compile(r"\[| (is|are|has|holds|must)\b")


def number_or_name(text: str) -> float | str:
    """One number for all, or the name of a column."""
    try:
        return float(text)
    except ValueError:
        return text


def person_id(text: str) -> str:
    """Not nothing."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the id is empty; name one person")
    return text


def numbers(text: str) -> list[float]:
    """0,10,20"""
    found = []
    for word in text.split(","):
        try:
            found.append(float(word))
        except ValueError:
            said = f"{text!r} is not a list of numbers such as 0.5,1,2: {word!r} is no number"
            raise argparse.ArgumentTypeError(said) from None
    return found


def levels(text: str) -> dict[str, float]:
    """strict=1,medium=2,relaxed=3"""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.strip() in found:
            raise argparse.ArgumentTypeError(f"level {name.strip()!r} is given twice")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form strict=1,medium=2,relaxed=3") from None
    return found


def need(command: str, *modules: str, extra: str = "training") -> None:
    """Raise unless what training, or another extra, needs is installed; the error says how to get it."""
    for name in modules or ("torch", "cryptography"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise PrivyPurseError(f"privypurse {command} needs {name}: pip install '.[{extra}]' in a clone") from None


def in_flags(words: str, options: argparse.Namespace) -> str:
    """A message of the library as a command says it: its own flags for the arguments that the library names.

    The library names them as Python does, `noise_multiplier=`; what is no flag is a key of a file, without the sign.
    A word that means other things too is taken for an argument only with the sign, or where a message begins with it.
    What stands in quotes or in a path is somebody's own name, and stays.
    """
    flags = vars(options).keys() - (_BY_PLACE - getattr(options, "by_flag", set()))

    def said(found: re.Match[str]) -> str:
        name, sign = found["name"], found["sign"]
        begins = found.start() == 0 and _SAYS.match(words, found.end())
        if name in flags and (sign or begins or "_" in name):
            return f"--{name.replace('_', '-')}"
        return name

    return _ARGUMENT.sub(said, words)


def add_trust_option(command: argparse.ArgumentParser) -> None:
    """For commands that put a run's model together again."""
    said = "the run's network is of your own (module:callable): import and call it, which EXECUTES ITS CODE"
    command.add_argument("--trust-code", action="store_true", help=said)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say which file cannot be written, where one cannot."""
    try:
        yield
    except OSError as error:
        said = error.strerror or error
        raise InvalidInput(f"{path} cannot be written: {said}; name a file in a folder that exists") from None


def add_ledger_options(command: argparse.ArgumentParser, *, key: bool = True) -> None:
    """Which ledger, and where its key and anchor are."""
    where = command.add_argument_group("which ledger")
    said = f"sqlite:///FILE or postgresql://USER@HOST/DATABASE (default: ${LEDGER_VARIABLE})"
    where.add_argument("--ledger", metavar="URL", help=said)
    if key:
        said = f"the ledger's key file (default: ${KEY_VARIABLE}, the path or the key itself)"
        where.add_argument("--key", metavar="FILE", type=Path, help=said)
    said = "a file outside of the database, or the folder of a run, that says how far it had come: an older copy is "
    where.add_argument(
        "--anchor", metavar="FILE|FOLDER", type=Path, help=f"{said}refused (default: ${ANCHOR_VARIABLE})"
    )


def ledger_url(options: argparse.Namespace) -> str:
    """The ledger's address, from the option or the environment."""
    url = options.ledger or os.environ.get(LEDGER_VARIABLE, "")
    if not url:
        raise InvalidInput(f"no ledger is named; give --ledger sqlite:///FILE, or set {LEDGER_VARIABLE}")
    return str(url)


def anchor_of(options: argparse.Namespace) -> Path | None:
    """The ledger's anchor, from the option or the environment."""
    named = options.anchor or os.environ.get(ANCHOR_VARIABLE)
    return Path(named) if named else None


def require_latest_beside(ledger: Ledger, *folders: Path) -> None:
    """Raise if a run in one of these folders, or beside the ledger's file, knows more of it than there is in it."""
    for folder in {one.resolve() for one in (*folders, ledger.folder) if one is not None}:
        ledger.require_latest(folder / "run")  # as one that is to lie there, beside all others


def ledger_is_named(options: argparse.Namespace) -> bool:
    """Whether the option or the environment names a ledger; "none" says that none is meant."""
    return options.ledger != NO_LEDGER and bool(options.ledger or os.environ.get(LEDGER_VARIABLE))


def ledger_if_named(options: argparse.Namespace, configured: str | None = None) -> Ledger | None:
    """The ledger of the option, the configuration or the environment; None where none is named, or said to be."""
    if options.ledger is None and configured == NO_LEDGER:
        return None
    if options.ledger == NO_LEDGER:
        raise InvalidInput(
            f'--ledger {NO_LEDGER} is for questions; write ledger = "{NO_LEDGER}" into the configuration'
        )
    options.ledger = options.ledger or configured
    if ledger_is_named(options):
        return open_ledger(options)
    refuse_key_alone(options)
    return None


def refuse_key_alone(options: argparse.Namespace) -> None:
    """Raise for a key or an anchor of a ledger that nothing names."""
    for name in ("key", "anchor"):
        if getattr(options, name, None) is not None:
            raise InvalidInput(f"--{name} is for a ledger that --ledger names; give both, or leave it out")


def open_ledger(options: argparse.Namespace) -> Ledger:
    """The ledger that the options name."""
    from privypurse.ledger.ledger import Ledger

    if hasattr(options, "key"):
        require_key(options)
    new_anchor = getattr(options, "new_anchor", False)
    key = getattr(options, "key", None)
    return Ledger.open(ledger_url(options), key=key, anchor=anchor_of(options), new_anchor=new_anchor)


def open_latest(options: argparse.Namespace, *folders: Path) -> Ledger:
    """The ledger that the options name, for who shows people what is in it, or records there what they said.

    An old copy would show fuller purses and lose what is recorded: it is refused by the anchors that `query` and
    `ledger verify` look at too, and by those in these folders.
    """
    ledger = open_ledger(options)
    require_latest_beside(ledger, Path(), *folders)
    return ledger


def require_key(options: argparse.Namespace) -> None:
    """Raise unless the ledger's key is named."""
    if options.key is None and not os.environ.get(KEY_VARIABLE):
        raise InvalidInput(
            "a ledger keeps no ids, only keyed hashes of them, and its key is missing; give --key FILE, or set "
            f"{KEY_VARIABLE} to the path of the key or to the key itself"
        )
