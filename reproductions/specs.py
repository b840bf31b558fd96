"""What a table's file says: data, budgets, settings, and how they are chosen."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from privypurse.errors import InvalidInput

TABLES = Path(__file__).parent / "tables"
RESULTS = Path(__file__).parent / "results"


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
        unknown = set(changes) - {each.name for each in fields(self)}
        if unknown:
            raise InvalidInput(f"settings have no {', '.join(sorted(unknown))}; see reproductions/specs.py")
        if "decays" in changes:
            changes["decays"] = tuple(changes["decays"])
        return replace(self, **changes)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "decays": list(self.decays)}


@dataclass(frozen=True)
class Stage:
    """One step of choosing: all combinations of the grid, for one method or for each of several by itself."""

    grid: Mapping[str, Sequence[Any]]
    methods: tuple[str, ...] = ()
    """Whose settings are chosen, each by its own scores; none: everybody's, by the scores of the leading method."""

    def candidates(self, current: Settings) -> list[Settings]:
        """What was chosen before, then the grid around it, each once."""
        combined = (current.with_(**dict(zip(self.grid, each, strict=True))) for each in product(*self.grid.values()))
        return list(dict.fromkeys([current, *combined]))


@dataclass(frozen=True)
class Spec:
    """A table."""

    name: str
    title: str
    about: str
    data: str
    budgets: Mapping[str, Any]
    delta: float
    seeds: int
    methods: tuple[str, ...]
    settings: Settings
    stages: tuple[Stage, ...]
    lead: str
    validation: int
    """Records of the training set that choosing scores on, and does not train on."""
    choice_seeds: tuple[int, ...]
    paper: Mapping[str, float] = field(default_factory=dict)


def spec_of(raw: Mapping[str, Any], name: str) -> Spec:
    """A table from its file's content."""
    raw = dict(raw)
    choice = dict(raw.pop("choice"))
    stages = tuple(Stage(each["grid"], tuple(each.get("methods", ()))) for each in choice.pop("stages"))
    try:
        made = Spec(
            name=name,
            settings=Settings().with_(**raw.pop("settings", {})),
            methods=tuple(raw.pop("methods")),
            stages=stages,
            lead=choice.pop("lead"),
            validation=choice.pop("validation"),
            choice_seeds=tuple(choice.pop("seeds")),
            **raw,
        )
    except (KeyError, TypeError) as error:
        raise InvalidInput(f"table {name} is not complete: {error}; compare it with another in {TABLES}") from None
    if choice:
        raise InvalidInput(f"table {name}: [choice] has no {', '.join(choice)}")
    return made


def load(name: str, folder: Path = TABLES) -> Spec:
    path = folder / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.toml")))
        raise InvalidInput(f"there is no table {name!r}; choose one of {known}")
    return spec_of(tomllib.loads(path.read_text()), name)
