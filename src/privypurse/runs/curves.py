"""Curves of a run as one SVG file: figures on the way, ROC and calibration. Needs matplotlib, the extra ``plots``."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from privypurse.datasets.targets import Classes, Number
from privypurse.errors import InvalidInput
from privypurse.runs import scores
from privypurse.runs.measures import WHOSE, Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[["Axes"], None]


def require_matplotlib() -> None:
    """Raise where it is missing: before anybody's ε is spent."""
    try:
        import matplotlib as _  # noqa: F401
    except ModuleNotFoundError:
        raise InvalidInput(
            "[training] plots needs matplotlib; pip install '.[plots]' in a clone, or leave plots out"
        ) from None


def curves(history: Sequence[dict[str, Any]], found: Measured) -> str:
    """The SVG; it says whose figures it shows. The same figures give the same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure  # no pyplot: nothing is left open, and no window is

    panels = [*_on_the_way(history), *_of_predictions(found)]
    with rc_context({"svg.hashsalt": "privypurse", "svg.fonttype": "none"}):
        figure = Figure(figsize=(4 * len(panels), 4), layout="constrained")
        for place, draw in enumerate(panels):
            draw(figure.add_subplot(1, len(panels), place + 1))
        figure.suptitle(WHOSE[found.measured].split(". ")[0].rstrip("."), fontsize="small")
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Description": WHOSE[found.measured]})
    return out.getvalue()


def _on_the_way(history: Sequence[dict[str, Any]]) -> list[Draw]:
    names = [name for name in ("loss", "accuracy") if history and name in history[0]]
    return [_line([one["step"] for one in history], [one[name] for one in history], "step", name) for name in names]


def _of_predictions(found: Measured) -> list[Draw]:
    """ROC, where two answers are possible, and calibration; of several flags a line each."""
    figures = found.figures()
    if isinstance(found.target, Number):
        return [
            _calibrated(
                {found.target.label: figures["calibration"]}, (found.target.range.low, found.target.range.high)
            )
        ]
    if isinstance(found.target, Classes):
        lines = {} if found.target.outputs > 2 else {found.target.label: _margins(found)}
        calibrations = {found.target.label: figures["calibration"]}
    else:
        known = [name for name, each in figures["labels"].items() if each is not None]
        lines = {name: _flag(found, found.target.labels.index(name)) for name in known}
        calibrations = {name: figures["labels"][name]["calibration"] for name in known}
    return [*([_roc(lines)] if lines else []), _calibrated(calibrations, (0.0, 1.0))]


def _margins(found: Measured) -> tuple[Any, Any]:
    return found.outputs[:, 1] - found.outputs[:, 0], found.targets == 1


def _flag(found: Measured, place: int) -> tuple[Any, Any]:
    truths = found.targets[:, place]
    some = truths == truths  # not NaN
    return found.outputs[some, place], truths[some] == 1


def _line(x: list[float], y: list[float], across: str, up: str) -> Draw:
    def draw(axes: Axes) -> None:
        axes.plot(x, y, marker=".")
        axes.set(xlabel=across, ylabel=up, title=f"{up} while it trains")

    return draw


def _roc(lines: dict[str, tuple[Any, Any]]) -> Draw:
    def draw(axes: Axes) -> None:
        for name, (values, truths) in lines.items():
            axes.plot(*scores.roc(values, truths), label=name)
        axes.plot([0, 1], [0, 1], color="grey", linestyle=":")
        axes.set(xlabel="false positives, share", ylabel="true positives, share", title="ROC")
        axes.legend()

    return draw


def _calibrated(calibrations: dict[str, Any], ends: tuple[float, float]) -> Draw:
    def draw(axes: Axes) -> None:
        for name, each in calibrations.items():
            bins = each["bins"]
            axes.plot([one["predicted"] for one in bins], [one["actual"] for one in bins], marker=".", label=name)
        axes.plot(ends, ends, color="grey", linestyle=":")
        axes.set(xlabel="predicted", ylabel="was so", title="calibration")
        axes.legend()

    return draw
