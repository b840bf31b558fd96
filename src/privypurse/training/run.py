"""A private run: clipped sums come in, noisy gradients go out, and every step is counted before it does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from privypurse import planfile
from privypurse.arrays import IntArray
from privypurse.errors import InvalidInput, PrivyPurseError
from privypurse.plans import Plan
from privypurse.training.gradients import Recorder, Tape, clip_factors, norms, summed
from privypurse.training.processes import Processes
from privypurse.training.randomness import SeededRandomness, randomness

if TYPE_CHECKING:
    from privypurse.training.journal import Journal


class PlanExhausted(PrivyPurseError, RuntimeError):
    """The plan has no more steps: another one would overdraw somebody."""


class PrivateRun:
    """The plan at work on one model. The ordinary loop and the fast path both go through here, and nothing else does.

    Guarantee: what ``release`` hands out is the sum of what ``add`` was given, each unit clipped to its clip norm,
    plus noise of noise_multiplier · clip_norm, divided by the public batch size. The step is counted first.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        seed: int | None = None,
        journal: str | Path | None = None,
    ) -> None:
        self.plan, self.recorder = plan, Recorder(model)
        self.processes = Processes.found()
        self.source = randomness(seed)
        self.parameters = _held(self.recorder, optimizer)
        devices = {parameter.device for parameter in self.parameters.values()}
        if len(devices) > 1:
            raise InvalidInput(f"the model lies on several devices ({', '.join(map(str, devices))}); put it on one")
        self.device = devices.pop()
        self.processes.agree((*model.parameters(), *model.buffers()))
        wide = any(parameter.dtype == torch.float64 for parameter in self.parameters.values())
        self._sizes = [parameter.numel() for parameter in self.parameters.values()]
        self._sums = torch.zeros(sum(self._sizes), dtype=torch.float64 if wide else torch.float32, device=self.device)
        self._views = self._by_name(self._sums)
        self._digest = planfile.digest(plan)
        self.journal = self._opened(journal)
        self.steps_taken = self.processes.same(self.journal.counted if self.journal and self._secure else 0)

    def limits(self, units: IntArray | slice) -> Tensor:
        """The clip norms of these units, and behind them a 0 for what is nobody's."""
        levels = self.plan.levels.clip_norm[self.plan.level_of[units]]
        return torch.as_tensor(np.append(levels, 0.0), device=self.device)

    def _opened(self, path: str | Path | None) -> Journal | None:
        if path is None or not self.processes.first:
            return None
        from privypurse.training.journal import Journal

        return Journal(path, self._digest, self.plan.steps)

    @property
    def _secure(self) -> bool:
        return self.source.secure

    @property
    def steps_left(self) -> int:
        return self.plan.steps - self.steps_taken

    def require_step(self) -> None:
        if self.steps_left <= 0:
            raise PlanExhausted(
                f"all {self.plan.steps:,} steps of the plan are taken; one more would overdraw budgets"
            )

    def clear(self) -> None:
        """Forget what was added since the last release: it belongs to no step."""
        self._sums.zero_()

    def add(self, tape: Tape, limits: Tensor, owner: Tensor | None = None, scale: float = 1.0) -> None:
        """Clip what is on the tape and add it to the step's sum.

        ``limits`` are the clip norms of the tape's records or, where ``owner`` says whose each record is, of the
        units. ``scale`` is what the recorded gradients have to be multiplied with to be those of each record's loss.
        """
        if owner is None:
            found = norms(tape)
            factors = clip_factors(found * scale, limits)
        else:
            found = norms(tape, owner, limits.shape[0])
            factors = clip_factors(found * scale, limits)[owner]
            found = found[owner]
        sums = {name: value for name, value in summed(tape, factors * scale, found).items() if name in self._views}
        torch._foreach_add_([self._views[name] for name in sums], list(sums.values()))

    def release(self) -> None:
        """Count the step, then put the noisy gradient where the optimizer looks for it."""
        self.require_step()
        step = self.steps_taken + 1
        if self.journal is not None:
            self.journal.count(step)  # before anything is released, and never rolled back (rule 10)
        self.steps_taken = step
        released = self._sums.clone()
        if self.processes.first:  # once in total, whatever the number of processes
            source = self.source.for_step(step)
            noise = source.normal(released.numel(), released.dtype, self.device)
            released.add_(noise, alpha=self.plan.noise_multiplier * self.plan.clip_norm)
        self.processes.total(released)
        released.div_(self.plan.batch_size)  # a public constant, whoever was drawn (rule 2)
        for name, gradient in self._by_name(released).items():
            parameter = self.parameters[name]
            parameter.grad = gradient.to(parameter.dtype)
        self.clear()

    def _by_name(self, flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, self._sizes)
        return {
            name: part.view(parameter.shape)
            for (name, parameter), part in zip(self.parameters.items(), parts, strict=True)
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the run is. No generator has a state to save: a seeded one follows from seed and step (rule 10)."""
        seed = self.source.seed if isinstance(self.source, SeededRandomness) else None
        return {"steps_taken": self.steps_taken, "plan": self._digest, "seed": seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state.

        A seeded run goes back to it: its steps repeat the same numbers. Without a seed, steps that were counted since
        then stay counted, and are missing from what is left.
        """
        if state["plan"] != self._digest:
            raise InvalidInput("the checkpoint was made with another plan; a run keeps the plan it began with")
        if state["seed"] != self.state_dict()["seed"]:
            raise InvalidInput(
                f"the checkpoint was made with seed={state['seed']}; make the run with the same to go on"
            )
        saved = int(state["steps_taken"])
        self.steps_taken = max(saved, self.steps_taken) if self._secure else saved
        self.clear()

    def close(self) -> None:
        """Write the exact number of steps into the journal and let go of it."""
        if self.journal is not None:
            self.journal.close()
            self.journal = None


def _held(recorder: Recorder, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """The parameters that the optimizer trains, by name."""
    if not recorder.units:
        raise InvalidInput("the model has no trainable parameters")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    parameters = {name: value for name, value in recorder.trainable().items() if id(value) in held}
    strangers = len(held) - len(parameters)
    if strangers > 0:
        raise InvalidInput(
            f"the optimizer holds {strangers} parameters that are frozen or not the model's; make it anew from "
            "[p for p in model.parameters() if p.requires_grad]"
        )
    return parameters
