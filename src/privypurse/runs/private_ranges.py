"""Ends and categories that a configuration has asked of the people: found once, with a share of everybody's ε.

Why nobody pays more than they granted: `budgets.split` gives every purse two parts that add up to it. Out of the
first `queries.private_constants` is paid, before it tells anything; the plan is made with the second, and training is
(ε - ε′, δ - δ′)-DP for each person whatever was told before. By basic composition both together keep (ε, δ). Under a
ledger the question is an entry of its own, training another, and the ledger adds them up for life; of the run's
public cap, at_most, the question has the share and training the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from privypurse.arrays import AnyArray, FloatArray, IntArray
from privypurse.budgets import Budgets
from privypurse.budgets.split import split
from privypurse.budgets.tables import FileColumns
from privypurse.datasets import cells
from privypurse.datasets.encoding import Encoding, Flag
from privypurse.errors import InvalidInput
from privypurse.queries.private_constants import NOISE, PrivateConstants
from privypurse.queries.ranges import ends_of, outer_grid
from privypurse.runs.config import NewPlan, RunConfig, Table
from privypurse.runs.estimated_columns import Estimated, EstimatedCategories, EstimatedRange
from privypurse.runs.kept_plan import keep_first
from privypurse.runs.models import optimizer_of
from privypurse.runs.planning import granted, usual_delta

if TYPE_CHECKING:
    from privypurse.ledger.ledger import Ledger

NAME = "ranges.json"
_ABOUT = (
    "Asked of the people in training: each paid with this share of their own ε and δ, out of which the model has the "
    "rest. Released: written into a configuration, these ends and values cost nobody anything more."
)


@dataclass(frozen=True)
class Released:
    """What was told: public, since everybody has paid for it."""

    share: float
    ranges: Mapping[str, tuple[float, float]]
    categories: Mapping[str, tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        return {"about": _ABOUT, **json.loads(json.dumps(asdict(self)))}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Released:
        """What `to_json` gave."""
        ranges = {name: (float(low), float(high)) for name, (low, high) in told["ranges"].items()}
        found = {name: tuple(map(str, values)) for name, values in told["categories"].items()}
        return cls(float(told["share"]), ranges, found)

    def in_words(self) -> list[str]:
        ends = [f"{name} from {low:g} to {high:g}" for name, (low, high) in self.ranges.items()]
        few = [
            f"{name}: {', '.join(values)}" if values else f"{name}: no value that many people have; it is left out"
            for name, values in self.categories.items()
        ]
        return [f"estimated for {self.share:.3g} of everyone's ε: {each}" for each in (*ends, *few)]


def with_ranges(config: RunConfig, ledger: Ledger | None, *, ask: bool = True) -> tuple[RunConfig, Released | None]:
    """The configuration with all its columns known, and what was told for that; None where nothing is asked.

    A run with a checkpoint asks once, and goes on with what it was told. With ``ask`` false nobody is asked or
    charged: columns that would have to be are stood for by another kind, which says nothing of their cells.
    """
    data, ranges = config.data, config.private_ranges
    if ranges is None or not isinstance(data, Table):
        return config, None
    asked = {name: {"kind": type(how).__name__, **vars(how)} for name, how in data.estimated.items()}
    wanted = json.loads(json.dumps({"share": ranges.share, "columns": asked, "missing": data.missing}))
    file = None if config.training.checkpoint is None else config.training.checkpoint / NAME
    released = None if file is None else _kept(file, wanted)
    if released is None:
        _refuse_beforehand(config, data, ledger)
        if not ask:
            stood_for = {name: Flag() if name in data.estimated else how for name, how in data.features.items()}
            return replace(config, data=replace(data, features=stood_for)), None
        released = _asked(config, data, ledger)
        if file is not None and not keep_first(file, json.dumps({"asked": wanted, "released": asdict(released)})):
            released = _kept(file, wanted)
            assert released is not None
    return replace(config, data=settled(data, released)), released


def to_be_asked(config: RunConfig) -> list[str]:
    """In words what a run would ask the people for, and what each would pay: public, as the configuration is."""
    data, ranges = config.data, config.private_ranges
    if ranges is None or not isinstance(data, Table):
        return []
    asked = [
        f"ends of {name!r}, between {how.within[0]:g} and {how.within[1]:g}"
        if isinstance(how, EstimatedRange)
        else f"values of {name!r}"
        for name, how in data.estimated.items()
    ]
    at_most = config.plan.at_most if isinstance(config.plan, NewPlan) else None
    cap = "" if at_most is None else f", and nobody more than ε = {ranges.share * at_most:g}"
    paid = f"would cost everyone at most {ranges.share:g} of their ε and δ{cap}"
    return [*(f"To be estimated: {each}" for each in asked), f"That {paid}; nobody was asked. The plan has the rest."]


def _refuse_beforehand(config: RunConfig, data: Table, ledger: Ledger | None) -> None:
    """What can be seen to be wrong without asking is not paid for first."""
    optimizer_of(config.optimizer, nn.Linear(1, 1))
    if ledger is None:
        return
    if any(isinstance(how, EstimatedCategories) for how in data.estimated.values()):
        raise InvalidInput(
            'values = "estimated" under [data.features] takes a part of δ that a ledger cannot charge; list the '
            'values, or have them found without a ledger. Ends of numbers (range = "estimated") it can charge'
        )
    if isinstance(config.plan, NewPlan) and config.plan.at_most is None:
        raise InvalidInput(
            "[private_ranges] share under a ledger is one of the run's public cap; give at_most under [plan], an ε "
            "that nobody exceeds"
        )


def _kept(file: Path, wanted: Any) -> Released | None:
    """What the run in this folder was told when it began."""
    if not file.exists():
        return None
    try:
        content = json.loads(file.read_text("utf-8"))
        before, released = content["asked"], Released.from_json(content["released"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{file} cannot be read, so what this run began with is not known: {error!r}") from None
    if before != wanted:
        raise InvalidInput(
            f"the run in {file.parent} asked for other columns, or for another share, than [data.features] and "
            "[private_ranges] do now; go on as it began, or name another checkpoint folder for another run"
        )
    return released


def _asked(config: RunConfig, data: Table, ledger: Ledger | None) -> Released:
    """Ask the people in training, who pay before anything is told."""
    numbers = {name: how for name, how in data.estimated.items() if isinstance(how, EstimatedRange)}
    few = {name: how for name, how in data.estimated.items() if isinstance(how, EstimatedCategories)}
    columns = FileColumns(data.table)
    found = columns.cells([*numbers, *few])
    rows = len(next(iter(found.values())))
    assert config.budgets is not None
    budgets, _ = granted(config.budgets, data.table, rows, ledger, held_out=data.held_out)
    stay, owner = np.ones(rows, dtype=bool), None
    if data.person is not None:  # by id, in whatever order the list of budgets is (rule 13)
        ids = columns.ids(data.person)
        stay = stay if data.held_out is None else ~data.held_out.of(ids)
        owner = budgets.owners_of(ids[stay], int(stay.sum()))
    people = _people(config, budgets, owner, (len(numbers), len(few)), ledger)
    grids = {name: outer_grid(*how.within) for name, how in numbers.items()}
    places = [(_bins(found[name], data.missing, grid)[stay], grid.size - 1) for name, grid in grids.items()]
    counts = people.counts(places) if places else []
    ranges = {
        name: ends_of(each, NOISE, grids[name], how.tail)
        for (name, how), each in zip(numbers.items(), counts, strict=True)
    }
    return Released(_share(config), ranges, {name: _common(people, found[name], data.missing, stay) for name in few})


def _share(config: RunConfig) -> float:
    assert config.private_ranges is not None
    return config.private_ranges.share


def _people(
    config: RunConfig,
    budgets: Budgets,
    owner: IntArray | None,
    columns: tuple[int, int],
    ledger: Ledger | None,
) -> PrivateConstants:
    """Those who are asked, with what each may pay."""
    (numbers, categories), share, seed = columns, _share(config), config.training.seed
    at_most = config.plan.at_most if isinstance(config.plan, NewPlan) else None
    if ledger is None:
        part = split(budgets, share, at_most).first
        return PrivateConstants.by_share(part, owner=owner, numbers=numbers, categories=categories, seed=seed)
    assert at_most is not None  # refused beforehand
    assert not categories
    return PrivateConstants.by_ledger(
        ledger,
        budgets,
        owner=owner,
        epsilon=share * at_most,
        delta=share * usual_delta(ledger),
        numbers=numbers,
        purpose=f"{config.training.purpose}: ranges of columns".removeprefix(": "),
        seed=seed,
    )


def _bins(column: Any, missing: tuple[str, ...], grid: FloatArray) -> IntArray:
    """Of each row its bin on the grid, beyond an end the last one there; -1 where there is no number."""
    values = cells.numbers(cells.cells_of(column), missing)
    inside = np.clip(values, grid[0], grid[-1])
    place = np.minimum(np.searchsorted(grid, inside, side="right") - 1, grid.size - 2)
    return np.where(np.isnan(values), -1, place).astype(np.int64)


def _common(people: PrivateConstants, column: Any, missing: tuple[str, ...], stay: AnyArray) -> tuple[str, ...]:
    """The values that many people have, in the order of the alphabet: any other would tell of rows."""
    coded = cells.texts(cells.cells_of(column), missing).dictionary_encode()
    codes = np.asarray(coded.indices.fill_null(-1), dtype=np.int64)
    words = coded.dictionary.to_pylist()
    return tuple(sorted(words[code] for code in people.common(codes[stay], max(len(words), 1)).tolist()))


def settled(data: Table, released: Released) -> Table:
    """With the encodings that were found; a category of which no value was is left out."""
    features: dict[str, Encoding | Estimated] = {}
    for name, how in data.features.items():
        if isinstance(how, EstimatedRange):
            features[name] = how.found(*released.ranges[name])
        elif not isinstance(how, EstimatedCategories):
            features[name] = how
        elif released.categories[name]:
            features[name] = how.found(released.categories[name])
    if not features:
        raise InvalidInput(
            "no value of any column stands out of the noise, so no column is left; give more columns, list their "
            "values, or raise share under [private_ranges]"
        )
    return replace(data, features=features)
