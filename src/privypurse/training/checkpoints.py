"""Checkpoints of a run: everything it needs to go on, written so that a crash leaves the old one or the new one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privypurse._storage import replace_file
from privypurse.errors import InvalidInput
from privypurse.training.mechanism import PrivateRun
from privypurse.training.planned_records import PlannedRecords
from privypurse.training.step_randomness import restore_states, states
from privypurse.training.watch import Watch

_VERSION = 4
_SECONDS = 60.0


class Checkpoints:
    """Saves a run into a folder and brings it back.

    A file holds the model, the optimizer, the scheduler, the steps taken and the history. It holds the state of no
    generator, unless the run is seeded: whoever knew the state could take the noise off again (rule 10).
    """

    def __init__(
        self,
        folder: Path | None,
        run: PrivateRun,
        records: PlannedRecords,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        watch: Watch | None = None,
    ) -> None:
        """Without a folder nothing is saved."""
        self._data = "" if folder is None else records.digest
        self._path = None if folder is None else folder / "checkpoint.pt"
        self._every, self._run, self._watch = records.execution.checkpoint_every, run, watch
        self._parts: dict[str, Any] = {"model": run.recorder.model, "optimizer": optimizer}
        if scheduler is not None:
            self._parts["scheduler"] = scheduler
        self._written = time.monotonic()
        self._between_steps = self._generators()
        self._answers = 0

    def resume(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        if self._path is None:
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
        before, now = state["kinds"], self._kinds()
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                raise InvalidInput(
                    f"{self._path} holds as {name} a {before.get(name)}; the run has a {now.get(name)}"
                )
        if state["data"] != self._data:
            raise InvalidInput(
                f"{self._path} was made on another data set; rates and purses are people's, so go on with the data "
                "that it began with, in the same order"
            )
        self._run.load_state_dict(state["run"], answers_saved=True)
        for name, part in self._parts.items():
            try:
                part.load_state_dict(state["parts"][name])
            except (RuntimeError, ValueError, KeyError) as error:
                raise InvalidInput(f"{self._path} holds another {name} than the run has: {error}") from None
        if self._watch is not None:
            self._watch.restore(state.get("history", ()))
        if state["generators"] is not None:
            restore_states(state["generators"], self._run.device)
        self._between_steps = self._generators()
        self._answers = self._answered()

    def before_step(self) -> None:
        """Save an answer of the stopping rule before anything follows from it: it is not asked for twice."""
        if self._answered() != self._answers:
            self._answers = self._answered()
            self.write()

    def _answered(self) -> int:
        return 0 if self._run.accounting is None else len(self._run.accounting.stopping.told)

    def after_step(self) -> None:
        """Save if it is time."""
        if self._path is None:
            return
        self._between_steps = self._generators()
        late = time.monotonic() - self._written > _SECONDS
        if late if self._every is None else self._run.steps_taken % self._every == 0:
            self.write()

    def write(self) -> None:
        """Save now."""
        if self._path is None or not self._run.processes.first:
            return
        state = {
            "version": _VERSION,
            "run": self._run.state_dict(),
            "data": self._data,
            "kinds": self._kinds(),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "generators": self._between_steps,
            "history": [] if self._watch is None else self._watch.state(),
        }
        replace_file(self._path, lambda file: torch.save(state, file))
        self._written = time.monotonic()

    def _kinds(self) -> dict[str, str]:
        return {name: type(part).__qualname__ for name, part in self._parts.items()}

    def _generators(self) -> list[Tensor] | None:
        """Of torch's own generators, for layers such as dropout, in a seeded run only."""
        return None if self._run.source.secure else states(self._run.device)
