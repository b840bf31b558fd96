"""Figures that are accounting alone, without data: `python -m reproductions.accounting_figures`.

Boenisch et al. (2023), Figure 4: what each group has spent as training goes on, for Sample and Scale. Heo et al.
(2023), Figure 6: how many people there are with so much ε left in each round of AdaPDP, and how likely they are to be
drawn; with the paper's bookkeeping, which keeps no promise, and the chances of the sound one. Settings are those of
`tables/boenisch-table-2-mnist.toml` and `tables/heo-table-1-mnist.toml`. Budgets are drawn by --seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

import privypurse as pp
from privypurse.assignment.round_planner import AdaPdp
from privypurse.assignment.threshold_sampling import probabilities
from privypurse.errors import InvalidInput
from reproductions import catalogue
from reproductions.cell import Cell
from reproductions.grid import Grid
from reproductions.plans import epsilon_of, method_of
from reproductions.unsound.drawn_pay import Published, published

RECORDS = 60_000  # of MNIST's training file
_MOMENTS = 5
_WIDTH = 0.1  # of the bins of ε
_CHANCES = (0.0, 0.25, 0.5, 0.75, 1.0)


def _cell(table: str, row: str, column: str) -> Cell:
    grid = catalogue.load(table)
    if not isinstance(grid, Grid):
        raise InvalidInput(f"table {table} has no rows and columns")
    return grid.cells[row, column]


def _budgets(cell: Cell, records: int, seed: int) -> pp.Budgets:
    """Whoever grants what does not follow from labels in these tables."""
    epsilon = epsilon_of(cell.budgets, np.zeros(records), np.random.default_rng([seed, 3]))
    return pp.Budgets(epsilon, delta=cell.delta)


def consumption(row: str, column: str, records: int = RECORDS, seed: int = 0) -> tuple[np.ndarray, list[int], Any]:
    """Spent by each group of a cell (row) after some numbers of steps (column); the steps; and the plan."""
    cell = _cell("boenisch-table-2-mnist", row, column)
    steps, batch = cell.training.steps_for(records), cell.training.batch(records)
    sizes: dict[str, Any] = {"batch_size": batch, "clip_norm": cell.training.clip_norm, "accountant": cell.accountant}
    plan = pp.plan(_budgets(cell, records, seed), cell.method, steps=steps, **sizes)
    moments = [round(steps * k / _MOMENTS) for k in range(1, _MOMENTS + 1)]
    return np.stack([plan.spent_by_level(each) for each in moments], axis=1), moments, plan


def figure_4(row: str = "54-37-9 %") -> str:
    """Boenisch et al. (2023), Figure 4, as Markdown."""
    lines: list[str] = []
    for column in ("DP-SGD", "Sample", "Scale"):
        spent, moments, plan = consumption(row, column)
        if not lines:
            lines = _head(["", "ε granted", "rate", "clip norm", *(f"{each:,} steps" for each in moments)])
        for level, values in enumerate(spent):
            own = plan.levels
            granted = f"{own.epsilon[level]:g}" if column != "DP-SGD" else "all at 1"
            cells = [column, granted, f"{own.rate[level]:.5f}", f"{own.clip_norm[level]:.4f}"]
            lines.append(_line([*cells, *(f"{value:.3f}" for value in values)]))
            if column == "DP-SGD":
                break
    return "\n".join(lines) + "\n"


def left_over(made: Published) -> list[np.ndarray]:
    """What everybody has left before each round, by the published bookkeeping."""
    left = [made.epsilon_by_level[made.level_of].copy()]
    for drawn, charge in zip(made.drawn, made.charge, strict=True):
        left.append(np.where(drawn, np.maximum(left[-1] - charge, 0.0), left[-1]))
    return left[:-1]


def figure_6(row: str = "k = 0", records: int = RECORDS, seed: int = 0) -> str:
    """Heo et al. (2023), Figure 6, as Markdown: two tables."""
    cell = _cell("heo-table-1-mnist", row, "AdaPDP")
    budgets, method = _budgets(cell, records, seed), method_of(cell.method, cell.options)
    if not isinstance(method, AdaPdp):
        raise InvalidInput(f"the column of AdaPDP has method {cell.method}")
    epochs, batch = cell.training.epochs_for(records), cell.training.batch(records)
    sizes: dict[str, Any] = {"epochs": epochs, "batch_size": batch, "clip_norm": cell.training.clip_norm}
    as_published = published(budgets, method, **sizes, rng=np.random.default_rng([seed, 4]))
    sound = pp.rounds.schedule(budgets, method, **sizes, accountant=cell.accountant)
    return f"As published, no promise kept:\n\n{_by_count(as_published)}\nSound:\n\n{_by_level(sound)}"


def _by_count(made: Published) -> str:
    bins = int(np.ceil(made.epsilon_by_level.max() / _WIDTH - 1e-9))
    named = [f"ε ≤ {_WIDTH * k:.1f}" for k in range(1, bins + 1)]
    chances = [f"π ≤ {high:g}" for high in _CHANCES[1:-1]] + ["π < 1", "π = 1"]
    lines = _head(["round", "τ", "drawn", "nothing left", *named, *chances])
    for number, (one, left, drawn) in enumerate(zip(made.rounds, left_over(made), made.drawn, strict=True), 1):
        some = left > 1e-9
        by_epsilon = np.bincount(np.ceil(left[some] / _WIDTH - 1e-9).astype(int) - 1, minlength=len(named))
        chance = probabilities(left[some], one.threshold)
        below = chance[chance < 1]
        by_chance = [*np.histogram(below, np.array(_CHANCES))[0].tolist(), int((chance == 1).sum())]
        counts = [int(drawn.sum()), int((~some).sum()), *by_epsilon.tolist(), *by_chance]
        lines.append(_line([str(number), f"{one.threshold:.3f}", *(f"{count:,}" for count in counts)]))
    return "\n".join(lines) + "\n"


def _by_level(made: pp.rounds.Schedule) -> str:
    which = np.unique(np.linspace(0, made.epsilon_by_level.size - 1, 6).round().astype(int))
    heads = [f"π at ε {made.epsilon_by_level[k]:.3g}" for k in which]
    lines = _head(["round", "τ", "drawn, expected", *heads])
    for number, one in enumerate(made.rounds, 1):
        chance = [f"{one.chance[k]:.3f}" for k in which]
        lines.append(_line([str(number), f"{one.threshold:.3f}", f"{one.expected:,.0f}", *chance]))
    return "\n".join(lines) + "\n"


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), _line(["---"] * len(cells))]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m reproductions.accounting_figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of who grants what, and of the published draws")
    asked = parser.parse_args(arguments)
    print(f"Boenisch et al. (2023), Figure 4, MNIST, 54-37-9 %\n\n{figure_4()}")
    print(f"Heo et al. (2023), Figure 6, AdaPDP, MNIST, k = 0\n\n{figure_6(seed=asked.seed)}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
