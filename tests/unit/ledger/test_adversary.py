"""Rule 8: what is saved by hiding who joined a round is saved against the public only."""

from __future__ import annotations

from pathlib import Path

import pytest

import privypurse as pp
from privypurse.accounting import ClientSampled, Composed, Gaussian, SampledGaussian, SampledRound

JOINED = ClientSampled(0.1, Gaussian(2.0), 50)
HIDDEN = [
    JOINED,
    Composed((Gaussian(9.0), JOINED)),
    SampledRound(0.5, JOINED),
    ClientSampled(0.5, SampledRound(0.1, JOINED)),
]
SEEN = [
    Gaussian(2.0, 5),
    SampledGaussian(0.01, 1.0, 100),
    SampledRound(0.1, Gaussian(2.0), 3),
    pp.accounting.PureDP(0.1),
]


def test_against_the_server_joining_saves_nothing(ledger: pp.Ledger) -> None:
    assert ledger.adversary == "server"
    for release in HIDDEN:
        with pytest.raises(pp.InvalidInput, match="for each round joined"):
            ledger.charges_of([SEEN[0], release])
    assert (ledger.charges_of(SEEN) > 0).all()


def test_against_the_public_it_does(tmp_path: Path) -> None:
    ledger = pp.Ledger.create(f"sqlite:///{tmp_path}/p.db", [(1.0, 1e-5)], adversary="public", key=tmp_path / "key")
    every_round = ledger.charges_of([Gaussian(2.0, 50)])
    assert (ledger.charges_of([JOINED]) < every_round).all()  # what the twin would charge against the server
    assert (ledger.charges_of(HIDDEN) > 0).all()
