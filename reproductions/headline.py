"""From the files of results to the headline table: means over seeds, and differences by the same seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from privypurse.errors import InvalidInput
from reproductions import results
from reproductions.choice import Choice, Rivals

HEADLINE = "headline.md"
_NAMES = {
    "uniform": "uniform",
    "exclude": "exclude",
    "oracle": "exclude, oracle",
    "sample": "Sample",
    "scale": "Scale",
    "ceiling": "uniform at the largest ε",
    "none": "no privacy",
}
_OURS, _RIVALS = ("sample", "scale"), ("uniform", "exclude")


@dataclass(frozen=True)
class Finished:
    """A table that is complete: test accuracy by method, seed after seed."""

    table: Rivals
    choice: Choice
    accuracy: dict[str, np.ndarray]

    @property
    def preferred(self) -> str | None:
        """Sample or Scale, whichever the validation records prefer; None for a table that has neither."""
        ours = [method for method in _OURS if method in self.accuracy]
        return max(ours, key=lambda method: self.choice.chosen(method).score, default=None)


def finished(table: Rivals, folder: Path) -> Finished:
    """A table's results; an error where one has no score for one of its seeds."""
    lines = results.read(results.path_of(table, folder))
    choice = Choice.of(table, lines)
    found: dict[tuple[str, int], float] = {}
    for line in lines:
        if line["purpose"] == "final" and line["settings"] == choice.chosen(line["method"]).settings.plain():
            found[line["method"], line["seed"]] = line["accuracy"][str(choice.chosen(line["method"]).decay)]
    missing = [
        (method, seed) for method in table.methods for seed in range(table.seeds) if (method, seed) not in found
    ]
    if missing:
        method, seed = missing[0]
        raise InvalidInput(
            f"table {table.name} has no result for {method}, seed {seed} ({len(missing)} in all are missing); "
            f"run `python -m reproductions run {table.name}`"
        )
    by_method = {method: np.array([found[method, seed] for seed in range(table.seeds)]) for method in table.methods}
    excluded = [values for method, values in by_method.items() if method.startswith("exclude")]
    if len(excluded) > 1:
        by_method["oracle"] = max(excluded, key=lambda values: float(values.mean()))
    return Finished(table, choice, by_method)


def interval(differences: np.ndarray, level: float = 0.95) -> tuple[float, float, float]:
    """Mean of paired differences and the ends of its interval by Student's t."""
    mean, count = float(differences.mean()), differences.size
    if count < 2:
        raise InvalidInput(f"an interval needs at least two seeds, not {count}")
    half = float(stats.t.ppf((1 + level) / 2, count - 1) * differences.std(ddof=1) / np.sqrt(count))
    return mean, mean - half, mean + half


def told(differences: np.ndarray) -> str:
    """Mean and interval in figures; of one seed the difference alone."""
    if differences.size == 1:
        return f"{differences[0]:+.2f}"
    mean, low, high = (round(each, 2) + 0.0 for each in interval(differences))  # + 0.0: no minus before nothing
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def headline(rows: list[Finished]) -> str:
    """The table as Markdown."""
    lines = [
        "| data | paper | "
        + " | ".join(_NAMES.values())
        + " | "
        + " | ".join(f"gain on {r}" for r in _RIVALS)
        + " |",
        "| --- " * (2 + len(_NAMES) + len(_RIVALS)) + "|",
        *(_row(each) for each in rows),
    ]
    return "\n".join(lines) + "\n"


def against_uniform(row: Finished) -> str:
    """What every method gains on uniform, in plain text: the headline tells the preferred one's gain alone."""
    others = {method: values for method, values in row.accuracy.items() if method != "uniform"}
    return "".join(
        f"{method} less uniform: {told(values - row.accuracy['uniform'])}\n" for method, values in others.items()
    )


def _row(row: Finished) -> str:
    cells = [row.table.title, ", ".join(f"{value:.2f} ({who})" for who, value in row.table.paper.items()) or "–"]
    for method in _NAMES:
        values = row.accuracy.get(method)
        text = "–" if values is None else f"{values.mean():.2f}"
        if values is not None and values.size > 1:
            text += f" ± {values.std(ddof=1):.2f}"
        cells.append(f"**{text}**" if method == row.preferred else text)
    ours = None if row.preferred is None else row.accuracy[row.preferred]
    for rival in _RIVALS:
        known = ours is not None and rival in row.accuracy
        cells.append(told(ours - row.accuracy[rival]) if known else "–")
    return "| " + " | ".join(cells) + " |"
