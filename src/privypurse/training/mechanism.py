"""The mechanism: clip, sum, add noise, divide; and every step is counted before it is released."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from privypurse.arrays import FloatArray
from privypurse.errors import InvalidInput, PlanExhausted
from privypurse.randomness import SeededRandomness
from privypurse.training.gradients import Tape, clip_factors, norms, sums
from privypurse.training.gradients.check_model import require_true_gradients
from privypurse.training.grid_noise import pieces
from privypurse.training.individual.accounting import Accounting
from privypurse.training.journal import Journal
from privypurse.training.ledger_account import Account, require_journal
from privypurse.training.model_inputs import Given
from privypurse.training.setup import Setup

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger


class PrivateRun:
    """The plan at work on one model. The ordinary loop and the fast path both go through here, and nothing else does.

    Guarantee: what ``release`` hands out is the sum of what ``add`` was given, each privacy unit clipped to its clip
    norm, plus noise of noise_multiplier · clip_norm on a public grid, divided by the public batch size. The step is
    counted first, and a run that is closed in the middle of a step is closed after it: what is charged, and what the
    journal says, covers it.
    """

    def __init__(
        self,
        setup: Setup,
        accounting: Accounting | None = None,
        journal: str | Path | None = None,
        wide_sums: bool = False,
    ) -> None:
        """``accounting`` charges everyone by their own gradients, and limits what they contribute.

        With ``wide_sums`` records are added up in float64, whatever the model computes in. The rounding of a float32
        sum depends on all that is in it: leaving one record out can shift it by n² · 6e-8 clip norms, for n records
        made for it (Casacuberta et al. 2022). In float64 that is n² · 1e-16.
        """
        self.setup, self.accounting, self._wide = setup, accounting, wide_sums
        self.plan, self.device, self.processes, self.keys = setup.plan, setup.device, setup.processes, setup.keys
        self.recorder, self.parameters, self.source = setup.recorder, setup.parameters, setup.source
        # Several processes' sums have to stay on the noise's grid until they are one, which takes float64.
        wide = wide_sums or self.processes.size > 1
        wide |= any(parameter.dtype == torch.float64 for parameter in self.parameters.values())
        self._dtype = torch.float64 if wide else torch.float32
        self._sums: dict[str, Tensor] = {}
        self._static = False
        self._left_now, self._left_out = torch.zeros((2,), dtype=torch.int64, device=self.device)
        self._digest = self.plan.digest()
        self._closed, self._process, self._compared = False, os.getpid(), False
        self._one_at_a_time, self._under_way = threading.RLock(), 0
        if self.processes.same(self._digest) != self._digest:
            raise InvalidInput("the processes have different plans; give all of them the same")
        self.journal: Journal | None = None
        if journal is not None and self.processes.first:
            require_journal(Path(journal))
            self.journal = Journal(journal, self._digest, self.plan.all_steps)
        self.steps_taken = self.processes.same(self.journal.counted if self.journal and self.source.secure else 0)
        if accounting is not None and self.steps_taken:
            accounting.resumed(0, self.steps_taken)
        self.account: Account | None = None
        self._journal_path = None if journal is None else Path(journal)
        own = secrets.token_hex(16) if self.journal is None else self.journal.run
        self.name, self._released = self.processes.same(own), False
        """By which a saved state is known as this run's; of one with a journal it lasts."""
        self._went_on_from = "", 0  # the name of another run, and how many of its steps are in this one's account

    def charge_to(self, ledger: Ledger | Account | None, purpose: str) -> None:
        """Reserve all steps: from now on only those contribute who could pay, and stand by their grant.

        Steps that the ledger has handed out before stay taken, also where an older copy of the journal counts fewer.
        """
        if ledger is None:
            return
        with self._let_go_if_refused():
            self._charge_to(ledger, purpose)

    @contextmanager
    def _let_go_if_refused(self) -> Iterator[None]:
        """Nobody else could close a run that was refused, and whoever settles it has to hold its journal."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _charge_to(self, ledger: Ledger | Account, purpose: str) -> None:
        if not isinstance(ledger, Account):
            counted = self.steps_taken if self.source.secure else None  # a seeded run takes its steps again
            ledger = Account(ledger, self.plan, self.processes, self._journal_path, purpose, counted)
        self.account = ledger
        if self.accounting is not None and self.plan.filter is not None:
            ledger.hold(self.accounting)
        self._leave_out(ledger)
        before, self.steps_taken = self.steps_taken, max(self.steps_taken, ledger.begun)
        if self.accounting is not None and self.steps_taken > before:
            self.accounting.resumed(before, self.steps_taken)

    def require_open(self) -> None:
        """Raise if the run is settled in its ledger, and has steps left."""
        if self.account is not None:
            with self._let_go_if_refused():
                self.account.require_open(self.steps_left)

    def _leave_out(self, account: Account) -> None:
        taking_part = torch.as_tensor(np.append(account.takes_part, False), device=self.device)
        self.setup.clip_norms.mul_(taking_part)  # in place, as a captured graph needs it
        if self.accounting is not None:
            self.accounting.leave_out(account.takes_part)

    @property
    def rates(self) -> FloatArray:
        """Of every unit, in the next step."""
        rates = self.plan.levels.rate[self.plan.level_of]
        return rates if self.account is None else np.where(self.account.takes_part, rates, 0.0)

    def prepare(self) -> bool:
        """Before each step, with the model that the last one left: norm passes that are due. False: stop here."""
        with self._undisturbed():
            if self.account is not None and self.account.poll(self.steps_taken):
                self._leave_out(self.account)
            if self.accounting is None:
                return True
            self._require_own()  # a stopping rule may release answers: they are as much the run's own as steps are
            return self.accounting.prepare(self.steps_taken)

    def finish(self) -> None:
        """No further step will be taken."""
        with self._undisturbed():
            if self.accounting is not None:
                self.accounting.stopping.finish()
            self._settle()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """What is inside is done whole: `close` waits for it, or, called by a signal handler, comes at its end."""
        with self._one_at_a_time:
            self._under_way += 1
            try:
                yield
            finally:
                self._under_way -= 1
                if self._closed and not self._under_way:
                    self._let_go()

    def _settle(self) -> None:
        if self.account is not None:
            self.account.settle(self.steps_taken, None if self.accounting is None else self.accounting.spending())

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
            where = self._journal_path
            counted = "" if where is None else f". They are counted in {where}, with those of a run before this one"
            raise PlanExhausted(
                f"all {self.plan.all_steps:,} steps of the plan are taken; one more would overdraw budgets. One pass "
                f"over the loader is the whole run: there is no loop over epochs around it{counted}"
            )

    def require_true_gradients(self, given: Given, records: int, constants: frozenset[int] = frozenset()) -> None:
        """Once, before the first step: compare what a step adds up with autograd, on records made up in this form."""
        if not self._compared:
            require_true_gradients(self.recorder, given, records, constants)
        self._compared = True

    def clear(self) -> None:
        """Forget what was added since the last release: it belongs to no step."""
        if self._static:
            torch._foreach_zero_(list(self._sums.values()))
        else:
            self._sums = {}
        self._left_now.zero_()
        if self.accounting is not None:
            self.accounting.forget()

    def stay_in_place(self) -> None:
        """From now on sums keep their addresses, as a captured graph needs them to."""
        self._static = True
        self._sums = {name: self._zeros(name) for name in self.parameters}

    def _zeros(self, name: str) -> Tensor:
        return torch.zeros(self.parameters[name].shape, dtype=self._dtype, device=self.device)

    def add(self, tape: Tape, units: Tensor, owner: Tensor | None = None) -> None:
        """Clip what is on the tape and add it to the step's sum.

        ``units`` are the numbers of the units whose records these are, one for each record or, where ``owner`` says
        at which place of ``units`` each record's unit stands, one for each unit; ``plan.people`` is nobody.
        """
        self.gather(tape, *self.weights(tape, units, owner))

    def weights(self, tape: Tape, units: Tensor, owner: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What each record on the tape is multiplied with, and its unit's norm. Nothing is added yet."""
        found = norms(tape, owner, units.shape[0])
        self._left_now += (~torch.isfinite(found) & (units != self.plan.people)).sum()
        limits = self.setup.clip_norms[units]
        if self.accounting is not None:
            limits = torch.minimum(self.accounting.limits(units, limits, found), limits)
        factors = clip_factors(found, (limits - self.setup.noise.slack).clamp(min=0.0))
        return (factors, found) if owner is None else (factors[owner], found[owner])

    def gather(self, tape: Tape, weights: Tensor, norms: Tensor) -> None:
        """Add what is on the tape to the step's sum, each record with its weight."""
        for name, part in sums(tape, weights, norms, self._wide):
            if name in self._sums:
                self._sums[name].add_(part)
            elif name in self.parameters:
                self._sums[name] = part.to(self._dtype).contiguous()

    def release(self) -> None:
        """Count the step, then put the noisy gradient where the optimizer looks for it."""
        with self._undisturbed():
            self.require_step()
            self._release(self.steps_taken + 1)

    def _release(self, step: int) -> None:
        if self.account is not None:
            self.account.count(step)
        if self.journal is not None:
            self.journal.count(step)  # before anything is released, and never rolled back (rule 10)
        self.steps_taken, self._released = step, True
        if self.accounting is not None:
            self.accounting.charge(step)
        self._left_out += self._left_now
        total, flat = self._taken()
        source = self.source.for_step(step) if self.processes.first else None  # noise once in total
        noise = self.setup.noise
        for piece in flat:
            noise.to_grid(piece, source)
        self.processes.total(flat)
        torch._foreach_mul_(flat, noise.step / self.plan.batch_size)  # by a public constant (rule 2)
        for name, parameter in self.parameters.items():
            parameter.grad = total[name].to(parameter.dtype)

    def _taken(self) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The step's sums, to be changed and handed on, and in pieces; the next step starts from nothing."""
        # What nobody contributed to gets noise like everything else.
        total = {name: self._sums[name] if name in self._sums else self._zeros(name) for name in self.parameters}
        taken = pieces(total, self.device, copies=self._static)
        self.clear()
        return taken

    @property
    def _seed(self) -> int | None:
        return self.source.seed if isinstance(self.source, SeededRandomness) else None

    def state_dict(self) -> dict[str, Any]:
        """Where the run is. No generator has a state to save: a seeded one follows from seed and step (rule 10)."""
        individual = None if self.accounting is None else self.accounting.state()
        where = {"steps_taken": self.steps_taken, "plan": self._digest, "seed": self._seed}
        return {**where, "run": self.name, "individual": individual}

    def load_state_dict(self, state: dict[str, Any], answers_saved: bool = False) -> None:
        """Go on from a saved state; ``answers_saved`` says that it was saved after each answer of a stopping rule.

        A seeded run goes back to it: its steps repeat the same numbers. Without a seed, steps that were counted since
        then stay counted, and are missing from what is left.
        """
        if state["plan"] != self._digest:
            raise InvalidInput("the checkpoint was made with another plan; a run keeps the plan it began with")
        if state["seed"] != self._seed:
            raise InvalidInput(
                f"the checkpoint was made with seed={state['seed']}; make the run with the same to go on"
            )
        individual = state.get("individual")
        if (individual is None) != (self.accounting is None):
            how = "without" if individual is None else "with"
            raise InvalidInput(f"the checkpoint was made {how} individual accounting; go on as it began")
        saved = int(state["steps_taken"])
        if self.accounting is not None:
            self.accounting.require_same(individual)
            self._require_same_run(state.get("run", ""), saved)
            self.accounting.restore(individual)  # or raise, before anything is changed
        self.clear()
        self.steps_taken = max(saved, self.steps_taken) if self.source.secure else saved
        if self.accounting is not None and self.source.secure:
            self.accounting.resumed(saved, self.steps_taken, answers_saved)

    def _require_same_run(self, name: str, saved: int) -> None:
        """Raise if what people spent in this run would be replaced by what they spent in another one."""
        before, steps = self._went_on_from
        if not self.source.secure or name == self.name:
            return
        if not self._released and (self._journal_path is None or not self.steps_taken):
            self._went_on_from = name, saved
        elif name != before or saved > steps:
            raise InvalidInput(
                "the checkpoint is of another run with this plan, and what people spent in this one, which has taken "
                f"{self.steps_taken:,} steps, is not in it; load it before the first step, in a run of its own"
            )

    def close(self) -> None:
        """Write the exact number of steps into the journal and let go of it. No step can be taken after that.

        In a ledger the steps taken are charged; a run that its journal may go on from keeps its reservation. A step
        that is under way, in another thread or below a signal handler, is finished first, and counts.
        """
        if os.getpid() != self._process:  # a fork's: the run goes on where it was begun
            return
        self._closed = True  # before the lock: no other step begins
        with self._one_at_a_time:
            if not self._under_way:
                self._let_go()

    def _let_go(self) -> None:
        if self.journal is not None:
            self.journal.close()
            self.journal = None
        if self._journal_path is None or not self.steps_left:
            self._settle()
        elif self.account is not None:
            self.account.close()
