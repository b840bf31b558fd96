"""Charts of what people in training really spent. All of them are sensitive, and stand in internal editions alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from privypurse.arrays import FloatArray
from privypurse.report.charts import GROUND, SERIES, TEXT, Chart, bars, canvas, hover, lines
from privypurse.report.facts import InternalFacts
from privypurse.report.numbers import percent

_BINS = 40
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_PAGE, _LETTER, _LINE = (280.0, 210.0), 7.5, 15.0
"""Where names stand in a chart, in pixels: its size on a narrow phone, and that of a letter."""


def individual_chart(facts: InternalFacts) -> Chart | None:
    """Individual ε by level, with quantiles (Yu et al. 2023, arXiv 2206.02617, Figure 1)."""
    spent, promised = facts.spent, facts.promised
    if spent is None or promised is None or not spent.size or facts.shown.under_ledger:
        return None
    of_all = np.quantile(spent, _QUANTILES)
    levels, by_level = np.unique(promised), {"all": spent}
    if 1 < levels.size <= len(SERIES) and len({f"{level:.4g}" for level in levels}) == levels.size:
        by_level = {f"ε = {level:.4g}": spent[promised == level] for level in levels}
    share = float((spent / promised).mean())
    return Chart(
        "individual",
        "What each person really spent",
        f"Half of the people spent at most ε = {of_all[2]:.3g} (the line; dashed: a quarter and three quarters), "
        f"on average {percent(share, 0)} of what was promised. This describes one run; the promise limits it.",
        ("promised", "people", *(f"{percent(share, 0)} spent at most ε" for share in _QUANTILES)),
        tuple(
            (name, f"{each.size:,}", *(f"{value:.4g}" for value in np.quantile(each, _QUANTILES)))
            for name, each in by_level.items()
        ),
        partial(_histogram, by_level, of_all),
        tuple(by_level) if len(by_level) > 1 else (),
    )


def _histogram(by_level: dict[str, FloatArray], quantiles: FloatArray) -> Any:
    """How many spent how much, the levels one upon the other."""
    most = max(float(spent.max()) for spent in by_level.values())
    edges = np.linspace(0, max(most, 1e-12), _BINS + 1)
    made, drawn, below = canvas("ε spent", "people"), [], np.zeros(_BINS, dtype=np.int64)
    for place, (name, spent) in enumerate(by_level.items()):
        counts, _ = np.histogram(spent, bins=edges)
        source = {
            "left": edges[:-1].tolist(),
            "right": edges[1:].tolist(),
            "bottom": below.tolist(),
            "top": (below + counts).tolist(),
            "count": counts.tolist(),
            "level": [name] * _BINS,
        }
        sides = {side: side for side in ("left", "right", "bottom", "top")}
        drawn.append(made.quad(**sides, source=source, name=name, color=SERIES[place], line_color=GROUND))
        below = below + counts
    made.y_range.start = 0
    of_level = (("promised", "@level"),) if len(by_level) > 1 else ()
    hover(made, drawn, *of_level, ("ε", "@left{0.[000]} to @right{0.[000]}"), ("people", "@count{0,0}"))
    for value, dash in zip(quantiles[1:4], ("dashed", "solid", "dashed"), strict=True):
        made.vspan(x=[float(value)], line_color=TEXT, line_dash=dash, line_width=1.5)
    return made


def against_loss_chart(facts: InternalFacts) -> Chart | None:
    """ε against the loss, as counts in bins (Yu et al. 2023, Figure 5)."""
    found = facts.by_group.get("against_loss", {})
    if not found or facts.shown.under_ledger:
        return None
    counts, losses, costs = (np.asarray(found[key]) for key in ("counts", "loss_edges", "epsilon_edges"))
    middle = (costs[:-1] + costs[1:]) / 2
    some = [k for k in range(len(counts)) if counts[k].sum()]
    r = found["correlation"]
    told = "" if r is None else f" The correlation of ε with the logarithm of the loss is {r:.2f}."
    return Chart(
        "against-loss",
        "What people spent, against their loss",
        f"Records that the model finds hard have larger gradients, and tend to cost their owners more. "
        f"The stronger the colour, the more records.{told}",
        ("loss from", "to", "records", "mean ε, about"),
        tuple(
            (
                f"{losses[k]:.3g}",
                f"{losses[k + 1]:.3g}",
                f"{counts[k].sum():,}",
                f"{counts[k] @ middle / counts[k].sum():.3g}",
            )
            for k in some
        ),
        partial(_heat_map, counts, losses, costs),
    )


def _heat_map(counts: Any, losses: FloatArray, costs: FloatArray) -> Any:
    x, y = np.nonzero(counts)
    made = canvas("loss (logarithmic)", "ε spent", x_axis_type="log")
    source = {
        "left": losses[x].tolist(),
        "right": losses[x + 1].tolist(),
        "bottom": costs[y].tolist(),
        "top": costs[y + 1].tolist(),
        "count": counts[x, y].tolist(),
        "shade": (0.12 + 0.88 * np.sqrt(counts[x, y] / counts.max())).round(3).tolist(),
    }
    sides = {side: side for side in ("left", "right", "bottom", "top")}
    drawn = made.quad(**sides, source=source, fill_color=SERIES[0], fill_alpha="shade", line_color=None)
    made.y_range.start = 0
    hover(
        made,
        [drawn],
        ("loss", "@left{0.[0000]} to @right{0.[0000]}"),
        ("ε", "@bottom{0.[000]} to @top{0.[000]}"),
        ("records", "@count{0,0}"),
    )
    return made


def group_charts(facts: InternalFacts) -> list[Chart]:
    """Accuracy and mean ε by group, a chart for each column (Yu et al. 2023, Figure 2)."""
    if facts.shown.under_ledger:
        return []
    groups = facts.by_group.get("groups", {})
    return [_group_chart(place, column, each) for place, (column, each) in enumerate(groups.items()) if each]


def _group_chart(place: int, column: str, groups: Mapping[str, Any]) -> Chart:
    names = [*groups]
    costs = [groups[name]["mean_epsilon"] for name in names]
    right = [groups[name].get("accuracy") for name in names]
    most, least = names[int(np.argmax(costs))], names[int(np.argmin(costs))]
    said = (
        f"'{most}' spent most on average and '{least}' least."
        if len(names) > 1
        else "There is one group alone to be shown."
    )
    measured = all(each is not None for each in right)
    return Chart(
        f"group-{place}",
        f"Accuracy and mean ε, by '{column}'" if measured else f"Mean ε, by '{column}'",
        f"{said} Figures are of people in training, on their own records.",
        (column, "records", "mean ε", *(("accuracy",) if measured else ())),
        tuple(
            (
                name,
                f"{groups[name]['records']:,}",
                f"{groups[name]['mean_epsilon']:.4g}",
                *((percent(groups[name]["accuracy"]),) if measured else ()),
            )
            for name in names
        ),
        partial(_dots, names, costs, right) if measured else partial(bars, names, [("mean ε", costs)], column, "ε"),
    )


def _dots(names: list[str], costs: list[float], right: list[float]) -> Any:
    """One dot for each group: what it cost, and how often the model is right. Names stand where there is room."""
    made = canvas("mean ε spent", "accuracy")
    for axis, values in ((made.x_range, costs), (made.y_range, right)):
        pad = max(0.15 * (max(values) - min(values)), 0.02 * max(*values, 1e-9))
        axis.start, axis.end = max(0.0, min(values) - pad), max(values) + 2 * pad
    made.y_range.end = min(made.y_range.end, 1.05)
    across = [(cost - made.x_range.start) / (made.x_range.end - made.x_range.start) for cost in costs]
    up = [(share - made.y_range.start) / (made.y_range.end - made.y_range.start) for share in right]
    sides = _room_for_names(names, across, up)
    source = {
        "x": costs,
        "y": right,
        "name": names,
        "shown": [name if side else "" for name, side in zip(names, sides, strict=True)],
        "offset": [12 * side for side in sides],
        "align": ["right" if side < 0 else "left" for side in sides],
    }
    drawn = made.scatter(x="x", y="y", size=13, source=source, color=SERIES[0])
    look = {"x_offset": "offset", "text_align": "align", "y_offset": 6, "text_color": TEXT, "text_font_size": "13px"}
    made.text(x="x", y="y", text="shown", source=source, **look)
    hover(made, [drawn], ("", "@name"), ("mean ε", "@x{0.[0000]}"), ("accuracy", "@y{0.0 %}"))
    return made


def _room_for_names(names: list[str], across: list[float], up: list[float]) -> list[int]:
    """At which side of its dot a name has room: 1 the right, -1 the left, 0 neither (the table has it).

    Dots stand at these shares of the chart's width and height, which are those on a narrow phone.
    """
    at = [(x * _PAGE[0], y * _PAGE[1]) for x, y in zip(across, up, strict=True)]
    taken = [(x - 8, x + 8, y) for x, y in at]

    def side_of(name: str, x: float, y: float) -> int:
        long = _LETTER * len(name)
        for side, left in ((1, x + 12), (-1, x - 12 - long)):
            end = left + long
            free = all(end < begun or left > ended or abs(y - height) > _LINE for begun, ended, height in taken)
            if free and left >= 0 and end <= _PAGE[0]:
                taken.append((left, end, y))
                return side
        return 0

    return [side_of(name, x, y) for name, (x, y) in zip(names, at, strict=True)]


def active_chart(facts: InternalFacts) -> Chart | None:
    """Active people over time (Feldman & Zrnic 2021, arXiv 2008.11193, Figure 1)."""
    active = facts.metrics.get("sensitive", {}).get("spending", {}).get("active", [])
    if len({one["people"] for one in active}) < 2 or facts.shown.under_ledger:
        return None  # nobody left
    steps, people = [one["step"] for one in active], [one["people"] for one in active]
    return Chart(
        "active",
        "Who could still contribute",
        f"At step {steps[0]:,} {people[0]:,} people could contribute, at step {steps[-1]:,} {people[-1]:,}: "
        "whoever's purse would not pay for a further step is left out of it.",
        ("step", "people"),
        tuple((f"{step:,}", f"{count:,}") for step, count in zip(steps, people, strict=True)),
        partial(_active, steps, people),
    )


def _active(steps: list[int], people: list[int]) -> Any:
    made = lines([("people", steps, people)], "step", "people")
    made.y_range.start = 0
    return made
