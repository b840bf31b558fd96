"""The picture of the first page, from the files of results: `python -m reproductions.picture`.

What each method gains in test accuracy over training everybody at the strictest ε, with 95 % intervals of differences
by the same seeds. Plain SVG by hand, so that the same results give the same bytes and a test can compare them.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reproductions import headline
from reproductions.catalogue import RESULTS, load_rivals

PICTURE = Path(__file__).parents[1] / "docs" / "results" / "headline.svg"
TABLES = ("scattering-cifar10", "scattering-svhn", "scattering-fashion-mnist", "scattering-mnist")
WIDTH, LEFT, RIGHT, TOP, ROW, LINE = 820, 190, 110, 84, 76, 19
INK, FAINT = "#222222", "#d9d9d9"


@dataclass(frozen=True)
class Mark:
    """How a method is drawn: its colour, its shape around (x, y), and its name in the key."""

    colour: str
    shape: str
    name: str

    def at(self, x: float, y: float) -> str:
        corner = {"left": f"{x - 5:.1f}", "top": f"{y - 5:.1f}"}
        return self.shape.format(x=f"{x:.1f}", y=f"{y:.1f}", colour=self.colour, **corner)


_CIRCLE = '<circle cx="{x}" cy="{y}" r="6" fill="{colour}"/>'
_SQUARE = '<rect x="{left}" y="{top}" width="10" height="10" fill="{colour}"/>'
_RING = '<circle cx="{x}" cy="{y}" r="5" fill="#ffffff" stroke="{colour}" stroke-width="2"/>'
MARKS = {
    "exclude": Mark("#c77700", _SQUARE, "the strict left out, all others at one ε"),
    "ours": Mark("#0a6ea8", _CIRCLE, "Privy Purse: everybody at their own ε"),
    "ceiling": Mark("#777777", _RING, "everybody at the largest ε: breaks the promise to most"),
}


def picture(tables: list[headline.Finished]) -> str:
    """The whole picture as SVG."""
    gains = [_gains(table) for table in tables]
    last = int(np.ceil(max(high for row in gains for _, _, high in row.values())))
    bottom = TOP + ROW * len(tables)

    def across(value: float) -> float:
        return LEFT + value / last * (WIDTH - LEFT - RIGHT)

    parts = [
        _text(20, 30, "Gain in test accuracy over training everybody at the strictest ε", size=17, weight="bold"),
        _text(20, 52, "Mean of five seeds with 95 % intervals; methods are compared seed by seed"),
    ]
    for tick in range(last + 1):
        parts.append(_line(across(tick), TOP - 8, across(tick), bottom, FAINT, 1))
        parts.append(_text(across(tick), bottom + 20, f"+{tick}" if tick else "0", anchor="middle"))
    parts.append(_text(across(last) + 14, bottom + 20, "points"))
    for number, (table, row) in enumerate(zip(tables, gains, strict=True)):
        middle = TOP + ROW * (number + 0.5)
        parts.append(_text(20, middle - 3, table.table.title, size=15, weight="bold"))
        parts.append(_text(20, middle + 16, f"{table.accuracy['uniform'].mean():.1f} % at the strictest ε", size=12))
        for place, (name, (mean, low, high)) in enumerate(row.items()):
            y = middle + (place - 1) * LINE
            parts.append(_line(across(low), y, across(high), y, MARKS[name].colour, 3))
            parts.append(MARKS[name].at(across(mean), y))
            weight = "bold" if name == "ours" else "normal"
            parts.append(_text(across(high) + 12, y + 4, f"{mean:+.2f}", size=12, weight=weight))
    for place, mark in enumerate(MARKS.values()):
        y = bottom + 48 + place * 20
        parts += [mark.at(LEFT + 6, y), _text(LEFT + 22, y + 4, mark.name, size=13)]
    height = bottom + 48 + 20 * len(MARKS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" fill="{INK}">\n'
        '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _gains(table: headline.Finished) -> dict[str, tuple[float, float, float]]:
    """Mean gain over uniform and its interval, by mark; ours is the one that the validation records prefer."""
    methods = {"exclude": "exclude", "ours": table.preferred, "ceiling": "ceiling"}
    base = table.accuracy["uniform"]
    return {mark: headline.interval(table.accuracy[method] - base) for mark, method in methods.items()}


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, text: str, *, size: int = 13, weight: str = "normal", anchor: str = "start") -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{text}</text>'


def drawn(folder: Path = RESULTS) -> str:
    return picture([headline.finished(load_rivals(name), folder) for name in TABLES])


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
    print(PICTURE)
