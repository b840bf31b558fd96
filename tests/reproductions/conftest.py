"""The reproductions are no part of the library: their tests belong to the full gate."""

from pathlib import Path

import pytest

from left_out import marks_left_out


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return "slow" in marks_left_out(config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
