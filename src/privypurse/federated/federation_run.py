"""A federation trained in one process: the public setting, the rounds, and what became of every silo's people."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn

from privypurse.arrays import FloatArray
from privypurse.budgets import Budgets
from privypurse.errors import PrivyPurseWarning
from privypurse.federated import simulation
from privypurse.federated.client import Client
from privypurse.federated.parameters import State
from privypurse.federated.silos import Federation, accuracy
from privypurse.federated.terms import Offer, Terms
from privypurse.training.evaluation import losses
from privypurse.training.fingerprints import fingerprint


@dataclass(frozen=True)
class Setting:
    """How a federation is trained: public, and chosen without looking at budgets."""

    rounds: int
    local_steps: int
    client_rate: float
    delta: float
    batch_size: int
    learning_rate: float
    clip_norm: float
    records_per_client: float
    """About how many records a client has: a public guess, never a count. Noise that follows from how many there are
    would tell it, in terms that everybody may read (rule 6)."""
    reference: float = 1.0
    """The noise is such that a record with this ε would be drawn like everybody in ordinary training."""
    accountant: str = "pld"


SETTINGS = {
    "adult": Setting(15, 20, 1.0, 1e-5, 256, 1.0, 1.0, 8_000, 0.5),
    "heart": Setting(15, 10, 1.0, 1e-3, 20, 0.3, 1.0, 120, 0.5),
}


@dataclass(frozen=True)
class Purses:
    """Where every silo keeps a private ledger of its people, and what a training may take out of it."""

    folder: Path
    at_most: float | None = None
    """The public cap, an ε; None: all that is left."""
    purpose: str = ""


@dataclass(frozen=True, eq=False)
class Row:
    """One client at the end. All of it is the client's secret, unless it is simulated."""

    name: str
    joined: int
    granted: FloatArray
    spent: FloatArray
    """ε against the adversary of the terms, as is ``granted``."""
    accuracy: float
    rates: FloatArray
    """At which each record was drawn in a step of a round that was joined."""
    first_id: str | None = None
    """By which its ledger, if it has one, knows the owner of its first record; the others are numbered on."""

    @property
    def overdrawn(self) -> int:
        return int((self.spent > self.granted).sum())


@dataclass(frozen=True, eq=False)
class Trial:
    """One training."""

    terms: Terms
    accuracy: tuple[float, ...]
    """Of the global model on test records, after each round."""
    clients: tuple[Row, ...]
    state: State


def terms_of(
    setting: Setting,
    clients: int,
    *,
    adversary: str = "server",
    epsilon: float | None = None,
    purses: Purses | None = None,
) -> Terms:
    """Terms with the noise at which ``epsilon`` (default: the reference) buys the rate of ordinary training.

    With ``purses``, for life: of a purse of that ε, or of the training's public cap if that is less. Nobody's records
    come here, so that nothing in the terms follows from them.
    """
    fixed = asdict(setting)
    reference, records = fixed.pop("reference"), fixed.pop("records_per_client")
    terms = Terms(**fixed, noise_multiplier=1.0, clients=clients, adversary=adversary)  # its noise is to be solved
    if epsilon is None:
        epsilon = reference if purses is None or purses.at_most is None else min(reference, purses.at_most)
    rate = min(1.0, setting.batch_size / records)
    return terms.with_noise_for(epsilon, rate, for_life=purses is not None)


def run(
    federation: Federation,
    terms: Terms,
    granted: Sequence[FloatArray],
    *,
    seed: int = 0,
    purses: Purses | None = None,
    told: Callable[[int, float], None] = lambda number, accuracy: None,
) -> Trial:
    """Train once, all rounds, by everybody's ε, silo by silo. Seeded: for measuring, not for publishing.

    With ``purses`` people pay for life. ``told`` is called after each round, with its number and the test accuracy.
    """
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore", PrivyPurseWarning)
        offer, state = Offer.of(terms), simulation.new_state(federation.new_model, seed)
        clients = [
            client_of(
                federation, index, each, offer, Path(folder), seed=seed, adversary=terms.adversary, purses=purses
            )
            for index, each in enumerate(granted)
        ]
        course = []
        for held in simulation.rounds(terms, state, clients, seed=seed):
            state = held.state
            course.append(accuracy(simulation.load(federation.new_model(), state), federation.test))
            told(held.number, course[-1])
        rows, _ = ended(federation, clients, granted, state)
    return Trial(terms, tuple(course), rows, state)


def client_of(
    federation: Federation,
    index: int,
    granted: FloatArray,
    offer: Offer,
    folder: Path,
    *,
    seed: int | None,
    adversary: str,
    purses: Purses | None = None,
) -> Client:
    """One silo as a client, with its book in a folder of its own; ``granted`` holds against ``adversary``."""
    silo, delta = federation.silos[index], offer.terms.delta
    fixed = (federation.new_model, losses, offer, folder / str(index))
    own_seed = None if seed is None else 1000 * seed + index
    if purses is None:
        return Client(silo.train, Budgets(granted, delta=delta), *fixed, adversary=adversary, seed=own_seed)
    from privypurse.ledger.private import private_ledger, row_ids  # here: who has no ledger needs no database

    rows = row_ids(fingerprint(silo.train), len(silo))
    budgets = Budgets(granted, delta=delta, person=rows)
    ledger = private_ledger(
        purses.folder / silo.name, budgets, adversary=adversary, purpose=purses.purpose, by_row=True
    )
    return Client(
        silo.train,
        budgets,
        *fixed,
        person=rows,
        adversary=adversary,
        ledger=ledger,
        at_most=purses.at_most,
        purpose=purses.purpose,
        seed=own_seed,
    )


def ended(
    federation: Federation, clients: Sequence[Client], granted: Sequence[FloatArray], state: State
) -> tuple[tuple[Row, ...], nn.Module]:
    """What became of every client's records, whose owners granted that, and the model.

    Settles what is charged to ledgers, and lets go of the books.
    """
    model, rows = simulation.load(federation.new_model(), state), []
    for silo, client, each in zip(federation.silos, clients, granted, strict=True):
        account = client.spent()
        spent = account.against_server if client.offer.terms.adversary == "server" else account.against_public
        first_id = None
        if client.has_ledger:
            from privypurse.ledger.private import row_ids  # here: who has no ledger needs no database

            first_id = str(row_ids(fingerprint(silo.train), 1)[0])
            client.settle()
        found = accuracy(model, silo.train)
        rows.append(Row(silo.name, client.joined, each, spent, found, client.plan.rates, first_id))
        client.close()
    return tuple(rows), model
