"""A year with a ledger: python examples/year/year.py --out year

A bus company with 5,000 customers trains, asks, takes part in a federated round and trains again, while people join,
raise and withdraw and their rows change. Everything is charged to one purse a person, and in the end anybody can ask
what their data were used for. Commands are printed as they would be typed; only the federated round has none.
"""

from __future__ import annotations

import argparse
import os
import shlex
from contextlib import chdir
from functools import partial
from pathlib import Path

import customers  # beside this file
import numpy as np
import torch
from torch.nn import functional as F

import privypurse as pp
from privypurse import cli

LEDGER, KEY = "sqlite:///purses.db", "ledger.key"
PURPOSE = "to plan bus lines"
WHOSE = f"--person customer --purpose '{PURPOSE}'"
DELTA = 1e-5
QUESTION_NOISE = 40.0

TRAINING = """\
ledger = "{ledger}"
[data]
table = "{table}"
person = "customer"
label = "ticket"
classes = ["no", "yes"]
[data.features]
age = {{ low = 16, high = 95 }}
kilometres = {{ low = 0, high = 1000 }}
[budgets]
epsilon = "epsilon"
delta = 1e-5
[plan]
at_most = {at_most}          # what this run may cost anybody, at most: public
steps = {steps}
batch_size = {batch_size}    # the divisor of every step; the noise is solved from grants and caps
accountant = "rdp"
[model]
kind = "mlp"
hidden = []
[optimizer]
name = "SGD"
lr = 2.0
[training]
out = "{out}"
purpose = "{purpose}"
"""


def typed(command: str) -> None:
    """Run a command of privypurse, as if it had been typed."""
    print(f"\n$ privypurse {command}", flush=True)
    if cli.main(shlex.split(command)):
        raise SystemExit(f"privypurse {command} went wrong")


def train(out: str, table: str, at_most: float, people: int) -> None:
    settings = {"table": table, "out": out, "at_most": at_most, "steps": 60, "batch_size": people // 10}
    Path(f"{out}.toml").write_text(TRAINING.format(ledger=LEDGER, purpose=PURPOSE, **settings), encoding="utf-8")
    typed(f"train {out}.toml")


def federated_round(table: tuple[customers.Customer, ...]) -> None:
    """One round with a neighbouring company. Each has a ledger of its own people; the server learns nothing of it."""
    from privypurse.federated import Client, Offer, Terms, simulation

    terms = Terms(
        rounds=1,
        local_steps=2,
        noise_multiplier=8.0,
        batch_size=200,
        learning_rate=1.0,
        clients=2,
        delta=DELTA,
        accountant="rdp",
    )
    offer = Offer.of(terms)
    theirs = customers.made_up(200, seed=1).january
    neighbour = pp.Ledger.create(
        "sqlite:///neighbour.db", epsilons=customers.EPSILONS, delta=DELTA, key="neighbour.key"
    )
    neighbour.join([one.customer for one in theirs], [one.epsilon for one in theirs], purpose=PURPOSE)
    new_model = partial(torch.nn.Linear, 2, 2)
    clients = []
    for name, people, ledger in (("ours", table, pp.Ledger.open(LEDGER)), ("theirs", theirs, neighbour)):
        x = torch.tensor([[one.age / 100, one.kilometres / 1000] for one in people])
        y = torch.tensor([one.ticket == "yes" for one in people]).long()
        ids = np.array([one.customer for one in people])
        clients.append(
            Client(
                torch.utils.data.TensorDataset(x, y),
                pp.Budgets([one.epsilon for one in people], delta=DELTA, person=ids),
                new_model,
                partial(F.cross_entropy, reduction="none"),
                offer,
                Path("books") / name,
                person=ids,
                ledger=ledger,
                at_most=0.3,
                purpose=PURPOSE,
            )
        )
    print("\nOCTOBER: a federated round with a neighbouring company", flush=True)
    for held in simulation.rounds(terms, simulation.new_state(new_model), clients):
        print(f"round {held.number}: {len(held.asked)} companies asked")
    for client in clients:
        client.settle()
        client.close()


def january(year: customers.Year) -> None:
    print("JANUARY: a ledger, what people allow, and a first training")
    customers.write(Path("january.csv"), year.january)
    os.environ["PRIVYPURSE_LEDGER"], os.environ["PRIVYPURSE_LEDGER_KEY"] = LEDGER, KEY
    typed(f"ledger init --epsilons {','.join(map(str, customers.EPSILONS))} --delta {DELTA:g} --key {KEY}")
    typed(f"ledger import january.csv {WHOSE} --recorded-by 'customer desk' --dry-run")
    typed(f"ledger import january.csv {WHOSE} --recorded-by 'customer desk'")
    train("first", "january.csv", 0.25, len(year.january))


def may() -> None:
    print("\nMAY: a question")
    typed(f"query january.csv {WHOSE} --out question count --where 'age >= 65' --noise {QUESTION_NOISE:g}")


def july(year: customers.Year) -> None:
    print("\nJULY: twenty join, ten raise, five withdraw; rows are edited and in another order; a second training")
    customers.write(Path("july.csv"), year.july)
    typed(f"ledger import july.csv {WHOSE} --recorded-by 'customer desk' --dry-run")
    typed(f"ledger import july.csv {WHOSE} --recorded-by 'customer desk'")
    for person in year.withdrawn:
        typed(f"ledger consent --person {person} --withdraw --recorded-by 'customer desk'")
    train("second", "july.csv", 0.5, len(year.january))


def december(year: customers.Year) -> None:
    print("\nDECEMBER: what were my data used for?")
    for person in (year.raised[0], year.withdrawn[0], year.joined[0]):
        typed(f"receipt --person {person} --html {person}.html --json {person}.json")
    typed(f"receipt --person {year.raised[0]}")
    typed("ledger runs")
    typed("ledger verify --anchor second")  # the folder of a run knows how far the ledger had come: no old copy


def whole(year: customers.Year) -> None:
    """Everything, in the folder that this is called in."""
    january(year)
    may()
    july(year)
    federated_round(year.july)
    december(year)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=Path("year"), help="a new folder for everything")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    with chdir(options.out):
        whole(customers.made_up(options.people))


if __name__ == "__main__":
    main()
