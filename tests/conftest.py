"""For all tests: one thread each (they run side by side, and threads that wait for each other only cost), and what
they need."""

import os
import random
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

import components
from left_out import left_out
from privypurse import _totals
from some_of import mark_combinations


def _one_thread() -> None:
    """A fork whose parent has had more waits for ever for those that it does not have."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


os.register_at_fork(after_in_child=_one_thread)


def pytest_configure() -> None:
    _totals.said()  # once in a process, which here would be in whichever test comes first
    components.required()  # a name that is not known is an error before anything runs


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return left_out(collection_path, config) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_combinations(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if os.environ.get("CI"):
        _same_draws_in_every_run()  # for fixtures
    for mark in item.iter_markers("needs"):
        for component in mark.args:
            components.require(component)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    if os.environ.get("CI"):
        _same_draws_in_every_run()  # whatever fixtures drew, or were made before for another test


def _same_draws_in_every_run() -> None:
    """In the gate what lands does not hang on chance: made-up data and weights are the same each time, like the cases
    of Hypothesis. Noise and samples are secure randomness, which nothing seeds; elsewhere every run draws others."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
