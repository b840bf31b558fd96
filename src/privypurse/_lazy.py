"""Public names that are looked up when they are first used, so that planning does not have to load torch."""

import importlib
from collections.abc import Callable
from typing import Any


def lazily(package: str, names: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` for these names, each given as "module" or "module:other name", and ``__dir__``.

    A module of that very name in the package is itself what is looked up. ``__dir__`` lists ``__all__``: what is
    public, and nothing that lies there beside it.
    """

    def look_up(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, other = names[name].partition(":")
        try:
            found = importlib.import_module(module)
            return found if module == f"{package}.{name}" else getattr(found, other or name)
        except ModuleNotFoundError as error:
            raise ImportError(f"{package}.{name} needs {error.name}: pip install '.[training]' in a clone") from error

    def listed() -> list[str]:
        return sorted(importlib.import_module(package).__all__)

    return look_up, listed
