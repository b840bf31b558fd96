"""Data flows in one direction only, and so do the imports: budgets → assignment → plans, accounting below all."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import privypurse

SOURCE = Path(privypurse.__file__).parent
HEAVY = {"torch", "opacus", "pandas", "dp_accounting", "sklearn"}
"""What a plan must be made without: none of them is a dependency of the package."""


_LIGHT = ("accounting", "budgets", "ledger", "plans", "assignment", "queries")

_LATE = {"sqlalchemy", "alembic"}
"""What is a dependency, and yet loaded only by who opens a ledger."""

_BELOW_LEDGER = tuple(
    f"privypurse.{name}"
    for name in ("ledger", "accounting", "budgets", "arrays", "errors", "_validate", "_storage", "_lazy", "_pages")
)

_BELOW = tuple(f"privypurse.{name}" for name in ("accounting", "arrays", "errors", "_validate"))
"""What accounting may import."""


def module_name(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def called(function):
    """The last name of what is called."""
    return getattr(function, "attr", getattr(function, "id", ""))


@cache
def imports_of(source, module, *, package=False):
    """Every module that this source may import, wherever in it, as dotted names from the root.

    ``from a import b`` counts as a.b where the package has such a module, else as a. What is imported for
    type checkers alone counts too: it shows a direction as well.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = module.split(".")
                here = here[: len(here) - node.level + (1 if package else 0)]
                base = ".".join([*here, base]).rstrip(".")
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in MODULES else base)
        elif isinstance(node, ast.Call) and called(node.func).endswith(("import_module", "__import__")):
            found.update(arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))
    return frozenset(found)


def inside(name, *places):
    return any(name == place or name.startswith(place + ".") for place in places)


def complaints(module, imported):
    """What is wrong with this module importing these."""
    ours = {name for name in imported if inside(name, "privypurse")}
    part = ".".join(module.split(".")[:2])
    wrong = set()
    if part == "privypurse.accounting":
        wrong |= {x for x in ours if not inside(x, *_BELOW)}
    if part == "privypurse.budgets":
        wrong |= {x for x in ours if inside(x, "privypurse.accounting", "privypurse.plans", "privypurse.assignment")}
    if part == "privypurse.ledger":
        wrong |= {x for x in ours if not inside(x, *_BELOW_LEDGER)}
    if part == "privypurse.plans":
        wrong |= {x for x in ours if inside(x, "privypurse.assignment", "privypurse.training")}
    # The papers' tables and their unsound rules stand outside: they import the package, never the other way round.
    wrong |= {x for x in imported if inside(x, "reproductions", "benchmarks", "tests")}
    if part in ("privypurse.plans", "privypurse.queries"):
        wrong |= {x for x in ours if inside(x, "privypurse.training")}
    if part == "privypurse.queries":
        wrong |= {x for x in ours if inside(x, "privypurse.plans", "privypurse.assignment")}
    if part == "privypurse.assignment":
        wrong |= {x for x in ours if inside(x, "privypurse.cli", "privypurse.datasets")}
    if part not in ("privypurse.cli", "privypurse.__main__"):
        wrong |= {x for x in ours if inside(x, "privypurse.cli")}
        # Whoever imports the root imports everything: that is for users, and the command line is one.
        wrong |= ours & {"privypurse"}
    above = {f"privypurse.{name}" for name in ("cli", "report", "audit", "runs")}
    if part not in above | {"privypurse"}:
        wrong |= {x for x in ours if inside(x, "privypurse.runs")}  # a whole run stands above everything it uses
    if part not in {"privypurse.cli", "privypurse.report"}:
        wrong |= {x for x in ours if inside(x, "privypurse.report")}  # what others read is made last
    if part not in {"privypurse.cli", "privypurse.report", "privypurse.audit"}:
        wrong |= {x for x in ours if inside(x, "privypurse.audit")}  # an audit looks at runs; only pages show it
    if part in {f"privypurse.{name}" for name in _LIGHT}:
        wrong |= {x for x in imported if x.split(".")[0] in HEAVY}
    return sorted(f"{module} imports {name}" for name in wrong)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    path = MODULES[module]
    imported = imports_of(path.read_text(encoding="utf-8"), module, package=path.name == "__init__.py")
    assert complaints(module, imported) == []


def test_the_modules_that_the_rules_name_exist():
    for name in (
        "accounting",
        "accounting.rdp",
        "budgets",
        "plans",
        "assignment",
        "cli",
        "datasets",
        "arrays",
        "errors",
        "queries",
        "training.individual",
    ):
        assert f"privypurse.{name}" in MODULES


def test_the_checker_sees_imports_that_are_there():
    asked = ("accounting.rdp", "budgets.budgets", "plans.plan", "plans.planned_training")
    read = {
        name: imports_of(MODULES[name].read_text(encoding="utf-8"), name)
        for name in map("privypurse.{}".format, asked)
    }
    assert "privypurse.accounting.releases" in read["privypurse.accounting.rdp"]
    assert "privypurse.budgets.ladder" in read["privypurse.budgets.budgets"]
    assert "privypurse.plans.file" in read["privypurse.plans.plan"]
    assert "privypurse.budgets.tables" in read["privypurse.budgets.budgets"]  # inside a function
    assert "numpy" in read["privypurse.plans.planned_training"]


PLANTED = {
    "import": ("privypurse.accounting.rdp", "import privypurse.plans.plan"),
    "from the root": ("privypurse.accounting.rdp", "from privypurse import budgets"),
    "from a module": ("privypurse.accounting.rdp", "from privypurse.budgets import Budgets"),
    "the root itself": ("privypurse.accounting.rdp", "import privypurse as pp"),
    "relative": ("privypurse.accounting.rdp", "from ..plans import Plan"),
    "relative to the root": ("privypurse.accounting.rdp", "from .. import budgets"),
    "inside a function": (
        "privypurse.budgets.budgets",
        "def f():\n    import privypurse.assignment.method",
    ),
    "under a condition": ("privypurse.budgets.budgets", "if 1:\n    import privypurse.accounting.inverse as t"),
    "by name": ("privypurse.plans.plan", "import importlib\nimportlib.import_module('privypurse.assignment')"),
    "plans of assignment": ("privypurse.plans.plan", "from privypurse.assignment import plan"),
    "assignment of data": ("privypurse.assignment.sample", "from privypurse import datasets"),
    "the ledger of plans": ("privypurse.ledger.runs", "from privypurse.plans import Plan"),
    "the command line": ("privypurse.plans.summary", "from privypurse.cli import main"),
    "an audit": ("privypurse.runs.folder", "from privypurse.audit.result import AuditResult"),
    "a whole run": ("privypurse.plans.summary", "from privypurse.runs.config import RunConfig"),
    "questions of training": ("privypurse.queries.analyst", "from privypurse.training.grid_noise import GridNoise"),
    "questions of plans": ("privypurse.queries.statistics", "from privypurse.plans import Plan"),
    "the papers": ("privypurse.cli.plan", "from reproductions.unsound.trusted_curve import TrustedCurve"),
    "torch": ("privypurse.accounting.pld", "import torch.nn as nn"),
    "pandas": ("privypurse.budgets.budgets", "try:\n    import pandas as pd\nexcept ImportError:\n    pd = None"),
    "opacus": ("privypurse.assignment.scale", "from opacus.accountants import RDPAccountant"),
    "dp_accounting": ("privypurse.plans.plan", "from dp_accounting import rdp"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_the_checker_catches_a_planted_import(case):
    module, source = PLANTED[case]
    path = MODULES[module]
    honest = path.read_text(encoding="utf-8")
    assert complaints(module, imports_of(honest, module)) == []
    assert len(complaints(module, imports_of(honest + "\n" + source, module))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "privypurse.accounting.rdp",
            "from privypurse.accounting import releases\nfrom . import gdp\nimport numpy",
        ),
        ("privypurse.accounting.rdp", "from ..errors import InvalidInput"),
        ("privypurse.cli", "import privypurse as pp\nfrom privypurse import datasets"),
        ("privypurse.assignment.method", "from privypurse.plans import Plan\nimport torchlike"),
    ],
)
def test_the_checker_lets_good_imports_be(module, source):
    assert complaints(module, imports_of(source, module)) == []


def circles(read):
    """Groups of modules that import each other, directly or by way of others."""

    def reachable(start):
        found, waiting = set(), [start]
        while waiting:
            new = read.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    reach = {name: reachable(name) for name in read}
    return {frozenset(b for b in reach[a] if a in reach[b]) for a in read if a in reach[a]}


def read_all(more=""):
    found = {}
    for name, path in MODULES.items():
        text = path.read_text(encoding="utf-8") + (more if name == "privypurse.errors" else "")
        package = path.name == "__init__.py"
        found[name] = {each for each in imports_of(text, name, package=package) if each in MODULES and each != name}
    return found


def test_nothing_imports_itself_by_way_of_others():
    assert circles(read_all()) == set()


def test_a_circle_is_seen():
    assert circles(read_all("\nfrom privypurse.budgets.person_ids import KeyedIds\n"))


def loaded_by(statement):
    code = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    loaded = loaded_by("import privypurse")
    assert "privypurse" in loaded
    assert loaded & (HEAVY | _LATE) == set()


@pytest.mark.slow
def test_the_check_of_what_is_loaded_can_fail():
    assert {"pandas", "sqlalchemy"} <= loaded_by("import privypurse, pandas; privypurse.Ledger")


def test_what_is_loaded_late_is_listed_too():
    """Without loading it."""
    code = "import sys, privypurse as pp; print(set(pp.__all__) <= set(dir(pp)), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
