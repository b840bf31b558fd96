"""kill -9 at random points: at least what was released is charged, and the ledger is sound."""

from __future__ import annotations

from pathlib import Path

import crashes
import pytest

import privypurse as pp


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'purses.db'}"
    pp.Ledger.create(url, [(8.0, 1e-5)], key=crashes.KEY)
    return url


def test_killed_a_few_times(url: str) -> None:
    crashes.survive(url, 5)


def test_charging_after_the_release_is_caught(url: str) -> None:
    """The twin's books balance but for where it was killed: what it made by then was never charged."""
    with pytest.raises(AssertionError, match="released"):
        crashes.survive(url, 60, charge_first=False, check_every=2)


@pytest.mark.slow
def test_killed_two_hundred_times(url: str) -> None:
    crashes.survive(url, 200)
