"""Plain SVG by hand, so that the same results give the same bytes and a test can compare them."""

from collections.abc import Iterable
from dataclasses import dataclass

INK, FAINT = "#222222", "#d9d9d9"
CIRCLE = '<circle cx="{x}" cy="{y}" r="6" fill="{colour}"/>'
SQUARE = '<rect x="{left}" y="{top}" width="10" height="10" fill="{colour}"/>'
RING = '<circle cx="{x}" cy="{y}" r="5" fill="#ffffff" stroke="{colour}" stroke-width="2"/>'


@dataclass(frozen=True)
class Mark:
    """How a method or a group is drawn: its colour, its shape around (x, y), and its name in the key."""

    colour: str
    shape: str
    name: str

    def at(self, x: float, y: float) -> str:
        corner = {"left": f"{x - 5:.1f}", "top": f"{y - 5:.1f}"}
        return self.shape.format(x=f"{x:.1f}", y=f"{y:.1f}", colour=self.colour, **corner)


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def text(x: float, y: float, what: str, *, size: int = 13, weight: str = "normal", anchor: str = "start") -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{what}</text>'


def key(marks: Iterable[Mark], x: float, y: float) -> list[str]:
    """What the marks mean, one below the other, 20 apart."""
    found = []
    for place, mark in enumerate(marks):
        found += [mark.at(x + 6, y + 20 * place), text(x + 22, y + 20 * place + 4, mark.name)]
    return found


def document(width: int, height: int, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" fill="{INK}">\n'
        '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )
