"""Small runs, each trained once for all tests of reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from run_folders import CROWDS, trained

Runs = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With everything that a run can leave behind."""
    more = "measure_members = true\nvalidate_every = 2"
    individual = "[individual]\nevery = 2"
    return trained(tmp_path_factory.mktemp("whole"), plan="extra_steps = 4", more=individual, training=more)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Of one of the `CROWDS`, by this line of a plan."""

    @cache
    def of(crowd: str, plan: str) -> Path:
        return trained(tmp_path_factory.mktemp("run"), CROWDS[crowd], plan=plan)

    return of
