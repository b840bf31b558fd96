"""A component that is missing skips its tests, and fails them where it was asked for."""

import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import components

TESTS = Path(__file__).parents[1]
conftest = SimpleNamespace(**runpy.run_path(str(TESTS / "conftest.py")))  # by path: folders have ones of their own


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(components.importlib.util, "find_spec", lambda module: None)
    monkeypatch.setattr(components, "_DATA", tmp_path)


def marked(*needs: str) -> SimpleNamespace:
    marks = [SimpleNamespace(args=(component,)) for component in needs]
    return SimpleNamespace(iter_markers=lambda name: marks if name == "needs" else [])


@pytest.mark.parametrize("component", ["flower", "data/MNIST"])
@pytest.mark.usefixtures("nothing_installed")
def test_a_missing_component_is_a_skip_or_where_it_was_asked_for_a_failure(
    component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked in ("", "images, plots"):
        monkeypatch.setenv("PRIVYPURSE_REQUIRE", asked)
        with pytest.raises(pytest.skip.Exception):
            components.require(component)
    monkeypatch.setenv("PRIVYPURSE_REQUIRE", "images, flower,data")
    with pytest.raises(pytest.fail.Exception, match="PRIVYPURSE_REQUIRE"):
        components.require(component)
    with pytest.raises(pytest.fail.Exception):
        conftest.pytest_runtest_setup(marked(component))
    conftest.pytest_runtest_setup(marked())


def test_what_is_there_is_let_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "_DATA", tmp_path)
    monkeypatch.setattr(components.importlib.util, "find_spec", lambda module: module)
    monkeypatch.setenv("PRIVYPURSE_REQUIRE", "flower,data")
    (tmp_path / "MNIST").mkdir()
    conftest.pytest_runtest_setup(marked("flower", "data/MNIST"))


def test_a_name_that_nobody_knows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVYPURSE_REQUIRE", "flower,flowre")
    with pytest.raises(pytest.UsageError, match="flowre"):
        conftest.pytest_configure()
    for wrong in ("flowre", "data", "flower/MNIST"):
        with pytest.raises(ValueError, match=wrong):
            components.missing(wrong)


def test_every_skip_for_something_missing_goes_through_here() -> None:
    """A bare one would pass a gate over in silence."""
    here = {Path(__file__).name, "components.py"}
    for path in TESTS.rglob("*.py"):
        if path.name not in here:
            bare = re.findall(r"importorskip|skipif\([^\n]*(?:installed|PRIVYPURSE_DATA)", path.read_text())
            assert not bare, f"{path.name} has {bare}; say @pytest.mark.needs(…) or components.require(…)"


def test_the_fast_gate_leaves_out_every_mark_of_the_full_one() -> None:
    root = TESTS.parent
    marks = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    names = {re.split(r"[:(]", mark)[0] for mark in marks["markers"]} - {"needs", "each_value_once"}
    left_out = re.search(r"^FULL_ONLY := (.*)$", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert left_out is not None
    assert set(left_out[1].split(" or ")) == names
