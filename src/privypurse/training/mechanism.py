"""A private run: clipped sums come in, noisy gradients go out, and every step is counted before it does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from privypurse.errors import InvalidInput, PlanExhausted, Unsupported
from privypurse.plans import Plan
from privypurse.plans import file as planfile
from privypurse.randomness import SeededRandomness, randomness
from privypurse.training.distributed import Processes
from privypurse.training.gradients import Recorder, Tape, clip_factors, norms, sums
from privypurse.training.keying import Keys
from privypurse.training.noise import GridNoise, pieces

if TYPE_CHECKING:
    from privypurse.training.individual.accounting import Following
    from privypurse.training.journal import Journal


class PrivateRun:
    """The plan at work on one model. The ordinary loop and the fast path both go through here, and nothing else does.

    Guarantee: what ``release`` hands out is the sum of what ``add`` was given, each unit clipped to its clip norm,
    plus noise of noise_multiplier · clip_norm on a public grid, divided by the public batch size. The step is counted
    first.
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
        self.keys = Keys(self.source, self.processes.rank)
        self.recorder.key = self.keys.next
        self.parameters = _held(self.recorder, optimizer)
        devices = {parameter.device for parameter in self.parameters.values()}
        if len(devices) > 1:
            raise InvalidInput(f"the model lies on several devices ({', '.join(map(str, devices))}); put it on one")
        self.device = devices.pop()
        self.processes.agree((*model.parameters(), *model.buffers()))
        wide = any(parameter.dtype == torch.float64 for parameter in self.parameters.values())
        # Several processes' sums have to stay on the noise's grid until they are one, which takes float64.
        self._dtype = torch.float64 if wide or self.processes.size > 1 else torch.float32
        size = sum(parameter.numel() for parameter in self.parameters.values())
        self.noise = GridNoise(plan.noise_multiplier * plan.clip_norm, size)
        self._sums: dict[str, Tensor] = {}
        self._static = self._wide = False
        self._left_now, self._left_out = torch.zeros((2,), dtype=torch.int64, device=self.device)
        self.clip_norms = torch.as_tensor(np.append(plan.levels.clip_norm[plan.level_of], 0.0), device=self.device)
        """Of every unit, and behind them a 0 for what is nobody's."""
        self.following: Following | None = None
        self.saves_answers = False
        """Whether each answer of a stopping rule is in a checkpoint before the step after it."""
        self._digest = planfile.digest(plan)
        self._closed, self._process = False, os.getpid()
        if self.processes.same(self._digest) != self._digest:
            raise InvalidInput("the processes have different plans; give all of them the same")
        self.journal = self._opened(journal)
        self.steps_taken = self.processes.same(self.journal.counted if self.journal and self._secure else 0)

    def follow(self, following: Following) -> None:
        """From now on everyone's own spending is followed, and limits what they contribute."""
        self.following = following
        if self.steps_taken:
            following.resumed(0, self.steps_taken)

    def prepare(self) -> bool:
        """Before each step, with the model that the last one left: looks that are due. False: stop here."""
        if self.following is None:
            return True
        self._require_own()  # looks may release answers, so they are as much the run's own as steps are
        return self.following.prepare(self.steps_taken)

    def finish(self) -> None:
        """No further step will be taken."""
        if self.following is not None:
            self.following.finish()

    def _opened(self, path: str | Path | None) -> Journal | None:
        if path is None or not self.processes.first:
            return None
        from privypurse.training.journal import Journal

        return Journal(path, self._digest, self.plan.all_steps)

    @property
    def _secure(self) -> bool:
        return self.source.secure

    @property
    def steps_left(self) -> int:
        return self.plan.all_steps - self.steps_taken

    @property
    def left_out(self) -> int:
        """How often somebody was drawn and left out since their gradient was not finite. Internal (rule 6)."""
        return int(self._left_out)

    def _require_own(self) -> None:
        if self._closed or os.getpid() != self._process:
            raise InvalidInput("this run was closed, or belongs to the process that this one was forked from")

    def require_step(self) -> None:
        self._require_own()
        if self.steps_left <= 0:
            raise PlanExhausted(
                f"all {self.plan.all_steps:,} steps of the plan are taken; one more would overdraw budgets. One pass "
                "over the loader is the whole run: there is no loop over epochs around it"
            )

    def clear(self) -> None:
        """Forget what was added since the last release: it belongs to no step."""
        if self._static:
            torch._foreach_zero_(list(self._sums.values()))
        else:
            self._sums = {}
        self._left_now.zero_()
        if self.following is not None:
            self.following.forget()

    def widen(self) -> None:
        """From now on records are added up in float64, whatever the model computes in.

        The rounding of a float32 sum depends on all that is in it: leaving one record out can shift it by n² · 6e-8
        clip norms, for n records made for it (Casacuberta et al. 2022). In float64 that is n² · 1e-16.
        """
        self._wide, self._dtype = True, torch.float64

    def stay_in_place(self) -> None:
        """From now on sums keep their addresses, as a captured graph needs them to."""
        self._static = True
        self._sums = {name: self._zeros(name) for name in self.parameters}

    def _zeros(self, name: str) -> Tensor:
        return torch.zeros(self.parameters[name].shape, dtype=self._dtype, device=self.device)

    def add(self, tape: Tape, units: Tensor, owner: Tensor | None = None, scale: float = 1.0) -> None:
        """Clip what is on the tape and add it to the step's sum.

        ``units`` are the numbers of the units whose records these are, one for each record or, where ``owner`` says
        at which place of ``units`` each record's unit stands, one for each unit; ``plan.people`` is nobody.
        ``scale`` is what the recorded gradients have to be multiplied with to be those of each record's loss.
        """
        self.gather(tape, *self.weights(tape, units, owner, scale))

    def weights(
        self, tape: Tape, units: Tensor, owner: Tensor | None = None, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """What each record on the tape is multiplied with, and its unit's norm. Nothing is added yet."""
        found = norms(tape) if owner is None else norms(tape, owner, units.shape[0])
        self._left_now += (~torch.isfinite(found) & (units != self.plan.people)).sum()
        factors = clip_factors(found * scale, (self._limits(units, found * scale) - self.noise.slack).clamp(min=0.0))
        return (factors * scale, found) if owner is None else (factors[owner] * scale, found[owner])

    def gather(self, tape: Tape, weights: Tensor, norms: Tensor) -> None:
        """Add what is on the tape to the step's sum, each record with its weight."""
        for name, part in sums(tape, weights, norms, self._wide):
            if name in self._sums:
                self._sums[name].add_(part)
            elif name in self.parameters:
                self._sums[name] = part.to(self._dtype).contiguous()

    def _limits(self, units: Tensor, norms: Tensor) -> Tensor:
        """How much each unit may contribute to this step."""
        limits = self.clip_norms[units]
        return limits if self.following is None else self.following.limits(units, limits, norms)

    def release(self) -> None:
        """Count the step, then put the noisy gradient where the optimizer looks for it."""
        self.require_step()
        step = self.steps_taken + 1
        if self.journal is not None:
            self.journal.count(step)  # before anything is released, and never rolled back (rule 10)
        self.steps_taken = step
        if self.following is not None:
            self.following.charge()
        self._left_out += self._left_now
        total, flat = pieces(self._taken(), self.device)
        source = self.source.for_step(step) if self.processes.first else None  # noise once in total
        for piece in flat:
            self.noise.to_grid(piece, source)
        self.processes.total(flat)
        torch._foreach_mul_(flat, self.noise.step / self.plan.batch_size)  # by a public constant (rule 2)
        for name, parameter in self.parameters.items():
            parameter.grad = total[name].to(parameter.dtype)

    def _taken(self) -> dict[str, Tensor]:
        """The step's sums, to be changed and handed on; the next step starts from nothing."""
        if self._static:
            total = dict(zip(self._sums, torch._foreach_add(list(self._sums.values()), 0.0), strict=True))
        else:
            # What nobody contributed to gets noise like everything else.
            total = {name: self._sums[name] if name in self._sums else self._zeros(name) for name in self.parameters}
        self.clear()
        return total

    def state_dict(self) -> dict[str, Any]:
        """Where the run is. No generator has a state to save: a seeded one follows from seed and step (rule 10)."""
        seed = self.source.seed if isinstance(self.source, SeededRandomness) else None
        followed = None if self.following is None else self.following.state()
        return {"steps_taken": self.steps_taken, "plan": self._digest, "seed": seed, "individual": followed}

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
        followed = state.get("individual")
        if (followed is None) != (self.following is None):
            how = "without" if followed is None else "with"
            raise InvalidInput(f"the checkpoint was made {how} individual accounting; go on as it began")
        saved = int(state["steps_taken"])
        if self.following is not None and followed is not None:
            self.following.restore(followed)  # or raise, before anything is changed
        self.clear()
        self.steps_taken = max(saved, self.steps_taken) if self._secure else saved
        if self.following is not None and self._secure:
            self.following.resumed(saved, self.steps_taken)

    def close(self) -> None:
        """Write the exact number of steps into the journal and let go of it. No step can be taken after that."""
        self._closed = True
        if self.journal is not None:
            self.journal.close()
            self.journal = None


def _held(recorder: Recorder, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """The parameters that the optimizer trains, by name."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Unsupported(
            f"optimizer is a {type(optimizer).__name__}, which runs the model several times for one step, and each "
            "time would be a release of its own; use one that takes a step from one gradient, such as SGD or Adam"
        )
    meta = [name for name, value in recorder.model.named_parameters() if value.is_meta]
    if meta:
        raise Unsupported(
            f"{meta[0]} lies on the meta device and has no values; put the model on a real one first: "
            'model.to_empty(device="cpu") and its own initialisation, or load it without device="meta"'
        )
    if not recorder.layers:
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
