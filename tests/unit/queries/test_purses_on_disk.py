"""Spending that outlives the process: charged on disk before the answer, refused to other data, threads and forks."""

import os
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from queries_brute_force import N, people, silenced

import privypurse as pp
from held_files import read_held
from privypurse.queries import Analyst

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")


def test_spending_outlives_the_process(tmp_path):
    table, budgets = people()
    with Analyst(table, budgets, person=budgets.person, purses=tmp_path / "purses") as asks:
        asks.count("age > 50", noise=50.0)
        spent = asks.purses.spent.copy()
    with Analyst(
        pd.DataFrame(table), budgets, person=budgets.person, purses=tmp_path / "purses"
    ) as asks:  # the same data in another form
        assert asks.purses.spent.tolist() == spent.tolist()
        asks.count("age > 50", noise=50.0)
        assert asks.purses.spent.sum() == pytest.approx(2 * spent.sum())


def test_other_data_budgets_or_currency_are_refused(tmp_path):
    table, budgets = people()
    path = tmp_path / "purses"
    Analyst(table, budgets, person=budgets.person, purses=path).close()  # nothing asked, nothing spent
    with Analyst(table, budgets, person=budgets.person, purses=path) as asks:
        asks.count(noise=9.0)
    whole = path.read_bytes()
    older = {**table, "age": np.where(np.arange(N) == 7, table["age"] + 1, table["age"])}
    renamed = {("years" if name == "age" else name): values for name, values in table.items()}
    moved = {**table, "city": np.where(np.arange(N) == 5, "Hamar", table["city"])}
    for data in (older, renamed, moved, {k: v[::-1] for k, v in table.items()}, {**table, "more": table["age"]}):
        with pytest.raises(pp.InvalidInput, match="another data set"):
            Analyst(data, budgets, person=budgets.person, purses=path)
    for other in (
        pp.Budgets(budgets.epsilon + 1),
        pp.Budgets(budgets.epsilon, delta=1e-6),
        pp.Budgets(np.ones(N), person=np.zeros(N, np.int64)),
    ):
        with pytest.raises(pp.InvalidInput, match="another list of budgets"):
            Analyst(table, other, person=other.person, purses=path)
    with pytest.raises(pp.InvalidInput, match="another currency"):
        Analyst(table, budgets, person=budgets.person, currency="zcdp", purses=path)
    assert path.read_bytes() == whole
    Analyst(table, budgets, person=budgets.person, purses=path).close()


def test_nothing_is_released_that_cannot_be_written_down(tmp_path, monkeypatch):
    table, budgets = people()
    asks = Analyst(table, budgets, person=budgets.person, purses=tmp_path / "purses")
    asks.count("age > 50", noise=5.0)
    before, whole = asks.purses.spent.copy(), read_held(tmp_path / "purses")

    def full(*_):
        raise OSError("disk full")

    for call in ("os.pwrite", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(call, full)
            with pytest.raises(OSError, match="disk full"):
                asks.count("age > 50", noise=5.0)
        assert (asks.purses.spent == before).all()
        assert read_held(tmp_path / "purses") == whole
    asks.count("age > 50", noise=5.0)
    assert (asks.purses.spent > before).any()


def test_the_charge_is_on_disk_before_the_answer(tmp_path, monkeypatch):
    table, budgets = people()
    asks = Analyst(table, budgets, person=budgets.person, purses=tmp_path / "purses")
    seen = []
    honest = asks._file.write
    monkeypatch.setattr(asks._file, "write", lambda **arrays: (seen.append(arrays["spent"].copy()), honest(**arrays)))
    asks.count("age > 50", noise=50.0)
    assert len(seen) == 1
    assert (seen[0] > 0).tolist() == (table["age"] > 50).tolist()


def test_a_killed_process_has_paid_for_all_that_it_said(tmp_path):
    path = tmp_path / "purses"
    code = (
        "import numpy as np, privypurse as pp\n"
        "from privypurse.queries import Analyst\n"
        f"asks = Analyst({{'x': np.ones(5)}}, pp.Budgets(np.ones(5)), purses={str(path)!r})\n"
        "while True: print(float(asks.count(noise=1000.0)), flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(20)]
    process.kill()
    said += process.stdout.readlines()
    process.wait()
    answers = sum(line.endswith("\n") for line in said)
    with Analyst({"x": np.ones(5)}, pp.Budgets(np.ones(5)), purses=path) as asks:
        assert answers <= round(float(asks.purses.spent[0]) * 1000**2) <= answers + 2


def test_threads_pay_for_each_answer():
    asks = Analyst({"x": np.ones(50)}, pp.Budgets(np.full(50, 3.0)))
    workers = [threading.Thread(target=lambda: [asks.count(noise=100.0) for _ in range(50)]) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert float(asks.purses.spent[0]) == pytest.approx(400 / 100**2)


def test_closed_and_forked_analysts_answer_nothing(tmp_path, monkeypatch):
    table, budgets = people()
    asks = Analyst(table, budgets, person=budgets.person, purses=tmp_path / "purses")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(pp.InvalidInput, match="another process"):
            asks.count(noise=5.0)
    asks.close()
    with pytest.raises(pp.InvalidInput, match="closed"):
        asks.count(noise=5.0)
    assert not asks.purses.spent.any()


def test_columns_without_bytes_need_no_purses_on_disk_and_are_refused_with_them(tmp_path):
    table = {"x": np.ones(2), "odd": np.array([1, "a"], dtype=object)}
    assert float(silenced(Analyst(table, pp.Budgets([1.0, 1.0]))).count(noise=10)) == 2
    with pytest.raises(pp.InvalidInput, match=r"'odd'.*mix"):
        Analyst(table, pp.Budgets([1.0, 1.0]), purses=tmp_path / "purses")
    assert not list(tmp_path.iterdir())
