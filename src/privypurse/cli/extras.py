"""What only some commands need, and how to get it."""

from __future__ import annotations

import importlib

import privypurse as pp


def need_training(command: str) -> None:
    """Raise unless everything that training needs is installed; the error says how to get it."""
    for name in ("torch", "cryptography"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            raise pp.PrivyPurseError(
                f"privypurse {command} needs {name}: pip install 'privypurse[training]'"
            ) from None
