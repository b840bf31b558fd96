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
from bokeh.models import FactorRange, HoverTool
from bokeh.plotting import figure

GROUND, TEXT, QUIET, LINE = "#fe0001", "#fe0002", "#fe0003", "#fe0004"
SERIES = ("#fe0011", "#fe0012", "#fe0013", "#fe0014", "#fe0015", "#fe0016")
DASHES = ("solid", "dashed", "dotted", "dashdot", "dotdash", "solid")
"""Beside the colours, for those who do not tell them apart."""
TOKENS = {GROUND: "ground", TEXT: "text", QUIET: "quiet", LINE: "line"} | {
    token: f"series-{place}" for place, token in enumerate(SERIES, 1)
}
HEIGHT = 300
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
    """Bars side by side, a group for each name and a colour for each series, from 0 up; a dashed line at a limit."""
    made = canvas(x_label, y_label, x_range=FactorRange(*names))
    width = 0.8 / len(series)
    drawn = []
    for place, (name, values) in enumerate(series):
        offset = (place - (len(series) - 1) / 2) * width
        known = [(each, value) for each, value in zip(names, values, strict=True) if value is not None]
        source = {
            "x": [(each, offset) for each, _ in known],
            "top": [value for _, value in known],
            "name": [each for each, _ in known],
            "series": [name] * len(known),
        }
        look = {"width": width * 0.9 if len(series) > 1 else 0.5, "color": SERIES[place % len(SERIES)]}
        drawn.append(made.vbar(x="x", top="top", source=source, name=name, **look))
    if limit is not None:
        made.hspan(y=[limit], line_color=TEXT, line_dash="dashed", line_width=1.5)
    made.y_range.start = 0
    if end is not None:
        made.y_range.end = end
    hover(made, drawn, ("", "@name"), ("@series", "@top{0.[0000]}"))
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
