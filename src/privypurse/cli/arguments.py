"""What several commands take, and what they need."""

from __future__ import annotations

import argparse
import importlib

from privypurse.errors import PrivyPurseError


def number_or_name(text: str) -> float | str:
    """One number for all, or the name of a column."""
    try:
        return float(text)
    except ValueError:
        return text


def numbers(text: str) -> list[float]:
    """0,10,20"""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 0,10,20") from None


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
            raise PrivyPurseError(f"privypurse {command} needs {name}: pip install 'privypurse[{extra}]'") from None
