"""The bias of Sample in figures, where consent follows the label: `python -m reproductions.bias`.

From the files of results: accuracy overall and of the strict and the generous classes, by the weight gamma of
`reproductions.weighted_sample`. From the plans: whose gradients a step is made of. Picture: docs/results.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import privypurse as pp
from privypurse.errors import InvalidInput, PrivyPurseWarning
from reproductions import bias_picture, catalogue, results
from reproductions.grid import Grid
from reproductions.headline import told
from reproductions.plans import method_of
from reproductions.results import Line

TABLES = {"MNIST": "bias-of-sample", "Fashion-MNIST": "bias-of-sample-fashion-mnist"}
PICTURE = Path(__file__).parents[1] / "docs" / "results" / "bias-of-sample.svg"
STRICT = 1.0
"""Classes that grant less are the strict ones: ε 0.5 in the one row, 0.5 and 0.75 in the other."""
UNIFORM, SAMPLE = "uniform", "gamma 0"


@dataclass(frozen=True)
class Scores:
    """One column of one row: accuracy in percent, seed after seed."""

    overall: np.ndarray
    strict: np.ndarray
    """Mean over the classes that grant less than `STRICT`."""
    generous: np.ndarray
    """Mean over the others."""

    @property
    def groups(self) -> dict[str, np.ndarray]:
        return {"overall": self.overall, "strict": self.strict, "generous": self.generous}


def scores(grid: Grid, lines: list[Line]) -> dict[tuple[str, str], Scores]:
    """Of every row and column; an error where a seed is missing."""
    found = grid.found(lines)
    out = {}
    for (row, column), cell in grid.cells.items():
        seeds = sorted(found.get((row, column), []), key=lambda line: int(line["seed"]))
        if len(seeds) != grid.seeds:
            raise InvalidInput(f"{grid.name} has {len(seeds)} of {grid.seeds} seeds of {row} / {column}; run it")
        by_class = np.array([line["classes"] for line in seeds])
        strict = np.array(cell.budgets["epsilon"]) < STRICT
        overall = np.array([line["overall"] for line in seeds])
        out[row, column] = Scores(overall, by_class[:, strict].mean(axis=1), by_class[:, ~strict].mean(axis=1))
    return out


def accuracy_table(found: dict[tuple[str, str], Scores]) -> list[str]:
    """Markdown: mean ± deviation over seeds, and differences by the same seeds with 95 % intervals."""
    lines = [
        "| ε by class | | overall | strict | generous | overall − uniform | overall − Sample |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (row, column), each in found.items():
        cells = [f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" for values in each.groups.values()]
        for rival in (UNIFORM, SAMPLE):
            cells.append("–" if column == rival else told(each.overall - found[row, rival].overall))
        lines.append(f"| {row} | {_name(column)} | " + " | ".join(cells) + " |")
    return lines


def _name(column: str) -> str:
    return {SAMPLE: "γ = 0 (Sample)", "scale": "Scale"}.get(column, column.replace("gamma ", "γ = "))


@dataclass(frozen=True)
class Signal:
    """What a step is made of: C = 1, so that signal and noise are in the same unit."""

    noise: float
    """σ·C."""
    total: float
    """Σ q·c over all people over the divisor: 1 where as much is added up as uniform training does."""
    strict: float
    """The share of the strict in it."""
    rates: tuple[float, float]
    clips: tuple[float, float]
    """Of the strictest and of the most generous."""

    @classmethod
    def of(cls, plan: pp.Plan) -> "Signal":
        levels, people = plan.levels, plan.people_by_level()
        each = people * levels.rate * levels.clip_norm / plan.clip_norm
        total = float(each.sum())
        ends = [int(np.argmin(levels.epsilon)), int(np.argmax(levels.epsilon))]
        return cls(
            noise=plan.noise_multiplier,
            total=total / plan.batch_size,
            strict=float(each[levels.epsilon < STRICT].sum()) / total,
            rates=(float(levels.rate[ends[0]]), float(levels.rate[ends[1]])),
            clips=(float(levels.clip_norm[ends[0]]), float(levels.clip_norm[ends[1]])),
        )


def signal(grid: Grid, lines: list[Line], row: str, column: str) -> Signal:
    """From the plan that was trained by: the same budgets, so the same noise as in the results, or an error."""
    cell, line = grid.cells[row, column], grid.found(lines)[row, column][0]
    epsilon = np.repeat(*np.array([[each["epsilon"], each["people"]] for each in line["groups"]]).T.tolist())
    budgets = pp.Budgets(epsilon, delta=cell.delta)
    how: dict[str, Any] = {
        "method": method_of(cell.method, cell.options),
        "steps": cell.training.steps_for(epsilon.size),
        "batch_size": cell.training.batch(epsilon.size),
        "clip_norm": cell.training.clip_norm,
        "accountant": cell.accountant,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivyPurseWarning)  # Liu et al.'s δ of 1e-4 is above 1 / people
        plan = pp.plan(budgets, **how)
    if not np.isclose(plan.noise_multiplier, line["noise_multiplier"], rtol=1e-3):
        raise InvalidInput(
            f"{row} / {column} was trained with σ = {line['noise_multiplier']}, and is planned with "
            f"{plan.noise_multiplier} now; train {grid.name} again"
        )
    return Signal.of(plan)


def signal_line(row: str, column: str, found: Signal) -> str:
    ends = " | ".join(f"{a:.3f} / {b:.3f}" for a, b in (found.rates, found.clips))
    return (
        f"| {row} | {_name(column)} | {found.noise:.2f} | {found.total:.2f} | {found.noise / found.total:.2f} | "
        f"{100 * found.strict:.1f} % | {ends} |"
    )


def signal_table(grid: Grid, lines: list[Line]) -> Iterator[str]:
    """Markdown, line by line: the search for a weighted plan takes up to a quarter of a minute."""
    yield (
        "| ε by class | | σ | signal | noise to signal | the strict in it | q, strictest / most generous | "
        "c / C, the same |"
    )
    yield "| --- " * 8 + "|"
    for row, column in grid.cells:
        yield signal_line(row, column, signal(grid, lines, row, column))


def read(name: str, folder: Path = catalogue.RESULTS) -> tuple[Grid, list[Line]]:
    grid = catalogue.load(name)
    assert isinstance(grid, Grid)
    return grid, results.read(results.path_of(grid, folder))


def drawn() -> str:
    found = {data: scores(*read(name)) for data, name in TABLES.items()}
    groups = {data: {place: each.groups for place, each in every.items()} for data, every in found.items()}
    return bias_picture.picture(groups, _name)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for data, name in TABLES.items():
        print(f"\n{data}\n", *accuracy_table(scores(*read(name))), sep="\n")
    print("\nA step of MNIST's plans\n")
    for line in signal_table(*read(TABLES["MNIST"])):
        print(line, flush=True)
    PICTURE.write_text(drawn(), encoding="utf-8")
    print(f"\nwritten: {PICTURE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
