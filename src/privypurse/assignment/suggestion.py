"""What `suggest` answers: numbers for a plan and an optimizer, with their reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from privypurse.assignment.method import Method
from privypurse.budgets.levels import Levels
from privypurse.plans import Promise, TrainingShape

_FOR_NUMBER = "The learning rate is one to begin with for a number: the rule is for classes and has no word here"
_OF_A_NUMBER = "The learning rate is for classes: for a number as target begin with lr = 0.1 and no momentum"
PUBLIC = "It follows from numbers that were given as public, and from nothing about anybody: it costs nothing."
INTERNAL = (
    "It follows from everybody's grants: internal, keep it as safe as the data. A plan by it promises `data`: each ε "
    "protects that person's data, given the list of budgets. So give it no noise multiplier, with which a plan would "
    "claim that nothing followed from others; or give people= and levels=, a public guess, instead."
)


@dataclass(frozen=True, eq=False)
class Suggestion:
    """Steps, batch, clip norm and step length for private training. ``str()`` says why.

    Guarantee: nobody's data was looked at. `promise` is the most that a plan by it may promise: DATA where it follows
    from the grants themselves, PRESENCE where all of it is a public guess and ``plan`` holds a noise multiplier.
    """

    shape: TrainingShape
    """With the noise multiplier that the plan will have, where the guess is right."""
    learning_rate: float
    """Of torch.optim.SGD with this momentum."""
    momentum: float
    walk: float
    """How far noise alone moves a weight in the whole training: one standard deviation."""
    signal: float
    """How far all people together can move a weight, in such deviations: about Σ μ of everybody."""
    method: Method
    levels: Levels
    parameters: int
    from_grants: bool
    fixed_noise: bool
    target: str = "classes"
    """What is learned: "classes", "number" or "flags"."""

    @property
    def steps(self) -> int:
        return self.shape.steps

    @property
    def batch_size(self) -> int:
        """Expected batch, and divisor of every step."""
        return self.shape.batch_size

    @property
    def clip_norm(self) -> float:
        return self.shape.clip_norm

    @property
    def noise_multiplier(self) -> float:
        """What the plan will have, where the guess is right."""
        assert self.shape.noise_multiplier is not None
        return self.shape.noise_multiplier

    @property
    def promise(self) -> Promise:
        """What a plan by it promises."""
        return Promise.PRESENCE if self.fixed_noise else Promise.DATA

    @property
    def plan(self) -> dict[str, Any]:
        """Arguments of `pp.plan`, beside the budgets. Grants that were looked at are remembered by the method."""
        named: Any = self.method if self.from_grants else self.method.name
        sizes = {"steps": self.steps, "batch_size": self.batch_size, "clip_norm": self.clip_norm}
        noise = {"noise_multiplier": self.noise_multiplier} if self.fixed_noise else {}
        return {"method": named, **sizes, **noise}

    @property
    def optimizer(self) -> dict[str, float]:
        """Arguments of torch.optim.SGD, beside the parameters."""
        return {"lr": self.learning_rate, "momentum": self.momentum}

    @property
    def epochs(self) -> float:
        """How often everybody is drawn on average."""
        return self.steps * self.batch_size / self.levels.total

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence for each choice."""
        spread = math.sqrt(self.parameters) * self.walk
        rate = self.batch_size / self.levels.total
        return (
            f"{self.steps:,} steps: with more the noise of each grows as fast as their number, and with fewer each "
            f"would be too long.",
            f"Batch {self.batch_size:,} ({rate:.2g} of {self.levels.total:,} people, {self.epochs:.3g} epochs): "
            "about the smallest at which sampling costs hardly any noise beside taking everybody in every step.",
            f"Clip norm {self.clip_norm:g}: what counts is its product with the learning rate.",
            f"Learning rate {self.learning_rate:g} with momentum {self.momentum:g}: at noise multiplier "
            f"{self.noise_multiplier:.3g} noise alone then moves each of {self.parameters:,} weights by "
            f"{self.walk:.2g} in the whole training, all of them together by {spread:.2g}.",
            f"{self._about_the_rate} (docs/suggest.md).",
        )

    @property
    def _about_the_rate(self) -> str:
        return _FOR_NUMBER if self.target == "number" else _OF_A_NUMBER

    @property
    def basis(self) -> str:
        """What it was made of, and what that means for the promise."""
        return INTERNAL if self.from_grants else PUBLIC

    def __str__(self) -> str:
        head = (
            f"{self.steps:,} steps, batch size {self.batch_size:,}, clip norm {self.clip_norm:g}, SGD with learning "
            f"rate {self.learning_rate:g} and momentum {self.momentum:g}, by method {self.method.name}."
        )
        return "\n".join([head, *self.reasons, self.basis])

    def toml(self) -> str:
        """The sections [plan] and [optimizer] of a configuration for `privypurse train`."""
        lines = [
            f"# {self.basis}",
            "[plan]",
            f'method = "{self.method.name}"',
            f"steps = {self.steps}",
            f"batch_size = {self.batch_size}",
            f"clip_norm = {self.clip_norm!r}",
        ]
        if self.fixed_noise:
            lines.append(f"noise_multiplier = {self.noise_multiplier!r}")
        rate = [f"# {self._about_the_rate}.", f"lr = {self.learning_rate!r}", f"momentum = {self.momentum!r}"]
        return "\n".join([*lines, "", "[optimizer]", 'name = "SGD"', *rate]) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        columns = ("epsilon", "delta", "people")
        rows = zip(*(getattr(self.levels, name).tolist() for name in columns), strict=True)
        return {
            "plan": {**self.plan, "method": self.method.name},
            "optimizer": {"name": "SGD", **self.optimizer},
            "noise_multiplier": self.noise_multiplier,
            "walk": self.walk,
            "signal": self.signal,
            "epochs": self.epochs,
            "parameters": self.parameters,
            "target": self.target,
            "people": self.levels.total,
            "levels": [dict(zip(columns, row, strict=True)) for row in rows],
            "from_grants": self.from_grants,
            "promise": str(self.promise),
            "reasons": list(self.reasons),
            "basis": self.basis,
        }
