"""One run of PATE on a set of digits: shards, teachers, votes under everyone's purse, students, scores."""

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privypurse.accounting.filters import Currency, Filter, GaussianCurrency
from privypurse.arrays import AnyArray, FloatArray
from privypurse.budgets import preferences
from privypurse.errors import PrivyPurseWarning
from privypurse.randomness import randomness
from reproductions import data
from reproductions.choice import Unfinished
from reproductions.pate import student
from reproductions.pate.images import oriented_gradients
from reproductions.pate.ridge import Ridge, votes
from reproductions.pate.student import Spreading
from reproductions.pate.teams import Teams, teams
from reproductions.pate.voting import ConfidentVotes, NobodyVotes, Shares, fixed_orders, membership
from reproductions.results import Job, Line

METHODS = ("plain", "exclude", "copies", "vanishing", "weighting", "weighting, Gaussian DP")
"""The last one counts in Gaussian DP instead of at one Rényi order."""
LEAD = "weighting"
"""Whose validation scores choose the settings of all."""
SETUPS = {"34-43-23": (0.34, 0.43, 0.23), "54-37-9": (0.54, 0.37, 0.09)}
"""In % of the people, from the strictest on."""
SEEDS = range(5)
CHOICE_SEEDS = (100, 101, 102)
_QUERIES = 360  # public inputs that teachers are asked about at most: more than any purse here pays for


@dataclass(frozen=True)
class Settings:
    """What is chosen on validation records."""

    teacher: Ridge = field(default_factory=Ridge)
    student: Spreading = field(default_factory=Spreading)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


TEACHERS = tuple(Ridge(*each) for each in product((1.0, 3.0, 10.0), (0.003, 0.03, 0.3)))
STUDENTS = tuple(Spreading(8, *each) for each in product((20.0, 60.0), (0.95, 0.99)))


@dataclass(frozen=True)
class Experiment:
    """Data, budgets and votes; noise and number of teachers are Boenisch et al.'s for MNIST."""

    data: str = "mnist"
    epsilon: tuple[float, ...] = (1.0, 2.0, 3.0)
    delta: float = 1e-5
    teachers: int = 250
    shares: Shares = field(default_factory=Shares)
    public: int = 9_000
    """Records of the test file whose labels nobody knows; the others score the student."""
    validation: int = 10_000
    """Training records that take the place of the test file while settings are chosen."""

    def choice_jobs(self) -> tuple[list[Job], list[Job]]:
        """What scores teachers, by plurality on one seed, and then students."""
        place = {"row": next(iter(SETUPS)), "method": LEAD}
        teachers = [Job(place | {"purpose": "teacher"}, Settings(each), CHOICE_SEEDS[0]) for each in TEACHERS]
        settings = [Settings(student=each) for each in STUDENTS]
        return teachers, [Job(place | {"purpose": "student"}, each, k) for k in CHOICE_SEEDS for each in settings]

    def chosen(self, lines: list[Line]) -> Settings:
        """The settings with the best mean score; `Unfinished` where one is missing, so that no test is looked at."""
        teacher = _best(lines, "teacher", [Settings(each) for each in TEACHERS], CHOICE_SEEDS[:1]).teacher
        return _best(lines, "student", [Settings(teacher, each) for each in STUDENTS], CHOICE_SEEDS)

    def left(self, lines: list[Line]) -> list[Job]:
        """What is still to be run: the choice stage by stage, then every method, seed by seed."""
        done = {Job(_place(line), _settings(line), line["seed"]).key for line in lines}
        teachers, students = self.choice_jobs()
        if missing := [job for job in teachers if job.key not in done]:
            return missing
        teacher = _best(lines, "teacher", [Settings(each) for each in TEACHERS], CHOICE_SEEDS[:1]).teacher
        students = [replace(job, settings=replace(job.settings, teacher=teacher)) for job in students]
        if missing := [job for job in students if job.key not in done]:
            return missing
        settings = self.chosen(lines)
        final = [
            Job({"row": row, "method": method, "purpose": "final"}, settings, seed)
            for row, seed, method in product(SETUPS, SEEDS, METHODS)
        ]
        return [job for job in final if job.key not in done]

    def run(self, job: Job, lines: list[Line]) -> Line:
        """One job's line. Only "final" ones look at the test file, and only with the settings that were chosen."""
        purpose, settings = job.place["purpose"], job.settings
        if purpose == "final" and settings != self.chosen(lines):
            raise Unfinished("the test file is for settings that were chosen on validation records")
        parts = _parts(self, purpose == "final", job.seed)
        epsilon = self._budgets(job, len(parts.y))
        method, currency = self._method(job.place["method"], epsilon)
        made = teams(method, epsilon, self.delta, self.teachers, np.random.default_rng([job.seed, 1]))
        cast = _votes(parts, settings.teacher, _Shards(made))
        if purpose == "teacher":
            counts = np.stack([(cast == each).sum(axis=0) for each in range(10)])
            return {"accuracy": _percent(counts.argmax(axis=0) == parts.public_y[:_QUERIES])}
        purses = Filter(epsilon, np.full(epsilon.shape, self.delta), currency)
        place, labels, asked_about = _labels(cast, made, purses, self.shares, job.seed)
        line: Line = {
            "teachers": made.teachers,
            "asked": asked_about,
            "answered": len(labels),
            "labels": _percent(labels == parts.public_y[place]),
            "spent": {str(e): float((purses.spent / purses.total)[epsilon == e].max()) for e in np.unique(epsilon)},
        }
        return line | _students(parts, settings, place, labels)

    def _budgets(self, job: Job, people: int) -> FloatArray:
        rng = np.random.default_rng([job.seed, 0])
        return preferences.levels(people, list(self.epsilon), list(SETUPS[job.place["row"]]), rng)

    def _method(self, name: str, epsilon: FloatArray) -> tuple[str, Currency]:
        method, _, counted = name.partition(", ")
        return method, GaussianCurrency() if counted else fixed_orders(epsilon, self.delta)


def _place(line: Line) -> dict[str, str]:
    return {name: line[name] for name in ("row", "method", "purpose")}


def _settings(line: Line) -> Settings:
    given = line["settings"]
    return Settings(Ridge(**given["teacher"]), Spreading(**given["student"]))


def _best(lines: list[Line], purpose: str, candidates: list[Settings], seeds: tuple[int, ...]) -> Settings:
    """The candidate with the best mean score over the seeds; the first of equals."""
    found = {(_settings(line), line["seed"]): line["accuracy"] for line in lines if line["purpose"] == purpose}
    if missing := [1 for each, seed in product(candidates, seeds) if (each, seed) not in found]:
        raise Unfinished(f"the choice of the {purpose} is not finished: {len(missing)} scores are missing")
    return max(candidates, key=lambda each: sum(found[each, seed] for seed in seeds))


@dataclass(frozen=True, eq=False)
class _Shards:
    """Teams that are equal where their shards are, whatever votes weigh: they train the same teachers."""

    made: Teams

    def __hash__(self) -> int:
        return hash((self.made.person.tobytes(), self.made.teacher.tobytes()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shards) and all(
            np.array_equal(getattr(self.made, name), getattr(other.made, name)) for name in ("person", "teacher")
        )


@lru_cache(maxsize=2)
def _votes(parts: "_Parts", ridge: Ridge, shards: _Shards) -> AnyArray:
    """Of every teacher on the first public inputs."""
    made, inputs = shards.made, parts.public_x[:_QUERIES]
    return votes(ridge, parts.x, parts.y, made.person, made.teacher, made.teachers, inputs, 10).numpy()


@dataclass(frozen=True, eq=False)
class _Parts:
    """Records of people, public inputs, and those that score the student."""

    x: Tensor
    y: Tensor
    public_x: Tensor
    public_y: AnyArray
    scored_x: Tensor
    scored_y: AnyArray


@lru_cache(maxsize=2)
def _features(name: str, part: str) -> tuple[Tensor, AnyArray]:
    whole = data.parts(name)[part]
    return oriented_gradients(whole.inputs), whole.labels


@lru_cache(maxsize=1)
def _parts(experiment: Experiment, final: bool, seed: int) -> _Parts:
    x, y = _features(experiment.data, "train")
    if final:
        other_x, other_y = _features(experiment.data, "test")
    else:
        private, held = data.split(len(y), experiment.validation)
        (x, y), (other_x, other_y) = (x[private], y[private]), (x[held], y[held])
    order = np.random.default_rng([seed, 2]).permutation(len(other_y))
    public, scored = order[: experiment.public], order[experiment.public :]
    return _Parts(x, torch.as_tensor(y), other_x[public], other_y[public], other_x[scored], other_y[scored])


def _labels(cast: AnyArray, made: Teams, purses: Filter, shares: Shares, seed: int) -> tuple[AnyArray, AnyArray, int]:
    """Ask about one public input after another while anybody can pay: where answers are, what they say, queries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)  # seeded, so that it can be repeated
        source = randomness(seed)
    holds = membership(made.person, made.teacher, purses.total.size, made.teachers)
    voting = ConfidentVotes(holds, made.weights, purses, shares, source)

    def answers() -> Iterator[tuple[int, int]]:
        for query in range(cast.shape[1]):
            try:
                label = voting.ask(cast[:, query], 10, made.present(query))
            except NobodyVotes:
                return
            if label is not None:
                yield query, label

    found = np.array(list(answers()), dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1], voting.asked


def _students(parts: _Parts, settings: Settings, place: AnyArray, labels: AnyArray) -> Line:
    """Test accuracy of both students."""
    alone = student.supervised(settings.teacher, parts.public_x[place], labels, parts.scored_x, 10)
    spreading = settings.student
    scores = spreading.spread(_graph(parts, replace(spreading, reach=0.0, rounds=0)), place, labels, 10)
    spread = spreading.of_new(parts.public_x, scores, parts.scored_x)
    return {"supervised": _percent(alone == parts.scored_y), "accuracy": _percent(spread == parts.scored_y)}


@lru_cache(maxsize=1)
def _graph(parts: _Parts, spreading: Spreading) -> Any:
    """Hangs on neither reach nor rounds."""
    return spreading.graph(parts.public_x)


def _percent(right: AnyArray) -> float:
    return round(100 * float(np.mean(right)), 4)
