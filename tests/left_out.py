"""Modules of which no test is run need not be imported: what they import may take longer than many tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_LEFT_OUT = re.compile(r"not \((\w+(?: or \w+)*)\)")
_OF_A_MODULE = re.compile(r"^pytestmark = (?:\[\n.*?^\]|[^\n]*)", re.MULTILINE | re.DOTALL)


def marks_left_out(expression: str) -> set[str]:
    """By ``-m "not (one or another)"``; none by any other expression."""
    found = _LEFT_OUT.fullmatch(expression)
    return set(found[1].split(" or ")) if found else set()


def marks_of_module(source: str) -> set[str]:
    """The marks that a module gives to all of its tests, as its text says."""
    found = _OF_A_MODULE.search(source)
    return set(re.findall(r"pytest\.mark\.(\w+)", found[0])) if found else set()


def left_out(path: Path, config: pytest.Config) -> bool:
    """Whether -m leaves out every test of this module."""
    unwanted = marks_left_out(config.option.markexpr)
    return bool(unwanted) and path.match("test_*.py") and bool(unwanted & marks_of_module(path.read_text()))
