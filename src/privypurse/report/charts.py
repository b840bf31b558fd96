"""What every chart of a report is: a picture, one plain sentence, and its numbers as a table.

Colours are tokens here. The page's script puts the page's own colours in their place, those of the reader's light or
dark, before a chart is drawn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bokeh.embed import json_item
from bokeh.models import FactorRange, HoverTool, NumeralTickFormatter
from bokeh.plotting import figure

GROUND, TEXT, QUIET, LINE = "#fe0001", "#fe0002", "#fe0003", "#fe0004"
SERIES = ("#fe0011", "#fe0012", "#fe0013", "#fe0014", "#fe0015", "#fe0016")
DASHES = ("solid", "dashed", "dotted", "dashdot", "dotdash", "solid")
"""Beside the colours, for those who do not tell them apart."""
TOKENS = {GROUND: "ground", TEXT: "text", QUIET: "quiet", LINE: "line"} | {
    token: f"series-{place}" for place, token in enumerate(SERIES, 1)
}
HEIGHT = 300
_WIDTH = 36
"""So many letters of names fit side by side on a narrow phone."""
_TICKS = {"accuracy": "0.[0] %", "people": "0,0", "step": "0,0", "round": "0,0", "records": "0,0"}
"""How numbers on an axis are written, as in the text beside it."""
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"


@dataclass(frozen=True)
class Chart:
    """One picture with what it says."""

    key: str
    title: str
    sentence: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The numbers of the picture, as text."""
    draw: Callable[[], Any]
    """Makes the picture anew: a figure can stand in one place only."""
    legend: tuple[str, ...] = ()
    """The names of what is drawn, in the order of `SERIES`; each is a button that shows or hides it."""

    def item(self) -> str:
        """The picture as JSON, with tokens for colours; the same for the same chart."""
        item = json_item(self.draw(), self.key)
        return json.dumps(_renumbered(item, self.key), ensure_ascii=False, separators=(",", ":"))


def canvas(x_label: str, y_label: str, **options: Any) -> Any:
    """An empty figure in the page's style."""
    made = figure(
        height=HEIGHT,
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        x_axis_label=x_label,
        y_axis_label=y_label,
        background_fill_color=GROUND,
        border_fill_color=GROUND,
        outline_line_color=None,
        min_border_right=16,
        **options,
    )
    for axis in made.axis:
        if axis.axis_label in _TICKS:
            axis.formatter = NumeralTickFormatter(format=_TICKS[axis.axis_label])
        axis.axis_line_color = axis.major_tick_line_color = LINE
        axis.minor_tick_line_color = None
        axis.major_label_text_color, axis.axis_label_text_color = TEXT, QUIET
        axis.axis_label_text_font_style = "normal"
        axis.major_label_text_font = axis.axis_label_text_font = _FONT
        axis.major_label_text_font_size = axis.axis_label_text_font_size = "13px"
    made.xgrid.grid_line_color = None
    made.ygrid.grid_line_color, made.ygrid.grid_line_alpha = LINE, 0.3
    return made


def hover(made: Any, drawn: Sequence[Any], *lines: tuple[str, str], mode: str = "mouse") -> None:
    """What is said of a mark that one points at."""
    made.add_tools(HoverTool(renderers=list(drawn), tooltips=list(lines), mode=mode))


def bars(
    names: Sequence[str],
    series: Sequence[tuple[str, Sequence[float | None]]],
    x_label: str,
    y_label: str,
    limit: float | None = None,
    end: float | None = None,
) -> Any:
    """Bars side by side, a group for each name and a colour for each series, from 0 on; a dashed line at a limit.

    They stand where names are short, and lie where names would run into each other.
    """
    width, lying = 0.8 / len(series), sum(map(len, names)) > _WIDTH
    if lying:
        made = canvas(y_label, x_label, y_range=FactorRange(*reversed(names)))
        made.height = max(HEIGHT, 60 + 24 * len(names) * len(series))
        made.xgrid.grid_line_color, made.ygrid.grid_line_color = LINE, None
        made.xgrid.grid_line_alpha, along, numbers = 0.3, made.y_range, made.x_range
    else:
        made = canvas(x_label, y_label, x_range=FactorRange(*names))
        along, numbers = made.x_range, made.y_range
    along.range_padding = 0.05
    drawn = []
    for place, (name, values) in enumerate(series):
        offset = (place - (len(series) - 1) / 2) * width
        known = [(each, value) for each, value in zip(names, values, strict=True) if value is not None]
        source: dict[str, list[Any]] = {
            "at": [(each, -offset if lying else offset) for each, _ in known],
            "to": [value for _, value in known],
            "name": [each for each, _ in known],
            "series": [name] * len(known),
            "none": ["" if value else "0" for _, value in known],  # a bar that cannot be seen
        }
        thick = width * 0.9 if len(series) > 1 else 0.5
        look = {"source": source, "name": name, "color": SERIES[place % len(SERIES)]}
        if lying:
            drawn.append(made.hbar(y="at", right="to", height=thick, **look))
        else:
            drawn.append(made.vbar(x="at", top="to", width=thick, **look))
        if any(source["none"]):
            at = {"x": "to", "y": "at", "x_offset": 4} if lying else {"x": "at", "y": "to", "y_offset": -2}
            align = {"text_baseline": "middle"} if lying else {"text_align": "center"}
            made.text(text="none", source=source, text_color=TEXT, text_font_size="13px", **at, **align)
    if limit is not None:
        span = {"line_color": TEXT, "line_dash": "dashed", "line_width": 1.5}
        made.vspan(x=[limit], **span) if lying else made.hspan(y=[limit], **span)
    numbers.start = 0
    if end is not None:
        numbers.end = end
    hover(made, drawn, ("", "@name"), ("@series", "@to{0.[0000]}"))
    return made


def lines(
    series: Sequence[tuple[str, Sequence[float], Sequence[float]]], x_label: str, y_label: str, **options: Any
) -> Any:
    """A line for each of the series (name, x, y)."""
    made = canvas(x_label, y_label, **options)
    drawn = []
    for place, (name, x, y) in enumerate(series):
        source = {"x": list(x), "y": list(y), "series": [name] * len(x)}
        look = {"color": SERIES[place % len(SERIES)], "line_dash": DASHES[place % len(DASHES)], "line_width": 2.5}
        drawn.append(made.line(x="x", y="y", source=source, name=name, **look))
    hover(made, drawn, ("", "@series"), (x_label, "@x{0,0.[0000]}"), (y_label, "@y{0,0.[0000]}"))
    return made


def _renumbered(item: Any, key: str) -> Any:
    """The same with names of its own for what Bokeh numbers through: so that equal charts are equal bytes."""
    names: dict[str, str] = {}

    def own(value: Any) -> Any:
        if isinstance(value, dict):
            if "id" in value and isinstance(value["id"], str):
                value = {**value, "id": names.setdefault(value["id"], f"{key}-{len(names)}")}
            return {key: own(each) for key, each in value.items()}
        return [own(each) for each in value] if isinstance(value, list) else value

    renamed = own(item)
    renamed["root_id"] = names.get(renamed["root_id"], renamed["root_id"])
    return renamed
