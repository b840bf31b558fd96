"""The public constants of training: steps, divisor, reference clip norm and noise."""

from __future__ import annotations

from dataclasses import dataclass, replace

from privypurse._validate import integer, real
from privypurse.accounting import Composed, Release, SampledGaussian
from privypurse.budgets.budgets import LARGEST as LARGEST_EPSILON
from privypurse.budgets.budgets import SMALLEST as SMALLEST_EPSILON
from privypurse.errors import InvalidInput
from privypurse.plans.stop_rules import Stop

SMALLEST = 1e-20
"""Clip norms and noise lie between this and its inverse: single precision holds their squares."""


@dataclass(frozen=True, kw_only=True)
class TrainingShape:
    """The public constants of training. With ``noise_multiplier`` None it is still to be solved.

    ``batch_size`` is the public divisor of every step, whoever was drawn; where σ is solved it is also the expected
    batch. Noise has the standard deviation ``noise_multiplier`` · ``clip_norm`` on each summed gradient.
    ``extra_steps`` may follow the ``steps`` that everyone takes, for those alone whose small gradients left something
    in their purse; ``stop`` may end them early. ``at_most`` is an ε that nobody exceeds, whatever they grant: with it
    an ε may be told that follows from nobody's budget. Under a ledger the cap is the ledger's.
    """

    steps: int
    batch_size: int
    clip_norm: float = 1.0
    noise_multiplier: float | None = None
    extra_steps: int = 0
    stop: Stop | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch_size", 1), ("extra_steps", 0)):
            object.__setattr__(self, name, integer(getattr(self, name), name, least=least))
        object.__setattr__(self, "clip_norm", real(self.clip_norm, "clip_norm", above=0))
        if self.noise_multiplier is not None:
            object.__setattr__(self, "noise_multiplier", real(self.noise_multiplier, "noise_multiplier", above=0))
        if self.at_most is not None:
            cap = real(self.at_most, "at_most", least=SMALLEST_EPSILON, most=LARGEST_EPSILON, hint="an ε")
            object.__setattr__(self, "at_most", cap)
        deviation = self.clip_norm * (self.noise_multiplier or 1.0)
        for name, value in (("clip_norm", self.clip_norm), ("clip_norm · noise_multiplier", deviation)):
            if not SMALLEST <= value <= 1 / SMALLEST:
                raise InvalidInput(
                    f"{name} is {value:g}; single precision holds it between {SMALLEST:g} and {1 / SMALLEST:g}"
                )
        if self.stop is not None and not isinstance(self.stop, Stop):
            raise InvalidInput(f"stop is {self.stop!r}; give a StopAtPlateau or a StopWhenFew, or leave it out")
        if self.stop is not None and not self.extra_steps:
            raise InvalidInput("stop= ends extra steps early; give extra_steps= too")

    def facing(self, step: SampledGaussian) -> Release:
        """What a person faces who takes these steps: the stopping rule's questions too, if they take part at all."""
        if self.stop is None or step.rate == 0 or step.count < self.steps:
            return step
        # Whoever is in every step is filtered in Gaussian DP, which has to hold fixed steps and questions together.
        return Composed((step, self.stop.gaussian if step.rate == 1 else self.stop.release))

    def with_noise(self, noise_multiplier: float) -> TrainingShape:
        """The same shape, with the noise multiplier solved."""
        return replace(self, noise_multiplier=noise_multiplier)
