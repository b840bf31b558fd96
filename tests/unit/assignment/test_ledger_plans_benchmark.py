"""The benchmark of plans under a ledger plans within balances that differ, and tells what rounding leaves."""

import re

from benchmarks import ledger_plans

from ledger_tools import new_ledger


def test_it_plans_and_tells_what_is_unused(tmp_path):
    first, own, one = ledger_plans.lines(new_ledger(tmp_path), 600, 5, ["sample", "uniform"])
    assert "600 people, 5 runs, 600 different balances" in first
    levels, mean, most = map(float, re.search(r"(\d+) levels; .* ([\d.]+) % on average, ([\d.]+) %", own).groups())
    assert 10 < levels < 600
    assert 0 < mean < most < 5
    assert one.endswith("one rate for all")
