"""Releases → spent. NumPy and SciPy only; knows nothing of models, plans or training."""

from privypurse._validate import one_of
from privypurse.accounting.accountant import Accountant, Progress
from privypurse.accounting.filters import Filter, RenyiCurrency
from privypurse.accounting.gdp import GDP
from privypurse.accounting.inverse import CertifiedTable
from privypurse.accounting.odometer import Odometer
from privypurse.accounting.pld import PLD
from privypurse.accounting.rdp import RDP
from privypurse.accounting.releases import (
    ClientSampled,
    Composed,
    Gaussian,
    PureDP,
    Release,
    SampledGaussian,
    SampledRound,
)

_BY_NAME: dict[str, Accountant] = {accountant.name: accountant for accountant in (PLD(), RDP())}


def accountant_named(name: str) -> Accountant:
    """The accountant that a plan names: "pld" or "rdp"."""
    one_of(name, "accountant", _BY_NAME)
    return _BY_NAME[name]


__all__ = [
    "GDP",
    "PLD",
    "RDP",
    "Accountant",
    "CertifiedTable",
    "ClientSampled",
    "Composed",
    "Filter",
    "Gaussian",
    "Odometer",
    "Progress",
    "PureDP",
    "Release",
    "RenyiCurrency",
    "SampledGaussian",
    "SampledRound",
    "accountant_named",
]
