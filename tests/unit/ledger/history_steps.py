"""Random histories with runs that go step by step: trainings, rounds and clients that die, go on and are recovered.

A run's steps are counted in a journal, or handed out by the ledger; a round is a step that is dearer than others. A
step is counted, and who still stands is looked up, before it is released. Whoever dies may have counted steps that
were never made. Settled is what the count cannot rule out, and never less than was released.
"""

from __future__ import annotations

import atexit
from dataclasses import dataclass, field

import histories
import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from privypurse.training.journal import Journal

PLAN = "plan"
WHAT = ["begin", "go on", "go on", "die", "settle", "take up again", "recover"]
small = st.sampled_from([0, 4, 9, 20, 50])
small_tables = st.lists(st.lists(small, min_size=4, max_size=4), min_size=1, max_size=3)
weights = st.sampled_from([[1], [1, 1, 1, 1, 1], [3, 1, 2], [1, 5], [2] * 9])

new_runs = st.tuples(
    histories.some_ids,
    small_tables | histories.tables,
    histories.classes,
    histories.caps,
    weights,
    st.booleans(),
    st.booleans(),
)


@dataclass
class Process:
    """Whoever works on a run: what is in its folder and in its memory, which no copy of the ledger takes back."""

    run: str
    units: dict[str, list[int]]
    """Of everybody admitted what a step of weight 1 costs."""
    weights: list[int]
    journal: Journal | None = None
    holders: list[str] = field(default_factory=list)
    alive: bool = True
    begun: int = 0
    in_it: set[str] = field(default_factory=set)
    left_at: dict[str, int] = field(default_factory=dict)
    released: dict[str, int] = field(default_factory=dict)
    """How many weights were released about each."""


def picked(some: list[Process], pick: int) -> Process:
    return some[pick % len(some)]


class Steps(histories.Histories):
    def __init__(self) -> None:
        super().__init__()
        self.processes: dict[str, Process] = {}
        self.names = 0

    def teardown(self) -> None:
        for process in self.processes.values():
            self.drop(process)
        super().teardown()

    def drop(self, process: Process) -> None:
        """Die without a word: nothing is written down any more."""
        process.alive = False
        if process.journal is not None:
            atexit.unregister(process.journal.close)
            process.journal._file.close()

    def new_holder(self, process: Process) -> int:
        self.names += 1
        process.holders.append(f"holder {self.names}")
        count = self.ledger.take_over(process.run, process.holders[-1], process.holders)
        self.wrote()
        self.model.handed[process.run] = process.holders[-1], count
        return count

    def begin_run(
        self,
        ids: list[str],
        shares: list[list[int]],
        which: list[int],
        at_most: float | None,
        weights: list[int],
        journal: bool,
        affordable: bool,
    ) -> None:
        """Reserved by a table, as chosen, or as a client does: the dearest row that everybody's balance pays for."""
        ids = [name for name in ids if name in self.model.people]
        if not ids:
            return
        units = [[one // sum(weights) for one in row] for row in self.table_of(shares)]
        table = [[one * sum(weights) for one in row] for row in units]
        class_of = self.classes_of(ids, table, which)
        if affordable:
            left = self.ledger.room(self.who(ids))
            fits = [[all(a <= b for a, b in zip(row, own, strict=True)) for row in table] for own in left]
            class_of = [
                max((k for k, ok in enumerate(row) if ok), key=lambda k: table[k], default=-1) for row in fits
            ]
        name = self.one_use(ids, table, class_of, at_most, at_once=False, again=False)
        admitted = self.ledger.reservation(name).admitted
        assert admitted.any() or not any(map(any, self.model.open[name].values()))
        of = {who: units[one] if one >= 0 else [0] * 4 for who, one in zip(ids, class_of, strict=True)}
        pays = {who for who in ids if any(self.model.open[name][who])}
        process = Process(name, of, weights, in_it=pays)
        self.processes[name] = process
        self.stepwise.add(name)
        if journal:
            process.journal = Journal(self.folder / f"{name}.steps", PLAN, len(weights))
        else:
            assert self.new_holder(process) == 0

    def at_work(self, alive: bool) -> list[Process]:
        """On runs that the ledger knows, or may have forgotten."""
        return [
            one for one in self.processes.values() if one.alive == alive and (alive or one.run in self.model.open)
        ]

    def may_go_on(self, process: Process) -> bool:
        """Whether the ledger, perhaps an older copy by now, knows the run as this process does."""
        handed = self.model.handed.get(process.run, ("", 0))[0]
        return process.run in self.model.open and (process.journal is not None or handed == process.holders[-1])

    def count(self, process: Process, steps: int) -> None:
        if process.journal is not None:
            process.journal.count(steps)
        else:
            self.ledger.begin(process.run, process.holders[-1], steps)
            self.wrote()
            self.model.handed[process.run] = process.holders[-1], steps

    def look(self, process: Process) -> None:
        """Before steps: who has withdrawn, lowered or ended is in none of them, nor in any later one."""
        ids = self.model.asked[process.run]
        place = np.argsort(self.who(ids).numbers)
        reservation = self.ledger.reservation(process.run)
        stands = dict(zip([ids[k] for k in place], reservation.standing().tolist(), strict=True))
        for name in process.in_it.copy():
            person = self.model.people[name]
            fits = all(self.taken(name, k) <= self.limits[k] for k in range(person.rung, 4))
            assert stands[name] == (self.holds(name) and not person.frozen and fits)
            if not stands[name]:
                process.in_it.discard(name)
                process.left_at[name] = process.begun

    @precondition(lambda self: self.model.people)
    @rule(pick=st.integers(0, 99), what=st.sampled_from(WHAT), number=st.integers(0, 3), data=st.data())
    def work(self, pick: int, what: str, number: int, data: st.DataObject) -> None:
        """A run begins, or one of the processes does something, or somebody does it for one that died."""
        some = self.at_work(alive=True) + self.at_work(alive=False)
        if not some or (what == "begin" and len(self.model.open) < histories.MOST_OPEN):
            return self.begin_run(*data.draw(new_runs))
        again = pick % 2 == 1
        alive = what not in ("take up again", "recover")
        process = picked(self.at_work(alive) or self.at_work(not alive), pick)
        if not process.alive:
            return self.take_up_again(process) if number else self.end(process, again, at_all_reserved=again)
        if not self.may_go_on(process):  # on an older copy, or overtaken
            if process.journal is None:
                self.refused(lambda: self.ledger.begin(process.run, process.holders[-1], len(process.weights)))
            return self.drop(process)
        match what:
            case "go on":
                return self.go_on(process, min(1 + number, len(process.weights) - process.begun))
            case "settle":
                return self.end(process, again, at_all_reserved=number == 3)
        self.count(process, min(process.begun + number, len(process.weights)))  # steps that will not be made
        return self.drop(process)

    @precondition(lambda self: self.at_work(alive=True))
    @rule(times=st.integers(1, 2))
    def take_turns(self, times: int) -> None:
        """Runs at once: each makes a step, and again."""
        for process in times * self.at_work(alive=True):
            if self.may_go_on(process):
                self.go_on(process, min(1, len(process.weights) - process.begun))

    def go_on(self, process: Process, steps: int) -> None:
        self.look(process)
        self.count(process, process.begun + steps)
        for weight in process.weights[process.begun : process.begun + steps]:
            self.release({name: [weight * one for one in process.units[name]] for name in process.in_it})
            for name in process.in_it:
                process.released[name] = process.released.get(name, 0) + weight
        process.begun += steps

    def take_up_again(self, process: Process) -> None:
        """By another process, which has the folder of the one that died, or that it took for dead."""
        if process.journal is not None:
            process.journal = Journal(self.folder / f"{process.run}.steps", PLAN, len(process.weights))
            process.begun = process.journal.counted
        else:
            before, expected = process.holders[-1], self.model.handed[process.run][1]
            process.begun = self.new_holder(process)
            assert process.begun == expected
            self.refused(lambda: self.ledger.begin(process.run, before, len(process.weights)))
        process.alive, process.left_at = True, {}
        process.in_it = {name for name, units in self.model.open[process.run].items() if any(units)}

    def end(self, process: Process, again: bool, at_all_reserved: bool) -> None:
        """By itself, at the steps that each was in; recovered, at all that was counted; or at all reserved."""
        reserved, ids = self.model.open[process.run], self.model.asked[process.run]
        if at_all_reserved:
            steps = dict.fromkeys(ids, len(process.weights))
        elif process.alive:
            steps = {name: process.left_at.get(name, process.begun) for name in ids}
        else:
            steps = dict.fromkeys(ids, self.counted(process))
        own = {name: [0] * 4 for name in ids}
        for name in ids:
            weight = sum(process.weights[: steps[name]])
            if any(reserved[name]):
                own[name] = [weight * one for one in process.units[name]]
            released = process.released.get(name, 0)
            assert released <= weight or self.model.people[name].frozen, "released and not charged"
        charges, each = np.array([own[name] for name in ids]), np.arange(len(ids))
        for _ in range(2 if again else 1):
            self.ledger.recover(process.run, charges, each, members=self.who(ids))
        self.wrote()
        self.drop(process)
        del self.model.open[process.run]
        self.spend(own)

    def counted(self, process: Process) -> int:
        if process.journal is None:
            begun = self.ledger.begun(process.run)
            assert begun is not None
            assert (begun.holder, begun.count) == self.model.handed[process.run]
            return begun.count
        journal = Journal(self.folder / f"{process.run}.steps", PLAN, len(process.weights))
        journal.close()
        return journal.counted
