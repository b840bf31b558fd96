"""A ledger for questions, made once and copied: making its tables takes longer than most tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import privypurse as pp

GRANTS = [(0.5, 1e-5), (1.0, 1e-5), (4.0, 1e-5)]
KEY = bytes(range(32))


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "empty.db"
    pp.Ledger.create(f"sqlite:///{path}", GRANTS, key=KEY)
    return path


@pytest.fixture
def new_ledger(empty_ledger: Path, tmp_path: Path) -> Callable[..., pp.Ledger]:
    """Makes ledgers without people, or opens one again."""

    def made(name: str = "purses.db") -> pp.Ledger:
        if not (tmp_path / name).exists():
            shutil.copy(empty_ledger, tmp_path / name)
        return pp.Ledger.open(f"sqlite:///{tmp_path / name}", key=KEY)

    return made
