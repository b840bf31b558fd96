"""Modules are passed over only where no test of theirs would have been run."""

import re
import tomllib
from pathlib import Path

import pytest

from left_out import marks_left_out, marks_of_module

ROOT = Path(__file__).parents[2]


def test_the_fast_gate_is_understood() -> None:
    marks = re.search(r"^FULL_ONLY := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert marks is not None
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    names = {re.match(r"\w+", line)[0] for line in known}
    assert marks_left_out(f"not ({marks[1]})") == names - {"needs", "each_value_once"}


@pytest.mark.parametrize("expression", ["", "slow", "not slow", "not (slow and hf)", "hf or not (slow or docs)"])
def test_any_other_choice_passes_over_nothing(expression: str) -> None:
    assert marks_left_out(expression) == set()


@pytest.mark.parametrize(
    ("source", "marks"),
    [
        ("import torch\n\n\n@pytest.mark.slow\ndef test_it():\n    assert [\n        1,\n    ]\n", set()),
        ("pytestmark = pytest.mark.hf\n\n\n@pytest.mark.slow\ndef test_it(): ...\n", {"hf"}),
        (
            'pytestmark = [pytest.mark.hf, pytest.mark.needs("hf")]  # why\nX = [\n    pytest.mark.slow,\n]\n',
            {"hf", "needs"},
        ),
        ("pytestmark = [\n    pytest.mark.hf,\n]\nX = [\n    pytest.mark.slow,\n]\n", {"hf"}),
        ("if True:\n    pytestmark = pytest.mark.hf\n", set()),
    ],
)
def test_marks_of_a_module_are_those_of_all_its_tests(source: str, marks: set[str]) -> None:
    assert marks_of_module(source) == marks
