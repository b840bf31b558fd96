"""Families of curves that a run may have: the plan's own, with its noise scaled.

The f-DP reading asks which of them the scores refute. Places go from much noise to little, so that curves, and the ε
that goes with each, rise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from privypurse.accounting import PLD, Composed, Gaussian, SampledGaussian, gdp
from privypurse.accounting.releases import Release
from privypurse.accounting.trade_off import TradeOff
from privypurse.errors import Unsupported

PER_DOUBLING = 64
_MORE, _LESS = 5, 4  # doublings of the noise, and halvings
PLACES = (_MORE + _LESS) * PER_DOUBLING + 1


@dataclass(frozen=True, eq=False)
class Family:
    """Curves by noise scale, each made when it is asked for and remembered."""

    curve: Callable[[float], TradeOff]
    """For a noise scale: 1 is the claim itself."""
    epsilon: Callable[[float], float]
    """Its ε at the δ of the claim."""
    events: bool = True
    """Whether curves hold for every single event; else for guesses alone, right *in* and right *out* together."""
    _known: dict[int, tuple[TradeOff, float] | None] = field(default_factory=dict, init=False)

    def at(self, place: int) -> tuple[TradeOff, float] | None:
        """The curve and its ε; None where there is too little noise for arithmetic to prove anything."""
        if place not in self._known:
            scale = 2.0 ** (_MORE - place / PER_DOUBLING)
            try:
                self._known[place] = self.curve(scale), self.epsilon(scale)
            except Unsupported:
                self._known[place] = None
        return self._known[place]


def scaled_noise(release: Release, delta: float, *, events: bool = False) -> Family:
    """The same rates and steps, with another σ: for steps that are fixed beforehand.

    With ``events`` curves bound any test's two rates, whichever way round; without, guesses alone, and tighter.
    """
    curve = TradeOff.of_release if events else TradeOff.of_guesses

    def epsilon(scale: float) -> float:
        return float(PLD().epsilons([_scaled(release, scale)], delta)[0])

    return Family(lambda scale: curve(_scaled(release, scale)), epsilon, events)


def _scaled(release: Release, scale: float) -> Release:
    match release:
        case SampledGaussian(rate, noise_multiplier, count):
            return SampledGaussian(rate, noise_multiplier * scale, count)
        case Gaussian(noise_multiplier, count):
            return Gaussian(noise_multiplier * scale, count)
        case Composed(releases):
            return Composed(tuple(_scaled(part, scale) for part in releases))
    raise Unsupported(f"{release} has no noise to scale; audit its (ε, δ) instead")


def scaled_gaussian(mu: float, delta: float) -> Family:
    """G_μ with μ scaled: for runs under a filter of Gaussian DP."""
    return Family(lambda scale: TradeOff.gaussian(mu / scale), lambda scale: float(gdp.epsilon(mu / scale, delta)))


def scaled_epsilon(epsilon: float, delta: float) -> Family:
    """(ε, δ) with ε scaled: all that is known of a run under any other filter."""
    return Family(lambda scale: TradeOff.approximate(epsilon / scale, delta), lambda scale: epsilon / scale)
