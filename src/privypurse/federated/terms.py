"""Terms: everything that the server tells its clients before training, chosen without anybody's data or budgets."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from privypurse._storage import digest_of
from privypurse._validate import integer, one_of, real
from privypurse.accounting import CertifiedTable, ClientSampled, Progress, Release, SampledGaussian, accountant_named
from privypurse.arrays import FloatArray
from privypurse.errors import InvalidInput
from privypurse.ledger.lifetime import Lifetime
from privypurse.plans import TrainingShape

ADVERSARIES = ("server", "public")
_PER_DECADE = 100  # rates of the table: a neighbour costs at most 2.3 % of a rate
_LOWEST_RATE = 1e-7
LEAST_RATE = 1e-12
"""Of an offer: a table with smaller rates, or with more rows than `MOST_ROWS`, is refused whoever is asked."""
MOST_ROWS = 10_000
_LEAST_EPSILON = 0.01  # who grants less than the smallest rate costs takes no part
_RARELY = 0.05  # how often a client's coins may come to more rounds than it is willing to join


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The public constants of federated training (Liu et al. 2024, Algorithm 1).

    ``adversary`` is the trust model: whom everybody's ε holds against. "server": an honest-but-curious server, which
    sees who joined and every update; a client joins at most ``most_joined`` rounds, the cap, and each costs in full,
    so that the promise holds even if the server asks as it likes. "public": other clients and whoever sees the
    global models only, so that not knowing who joined amplifies; all rounds are paid for, joined or not (rule 8:
    client sampling). There each client flips its own coin for a round, once, however often the server asks.
    """

    rounds: int
    local_steps: int
    noise_multiplier: float
    batch_size: int
    """The public divisor of every local step."""
    learning_rate: float
    clients: int
    """How many there are: public, as is the weight 1 / (client_rate · clients) of each update."""
    client_rate: float = 1.0
    clip_norm: float = 1.0
    delta: float = 1e-5
    momentum: float = 0.0
    adversary: str = "server"
    most_joined: int | None = None
    """The cap on rounds that a client joins. Default: as many as the coins of 95 % of the clients come to at most."""
    accountant: str = "pld"
    answer_seconds: float = 0.0
    """On Flower a client answers no sooner than so long after it was asked, whatever the answer is: the time that an
    answer takes tells how many records were drawn, unless it is less than this."""

    def __post_init__(self) -> None:
        for name in ("rounds", "local_steps", "batch_size", "clients"):
            object.__setattr__(self, name, integer(getattr(self, name), name))
        for name in ("noise_multiplier", "learning_rate", "clip_norm"):
            real(getattr(self, name), name, above=0)
        TrainingShape(  # what single precision cannot hold is refused there
            steps=1, batch_size=1, clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier
        )
        real(self.delta, "delta", above=0, below=1)
        real(self.client_rate, "client_rate", above=0, most=1)
        real(self.momentum, "momentum", least=0, below=1)
        real(self.answer_seconds, "answer_seconds", least=0, below=86_400)
        one_of(self.adversary, "adversary", ADVERSARIES)
        accountant_named(self.accountant)
        most = self.most_joined
        if most is None:
            most = max(1, int(scipy.stats.binom.ppf(1 - _RARELY, self.rounds, self.client_rate)))
        hint = "a client cannot join more rounds than there are"
        object.__setattr__(self, "most_joined", integer(most, "most_joined", most=self.rounds, hint=hint))

    def with_noise_for(self, epsilon: float, rate: float, *, for_life: bool = False) -> Terms:
        """These terms with the least noise at which a record that grants ``epsilon`` may be drawn at ``rate``.

        With ``for_life``, at which a purse of that ε in a client's ledger pays for it, at its order for life: more
        noise than the terms' accountant asks for. Choose the smallest ε whose owners are to take part.

        A way to choose the noise without looking at budgets: what would a record with a public reference ε, such as
        1, have to be worth? At the rate of ordinary training, batch size / records of a client, everybody with that ε
        trains as usual; who grants less is drawn less often, who grants more, more often.
        """
        real(epsilon, "epsilon", above=0)
        real(rate, "rate", above=0, most=1)

        def excess(log_noise: float) -> float:
            tried = replace(self, noise_multiplier=float(np.exp(log_noise)))
            if for_life:
                return tried.share_of_purse(epsilon, rate) - 1
            return float(tried.certified(np.array([rate]))[0]) - epsilon

        low, high = -3.0, 8.0
        if excess(high) > 0 or excess(low) < 0:
            raise InvalidInput(
                f"no noise multiplier from {math.exp(low):.2g} to {math.exp(high):.2g} makes rate {rate:g} cost "
                f"ε = {epsilon:g} at δ = {self.delta:g} over these rounds"
            )
        solved = scipy.optimize.brentq(excess, low, high, xtol=1e-4) + 2e-4
        return replace(self, noise_multiplier=float(np.exp(solved)))

    def share_of_purse(self, epsilon: float, rate: float) -> float:
        """How much of a purse (ε, δ) for life, with the δ of these terms, a record drawn at ``rate`` takes."""
        purse = Lifetime.of([(epsilon, self.delta)])
        against = [self.joined(rate, self.cap)]
        if self.adversary == "public":
            against.append(self.seen(rate, self.rounds))
        return float(purse.charges_of(against).min()) / purse.rungs[0].limit

    @property
    def cap(self) -> int:
        assert self.most_joined is not None
        return self.most_joined

    def joined(self, rate: float, rounds: int) -> Release:
        """What a record faces from the server whose client really joined so many rounds."""
        return SampledGaussian(rate, self.noise_multiplier, self.local_steps * rounds)

    def seen(self, rate: float, rounds: int) -> Release:
        """What it faces from those who cannot see who joined, after so many rounds, joined or not."""
        once = SampledGaussian(rate, self.noise_multiplier, self.local_steps)
        return ClientSampled(self.client_rate, once, rounds) if rate > 0 else once

    def faced(self, rate: float) -> Release:
        """The whole of what a record's ε has to cover."""
        return self.joined(rate, self.cap) if self.adversary == "server" else self.seen(rate, self.rounds)

    def certified(self, rates: FloatArray, progress: Progress | None = None) -> FloatArray:
        """The ε of each rate.

        Against the public the smaller of two: the cap on joined rounds holds against everybody.
        """
        each, accountant = np.asarray(rates, dtype=np.float64).tolist(), accountant_named(self.accountant)
        capped = accountant.epsilons([self.joined(rate, self.cap) for rate in each], self.delta, progress)
        if self.adversary == "server":
            return capped
        seen = accountant.epsilons([self.seen(rate, self.rounds) for rate in each], self.delta, progress)
        return np.minimum(capped, seen)

    def table(self, progress: Progress | None = None) -> CertifiedTable:
        """rate(ε): computed by the server, without any personal data, and broadcast.

        From rate 1 down, until a rate costs next to nothing. Nothing between its points is believed (rule 4:
        rounding).
        """
        rates, costs = np.ones(1), self.certified(np.ones(1))
        while costs[-1] > _LEAST_EPSILON and rates[-1] > _LOWEST_RATE:
            lower = rates[-1] * np.power(10.0, -np.arange(1, _PER_DECADE // 2 + 1) / _PER_DECADE)
            rates = np.concatenate([rates, lower])
            costs = np.concatenate([costs, self.certified(lower, progress)])
        return CertifiedTable(rates, costs)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Terms:
        try:
            return cls(**content)
        except TypeError as error:
            raise InvalidInput(f"these are no terms: {error}") from None


@dataclass(frozen=True, eq=False)
class Offer:
    """What the server broadcasts: the terms and the table of rates."""

    terms: Terms
    table: CertifiedTable = field(repr=False)

    def __post_init__(self) -> None:
        least, rows = float(self.table.parameter[0]), self.table.parameter.size
        if least < LEAST_RATE:
            raise InvalidInput(f"the table has a rate of {least:g}; the least that is accepted is {LEAST_RATE:g}")
        if rows > MOST_ROWS:
            raise InvalidInput(f"the table has {rows:,} rates; at most {MOST_ROWS:,} are accepted")

    @classmethod
    def of(cls, terms: Terms, progress: Progress | None = None) -> Offer:
        return cls(terms, terms.table(progress))

    @property
    def digest(self) -> str:
        """A fingerprint: a client's book belongs to one offer, terms and table."""
        return digest_of(self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Offer:
        """From a file: a client keeps its offer as offer.json in its folder."""
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{path} holds no offer: {error}") from None

    def to_json(self) -> dict[str, Any]:
        return {
            "terms": self.terms.to_json(),
            "rate": self.table.parameter.tolist(),
            "epsilon": self.table.epsilon.tolist(),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Offer:
        try:
            table = CertifiedTable(np.array(content["rate"]), np.array(content["epsilon"]))
            return cls(Terms.from_json(content["terms"]), table)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"this is no offer: {error!r}") from None
