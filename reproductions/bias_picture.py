"""A panel for each data set and each way of granting: accuracy by method, overall and by consent group."""

from collections.abc import Callable, Mapping

import numpy as np
from scipy import stats

from reproductions import svg

WIDTH, LEFT, PANEL, BETWEEN, TOP, HEAD, ROW = 820, 155, 285, 55, 70, 42, 30
MARKS = {
    "overall": svg.Mark("#0a6ea8", svg.CIRCLE, "all test records"),
    "strict": svg.Mark("#c77700", svg.SQUARE, "classes that grant less than 1"),
    "generous": svg.Mark("#777777", svg.RING, "the other classes"),
}
Groups = Mapping[tuple[str, str], Mapping[str, np.ndarray]]
"""By row and column: accuracies of each group, seed after seed."""


def picture(found: Mapping[str, Groups], name: Callable[[str], str]) -> str:
    """The whole picture as SVG: data sets below one another, ways of granting side by side."""
    parts = [
        svg.text(20, 30, "Test accuracy where consent follows the label, %", size=17, weight="bold"),
        svg.text(20, 50, "Mean of five seeds with its 95 % interval"),
    ]
    top = TOP
    for data, groups in found.items():
        rows, columns = (list(dict.fromkeys(place[k] for place in groups)) for k in (0, 1))
        parts.append(svg.text(20, top + 30, data, size=15, weight="bold"))
        for number, column in enumerate(columns):
            parts.append(svg.text(20, top + HEAD + ROW * (number + 0.5) + 4, name(column)))
        for number, row in enumerate(rows):
            left = LEFT + number * (PANEL + BETWEEN)
            granted = row.removeprefix("digits ").removesuffix(" by digit")
            parts.append(svg.text(left, top + 30, f"ε by class: {granted}"))
            parts += _panel(left, top + HEAD, [groups[row, column] for column in columns])
        top += HEAD + ROW * len(columns) + 30
    parts += svg.key(MARKS.values(), LEFT, top + 20)
    return svg.document(WIDTH, top + 20 + 20 * len(MARKS), parts)


def _panel(left: float, top: float, columns: list[Mapping[str, np.ndarray]]) -> list[str]:
    def across(value: float) -> float:
        return left + value / 100 * PANEL

    bottom, parts = top + ROW * len(columns), []
    for tick in range(0, 101, 25):
        parts.append(svg.line(across(tick), top, across(tick), bottom, svg.FAINT, 1))
        parts.append(svg.text(across(tick), bottom + 16, str(tick), size=12, anchor="middle"))
    for number, groups in enumerate(columns):
        for place, (group, values) in enumerate(groups.items()):
            y = top + ROW * (number + 0.5) + (place - 1) * 7
            mean = float(values.mean())
            half = float(stats.t.ppf(0.975, values.size - 1) * values.std(ddof=1) / np.sqrt(values.size))
            low, high = max(0.0, mean - half), min(100.0, mean + half)
            parts.append(svg.line(across(low), y, across(high), y, MARKS[group].colour, 3))
            parts.append(MARKS[group].at(across(mean), y))
    return parts
