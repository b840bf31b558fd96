"""What some tests need and not every machine has; $PRIVYPURSE_REQUIRE names what must not be missing here.

A test says ``@pytest.mark.needs("flower")``, or its module ``require("plots")`` before it imports what is not there.
Where the component is not there the test is skipped, unless PRIVYPURSE_REQUIRE (names with commas between them) has
it: then it fails. A gate that installs something asks for it there, so that nothing is passed over in silence.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

import browser
import postgres_server

_MODULES = {  # component: the module that only it brings
    "flower": "flwr",
    "images": "PIL",
    "onnx": "onnxruntime",
    "plots": "matplotlib",
    "reproductions": "kymatio",
    "hf": "transformers",
    "peft": "peft",
    "lightning": "lightning",
    "sklearn": "sklearn",
    "postgres": "psycopg",
    "browser": "playwright",
    "axe": "axe_playwright_python",
    "report": "bokeh",
}
COMPONENTS = {*_MODULES, "data", "cuda", "registry"}
_DATA = Path(os.environ.get("PRIVYPURSE_DATA", "data")).resolve()  # now: tests run in folders of their own


def missing(component: str) -> str | None:
    """Why a component is not to be had here. A data set is ``data/`` and its folder: ``data/MNIST``."""
    name, _, part = component.partition("/")
    if name not in COMPONENTS or (name == "data") != bool(part):
        raise ValueError(f"no component is called {component!r}; known: {', '.join(sorted(COMPONENTS))}, data/MNIST")
    if name == "data":
        return None if (_DATA / part).is_dir() else f"{part} is not in $PRIVYPURSE_DATA"
    if name == "cuda":
        import torch

        return None if torch.cuda.is_available() else "needs a CUDA device"
    if name == "registry":
        schema = Path(os.environ.get("PRIVYPURSE_REGISTRY", ".")) / "deployments-schema.yaml"
        return None if schema.is_file() else "the registry's schema is not in $PRIVYPURSE_REGISTRY"
    module = _MODULES[name]
    if not importlib.util.find_spec(module):
        return f"{module} (component {name}) is not installed"
    more = {"postgres": postgres_server.why_not, "browser": browser.why_not}
    return more[name]() if name in more else None


def required() -> set[str]:
    """What PRIVYPURSE_REQUIRE asks for."""
    names = {name.strip() for name in os.environ.get("PRIVYPURSE_REQUIRE", "").split(",")} - {""}
    if unknown := sorted(names - COMPONENTS):
        known = ", ".join(sorted(COMPONENTS))
        raise pytest.UsageError(f"PRIVYPURSE_REQUIRE has {', '.join(unknown)}; known are {known}")
    return names


def require(component: str) -> None:
    """Skip this test, or module, where the component is missing; fail where it must not be."""
    why = missing(component)
    if why is None:
        return
    if component.partition("/")[0] in required():
        pytest.fail(f"{why}, and PRIVYPURSE_REQUIRE asks for it", pytrace=False)
    pytest.skip(why, allow_module_level=True)
