"""What the commands of `privypurse ledger` have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console


@dataclass(frozen=True)
class Command:
    """One command of `privypurse ledger`: what its help says, its options, and what it does."""

    short: str
    long: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], None]
    needs_key: bool = True
