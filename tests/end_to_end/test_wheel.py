"""The wheel builds, holds the library and nothing else, and works where nothing but its dependencies is installed."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAN = """
import sys
import privypurse as pp

budgets = pp.Budgets([1.0, 2.0, 3.0, 3.0], delta=1e-5)
plan = pp.plan(budgets, steps=20, batch_size=1)
assert (plan.spent() <= budgets.epsilon).all()
assert not {"torch", "reproductions"} & set(sys.modules)
try:
    pp.train
except ImportError as error:
    assert "'.[training]'" in str(error), error
else:
    raise AssertionError("training without torch")
try:
    pp.plan(budgets, "no such method", steps=20, batch_size=1)
except pp.InvalidInput as error:
    assert "sample" in str(error) and "published" not in str(error), error  # no unsound method by accident
print(pp.__file__)
"""

pytestmark = pytest.mark.slow


def run(*command: str | Path, where: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, command)), cwd=where, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, ROOT, where=folder)
    return next(folder.glob("privypurse-*.whl"))


def test_the_wheel_holds_the_library_and_nothing_else(wheel: Path) -> None:
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    tops = {name.parts[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"privypurse"}
    assert {name.suffix for name in names if name.parts[0] == "privypurse"} <= {
        ".py",
        ".typed",
        ".toml",
        ".md",
        ".bz2",
        ".html",
        ".css",
        ".js",
        ".mako",  # of migrations
    }
    code = [name for name in names if name.parts[0] == "privypurse" and name.suffix == ".py"]
    rooms = {name.parts[1] for name in code if len(name.parts) > 2}
    assert rooms == {path.parent.name for path in (ROOT / "src" / "privypurse").glob("*/*") if path.suffix == ".py"}
    assert not rooms & {"experiments", "reproductions", "tests"}
    for needed in (
        "py.typed",
        "data/adult.csv.bz2",
        "runs/example.toml",
        "templates/page.html",
        "templates/page.css",
        "templates/consent_form.js",
        "ledger/migrations/env.py",
    ):
        assert Path("privypurse", needed) in names


def test_it_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    bin = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    constraints = ROOT / "constraints.txt"
    run(bin / "python", "-m", "pip", "install", "-q", "-c", constraints, wheel, where=tmp_path)
    assert str(tmp_path) in run(bin / "python", "-c", PLAN, where=tmp_path)
    (tmp_path / "people.csv").write_text("id,epsilon\nA,1\nB,2\nC,3\n", encoding="utf-8")
    table = [bin / "privypurse", "plan", "people.csv", "--epsilon", "epsilon", "--person", "id"]
    assert "presence" in run(*table, "--steps", "20", "--batch-size", "1", "--noise-multiplier", "4", where=tmp_path)
    assert "[data]" in run(bin / "privypurse", "init", where=tmp_path)
