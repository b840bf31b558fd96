"""A ledger for questions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ledger_tools
import privypurse as pp


@pytest.fixture
def new_ledger(tmp_path: Path) -> Callable[..., pp.Ledger]:
    """Makes ledgers without people, or opens one again."""

    def made(name: str = "purses.db") -> pp.Ledger:
        return ledger_tools.new_ledger(tmp_path, name, (0.5, 1.0, 4.0))

    return made
