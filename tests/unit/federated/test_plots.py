"""Figure 8: a panel for each data set and law, and one colour for each method in all of them."""

from pathlib import Path

import pytest

from components import require

require("plots")
from matplotlib.figure import Figure  # noqa: E402

from privypurse.federated import plots  # noqa: E402


def test_a_method_has_one_colour_whatever_the_order_of_its_runs() -> None:
    some = {"minimum": [[1.0, 2.0]], "personalised": [[3.0, 4.0], [5.0, 8.0]]}
    colours = []
    for courses in (some, dict(reversed(some.items())), {"minimum": some["minimum"]}):
        axes = Figure().add_subplot()
        plots._draw(courses, axes)
        colours.append({line.get_label(): line.get_color() for line in axes.lines})
        means = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
        assert means["minimum"] == [1.0, 2.0]
        assert means.get("personalised", [4.0, 6.0]) == [4.0, 6.0]
    assert colours[0] == colours[1]
    assert colours[0]["minimum"] == colours[2]["minimum"] != colours[0]["personalised"]


@pytest.mark.parametrize("number", [1, 4])
def test_any_number_of_panels(number: int, tmp_path: Path) -> None:
    panels = {f"panel {k}": {"dropout": [[50.0, 60.0]]} for k in range(number)}
    paths = plots.save(panels, tmp_path / "figure")
    assert [path.name for path in paths] == ["figure.svg", "figure.png"]
    assert all(path.stat().st_size > 1_000 for path in paths)
