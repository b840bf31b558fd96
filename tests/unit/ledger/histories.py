"""Random histories of a ledger beside a model of it in plain whole numbers.

People join, raise, lower, withdraw and are forgotten; questions are asked, and asked again; runs reserve, settle and
are recovered, several at once; clocks jump; old copies are put back. After each history everything is verified, and
all along balances are those of the model, which knows nothing of blocks, classes, snapshots or saturated sums.

Beside the model stands the truth, which no old copy takes back: what was really released about each person. At every
order from the highest rung on that they ever held it stays within that rung's limit, which is the promise.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import privypurse as pp
from privypurse.ledger import entries, standing
from privypurse.ledger.people import Members

KEY = bytes(range(32))
GRANTS = [(0.5, 1e-5), (1.0, 1e-5), (1.03, 1e-5), (4.0, 1e-6)]
IDS = [f"p{number}" for number in range(7)]
FILLERS = 4093  # people before them, so that they live in two blocks
MOST_OPEN = 3  # runs at once
CEILING = 2**61
NEVER = 2**70
MAKE: Callable[[Path], str] | None = None
"""Makes an empty ledger and gives its url; a folder of one's own is given."""

some_ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=5, unique=True)
parts = st.sampled_from([0, 1, 2, 3, 7, 10**6])
tables = st.lists(st.lists(parts, min_size=4, max_size=4), min_size=1, max_size=4)
classes = st.lists(st.integers(-1, 3), min_size=5, max_size=5)
caps = st.sampled_from([None, None, 0.05, 0.4, 20.0])


@dataclass
class Person:
    rung: int
    until: int
    gone: bool = False
    frozen: bool = False
    spent: list[int] = field(default_factory=lambda: [0] * 4)
    capped: list[int] = field(default_factory=lambda: [0] * 4)


@dataclass
class Truth:
    highest: int
    released: list[int] = field(default_factory=lambda: [0] * 4)


@dataclass
class Model:
    people: dict[str, Person] = field(default_factory=dict)
    open: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Of each run what is reserved for whom."""
    asked: dict[str, Any] = field(default_factory=dict)
    answered: dict[str, Any] = field(default_factory=dict)
    """Of each question how it was asked, and who paid."""
    handed: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Of each run whose steps are handed out the holder, and how many have begun."""
    time: int = 0
    nobody_new: bool = False
    entries: int = 1


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        assert MAKE is not None
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.clock, self.honest_clock, self.every = entries.now(), entries.now, standing.SNAPSHOT_EVERY
        entries.now, standing.SNAPSHOT_EVERY = lambda: self.clock, 3
        self.url, self.anchor = MAKE(self.folder), self.folder / "anchor.json"
        self.ledger = pp.Ledger.open(self.url, key=KEY, anchor=self.anchor, new_anchor=True)
        self.model, self.runs = Model(time=self.ledger._seen.time, entries=self.ledger.show().entries), 0
        self.saved: tuple[Path, Model] | None = None
        self.truth: dict[str, Truth] = {}
        self.numbers: dict[str, int] = {}
        self.stepwise: set[str] = set()
        """Runs that are settled by what they released."""
        self.ended: set[str] = set()
        """Runs that were settled once, and have released what they will, whatever an older copy believes."""
        self.saved_at = self.checked_at = 0
        self.limits = [rung.limit for rung in self.ledger.rungs]

    def teardown(self) -> None:
        try:
            self.compare()
            assert self.ledger.verify().problems == []
        finally:
            entries.now, standing.SNAPSHOT_EVERY = self.honest_clock, self.every
            shutil.rmtree(self.folder)

    def wrote(self) -> None:
        self.model.time = max(self.model.time, self.clock)
        self.model.entries += 1

    def holds(self, name: str) -> bool:
        person = self.model.people.get(name)
        return person is not None and not person.gone and person.until > max(self.clock, self.model.time)

    def fit_for(self, ids: list[str], fits: Callable[[str], bool]) -> list[str]:
        """Those for whom something makes sense, or, now and then, all."""
        return ids if len(ids) == 5 else [name for name in ids if fits(name)] or ids

    def who(self, ids: list[str]) -> Members:
        """As `Ledger.members` says, which is asked once: numbers are for life."""
        if not all(name in self.numbers for name in ids):
            self.numbers.update(zip(ids, self.ledger.members(ids).numbers.tolist(), strict=True))
        numbers = np.array([self.numbers[name] for name in ids])
        return Members(self.ledger.id, numbers, np.zeros(numbers.size, dtype=np.int8))

    def refused(self, use: Callable[[], object]) -> None:
        try:
            use()
        except pp.InvalidInput:
            return
        raise AssertionError("was not refused")

    @initialize(ids=some_ids, rung=st.integers(0, 3))
    def first_of_all(self, ids: list[str], rung: int) -> None:
        self.join(ids, rung, None)

    @rule(ids=some_ids, rung=st.integers(0, 3), days=st.sampled_from([None, None, 5, 50]))
    def join(self, ids: list[str], rung: int, days: int | None) -> None:
        ids = self.fit_for(ids, lambda name: not self.holds(name))
        until = None if days is None else pp.ledger.entries.moment(self.clock + days * 1000)
        use = lambda: self.ledger.join(ids, GRANTS[rung][0], valid_until=until)  # noqa: E731
        new = [name for name in ids if name not in self.model.people]
        ended = days is not None and self.clock + days * 1000 <= max(self.clock, self.model.time)
        if ended or any(map(self.holds, ids)) or (new and self.model.nobody_new):
            return self.refused(use)
        use()
        self.wrote()
        for name in ids:
            person = self.model.people.setdefault(name, Person(rung, 0))
            person.rung, person.gone = rung, False
            person.until = NEVER if days is None else self.clock + days * 1000
            self.granted(name, rung)
        return None

    def granted(self, name: str, rung: int) -> None:
        held = self.truth.setdefault(name, Truth(rung))
        held.highest = max(held.highest, rung)

    def release(self, charges: dict[str, list[int]]) -> None:
        """Something is made public, at this divergence from what it were without each of these people."""
        for name, units in charges.items():
            truth = self.truth[name]
            truth.released = [a + b for a, b in zip(truth.released, units, strict=True)]
            assert all(truth.released[k] <= self.limits[k] for k in range(truth.highest, 4)), "the promise is broken"

    @rule(ids=some_ids, rung=st.integers(0, 3))
    def change(self, ids: list[str], rung: int) -> None:
        ids = self.fit_for(ids, self.holds)
        use = lambda: self.ledger.change(ids, GRANTS[rung][0])  # noqa: E731
        if not all(map(self.holds, ids)):
            return self.refused(use)
        use()
        for _ in {self.model.people[name].until for name in ids}:  # an entry for each: everybody keeps their end
            self.wrote()
        for name in ids:
            self.model.people[name].rung = rung
            self.granted(name, rung)
        return None

    @rule(ids=some_ids, forget=st.booleans())
    def leave(self, ids: list[str], forget: bool) -> None:
        ids = self.fit_for(ids, lambda name: name in self.model.people)
        use = lambda: (self.ledger.forget if forget else self.ledger.withdraw)(ids)  # noqa: E731
        if any(name not in self.model.people for name in ids):
            return self.refused(use)
        use()
        self.wrote()
        for name in ids:
            self.model.people[name].gone = True
        return None

    def taken(self, name: str, column: int) -> int:
        reserved = sum(run[name][column] for run in self.model.open.values() if name in run)
        return min(self.model.people[name].spent[column], CEILING) + reserved

    def expected(self, name: str, charge: list[int], own_caps: list[list[int]]) -> bool:
        person = self.model.people[name]
        if not self.holds(name) or person.frozen:
            return False
        fits = all(self.taken(name, k) + charge[k] <= self.limits[k] for k in range(person.rung, 4))
        return fits and all(charge[k] <= own_caps[person.rung][k] for k in range(4))

    def caps_of(self, table: list[list[int]], at_most: float | None) -> list[list[int]]:
        """Own order: what the ledger makes of at_most; the others: the most of any row within it."""
        own = np.diag(self.ledger.caps(np.zeros((1, 4), dtype=int), at_most)).tolist()
        fit = [[row for row in table if row[k] <= own[k]] for k in range(4)]
        return [
            [own[k] if c == k else max((row[c] for row in fit[k]), default=0) for c in range(4)] for k in range(4)
        ]

    @precondition(lambda self: self.model.people)
    @rule(ids=some_ids, shares=tables, which=classes, at_most=caps, again=st.booleans())
    def ask(
        self, ids: list[str], shares: list[list[int]], which: list[int], at_most: float | None, again: bool
    ) -> None:
        ids = [name for name in ids if name in self.model.people]
        if ids:
            table = self.table_of(shares)
            self.one_use(ids, table, self.classes_of(ids, table, which), at_most, at_once=True, again=again)

    def table_of(self, shares: list[list[int]]) -> list[list[int]]:
        """A share of 0 is nothing, of 10^6 far too much, of 1 all, of 7 a seventh."""
        return [
            [
                0 if not one else CEILING if one > 99 else limit // one
                for one, limit in zip(row, self.limits, strict=True)
            ]
            for row in shares
        ]

    @staticmethod
    def classes_of(ids: list[str], table: list[list[int]], which: list[int]) -> list[int]:
        return [min(one, len(table) - 1) for one in which[: len(ids)]]

    def one_use(
        self,
        ids: list[str],
        table: list[list[int]],
        class_of: list[int],
        at_most: float | None,
        at_once: bool,
        again: bool,
    ) -> str:
        """The name of a run of these people, who are in the ledger; it is charged at once or open."""
        self.runs += 1
        name, people = f"run {self.runs}", self.who(ids)
        call = self.ledger.charge if at_once else self.ledger.reserve
        arguments = (name, people, np.array(table), np.array(class_of), at_most)
        run = call(*arguments)
        own_caps = self.caps_of(table, at_most)
        charges = {who: table[one] if one >= 0 else [0] * 4 for who, one in zip(ids, class_of, strict=True)}
        paid = [
            one >= 0 and self.expected(who, charges[who], own_caps) for who, one in zip(ids, class_of, strict=True)
        ]
        assert run.admitted.tolist() == paid
        if again:
            assert call(*arguments).repeated
            assert call(*arguments).admitted.tolist() == paid
        self.wrote()
        reserved = {who: charges[who] if ok else [0] * 4 for who, ok in zip(ids, paid, strict=True)}
        for who in ids:
            person = self.model.people[who]
            person.capped = [a + b for a, b in zip(person.capped, own_caps[person.rung], strict=True)]
        if at_once:
            self.spend(reserved)
            self.release(reserved)
            self.model.answered[name] = (ids, table, class_of, at_most, paid)
        else:
            self.model.open[name], self.model.asked[name] = reserved, ids
        return name

    @precondition(lambda self: self.model.answered)
    @rule(pick=st.integers(0, 99), otherwise=st.booleans())
    def ask_again(self, pick: int, otherwise: bool) -> None:
        """Whatever happened since: charged once, and to the same people, or refused if it is another question."""
        name = sorted(self.model.answered)[pick % len(self.model.answered)]
        ids, table, class_of, at_most, paid = self.model.answered[name]
        who = self.who(ids)
        if otherwise:
            return self.refused(
                lambda: self.ledger.charge(name, who, np.array([*table, [1] * 4]), np.array(class_of), at_most)
            )
        again = self.ledger.charge(name, who, np.array(table), np.array(class_of), at_most)
        assert again.repeated
        assert again.admitted.tolist() == paid
        return None

    @precondition(lambda self: self.model.people and len(self.model.open) < MOST_OPEN)
    @rule(ids=some_ids, shares=tables, which=classes, at_most=caps, again=st.booleans())
    def train(
        self, ids: list[str], shares: list[list[int]], which: list[int], at_most: float | None, again: bool
    ) -> None:
        ids = [name for name in ids if name in self.model.people]
        if ids:
            table = self.table_of(shares)
            self.one_use(ids, table, self.classes_of(ids, table, which), at_most, at_once=False, again=again)

    def spend(self, charges: dict[str, list[int]]) -> None:
        for who, charge in charges.items():
            person = self.model.people[who]
            person.spent = [a + b for a, b in zip(person.spent, charge, strict=True)]

    @precondition(lambda self: self.model.open.keys() - self.stepwise)
    @rule(pick=st.integers(0, 99), part=st.sampled_from([None, 0, 1, 3]), died=st.booleans(), again=st.booleans())
    def settle(self, pick: int, part: int | None, died: bool, again: bool) -> None:
        names = sorted(self.model.open.keys() - self.stepwise)
        name = names[pick % len(names)]
        reserved, ids = self.model.open[name], self.model.asked[name]
        if part is None:
            own, arguments = reserved, (None, None)
        else:
            own = {who: [units * part // 3 for units in charge] for who, charge in reserved.items()}
            arguments = (np.array([own[who] for who in ids]), np.arange(len(ids)))
        for _ in range(2 if again else 1):
            if died:
                self.ledger = pp.Ledger.open(self.url, key=KEY, anchor=self.anchor)
            self.ledger.recover(name, *arguments, members=self.who(ids))
        self.wrote()
        del self.model.open[name]
        self.spend(own)
        if name not in self.ended:
            self.ended.add(name)
            self.release(own)

    @rule(by=st.sampled_from([-(10**7), -3000, 4000, 60_000]))
    def clock_jumps(self, by: int) -> None:
        self.clock += by

    @precondition(lambda self: self.url.startswith("sqlite") and self.model.entries >= self.saved_at + 5)
    @rule(as_file=st.integers(0, 31))
    def save(self, as_file: int) -> None:
        self.saved_at = self.model.entries
        path = self.folder / f"copy {self.model.entries}.db"
        path.unlink(missing_ok=True)
        if as_file:  # between two uses nobody has it open, and all of it is in the file
            shutil.copy(self.folder / "purses.db", path)
        else:
            self.ledger.backup(path)
        self.saved = path, copy.deepcopy(self.model)

    @precondition(lambda self: self.saved and self.model.entries >= self.saved_at + 2)
    @rule(exported=st.booleans())
    def put_an_old_copy_in_its_place(self, exported: bool) -> None:
        assert self.saved is not None
        (path, before), self.saved = self.saved, None
        self.ledger.export(self.folder / "export.jsonl")
        people = set(self.model.people)
        shutil.copy(path, self.folder / "purses.db")
        for ending in ("-wal", "-shm"):
            Path(f"{self.folder / 'purses.db'}{ending}").unlink(missing_ok=True)
        self.checked_at = 0
        if before.entries < self.model.entries:
            self.refused(lambda: pp.Ledger.open(self.url, key=KEY, anchor=self.anchor))
            export = self.folder / "export.jsonl" if exported else None
            self.ledger = pp.Ledger.recover_copy(self.url, key=KEY, anchor=self.anchor, export=export)
            if not exported:
                self.model, entries_lost = before, self.model.entries
                self.model.nobody_new |= people != set(before.people)
                self.model.entries = entries_lost + 2
                self.model.time = max(self.model.time, self.clock)
                for person in self.model.people.values():
                    person.frozen = True
        else:
            self.ledger = pp.Ledger.open(self.url, key=KEY, anchor=self.anchor)

    @precondition(lambda self: self.model.people and self.model.entries >= self.checked_at + 5)
    @rule()
    def balances_are_the_models(self) -> None:
        self.compare()

    def compare(self) -> None:
        self.checked_at = self.model.entries
        names = sorted(self.model.people)
        if not names:
            return
        people = self.ledger.members(names)
        left, public = self.ledger.room(people), self.ledger.public_room(people)
        for row, name in enumerate(names):
            person = self.model.people[name]
            for column in range(4):
                if not self.holds(name) or person.frozen:
                    truth = shown = 0
                elif column < person.rung:
                    truth = shown = CEILING
                else:
                    truth = max(self.limits[column] - self.taken(name, column), 0)
                    shown = max(self.limits[column] - person.capped[column], 0)
                assert (left[row, column], public[row, column]) == (truth, shown)
                assert shown <= truth
        own = [self.model.people[name].rung for name in names]
        assert (self.ledger.balances(people) == left[np.arange(len(names)), own]).all()
        assert self.ledger.show().entries == self.model.entries
