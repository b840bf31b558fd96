"""The picture of the first page, from the files of results: `python -m reproductions.picture`.

What each method gains in test accuracy over training everybody at the strictest ε, with 95 % intervals of differences
by the same seeds.
"""

import argparse
from pathlib import Path

import numpy as np

from reproductions import headline, svg
from reproductions.catalogue import RESULTS, load_rivals

PICTURE = Path(__file__).parents[1] / "docs" / "results" / "headline.svg"
TABLES = (
    "scattering-cifar10",
    "scattering-svhn",
    "scattering-fashion-mnist",
    "scattering-mnist",
    "adult",
    "sst2-probe",
)
WIDTH, LEFT, RIGHT, TOP, ROW, LINE = 820, 210, 110, 84, 76, 19
MARKS = {
    "exclude": svg.Mark("#c77700", svg.SQUARE, "the strict left out, all others at one ε"),
    "ours": svg.Mark("#0a6ea8", svg.CIRCLE, "Privy Purse: everybody at their own ε"),
    "ceiling": svg.Mark("#777777", svg.RING, "everybody at the largest ε: breaks the promise to most"),
}


def picture(tables: list[headline.Finished]) -> str:
    """The whole picture as SVG."""
    gains = [_gains(table) for table in tables]
    first = int(np.floor(min(0.0, *(low for row in gains for _, low, _ in row.values()))))
    last = int(np.ceil(max(high for row in gains for _, _, high in row.values())))
    bottom = TOP + ROW * len(tables)

    def across(value: float) -> float:
        return LEFT + (value - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    parts = [
        svg.text(20, 30, "Gain in test accuracy over training everybody at the strictest ε", size=17, weight="bold"),
        svg.text(20, 52, "Mean of five seeds with 95 % intervals; methods are compared seed by seed"),
    ]
    for tick in range(first, last + 1):
        parts.append(svg.line(across(tick), TOP - 8, across(tick), bottom, svg.FAINT, 1 if tick else 2))
        parts.append(svg.text(across(tick), bottom + 20, f"{tick:+d}" if tick else "0", anchor="middle"))
    parts.append(svg.text(across(last) + 14, bottom + 20, "points"))
    for number, (table, row) in enumerate(zip(tables, gains, strict=True)):
        middle = TOP + ROW * (number + 0.5)
        title, _, more = table.table.title.partition(", ")
        parts.append(svg.text(20, middle - 3, title, size=15, weight="bold"))
        told = [more] if more else []
        told.append(f"{table.accuracy['uniform'].mean():.1f} % at the strictest ε")
        parts += [svg.text(20, middle + 16 * place, each, size=12) for place, each in enumerate(told, 1)]
        for place, (name, (mean, low, high)) in enumerate(row.items()):
            y = middle + (place - 1) * LINE
            parts.append(svg.line(across(low), y, across(high), y, MARKS[name].colour, 3))
            parts.append(MARKS[name].at(across(mean), y))
            weight = "bold" if name == "ours" else "normal"
            parts.append(svg.text(across(high) + 12, y + 4, f"{mean:+.2f}", size=12, weight=weight))
    parts += svg.key(MARKS.values(), LEFT, bottom + 48)
    return svg.document(WIDTH, bottom + 48 + 20 * len(MARKS), parts)


def _gains(table: headline.Finished) -> dict[str, tuple[float, float, float]]:
    """Mean gain over uniform and its interval, by mark; ours is the one that the validation records prefer."""
    assert table.preferred is not None  # tables of the headline have both
    methods = {"exclude": "exclude", "ours": table.preferred, "ceiling": "ceiling"}
    base = table.accuracy["uniform"]
    return {mark: headline.interval(table.accuracy[method] - base) for mark, method in methods.items()}


def drawn(folder: Path = RESULTS) -> str:
    return picture([headline.finished(load_rivals(name), folder) for name in TABLES])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    PICTURE.write_text(drawn(), encoding="utf-8")
    print(PICTURE)
