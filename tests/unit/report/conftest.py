"""Small runs, each trained once for all tests of reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from privypurse.runs import folder
from run_folders import CROWDS, trained

Runs = Callable[[str, str], Path]


@pytest.fixture(scope="package", autouse=True)
def one_day() -> Iterator[None]:
    """Runs that are compared say the same day, though midnight may lie between them."""
    begun = datetime.now(UTC)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(folder, "datetime", SimpleNamespace(now=lambda _: begun))
        yield


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
