"""What the Trainer's loop goes over, and what it must not tell."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from privypurse.training.make_private import PrivateLoader

_SENSITIVE = {"loss", "grad_norm", "total_flos"}


class Steps:
    """One turn a step, whoever was drawn, and in however many parts their records go through the model."""

    def __init__(self, loader: PrivateLoader, all_steps: int) -> None:
        self._loader, self._all = loader, all_steps
        self._batches: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Of the whole plan, wherever the run is: by this the loop finds out how far it was."""
        return self._all

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not len(self._loader):  # a killed run has counted the last ones, and lost them
            return
        self._batches = iter(self._loader)
        for first in self._batches:
            yield {"first part": first}  # a name under which the loop looks for no labels and no tokens to count

    def parts(self, step: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
        """The batches of a step, and whether more follow: after a step of the optimizer, which adds up."""
        yield step["first part"], not self._loader.ends_step
        while not self._loader.ends_step:
            assert self._batches is not None
            yield next(self._batches), not self._loader.ends_step

    def close(self) -> None:
        """The global generators, secret while a batch is out, are again what they were."""
        if self._batches is not None:
            self._batches.close()  # type: ignore[attr-defined]


def last_whole(folder: Path) -> str | None:
    """The latest checkpoint that was written to its end: a run may have been killed while it wrote one."""
    found = [file.parent for file in folder.glob("checkpoint-*/trainer_state.json")]  # is written last
    return str(max(found, key=lambda path: int(path.name.split("-")[1]))) if found else None


def told(figures: dict[str, float]) -> dict[str, float]:
    """Without figures on people's records, and how long they took (rule 6)."""
    return {
        name: value for name, value in figures.items() if name not in _SENSITIVE and not name.startswith("train_")
    }


def note(path: Path, step: int, losses: Tensor) -> None:
    """Add a step's mean loss and number of records to a file that only its owner reads."""
    line = json.dumps({"step": step, "records": losses.numel(), "loss": float(losses.mean())})
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
        file.write(line + "\n")
