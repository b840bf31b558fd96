"""What the commands of `privypurse ledger` have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from privypurse.cli.showing import as_it_is


@dataclass(frozen=True)
class Command:
    """One command of `privypurse ledger`: what its help says, its options, and what it does."""

    short: str
    long: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], None]
    needs_key: bool = True


def say(console: Console, words: str) -> None:
    console.print(as_it_is(words), soft_wrap=True)
