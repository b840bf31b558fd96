"""Columns whose ends or categories nobody knows: a configuration has them asked of the people, for a share of ε."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from privypurse._validate import real
from privypurse.datasets.encoding import Categories, Range
from privypurse.errors import InvalidInput
from privypurse.runs.sections import read

ESTIMATED = "estimated"


@dataclass(frozen=True)
class EstimatedRange:
    """A number: its ends are asked for, on a public grid between two that hold anything."""

    within: Annotated[tuple[float, float], Meta(title="two public ends that hold anything, as in [0, 1e7]")]
    log: bool = False
    indicator: bool = True
    tail: float = 0.01
    """About this share of people lies below the lower end, and as many above the upper one."""

    def __post_init__(self) -> None:
        low, high = self.within
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InvalidInput(
                f"within is {list(self.within)}; give two ends that hold anything, the lower one first"
            )
        real(self.tail, "tail", least=0, below=0.5)

    def found(self, low: float, high: float) -> Range:
        return Range(low, high, self.log, self.indicator)


@dataclass(frozen=True)
class EstimatedCategories:
    """A category: the values that many people have are asked for, all else is other."""

    indicator: bool = True

    def found(self, values: tuple[str, ...]) -> Categories:
        return Categories(values, indicator=self.indicator)


Estimated = EstimatedRange | EstimatedCategories
KINDS = (EstimatedRange, EstimatedCategories)


@dataclass(frozen=True)
class PrivateRanges:
    """[private_ranges]: what of everybody's ε and δ goes to finding ends and categories; training has the rest."""

    share: Annotated[float, Meta(title="the share of everybody's ε, as in 0.05")]

    def __post_init__(self) -> None:
        real(self.share, "share", above=0, most=0.5)


def is_estimated(given: Any) -> bool:
    """Whether a column of a configuration is one of these."""
    return isinstance(given, dict) and any(isinstance(given.get(key), str) for key in ("range", "values"))


def estimated(given: dict[str, Any], place: str) -> Estimated:
    """What such a column asks for."""
    for key in ("range", "values"):
        if isinstance(given.get(key), str) and given[key] != ESTIMATED:
            raise InvalidInput(
                f'{place}: {key} is {given[key]!r}; the one word that can stand there is "{ESTIMATED}"'
            )
    rest = {key: each for key, each in given.items() if each != ESTIMATED}
    wanted, kind = ("range", "number") if given.get("range") == ESTIMATED else ("values", "category")
    if rest.pop("kind", kind) != kind:
        raise InvalidInput(
            f'{place}: {wanted} = "{ESTIMATED}" is for a {kind}, and kind is {given["kind"]!r}; ends of numbers and '
            "values of categories can be estimated, all else is given"
        )
    return read(EstimatedRange, rest, place) if kind == "number" else read(EstimatedCategories, rest, place)


def check_agreement(asked: Mapping[str, Estimated], ranges: PrivateRanges | None, plan: object) -> None:
    """Raise unless who asks also says what it costs, and the plan is made with the rest."""
    if asked and ranges is None:
        raise InvalidInput(
            f"[data.features] {next(iter(asked))} is to be estimated, which people pay for: say with which share of "
            "their ε, as in [private_ranges] share = 0.05"
        )
    if ranges is not None and not asked:
        raise InvalidInput(
            "[private_ranges] finds nothing to estimate under [data.features]; ask for a column's ends by { range = "
            '"estimated", within = [0, 1e7] }, for its categories by { values = "estimated" }, or remove the section'
        )
    if ranges is not None and isinstance(plan, Path):
        raise InvalidInput(
            f'plan = "{plan}" was made before, and may take all of every ε; with [private_ranges] give a section '
            "[plan], which is made with the rest"
        )
