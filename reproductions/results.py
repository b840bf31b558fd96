"""The file of a table's results: one line of JSON for each training, appended as they come, so that none is lost."""

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import scipy

import privypurse as pp

Line = dict[str, Any]
_IDENTITY = ("row", "column", "purpose", "method", "settings", "seed")


@dataclass(frozen=True)
class Job:
    """One training: its place in the table (row and column, or purpose and method), its settings, its seed."""

    place: Mapping[str, str]
    settings: Any
    seed: int

    def plain(self) -> Line:
        return {**self.place, "settings": self.settings.plain(), "seed": self.seed}

    @property
    def key(self) -> str:
        return key_of(self.plain())

    @property
    def name(self) -> str:
        return " / ".join(self.place.values())


class Table(Protocol):
    """A table of either kind."""

    @property
    def name(self) -> str: ...


def key_of(line: Mapping[str, Any]) -> str:
    """Who ran with these settings before is not run again."""
    return json.dumps({name: line[name] for name in _IDENTITY if name in line}, sort_keys=True)


def by_key(lines: Iterable[Line]) -> dict[str, Line]:
    """The last line of each training."""
    return {key_of(line): line for line in lines}


def path_of(table: Table, folder: Path) -> Path:
    return folder / f"{table.name}.jsonl"


def append(path: Path, line: Line) -> None:
    """Add a line; where the last one was cut off, behind it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
        file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())


def read(path: Path) -> list[Line]:
    """All whole lines: one may have been cut off."""
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


def versions(device: str) -> dict[str, str]:
    """What the figures depend on."""
    import torch

    return {
        "privypurse": pp.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else f"{os.cpu_count()} CPU cores",
    }
