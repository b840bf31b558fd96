"""Around `make_private` in Trainers of others (Hugging Face, Lightning): what is refused, and what is told."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privypurse.errors import InvalidInput, PlanExhausted, PrivyPurseWarning, Unsupported
from privypurse.plans import Plan
from privypurse.training.callbacks import OTHERS, Figures, LocalLog
from privypurse.training.ledger_account import require_plan
from privypurse.training.validation import looks_at_members, require_measured

FIGURES = "figures.jsonl"
"""A file with internal figures, in the run's own folder."""

DRAWS = "a step draws people by the plan's rates"
LARGER = f"{DRAWS}; for larger steps make a plan with a larger batch_size"
CLIPPING = "what each person contributes is clipped by the plan: pp.plan(…, clip_norm=…); leave it out"
SCALER = "a GradScaler scales losses before they are clipped, and skips steps by what is in the data"
WHOLE = "norms need whole parameters and whole records on one device"
DIGEST = "checkpoints know the plan's digest, which is internal"
COMPILED = "layers are watched one by one, which a compiled model has no more"
_SAY = 'Where these records are public or released, say so: measured="public"'

Sound = Mapping[str, tuple[tuple[Any, ...], str]]
"""For each setting its sound values, and what to say of others."""


def refuse_values(settings: Any, sound: Sound) -> None:
    """Raise for the first setting that has none of its sound values, or has a new name."""
    for name, (values, why) in sound.items():
        value = getattr(settings, name, values[0])
        if value not in values:
            raise Unsupported(f"{name.lstrip('_')} is {value!r}: {why}")


def refuse_extra_steps(plan: Plan) -> None:
    """Raise for a plan whose end is decided on the way."""
    if plan.filter is not None:
        raise Unsupported("the plan has extra steps, for which norms are measured in between; use pp.train for it")


def refuse_training_data(asked: Any, training_data: Any) -> None:
    """Raise if figures are asked of records that are trained on."""
    if asked is not None and looks_at_members(asked, training_data):
        raise InvalidInput(
            "this is the training data: nobody pays for figures on their records (docs/soundness.md#measurement); "
            "measure the model on records of others, public or released. The model itself is released"
        )


def require_counted(checkpoint: str, steps: int, folder: Path | None, counted: int, mend: str) -> None:
    """Raise if a checkpoint has more steps than the run's folder counts, so that it is of another one; warn where it
    has fewer."""
    if steps > counted:
        raise InvalidInput(
            f"{checkpoint} is of {steps:,} steps, but {folder} counts {counted:,}: going on would take steps twice. "
            f"{mend}"
        )
    if steps < counted:
        warnings.warn(
            f"{checkpoint} is of {steps:,} steps and {folder} counts {counted:,}: those in between are lost with the "
            "run that took them, stay counted, and are not taken again",
            PrivyPurseWarning,
            stacklevel=3,
        )


def refuse_begun(folder: Path, taken: int, left: int, go_on: str, anew: str) -> None:
    """Raise if a model is to begin where all steps of the plan are counted; warn where some are."""
    if not taken:
        return
    begins = f"To begin anew, which costs everybody as much once more: {anew}"
    if not left:
        raise PlanExhausted(f"all {taken:,} steps of this plan are counted in {folder}, and none is left. {begins}")
    warnings.warn(
        f"{taken:,} steps of this plan are counted in {folder} and stay counted; {left:,} are left for this model, "
        f"which begins from where it is. To go on from a checkpoint: {go_on}. {begins}",
        PrivyPurseWarning,
        stacklevel=3,
    )


class Told:
    """What of a run is told to others, and the file, if any, that holds the rest (rule 6)."""

    def __init__(self, plan: Plan, seed: int | None, measured: str, file: Path | None) -> None:
        """``measured`` says whose records the Trainer validates on (`Validation.measured`)."""
        require_plan(plan)
        require_measured(measured, of_records=True)
        self.epsilon = None if seed is not None else plan.public_epsilon  # a seeded run promises nothing
        self.hides = measured == OTHERS
        self.internal = file is not None
        self._steps, self._log = plan.all_steps, None if file is None else LocalLog(file, internal=True)
        self._said = False

    def keep(
        self, step: int, rate: float, of_training: Mapping[str, float], on_people: Mapping[str, float] | None = None
    ) -> None:
        """Write figures into the local file: of records drawn, and on people who are not charged."""
        if self._log is not None:
            whose = None if on_people is None else OTHERS
            figures = Figures(step, self._steps, self.epsilon, rate, on_people or {}, whose)
            self._log.on_internal(figures, of_training)

    def say_hidden(self, others: str) -> None:
        """Warn, once, that figures on people stay where they are; ``others`` says where else they may be had."""
        if self.hides and not self.internal and not self._said:
            self._said = True
            warnings.warn(
                "what validation finds is not private for the people whom it looks at, so logs, checkpoints and "
                "callbacks are not told; internal=True keeps it in a local file, and "
                f"{others} gives it to you. {_SAY}",
                PrivyPurseWarning,
                stacklevel=3,
            )

    def refuse_choice(self, name: str, value: str) -> None:
        """Raise if something is to be chosen by figures that are hidden: the choice would tell them."""
        if self.hides:
            raise InvalidInput(
                f"{name} is {value!r}: what is chosen by figures on people who are not charged tells about them "
                f"(docs/soundness.md#measurement). {_SAY}"
            )
