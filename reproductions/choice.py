"""Tables of rivals whose settings are chosen on validation records, stage by stage, from the scores alone.

The data sets are public, so that validation records cost nobody anything. On people's data every score on them
would be a use like any other, and charged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

from privypurse._validate import integer, real
from privypurse.errors import InvalidInput, PrivyPurseError
from reproductions.results import Job, Line, by_key, key_of
from reproductions.toml_sections import check_keys, made

_TOP = {"title", "about", "data", "features", "budgets", "delta", "seeds", "methods", "settings", "choice"}
_TOP |= {"paper", "clients"}
_METHODS = ("uniform", "exclude", "sample", "scale", "ceiling", "none")
CENTRED = "centred"
"""The scaling whose centre the first steps of a plan estimate: see `reproductions.centring`."""
LEAST_CENTRED = 2
"""Steps: one at least for the centre, one for the rest."""


class Unfinished(PrivyPurseError):
    """Something was asked for that needs a finished choice."""


@dataclass(frozen=True)
class Settings:
    """Everything that one training is told, but the budgets and the seed."""

    network: str = "cnn"
    width: int = 64
    scaling: str = "groups"
    """How features are put on one scale: see `features.scaled`."""
    views: str = "plain"
    """Which views of an image make one record: see `features.VIEWS`."""
    steps: int = 400
    batch_size: int = 4096
    clip_norm: float = 0.1
    momentum: float = 0.9
    walk: float = 0.06
    """How far noise alone moves a weight in the whole run (standard deviation); the step length follows from it."""
    learning_rate: float = 0.1
    """Of training without privacy, where there is no noise to scale the step by."""
    decays: tuple[float, ...] = (0.0, 0.95, 0.98, 0.99)
    """Moving averages of the released weights that are tried; 0 is the last weights."""

    def with_(self, **changes: Any) -> Settings:
        check_keys("settings", changes, set(asdict(self)))
        if "decays" in changes:
            changes["decays"] = tuple(changes["decays"])
        return replace(self, **changes)

    def of_records(self) -> Settings:
        """The settings that say what a record looks like, alone: all trainings with equal ones share the records."""
        return Settings(network=self.network, scaling=self.scaling, views=self.views)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "decays": list(self.decays)}


@dataclass(frozen=True)
class Clients:
    """Records over simulated clients of equal size, that train in rounds (`reproductions.federated_rivals`).

    Steps are then those of a client in each round, and the batch is that of all clients together.
    """

    number: int
    rounds: int
    client_rate: float
    reference: float
    """The noise of Sample and Scale is such that a record with this ε would be drawn as in ordinary training."""


@dataclass(frozen=True)
class Stage:
    """One step of choosing: all combinations of the grid, for one method or for each of several by itself."""

    grid: Mapping[str, Sequence[Any]]
    methods: Sequence[str] = ()
    """Whose settings are chosen, each by its own scores; none: everybody's, by the scores of the leading method."""

    def each(self) -> Iterator[tuple[str, Any]]:
        """Every setting that is tried, by its name."""
        return ((name, value) for name, values in self.grid.items() for value in values)

    def candidates(self, current: Settings) -> list[Settings]:
        """What was chosen before, then the grid around it, each once."""
        combined = (current.with_(**dict(zip(self.grid, each, strict=True))) for each in product(*self.grid.values()))
        return list(dict.fromkeys([current, *combined]))


@dataclass(frozen=True)
class Rivals:
    """A table: one data set, the methods that are compared on it, and how their settings are chosen."""

    name: str
    title: str
    about: str
    data: str
    budgets: Mapping[str, Any]
    delta: float
    seeds: int
    methods: Sequence[str]
    settings: Settings
    stages: Sequence[Stage]
    lead: str
    validation: int
    """Records of the training set that choosing scores on, and does not train on."""
    choice_seeds: Sequence[int]
    paper: Mapping[str, float] = field(default_factory=dict)
    features: str = "scattering"
    """What networks see of a record: see `reproductions.sources`."""
    clients: Clients | None = None
    """None: all records lie in one place."""
    records: int | None = None
    """The first records alone, of the training and of the test part: for quick runs."""

    @property
    def quick(self) -> bool:
        return self.records is not None

    def left(self, lines: Iterable[Line]) -> list[Job]:
        """What the choice still has to score; once it is finished, every row and seed that has no result."""
        choice = Choice.of(self, lines)
        if missing := choice.missing():
            return missing
        done = by_key(lines)
        return [job for job in choice.final_jobs() if job.key not in done]

    def quickened(self) -> Rivals:
        """Every stage with the settings of the file alone and every row, each for a moment on a few records."""
        settings = self.settings.with_(steps=3, batch_size=20)
        stages = [Stage({}, stage.methods) for stage in self.stages]
        few: dict[str, Any] = {"records": 140, "validation": 40, "seeds": 2}
        if self.clients is not None:
            few["clients"] = replace(self.clients, number=3, rounds=2)
        return replace(self, name=f"{self.name}-quick", settings=settings, stages=stages, **few)


def rivals_of(content: Mapping[str, Any], name: str) -> Rivals:
    """A table from its file's content."""
    check_keys(f"table {name}", content, _TOP, _TOP - {"paper", "features", "clients", "settings"})
    choice = content["choice"]
    check_keys("[choice]", choice, needed := {"lead", "validation", "seeds", "stages"}, needed)
    given = {key: value for key, value in content.items() if key != "choice"}
    given |= {"lead": choice["lead"], "validation": choice["validation"], "choice_seeds": choice["seeds"]}
    given |= {"stages": [made(Stage, "[[choice.stages]]", each) for each in choice["stages"]]}
    if "clients" in given:
        given |= {"clients": made(Clients, "[clients]", given["clients"])}
    given |= {"settings": Settings().with_(**content.get("settings", {})), "name": name}
    table = made(Rivals, f"table {name}", given)
    _check(table)
    return table


def _check(table: Rivals) -> None:
    """Raise for what would end a run in the middle, or choose by what is reported."""
    integer(table.seeds, "seeds")
    integer(table.validation, "[choice] validation")
    if not table.methods:
        raise InvalidInput("methods is empty; name at least one")
    for where, method in [
        *(("methods", method) for method in table.methods),
        ("[choice] lead", table.lead),
        *(("[[choice.stages]] methods", method) for stage in table.stages for method in stage.methods),
    ]:
        if method not in _METHODS and not _is_threshold(method):
            raise InvalidInput(
                f"{where} has {method!r}; choose among {', '.join(_METHODS)}, or exclude@2 for one at 2"
            )
    if not table.choice_seeds or set(table.choice_seeds) & set(range(table.seeds)):
        raise InvalidInput(
            f"[choice] seeds are {list(table.choice_seeds)}; name one or more that are not among those of the final "
            f"trainings, 0 to {table.seeds - 1}"
        )
    for settings in [
        table.settings,
        *(table.settings.with_(**{k: v}) for stage in table.stages for k, v in stage.each()),
    ]:
        for name in ("walk", "learning_rate", "clip_norm"):
            real(getattr(settings, name), name, above=0)
        for name in ("steps", "batch_size", "width"):
            integer(getattr(settings, name), name)
        if not settings.decays:
            raise InvalidInput("settings.decays is empty; give at least [0.0]")
    _check_centred(table)


def _check_centred(table: Rivals) -> None:
    """Any network and number of steps of the search may meet the scaling."""

    def tried(name: str) -> set[Any]:
        grids = (stage.grid.get(name, ()) for stage in table.stages)
        return {getattr(table.settings, name), *(value for grid in grids for value in grid)}

    if CENTRED not in tried("scaling"):
        return
    if tried("network") != {"probe"} or table.clients is not None:
        raise InvalidInput(f'scaling "{CENTRED}" is for network "probe" with all records in one place')
    if min(tried("steps")) < LEAST_CENTRED:
        raise InvalidInput(f'scaling "{CENTRED}" takes {LEAST_CENTRED} steps or more, one of them for the centre')


def _is_threshold(method: str) -> bool:
    """Whether this is exclude@ε."""
    try:
        return method.startswith("exclude@") and float(method.removeprefix("exclude@")) > 0
    except ValueError:
        return False


@dataclass(frozen=True)
class Chosen:
    """What a method trains with."""

    settings: Settings
    decay: float
    score: float


@dataclass(frozen=True)
class Choice:
    """A table's stages, and the validation accuracies so far: by job's key, then by decay."""

    table: Rivals
    scores: Mapping[str, Mapping[str, float]]

    @classmethod
    def of(cls, table: Rivals, lines: Iterable[Line]) -> Choice:
        return cls(table, {key_of(line): line["accuracy"] for line in lines if line.get("purpose") == "choice"})

    def missing(self) -> list[Job]:
        """What the first unfinished stage still has to train; nothing, once all are finished."""
        return self._through()[0]

    def chosen(self, method: str) -> Chosen:
        missing, current = self._through()
        if missing:
            raise Unfinished(f"the choice for {self.table.name} is not finished: {len(missing)} scores are missing")
        own = any(method in stage.methods for stage in self.table.stages)
        return self._best(method if own else self.table.lead, [current[method]])

    def at_edge(self, method: str) -> dict[str, float]:
        """Steps and step length of a method that are the least or the most of those by which it was chosen, among
        trainings with its network and scaling."""
        chosen, edges = self.chosen(method).settings.plain(), {}
        trained = [json.loads(key) for key in self.scores]
        for name in ("steps", "learning_rate" if method == "none" else "walk"):
            own = any(method in stage.methods and name in stage.grid for stage in self.table.stages)
            by = method if own else self.table.lead
            own_lines = [each["settings"] for each in trained if each["method"] == by]
            tried = {each[name] for each in own_lines if all(each[k] == chosen[k] for k in ("network", "scaling"))}
            if len(tried) > 1 and chosen[name] in (min(tried), max(tried)):
                edges[name] = chosen[name]
        return edges

    def final_jobs(self) -> list[Job]:
        """All rows of the table, seed by seed, so that whoever breaks off has whole seeds."""
        chosen = {method: self.chosen(method).settings for method in self.table.methods}
        seeds = range(self.table.seeds)
        return [Job({"purpose": "final", "method": each}, chosen[each], seed) for seed in seeds for each in chosen]

    def _through(self) -> tuple[list[Job], dict[str, Settings]]:
        current = dict.fromkeys((*self.table.methods, self.table.lead), self.table.settings)
        for stage in self.table.stages:
            missing: list[Job] = []
            for method in stage.methods or (self.table.lead,):
                candidates = stage.candidates(current[method])
                some = [job for job in self._jobs(method, candidates) if job.key not in self.scores]
                missing += some
                if not some:
                    best = self._best(method, candidates).settings
                    current.update({method: best} if stage.methods else dict.fromkeys(current, best))
            if missing:
                return missing, current
        return [], current

    def _jobs(self, method: str, candidates: Iterable[Settings]) -> list[Job]:
        place = {"purpose": "choice", "method": method}
        return [Job(place, each, seed) for each in candidates for seed in self.table.choice_seeds]

    def _best(self, method: str, candidates: Iterable[Settings]) -> Chosen:
        """The candidate and the average with the best mean score over the seeds; the first of equals."""
        best: Chosen | None = None
        for settings in candidates:
            scores = [self.scores[job.key] for job in self._jobs(method, [settings])]
            for decay in settings.decays:
                mean = sum(each[str(decay)] for each in scores) / len(scores)
                if best is None or mean > best.score:
                    best = Chosen(settings, decay, mean)
        assert best is not None  # there are settings, and averages of each
        return best
