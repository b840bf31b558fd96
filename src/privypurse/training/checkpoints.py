"""Checkpoints of a run: everything it needs to go on, written so that a crash leaves the old one or the new one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from privypurse._storage import replace_file
from privypurse.errors import InvalidInput
from privypurse.training.fingerprints import data_of
from privypurse.training.mechanism import PrivateRun
from privypurse.training.planned_records import PlannedRecords

_VERSION = 3
_SECONDS = 60.0


class Checkpoints:
    """Saves a run into a folder and brings it back.

    A file holds the model, the optimizer, the scheduler and the steps taken. It holds the state of no generator,
    unless the run is seeded: whoever knew the state could take the noise off again (rule 10).
    """

    def __init__(
        self,
        folder: Path | None,
        run: PrivateRun,
        records: PlannedRecords,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
    ) -> None:
        """Without a folder nothing is saved."""
        self._data = "" if folder is None else data_of(run.plan, records.dataset)
        self._folder, self._every, self._run = folder, records.execution.checkpoint_every, run
        self._parts: dict[str, Any] = {"model": run.recorder.model, "optimizer": optimizer}
        if scheduler is not None:
            self._parts["scheduler"] = scheduler
        self._written = time.monotonic()
        self._between_steps = self._generators()
        self._answers = 0

    @property
    def _path(self) -> Path:
        assert self._folder is not None
        return self._folder / "checkpoint.pt"

    def resume(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        if self._folder is None:
            return
        here = self._path.exists()
        if self._run.processes.same(int(here)) != here:
            raise InvalidInput(f"{self._path} is not seen by all processes; put it where all of them can read it")
        if not here:
            return
        try:
            state = torch.load(self._path, map_location=self._run.device, weights_only=True)
        except Exception as error:
            raise InvalidInput(f"{self._path} cannot be read as a checkpoint: {error}") from None
        if not isinstance(state, dict) or state.get("version") != _VERSION:
            raise InvalidInput(f"{self._path} is not a checkpoint of this release")
        if set(self._parts) != set(state["parts"]):
            raise InvalidInput(
                f"{self._path} holds {', '.join(state['parts'])}; the run has {', '.join(self._parts)}"
            )
        if state["data"] != self._data:
            raise InvalidInput(
                f"{self._path} was made on another data set; rates and purses are people's, so go on with the data "
                "that it began with, in the same order"
            )
        for name, part in self._parts.items():
            if state["kinds"][name] != _kind(part):
                raise InvalidInput(f"{self._path} holds a {state['kinds'][name]}; the run has a {_kind(part)}")
        self._run.load_state_dict(state["run"], answers_saved=True)
        for name, part in self._parts.items():
            try:
                part.load_state_dict(state["parts"][name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise InvalidInput(f"{self._path} holds another {name} than the run has: {error}") from None
        if state["generators"] is not None:
            torch.set_rng_state(state["generators"]["cpu"].cpu())
            if self._run.device.type == "cuda":
                torch.cuda.set_rng_state(state["generators"]["cuda"].cpu(), self._run.device)
        self._between_steps = self._generators()
        self._answers = self._answered()

    def before_step(self) -> None:
        """Save an answer of the stopping rule before anything follows from it: it is not asked for twice."""
        if self._answered() != self._answers:
            self._answers = self._answered()
            self.write()

    def _answered(self) -> int:
        return 0 if self._run.accounting is None else self._run.accounting.answers

    def after_step(self) -> None:
        """Save if it is time."""
        if self._folder is None:
            return
        self._between_steps = self._generators()
        if self._every is not None:
            due = self._run.steps_taken % self._every == 0
        else:
            due = time.monotonic() - self._written > _SECONDS
        if due:
            self.write()

    def write(self) -> None:
        """Save now."""
        if self._folder is None or not self._run.processes.first:
            return
        state = {
            "version": _VERSION,
            "run": self._run.state_dict(),
            "data": self._data,
            "kinds": {name: _kind(part) for name, part in self._parts.items()},
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "generators": self._between_steps,
        }
        replace_file(self._path, lambda file: torch.save(state, file))
        self._written = time.monotonic()

    def _generators(self) -> dict[str, Any] | None:
        """Of torch's own generators, for layers such as dropout, in a seeded run only."""
        if self._run.source.secure:
            return None
        device = self._run.device
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return {"cpu": torch.get_rng_state(), "cuda": cuda}


def _kind(part: Any) -> str:
    return type(part).__qualname__
