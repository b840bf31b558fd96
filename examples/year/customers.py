"""Made-up customers of a bus company, by a seed: what the year in `year.py` happens to.

A row says how old somebody is, how many kilometres they ride a month, whether they bought a ticket for the year, and
which ε they allow. Nothing of it is anybody's.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

COLUMNS = ("customer", "age", "kilometres", "ticket", "epsilon")
EPSILONS = (0.5, 1.0, 2.0)
"""The rungs of the company's ledger: what people can choose from."""
NEW, RAISED, WITHDRAWN = 20, 10, 5


@dataclass(frozen=True)
class Customer:
    customer: str
    age: int
    kilometres: int
    ticket: str
    epsilon: float


@dataclass(frozen=True)
class Year:
    """The customers in January, in July, and what happened in between."""

    january: tuple[Customer, ...]
    july: tuple[Customer, ...]
    """With those who are new, in another order, with corrected and moved cells; also those who have withdrawn."""
    joined: tuple[str, ...]
    raised: tuple[str, ...]
    withdrawn: tuple[str, ...]
    edited: tuple[str, ...]


def made_up(people: int, seed: int = 0) -> Year:
    random = np.random.default_rng(seed)
    everybody = [_somebody(f"C{number:05d}", random) for number in range(people + NEW)]
    january, new = everybody[:people], everybody[people:]
    chosen = [int(place) for place in random.permutation(people)]
    withdrawn = [january[place].customer for place in chosen[:WITHDRAWN]]
    can_raise = [place for place in chosen[WITHDRAWN:] if january[place].epsilon < EPSILONS[-1]]
    raised = [january[place].customer for place in can_raise[:RAISED]]
    edited = [january[place].customer for place in chosen[-people // 10 :]]
    july = [_half_a_year_later(one, one.customer in raised, one.customer in edited) for one in january] + new
    order = random.permutation(len(july))
    return Year(
        january=tuple(january),
        july=tuple(july[place] for place in order),
        joined=tuple(one.customer for one in new),
        raised=tuple(raised),
        withdrawn=tuple(withdrawn),
        edited=tuple(edited),
    )


def _somebody(customer: str, random: np.random.Generator) -> Customer:
    age, kilometres = int(random.integers(16, 95)), int(random.gamma(2.0, 120.0))
    likely = 1 / (1 + np.exp(-(kilometres - 220) / 60))
    ticket = "yes" if random.random() < likely else "no"
    return Customer(customer, age, kilometres, ticket, float(random.choice(EPSILONS, p=(0.3, 0.5, 0.2))))


def _half_a_year_later(one: Customer, raised: bool, edited: bool) -> Customer:
    if raised:
        one = replace(one, epsilon=EPSILONS[EPSILONS.index(one.epsilon) + 1])
    return replace(one, kilometres=one.kilometres + 7) if edited else one


def write(path: Path, customers: tuple[Customer, ...]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows([getattr(one, name) for name in COLUMNS] for one in customers)
