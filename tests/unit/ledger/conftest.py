"""A ledger of three rungs, made once and copied: making tables takes longer than most tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import privypurse as pp

GRANTS = [(0.5, 1e-5), (1.0, 1e-5), (4.0, 1e-5)]
KEY = bytes(range(32))


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "template.db"
    pp.Ledger.create(f"sqlite:///{path}", GRANTS, key=KEY)
    return path


@pytest.fixture
def fresh(template: Path, tmp_path: Path) -> Callable[[str], pp.Ledger]:
    """Makes empty ledgers."""

    def made(name: str = "purses.db") -> pp.Ledger:
        shutil.copy(template, tmp_path / name)
        return pp.Ledger.open(f"sqlite:///{tmp_path / name}", key=KEY)

    return made


@pytest.fixture
def ledger(fresh: Callable[..., pp.Ledger]) -> pp.Ledger:
    return fresh()
