"""The benchmark measures a ledger that pays, and its bars can be above and below."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks import ledger as benchmark


def test_it_measures_and_judges(tmp_path: Path) -> None:
    row = benchmark.measured(f"sqlite:///{tmp_path / 'purses.db'}", people=300, runs=2, rungs=2, verify=True)
    assert (row.people, row.runs, row.rungs, row.database) == (300, 2, 2, "sqlite")
    assert min(row.join, row.members, row.run, row.bytes, row.one, row.everybody) > 0
    good = replace(row, run=1.4, bytes=7.9, one=0.004, everybody=1.9)
    assert good.above_bars() == []
    for name, value in {"run": 1.6, "bytes": 8.1, "one": 0.006, "everybody": 2.1, "rounding": 2e-3}.items():
        assert len(replace(good, **{name: value}).above_bars()) == 1
    assert benchmark.table_of([row]).row_count == 1
