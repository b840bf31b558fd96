"""What a model is called with: inputs by their place, or by name where the data set gives dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Inputs = tuple[Any, ...] | dict[str, Any]
"""Inputs by place, or by name."""
Given = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a model."""

LABELS = ("labels", "label")
"""What the label of a record is called in a dictionary; the first that is there."""


def arguments(inputs: Any) -> Given:
    """Inputs as arguments: a dictionary's by name, a tuple's by place, anything else as the only one."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}
