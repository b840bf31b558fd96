"""Both rates of a test hold together: each has half of what may go wrong, and whole ones are no bound."""

import numpy as np
import pytest
from scipy import stats

from privypurse.audit.two_worlds import _rates


@pytest.mark.parametrize("caught", [0, 1, 37, 199, 200])
def test_rates_are_the_ends_of_exact_two_sided_intervals(caught):
    ends = stats.binomtest(caught, 200).proportion_ci(0.95, method="exact")
    true, false, true_out, false_out = _rates(np.array([caught]), 200, np.array([caught]), 200, 0.95)
    assert true[0] == pytest.approx(ends.low, abs=1e-12)
    assert false[0] == pytest.approx(ends.high, abs=1e-12)
    assert (true_out[0], false_out[0]) == (1 - false[0], 1 - true[0])
