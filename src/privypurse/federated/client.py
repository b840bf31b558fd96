"""A client: looks up its records' rates, trains on them, answers with a noisy update, and keeps the account."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn
from torch.utils.data import Dataset

from privypurse._storage import digest_of_arrays
from privypurse._totals import say_not_kept
from privypurse._validate import is_integer, one_of
from privypurse.accounting import Release, accountant_named
from privypurse.arrays import AnyArray, FloatArray, frozen
from privypurse.budgets import Budgets
from privypurse.errors import InvalidInput, PrivyPurseError, PrivyPurseWarning, Unsupported
from privypurse.federated.book import Book
from privypurse.federated.ledger_account import LedgerAccount, require_ledger
from privypurse.federated.local_training import require_trainable, round_plan, sgd
from privypurse.federated.parameters import Update, put, state_of, trained_in
from privypurse.federated.rows import Rows, whose_records
from privypurse.federated.terms import ADVERSARIES, Offer, Terms
from privypurse.plans import Plan
from privypurse.randomness import randomness
from privypurse.training.isolation.loss_fn import Loss
from privypurse.training.loop import train
from privypurse.version import __version__

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger


class Declined(PrivyPurseError):
    """The client does not join: its coin keeps it out, or all rounds that it may join are spent."""


@dataclass(frozen=True, eq=False)
class Account:
    """What each record spent so far: sensitive, for its owner's eyes only."""

    against_server: FloatArray
    """For each record: every round that its client joined, in full."""
    against_public: FloatArray
    """For each record: every round that is known to have been held, joined or not, amplified by not knowing which;
    never more than as many rounds as may be joined cost in full. Under terms against the server, whose own coins say
    who is asked, it is right for a server that held each round once."""


class Client:
    """One client: its records, their owners' budgets, and its book.

    Trust model: the people trust their client; the server is curious, and may ask whatever it likes. Guarantee:
    however often it asks, no record's ε is overdrawn against the adversary of the terms: each rate is certified again
    here for all rounds that may be joined, a record that could not afford them sits out, and beyond this cap the
    client declines. Against the public it also declines where its own coin says so: there is one for each round, with
    the rate of the terms, flipped once and kept in the book (rule 8: client sampling). Budgets, rates and accounts
    never leave this object; an answer is the noisy update alone. A record that cannot be read, or is not like the
    example, pays and contributes nothing (with whole numbers as inputs, what a record of zeros would).
    """

    offer: Offer
    """What the server offered: public."""
    plan: Plan
    """What one round does with the records here. It never leaves the client."""

    def __init__(
        self,
        dataset: Dataset[Any],
        budgets: Budgets,
        new_model: Callable[[], nn.Module],
        loss_fn: Loss,
        offer: Offer,
        folder: str | Path,
        *,
        person: Any = None,
        example: Any = None,
        adversary: str = "server",
        ledger: Ledger | None = None,
        at_most: float | None = None,
        purpose: str = "",
        seed: int | None = None,
    ) -> None:
        """``person`` holds the id of each record's owner, in the order of ``dataset``, where budgets have ids: they
        are then matched by id, and their people's rows may change, come and go. Rows of somebody who is not in the
        budgets are left out, which is logged here: a client that fails would tell the server.

        ``example`` is a made-up record, (input, label), for data sets other than a TensorDataset: it says what a
        record is like, and one that is not is left blank. No record may say that, for it would decide about others.
        ``adversary`` is whom the people here were told that their ε holds against; terms that keep it against the
        public alone are refused unless it says "public".

        With ``ledger`` all rounds of the terms are reserved there, for life, before the first one: nobody is drawn
        more often than their balance pays for. ``at_most`` is the public cap in that ledger, an ε (None: all that is
        left). `settle` gives back rounds that were never begun.

        What cannot train is refused here, before anything is paid for: made-up records of the same shape are tried on
        a new model. Who grants a smaller δ than the terms sits out. ``folder`` keeps the offer, for later readings.
        """
        _refuse_unfit(dataset, new_model, offer, adversary)
        if ledger is not None:
            require_ledger(ledger, offer, budgets, at_most)
        else:
            _refuse_words_of_ledgers(at_most, purpose)
            say_not_kept(seed)
        self._new_model, self._loss_fn, self.offer = new_model, loss_fn, offer
        self._seed, self._one_at_a_time = seed, threading.Lock()
        self._rows = Rows.of(dataset, budgets, person, example)
        require_trainable(self._rows.records, new_model, loss_fn, offer.terms)
        # Then the book: whoever could try terms after terms would find out what people here grant.
        self._book = Book(Path(folder), offer.digest, whose_records(dataset, budgets))
        try:
            self._book.keep_offer(offer.to_json())
            self._book.account(None if ledger is None else ledger.id)
            self.plan, self._account = _local_plan(budgets, self._rows.owner, offer, self._book, at_most), None
            self._warn_of_nobody()
            if ledger is not None:
                whose = (ledger, offer, budgets, _rates(self.plan))
                self._account = LedgerAccount(*whose, book=self._book, at_most=at_most, purpose=purpose)
                self.plan = _with_rates(self.plan, self._account.rates)
        except BaseException:
            self._book.close()
            raise

    def _warn_of_nobody(self) -> None:
        """Here alone, and by what people granted alone: to the server a round of noise looks like any other."""
        if not self._rows.nobody and self.sitting_out == self.plan.people:
            warnings.warn(
                f"Nobody here takes part: no ε fits the terms' smallest rate, or every δ is below theirs "
                f"({self.offer.terms.delta:g}). Rounds are answered with noise alone, which the server cannot tell",
                PrivyPurseWarning,
                stacklevel=3,
            )

    @property
    def joined(self) -> int:
        """How many rounds were begun and paid for."""
        return self._book.joined

    @property
    def has_ledger(self) -> bool:
        """Whether people pay from purses that last."""
        return self._account is not None

    @property
    def sitting_out(self) -> int:
        """How many people take no part: not even the smallest rate fits their ε, or they grant a δ below that of the
        terms. Sensitive."""
        return int((self.plan.levels.rate[self.plan.level_of] == 0).sum())

    def answer(self, number: int, state: Mapping[str, AnyArray]) -> Update:
        """Train from the global parameters and give the noisy difference; the same for the same round.

        Against the public a coin of the client's own says whether it joins a round, with the rate of the terms. All
        coins are flipped, and in the book, before the first round is joined or declined: whoever asks again, or
        begins the whole training again, meets the same ones.

        ``number`` counts rounds from 1. The round is paid for before it begins, whether the answer arrives or not.
        Asked again with other parameters, an answered round is refused: its answer would not belong to them.
        """
        number, terms = self._round(number), self.offer.terms
        with self._one_at_a_time:
            model = self._new_model()
            before = put(state, trained_in(model))
            sent = digest_of_arrays(*(part for name in sorted(before) for part in (np.array(name), before[name])))
            if (kept := self._book.answer(number, sent)) is not None:
                return kept
            if self._account is not None and self._account.settled:
                raise Declined("the rounds of this client are settled in its ledger; it joins no more of them")
            begun = self._book.joined if self._account is None else self._account.begun()
            if begun >= terms.cap:
                self._book.note(number)
                raise Declined(f"all {terms.cap} rounds that this client joins at most are spent")
            if terms.adversary == "public" and self._stays_out(number):
                self._book.note(number)
                raise Declined(f"this client's own coin keeps it out of round {number}")
            if self._account is not None:
                self._account.begin_round()
            self._book.begin(number, sent)
            seed = self._seed
            own = None if seed is None else int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
            # The parameters are the server's: an error that somebody's record causes would tell it about them.
            plan = self._plan_now()
            train(model, sgd(model, terms), self._rows.records, plan, self._loss_fn, seed=own, forgiving=True)
            update = {name: value - before[name] for name, value in state_of(model).items()}
            self._book.keep(number, update)
            return update

    def _stays_out(self, number: int) -> bool:
        """Whether the client's own coin keeps it out of this round. Coins are no function of anybody's data."""
        if self._book.out is None:
            terms = self.offer.terms
            tails = randomness(self._seed).uniform(terms.rounds) > terms.client_rate
            self._book.keep_out((np.flatnonzero(tails) + 1).tolist())
        assert self._book.out is not None
        return number in self._book.out

    def _plan_now(self) -> Plan:
        """The plan without those who have withdrawn since."""
        if (
            self._rows.nobody
        ):  # nor is the record drawn that stands there: who comes and goes changes one person's part
            return _with_rates(self.plan, np.zeros(self.plan.people))
        if self._account is None:
            return self.plan
        return _with_rates(self.plan, np.where(self._account.takes_part(), _rates(self.plan), 0.0))

    def settle(self) -> None:
        """Leave for good: the ledger is charged for the rounds that were begun, and no more are joined.

        Without it everything that was reserved stays charged. Against the public it does in any case: rounds that
        were not joined are paid for too.
        """
        if self._account is None:
            raise InvalidInput("there is nothing to settle: this client was made without ledger=")
        with self._one_at_a_time:
            self._book.note(self._book.seen)  # nobody else holds the book
            self._account.settle()

    def _round(self, number: int) -> int:
        rounds = self.offer.terms.rounds
        if not is_integer(number) or not 1 <= number <= rounds:
            raise InvalidInput(f"round {number!r} is not among the {rounds} of the terms")
        return int(number)

    def held(self, number: int) -> None:
        """The server has held that round without this client: it counts against the public."""
        number = self._round(number)
        with self._one_at_a_time:
            self._book.note(number)

    def spent(self) -> Account:
        """What each record spent so far against both adversaries."""
        terms = self.offer.terms
        accountant = accountant_named(terms.accountant)
        rates = self.plan.levels.rate.tolist()

        def cost(release: Callable[[float, int], Release], rounds: int) -> FloatArray:
            if not rounds:
                return np.zeros(len(rates))
            return accountant.epsilons([release(rate, rounds) for rate in rates], terms.delta)

        server, held = cost(terms.joined, self._book.joined), max(self._book.seen, self._book.joined)
        # The cap on joined rounds is public and holds against everybody. How often was really joined is luck, and
        # counts for nothing here (rule 1: amplification is paid for by everyone).
        public = np.minimum(cost(terms.seen, held), cost(terms.joined, min(held, terms.cap)))
        return Account(*(frozen(self._rows.told(self.plan, values)) for values in (server, public)))

    def close(self) -> None:
        """Let go of the book: no more answers until `reopen`. Twice does no harm."""
        self._book.close()

    def reopen(self) -> None:
        """Take up the book again, as it is on disk now: another process may have gone on with it meanwhile."""
        with self._one_at_a_time:
            self._book.open()
            try:
                if self._account is not None:
                    self._account.let_go()
            except BaseException:
                self._book.close()
                raise


def _refuse_unfit(dataset: Dataset[Any], new_model: Any, offer: Any, adversary: str) -> None:
    """What can be said of a client's parts without trying them."""
    if not isinstance(offer, Offer):
        raise InvalidInput(f"offer is a {type(offer).__name__}; a server's is Offer.of(terms)")
    if isinstance(new_model, nn.Module):
        raise InvalidInput("new_model is a model; give a function that makes one: partial(nn.Linear, 8, 2)")
    one_of(adversary, "adversary", ADVERSARIES)
    if adversary == "server" and offer.terms.adversary != "server":
        raise InvalidInput('these terms keep ε against the public only; join them with adversary="public", or not')


def _refuse_words_of_ledgers(at_most: float | None, purpose: str) -> None:
    given = [f"at_most is {at_most!r}"] * (at_most is not None) + [f"purpose is {purpose!r}"] * bool(purpose)
    if given:
        raise InvalidInput(f"{given[0]}, which a run has in a ledger; give ledger= too, or leave it out")


def _local_plan(budgets: Budgets, owner: AnyArray | None, offer: Offer, book: Book, at_most: float | None) -> Plan:
    """Each person's rate by the table, certified again here: a table is a claim of the server's.

    With ``at_most`` it costs nobody more than that by the terms' accountant, whatever else they allow.
    Whoever cannot afford it, or grants a smaller δ than the terms have, sits out. That never fails, and where nobody
    takes part the answer is noise alone: the server is not told what anybody grants.
    """
    terms = offer.terms
    strict = budgets.delta[budgets.first_record] < terms.delta
    levels, level_of = np.unique(np.stack([budgets.promised, strict]), axis=1, return_inverse=True)
    epsilon, out = levels[0], levels[1] > 0
    kept = book.rates  # certifying takes seconds, and a SuperNode of Flower's has a process for each message
    if kept is not None and (kept["version"], kept.get("at_most")) == (__version__, at_most):
        rate = np.array(kept["rate"], dtype=np.float64)
    else:
        rate = np.where(out, 0.0, _affordable(offer, np.minimum(epsilon, np.inf if at_most is None else at_most)))
        book.keep_rates({"version": __version__, "at_most": at_most, "rate": rate.tolist()})
    return round_plan(terms, epsilon, rate, level_of.ravel(), owner)


def _affordable(offer: Offer, epsilon: FloatArray) -> FloatArray:
    """The rate that the table gives each ε, or 0 where it would cost more than that, or more than can be told.

    The whole table is certified, whoever is here: the server chose it, and a row that takes long, or fails, would
    tell whether somebody's ε falls on it.
    """
    rates = np.unique(np.append(np.minimum(offer.table.parameter, 1.0), 0.0))
    try:
        cost = offer.terms.certified(rates)
    except Unsupported:  # of some rate
        cost = np.array([_cost(offer.terms, rate) for rate in rates.tolist()])
    rate = np.minimum(offer.table.within(epsilon), 1.0)
    return np.where(cost[np.searchsorted(rates, rate)] <= epsilon, rate, 0.0)


def _cost(terms: Terms, rate: float) -> float:
    try:
        return float(terms.certified(np.array([rate]))[0])
    except Unsupported:
        return np.inf


def _rates(plan: Plan) -> FloatArray:
    """For each person their rate."""
    return np.asarray(plan.levels.rate[plan.level_of])


def _with_rates(plan: Plan, rates: FloatArray) -> Plan:
    """The same people and records, each person with this rate."""
    pairs = np.stack([plan.level_of.astype(np.float64), rates])
    (level, rate), level_of = np.unique(pairs, axis=1, return_inverse=True)
    before = level.astype(np.int64)
    table = replace(
        plan.levels,
        epsilon=plan.levels.epsilon[before],
        delta=plan.levels.delta[before],
        rate=rate,
        clip_norm=plan.levels.clip_norm[before],
        capped=rate == 1.0,
    )
    return replace(plan, levels=table, level_of=level_of.ravel())
