"""Charts by themselves: names that can be read, bounds of 0 that can be seen, levels told apart."""

from types import SimpleNamespace

import numpy as np
import pytest

from components import require

require("report")
from privypurse.report import people_charts  # noqa: E402
from privypurse.report.charts import bars  # noqa: E402
from privypurse.report.people_charts import active_chart, individual_chart  # noqa: E402


def kinds(made) -> list[str]:
    return [type(each.glyph).__name__ for each in made.renderers]


def test_bars_with_long_names_lie() -> None:
    names = ["Baden-Württemberg", "Mecklenburg-Vorpommern", "Nordrhein-Westfalen"]
    standing = bars(["1", "2", "3"], [("ε", [1.0, 2.0, 3.0])], "level", "ε")
    lying = bars(names, [("ε", [1.0, 2.0, 3.0])], "region", "ε", 2.5, 4.0)
    assert (kinds(standing), kinds(lying)) == (["VBar"], ["HBar", "VSpan"])
    assert list(lying.y_range.factors) == names[::-1]  # the first one at the top
    assert (lying.x_range.start, lying.x_range.end) == (0, 4.0)
    assert (lying.xaxis.axis_label, lying.yaxis.axis_label) == ("ε", "region")


def test_a_bar_of_zero_says_so_and_one_that_is_not_known_is_left_out() -> None:
    made = bars(["1", "2", "3"], [("bound", [0.0, None, 0.4])], "group", "ε")
    [bar, text] = made.renderers
    assert bar.data_source.data["to"] == [0.0, 0.4]
    assert text.data_source.data["none"] == ["0", ""]


def boxes(names: list[str], x: list[float], y: list[float]) -> list[tuple[float, float, float]]:
    """Left and right end and height of each name that is shown, on 280 by 210 pixels, 7.5 a letter."""
    found = []
    for name, side, across, up in zip(names, people_charts._room_for_names(names, x, y), x, y, strict=True):
        if side:
            left = across * 280 + 12 if side > 0 else across * 280 - 12 - 7.5 * len(name)
            found.append((left, left + 7.5 * len(name), up * 210))
    return found


def test_names_of_dots_do_not_run_into_each_other() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        names = ["x" * int(rng.integers(2, 16)) for _ in range(12)]
        placed = boxes(names, rng.uniform(0, 1, 12).tolist(), rng.uniform(0, 1, 12).tolist())
        assert placed
        for k, (left, right, height) in enumerate(placed):
            assert left >= 0
            assert right <= 280
            for begun, ended, other in placed[:k]:
                assert right < begun or left > ended or abs(height - other) > 15


def test_names_stand_at_the_left_where_the_right_is_taken_or_ends() -> None:
    assert people_charts._room_for_names(["north", "south"], [0.3, 0.95], [0.2, 0.8]) == [1, -1]
    assert people_charts._room_for_names(["a" * 40], [0.5], [0.5]) == [0]  # too long for either


def facts(spent: list[float], promised: list[float], active: list[int]) -> SimpleNamespace:
    course = [{"step": 10 * k, "people": people} for k, people in enumerate(active)]
    return SimpleNamespace(
        spent=np.array(spent),
        promised=np.array(promised),
        shown=SimpleNamespace(under_ledger=False),
        metrics={"sensitive": {"spending": {"active": course}}},
    )


def test_what_people_spent_is_told_by_level() -> None:
    chart = individual_chart(facts([0.1, 0.2, 0.3, 1.0, 2.0], [1, 1, 1, 3, 3], []))
    assert chart is not None
    assert chart.legend == ("ε = 1", "ε = 3")
    assert [row[:2] for row in chart.rows] == [("ε = 1", "3"), ("ε = 3", "2")]
    assert [row[4] for row in chart.rows] == ["0.2", "1.5"]  # medians
    first, second = chart.draw().renderers[:2]
    assert sum(first.data_source.data["count"]) == 3
    assert sum(second.data_source.data["count"]) == 2
    assert second.data_source.data["bottom"] == first.data_source.data["top"]


@pytest.mark.parametrize("promised", [list(range(1, 10)), [1.0, 1.00001, *[2.0] * 7], [1.0] * 9])
def test_levels_without_a_colour_or_a_name_of_their_own_are_told_together(promised: list[float]) -> None:
    chart = individual_chart(facts(list(np.linspace(0.1, 1, 9)), promised, []))
    assert chart is not None
    assert chart.legend == ()
    assert [row[:2] for row in chart.rows] == [("all", "9")]


def test_who_could_still_contribute_is_drawn_where_somebody_left() -> None:
    assert active_chart(facts([1.0], [1.0], [40, 40, 40])) is None
    chart = active_chart(facts([1.0], [1.0], [40, 40, 39]))
    assert chart is not None
    assert chart.rows[-1] == ("20", "39")
