"""What an accountant has no bound for is refused: a kind of release that is new to it is never charged as nothing."""

from dataclasses import dataclass

import pytest

from privypurse.accounting import GDP, PLD, RDP, Composed, Gaussian, PureDP, SampledGaussian, SampledRound
from privypurse.errors import Unsupported


@dataclass(frozen=True)
class Unheard:
    """Of no accountant."""

    count: int = 1


def beside_a_gaussian(other):
    """Both composed, past the check at birth: as if somebody had added the kind to the releases and no bound."""
    both = object.__new__(Composed)
    object.__setattr__(both, "releases", (Gaussian(2.0, 4), other))
    return both


@pytest.mark.parametrize("accountant", [RDP(), PLD(), GDP()])
@pytest.mark.parametrize("inside", [Unheard(), beside_a_gaussian(Unheard())])
def test_an_unknown_kind_is_refused_wherever_it_stands(accountant, inside):
    assert not accountant.supports(inside)
    with pytest.raises(Unsupported, match="no proven bound"):
        accountant.epsilons([inside], 1e-5)


@pytest.mark.parametrize("accountant", [RDP(), PLD()])
def test_the_kinds_that_are_known_are_not(accountant):
    known = Composed((Gaussian(2.0, 3), PureDP(0.1), SampledRound(0.5, SampledGaussian(0.1, 2.0, 3))))
    assert accountant.supports(known)


def test_what_is_not_gaussian_is_not_charged_as_nothing():
    whole, apart = Composed((Gaussian(2.0, 4), SampledGaussian(0.0, 1.0, 5))), Gaussian(1.0)
    assert GDP().epsilons([whole], 1e-5) == pytest.approx(GDP().epsilons([apart], 1e-5), rel=1e-9)
    for other in (PureDP(0.1), SampledGaussian(0.5, 1.0, 1), Unheard()):
        with pytest.raises(Unsupported):
            GDP().epsilons([beside_a_gaussian(other)], 1e-5)
