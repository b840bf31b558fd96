"""Adaptively chosen questions to personal data, each answered within everybody's own purse."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from privypurse._totals import say_not_kept
from privypurse._validate import integer, one_of, real, require_same_order
from privypurse.accounting.filters import CURRENCIES, Filter
from privypurse.arrays import AnyArray, FloatArray, IntArray, frozen
from privypurse.budgets.budgets import Budgets
from privypurse.errors import InvalidInput
from privypurse.queries.answers import Answer, Cost, epsilon_of
from privypurse.queries.bins import place_by_category, place_by_edge
from privypurse.queries.callables import numbers_of, truths_of
from privypurse.queries.columns import Column, Mask, Numbers, Truths, is_arrow
from privypurse.queries.conditions import Condition, named
from privypurse.queries.contributions import Contributions, Dense, by_person, in_bins
from privypurse.queries.ledger_purses import LedgerPurses
from privypurse.queries.noise import Noise
from privypurse.queries.noisy_sums import Pay, Price, Purses, largest_ratio, noisy_sum, paid_sum, priced, scale
from privypurse.queries.rows import rows_of

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

Where = str | Callable[[Any], Any] | None
"""A condition such as "age >= 65 and smoker", or a callable that gives True or False for each row, or everybody."""


class Analyst:
    """Answers questions about data; each person pays out of their own purse for what touches them, and no more.

    Guarantee: whatever was asked and however the questions were chosen, everything answered together is (ε, δ)
    differentially private for each person at their own (ε, δ). The privacy unit is a person with all their rows; in
    the neighbouring data set these contribute nothing (Feldman & Zrnic 2021, Corollary 4.7; "gdp": Koskela et al.
    2023). ε is rounded down to the ladder of `privypurse.budgets.ladder`. Purses are fixed beforehand, each by that
    person's own (ε, δ) alone; the number of people is public. Trust model: whoever holds the data is trusted, whoever
    asks is not.

    A person pays for ‖what their rows add up to‖ / noise, after clipping. Whom a question does not touch pays
    nothing. Whoever cannot pay contributes nothing to that question and is charged nothing; neither answer nor errors
    say who or how many, so every answer is about those who can still pay, and says so with what it costs.

    Every question takes ``noise=``, the standard deviation of the normal noise, or ``cost=``, the ε that it may cost
    a person by itself, and ``delta=``, at which a cost is told (1e-5 unless given). `spent` and `purses` are
    sensitive: not for the analyst.

    Budgets with ids are applied by id: ``person`` names the column with the id of each row's owner, or holds the ids
    in the order of the rows. Rows may come in any order; who has no row is absent; a row of a stranger is an error.

    With ``ledger``, spending is for life (`docs/ledger.md`): budgets have ids, everybody's purse is what they granted
    there, and each answer is charged there before it is made, under ``purpose``. The guarantee is then the ledger's,
    over everything that it has charged. Without one, spending is forgotten with this object, which a warning says
    once; do not make a second one for the same data.

    ``data`` is a pandas DataFrame, a mapping from column names to arrays, an array or tensor whose first dimension
    counts records, or a tuple of such. Names and kinds of columns are taken to be public.

    A callable (``ask``, or a ``where`` that is no text) is code that runs on the real rows: use only what you trust.
    It is tried first on made-up rows of zeros, ones and empty text, or on ``example`` rows of yours that must not be
    real: it has to give finite numbers of the right shape, for each row from that row alone. NaN or ∞ on a real row
    counts as zero.
    """

    def __init__(
        self,
        data: Any,
        budgets: Budgets,
        *,
        person: Any = None,
        currency: str = "gdp",
        ledger: Ledger | None = None,
        purpose: str = "",
        example: Any = None,
        seed: int | None = None,
    ) -> None:
        one_of(currency, "currency", CURRENCIES)
        if not isinstance(budgets, Budgets):
            raise InvalidInput(
                f"budgets is of type {type(budgets).__name__}; give pp.Budgets(epsilon), with one ε for each row"
            )
        self._rows = rows_of(data)
        self._owner = self._owners(data, budgets, person)
        if example is not None and (type(example) is not type(data) or self._rows.length(example) < 2):
            raise InvalidInput(
                f"example must hold two or more made-up rows in the form of data ({type(data).__name__})"
            )
        self._budgets, self._people, self._examples = budgets, budgets.people, example
        self._epsilon = budgets.promised
        self.purses: Purses
        """For the trusted curator only: what everybody may spend and has spent, one entry for each person."""
        if ledger is None:
            say_not_kept(seed)
            self.purses = Filter(self._epsilon, budgets.delta[budgets.first_record], currency)
        else:
            if currency != "gdp":
                raise InvalidInput(f"currency is {currency!r}, but a ledger has its own; leave currency out")
            self.purses = LedgerPurses(ledger, budgets, purpose)
        self._source = Noise(seed)
        self._process = os.getpid()
        self._closed = False

    def _owners(self, data: Any, budgets: Budgets, person: Any) -> IntArray | None:
        """For each row whose it is; None where each row is its own (rule 13: a promise is made to a person)."""
        if budgets.person is not None:
            if person is None:
                raise InvalidInput(
                    "the budgets have ids and are applied by id; give person=, the column with the id of each row's "
                    "owner, or the ids in the order of the rows"
                )
            if isinstance(person, str):
                self._column(person)  # is there one?
                person = data[person].to_pylist() if is_arrow(data[person]) else list(data[person])
            require_same_order("data", data, person=person)
            return budgets.owners_of(person, self._rows.count)
        if person is not None:
            raise InvalidInput("person is given, but the budgets have no ids; give them too: Budgets(…, person=ids)")
        if self._rows.count != len(budgets):
            raise InvalidInput(
                f"the data have {self._rows.count:,} rows but there are {len(budgets):,} budgets; give each row one"
            )
        return None

    def close(self) -> None:
        """Answer nothing more."""
        with self.purses.lock:  # after what is being answered
            self._closed = True

    def __enter__(self) -> Analyst:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def count(self, where: Where = None, **pay: Unpack[Pay]) -> Answer:
        """How many people have a row for which ``where`` holds, of those who can pay.

        ``noise`` is the standard deviation, in people. Whom it touches pays for 1/noise.
        """
        price = priced(self.purses, 1.0, **pay)
        sums = self._by_person(self._chosen(where).astype(np.float64)[:, None])
        return self._answer(Dense(np.minimum(sums.values, 1.0)), price, _only, alike=True)

    def count_holding(self, holding: float | Cost, **pay: Unpack[Pay]) -> Answer:
        """How many of all people can still pay ``holding`` after this count: an ε at δ, or the cost of an answer.

        Whoever is counted pays for 1/noise, and holds ``holding`` besides; whoever is not pays nothing. So it is a
        count like any other: what is left of a purse follows from its owner's rows and from what was answered, and a
        person who contributes nothing is not counted. How many are missing from an answer cannot be told: those who
        are have nothing left to pay for being counted with.
        """
        price = priced(self.purses, 1.0, **pay)
        asked = holding
        if not isinstance(asked, Cost):
            asked = priced(self.purses, 1.0, cost=asked, delta=price.cost.delta).cost
        if asked.currency != self.purses.currency.name:
            raise InvalidInput(f"holding is in {asked.currency!r}, but purses are in {self.purses.currency.name!r}")
        with self.purses.lock:  # nobody pays for anything else between check and charge
            enough = np.asarray(self.purses.affords(np.asarray(asked.amount + price.cost.amount)))
            flags = np.broadcast_to(enough, self._people).astype(np.float64)
            answer = self._answer(Dense(flags[:, None]), price, _only, alike=True)
        note = f"people who hold {replace(asked, delta=price.cost.delta).in_words()} besides what being counted costs"
        return answer.noted(note)

    def sum(self, column: str, *, lower: float, upper: float, where: Where = None, **pay: Unpack[Pay]) -> Answer:
        """The sum of a column over rows for which ``where`` holds.

        What a person's rows add up to is clipped to [lower, upper], two public numbers. ``noise`` is the standard
        deviation in the column's own units; a person pays for |their clipped sum|/noise.
        """
        low, high = _bounds(lower, upper)
        price = priced(self.purses, max(abs(low), abs(high)), **pay)
        values, touched = self._numbers(column, where)
        sums = self._by_person(values[:, None]).values
        if self._owner is not None:
            touched = np.bincount(self._owner, touched, minlength=self._people) > 0
        clipped = np.where(touched[:, None], np.clip(sums, low, high), 0.0)
        return self._answer(Dense(clipped), price, _only)

    def mean(self, column: str, *, lower: float, upper: float, where: Where = None, **pay: Unpack[Pay]) -> Answer:
        """The mean of a column over rows for which ``where`` holds, each value clipped to [lower, upper].

        One question with two numbers: the sum of values centred and scaled to [-1, 1], and how many there are; the
        answer is their quotient, scaled back and kept in [lower, upper]. ``noise`` is the standard deviation on both,
        in people, so the answer's own is about (upper - lower)/2 · noise / count. A person with one row pays for √(s²
        + 1)/noise, s their scaled value: from 1/noise in the middle to √2/noise at the bounds. Several rows of one
        person are clipped together to √2, which keeps that person's own mean. Where the noisy count does not exceed
        the noise, nothing is known: the answer is the middle, has no ``error``, and its ``note`` says so.
        """
        low, high = _bounds(lower, upper)
        middle, half = (low + high) / 2, (high - low) / 2
        price = priced(self.purses, math.sqrt(2.0), **pay)
        least = max(1.0, price.noise)
        values, touched = self._numbers(column, where)
        scaled = np.where(touched, (np.clip(values, low, high) - middle) / half, 0.0)
        both = self._by_person(np.stack([scaled, touched], axis=1))

        def quotient(total: FloatArray) -> float:
            if total[1] <= least:
                return middle
            return float(middle + half * np.clip(total[0] / total[1], -1.0, 1.0))

        answer = self._answer(both, price, quotient, least=1.0)
        count = float(answer.released[1])
        if count <= least:
            most = "the noise" if price.noise >= 1 else "1"
            note = f"the noisy count does not exceed {most}: this is the middle of the range, not an answer"
            return answer.noted(note)
        return replace(answer, error=half * answer.noise / count)

    def histogram(
        self,
        column: str,
        *,
        categories: Sequence[Any] | None = None,
        edges: Sequence[float] | None = None,
        where: Where = None,
        **pay: Unpack[Pay],
    ) -> Answer:
        """How many rows fall into each bin: one number for each of ``categories``, or between ``edges``.

        Bins are public and given, never taken from the data; a bin holds its lower edge, the last one its upper edge
        too. A row in no bin counts nowhere. ``noise`` is the standard deviation of each number. A person with one row
        pays for 1/noise, however many bins there are; several rows of one person are clipped together to norm 1.
        """
        price, values = priced(self.purses, 1.0, **pay), self._column(column)
        if (categories is None) == (edges is None):
            raise InvalidInput("give either categories= (public values) or edges= (public bounds of bins)")
        if edges is not None:
            place, size = place_by_edge(values, column, edges)
        else:
            assert categories is not None
            place, size = place_by_category(values, column, categories)
        if where is not None:
            place = np.where(self._chosen(where), place, -1)
        counts = in_bins(place, self._owner, self._people, size)
        if self._owner is None:  # whether ids were given is public; whether somebody has a second row is not
            return self._answer(counts, price, alike=True)
        answer = self._answer(counts, price, least=1.0)
        note = "a person's rows count for at most 1 together, as a vector: 1 in one bin, or 0.71 in each of two"
        return answer.noted(note)

    def ask(self, q: Callable[[Any], Any], *, size: int, clip: float, **pay: Unpack[Pay]) -> Answer:
        """The sum of any ``q(rows)``, numbers of shape [rows, size], one row for each row.

        What a person's rows add up to is clipped to norm ``clip``; a person pays for its norm/noise. ``q`` gets the
        data in the form they were given in, and runs on the real rows: see `Analyst` on callables.
        """
        width = integer(size, "size", hint="it is how many numbers q gives for a row")
        price = priced(self.purses, scale(clip, "clip"), **pay)
        values = numbers_of(q, self._rows, self._public_rows(), width)
        return self._answer(self._by_person(values), price)

    def spent(self, person: Any) -> float:
        """The ε that a person, by their id, has spent so far, at their δ: sensitive, for that person's eyes only.

        Where budgets have no ids, ``person`` is the number of their record. Under a ledger a receipt tells it.
        """
        if not isinstance(self.purses, Filter):
            raise InvalidInput("what people spent is in the ledger, with all else they paid: ledger.receipt(person)")
        place = self._budgets.unit_of(person)
        amount, delta = float(self.purses.spent[place]), float(self._budgets.delta[self._budgets.first_record[place]])
        if amount == 0:
            return 0.0
        # Both are proven: what the amount costs, and what the purse promised for any amount that fits into it.
        return min(float(epsilon_of(amount, delta, self.purses.currency.name)), float(self._epsilon[place]))

    def _by_person(self, rows: FloatArray) -> Dense:
        return by_person(rows, self._owner, self._people)

    def _answer(
        self,
        contributions: Contributions,
        price: Price,
        read: Callable[[FloatArray], float] | None = None,
        *,
        alike: bool = False,
        least: float = 0.0,
    ) -> Answer:
        """Charge and release; the value is what ``read`` makes of the noisy sums, or the sums themselves.

        Whoever contributes, contributes a norm of at least ``least``; where all are ``alike``, just ``price.clip``.
        """
        with self.purses.lock:  # two questions at once would both be paid with the same coin
            if self._closed or os.getpid() != self._process:
                raise InvalidInput(
                    "this analyst is closed, or was made by another process; make a new one, with a ledger where "
                    "spending is to add up"
                )
            note = internal = ""
            if not isinstance(self.purses, Filter):
                said = self.purses.say_who_cannot(price.clip, price.noise, price.clip if alike else least)
                note, internal = (said, "") if self.purses.rungs_are_public else ("", said)
            released = frozen(self._paid(contributions, price, alike=alike))
        value = released if read is None else read(released)
        return Answer(value, price.noise, price.cost, released, note=note, internal_note=internal, alike=alike)

    def _paid(self, contributions: Contributions, price: Price, *, alike: bool) -> FloatArray:
        clip, noise, purses = price.clip, price.noise, self.purses
        if isinstance(purses, Filter):
            return noisy_sum(contributions, purses, clip=clip, noise=noise, source=self._source)
        pay = partial(purses.pay, most=largest_ratio(clip, noise), alike=alike)
        return paid_sum(contributions, self._people, pay, clip=clip, noise=noise, source=self._source)

    def _public_rows(self) -> Any:
        if self._examples is None:
            self._examples = self._rows.probes()
        return self._examples

    def _chosen(self, where: Where) -> Mask:
        if where is None:
            return np.ones(self._rows.count, dtype=bool)
        if isinstance(where, str):
            return Condition(where).holds(self._rows.columns, self._rows.count)
        if not callable(where):
            raise InvalidInput(
                f"where is a {type(where).__name__}; give a condition such as 'age >= 65', or a callable on rows"
            )
        return truths_of(where, self._rows, self._public_rows())

    def _column(self, name: str) -> Column:
        if name not in list(self._rows.columns):
            raise InvalidInput(f"there is no column {name!r}: {named(self._rows.columns)}")
        return self._rows.columns[name]

    def _numbers(self, name: str, where: Where) -> tuple[FloatArray, AnyArray]:
        """A column's numbers, 0 where a row is not chosen or its cell is not finite; and which rows count."""
        found = self._column(name)
        if not isinstance(found, Numbers | Truths):
            raise InvalidInput(f"the column {name!r} holds {found.kind}, not numbers")
        values = found.values.astype(np.float64)
        touched = np.isfinite(values) & found.known()
        if where is not None:
            touched &= self._chosen(where)
        return np.where(touched, values, 0.0), touched


def _only(total: FloatArray) -> float:
    return float(total[0])


def _bounds(lower: float, upper: float) -> tuple[float, float]:
    low, high = (real(value, name, least=-1e100, most=1e100) for name, value in (("lower", lower), ("upper", upper)))
    if not low < high:
        raise InvalidInput(f"lower= is {low:g} and upper= is {high:g}; the first must lie below upper=")
    return low, high
