"""Purses that last beside a table: a ledger of its own, by id or by row, made once and never begun anew."""

import os
import stat
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pytest
from queries_brute_force import N, people, silenced

import privypurse as pp
from privypurse.queries import Analyst
from privypurse.queries.rows import rows_of
from privypurse.queries.table_ledger import DATA_SET, close_for, opened, table_ledger

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")
IDS = ["ada", "bea", "cyd"]
BY_ID = {"people": "column 'who'", "ε": "column 'epsilon'"}


def by_row(data):
    return {"people": "rows by number", DATA_SET: rows_of(data).fingerprint()}


def asking(path, data, budgets, identity):
    kept = table_ledger(path, budgets, identity)
    return silenced(Analyst(data, kept.budgets, person=kept.budgets.person, ledger=kept.ledger))


def shares(path, ids):
    """Of everybody's purse, what was charged at the order of their own rung."""
    ledger = opened(path)
    members = ledger.members(ids)
    own = members.rung.astype(int)
    limits = np.array([rung.limit for rung in ledger.rungs])[own]
    return ledger.spent(members)[np.arange(len(ids)), own] / limits


def test_spending_outlives_the_process_and_edited_rows_are_refused(tmp_path):
    table, budgets = people()
    path = tmp_path / "people.csv.ledger"
    assert float(asking(path, table, budgets, by_row(table)).count("age > 50", noise=50.0)) > 0
    spent = shares(path, np.arange(N))
    assert ((spent > 0) <= (table["age"] > 50)).all()
    frame = pd.DataFrame(table)  # the same data in another form
    asking(path, frame, budgets, by_row(frame)).count("age > 50", noise=50.0)
    assert shares(path, np.arange(N)) == pytest.approx(2 * spent)
    older = {**table, "age": np.where(np.arange(N) == 7, table["age"] + 1, table["age"])}
    longer = {name: np.append(values, values[:1]) for name, values in table.items()}
    for data in (older, {name: values[::-1] for name, values in table.items()}, {**table, "more": table["age"]}):
        with pytest.raises(pp.InvalidInput, match=r"rows are known there by number.*--person COLUMN"):
            table_ledger(path, budgets, by_row(data))
    with pytest.raises(pp.InvalidInput, match="rows are known there by number"):
        table_ledger(path, pp.Budgets(np.append(budgets.epsilon, 1.0)), by_row(longer))
    assert shares(path, np.arange(N)) == pytest.approx(2 * spent)
    assert opened(path).verify().problems == []


def test_by_id_rows_may_be_edited_reordered_and_added(tmp_path):
    path = tmp_path / "people.ledger"
    held = pp.Budgets([1.0, 2.0, 1.0, 0.5], person=["ada", "bea", "ada", "cyd"])
    asks = asking(path, {"x": np.arange(4)}, held, BY_ID)
    assert float(asks.count("x < 3", noise=20.0)) == 2
    before = shares(path, IDS)
    assert (before > 0).tolist() == [True, True, False]
    assert before[0] == pytest.approx(1 / 24.09, rel=1e-3)  # 24 such counts in a purse of ε = 1
    later = pp.Budgets([3.0, 2.0, 1.0], person=["dov", "bea", "ada"])  # cyd is gone, dov allows more than any rung
    kept = table_ledger(path, later, BY_ID)
    assert kept.news == "new people with full purses: 1"
    asks = silenced(Analyst({"x": np.full(3, 9)}, kept.budgets, person=kept.budgets.person, ledger=kept.ledger))
    assert float(asks.count(noise=20.0)) == 3
    assert shares(path, IDS) == pytest.approx([2 * before[0], 2 * before[1], 0])
    assert kept.ledger.rungs[int(kept.ledger.members(["dov"]).rung[0])].epsilon == 2.0
    assert table_ledger(path, held, BY_ID).news == ""
    assert kept.ledger.verify().problems == []


def test_in_a_ledger_of_rows_nobody_is_named_by_id(tmp_path):
    """Each of them would have a full purse beside those of their rows; an id that is a number, a stranger's purse."""
    path, held = tmp_path / "people.ledger", pp.Budgets([1.0, 2.0, 1.0])
    data = {"x": np.arange(3)}
    asking(path, data, held, by_row(data)).count("x > 0", noise=20.0)
    named = pp.Ledger.open(f"sqlite:///{path}", key=tmp_path / "people.ledger.key")
    before, way = named.show().entries, "but this ledger has a purse for each row.*privypurse ledger import --purses"
    for ledger in (named, opened(path)):
        with pytest.raises(pp.InvalidInput, match=f"ids has 'ada', 'bea', 'cyd', …, who are new, {way}"):
            ledger.join([*IDS, "dov"], 1.0)
        with pytest.raises(pp.InvalidInput, match=f"ids has '3', who is new, {way}"):
            ledger.join([0, 3], 1.0)
        for ids in (IDS, ["2", "1", "0"]):
            grants = pd.DataFrame({"person": ids, "epsilon": [2.0, 2.0, 2.0]})
            for dry_run in (True, False):
                with pytest.raises(pp.InvalidInput, match=f"the table names people by id, {way}"):
                    ledger.import_table(grants, dry_run=dry_run)
    for ids in (IDS, ["2", "1", "0"]):
        known = pp.Budgets(np.full(3, 2.0), person=ids)
        with pytest.raises(pp.InvalidInput, match=f"ids name people, {way}"):
            Analyst(data, known, person=ids, ledger=named)
        with pytest.raises(pp.InvalidInput, match=f"ids name people, {way}"):
            pp.plan(known, ledger=named, at_most=0.2, noise_multiplier=2.0, steps=9, batch_size=2)
    with pytest.raises(pp.InvalidInput, match=f"ids name people, {way}"):
        named.numbered([0, 1])
    assert named.show().entries == before


def test_rows_lower_leave_and_come_back_in_a_ledger_that_was_opened_again(tmp_path):
    path, data = tmp_path / "people.ledger", {"x": np.arange(3)}
    asking(path, data, pp.Budgets([1.0, 2.0, 1.0]), by_row(data)).count("x > 0", noise=20.0)
    before = shares(path, [0, 1, 2])
    named = pp.Ledger.open(f"sqlite:///{path}", key=tmp_path / "people.ledger.key")
    named.change([1], 1.0)
    named.withdraw([2])
    named.join([2], 1.0)
    asking(path, data, pp.Budgets([1.0, 2.0, 1.0]), by_row(data)).count("x > 1", noise=20.0)
    assert shares(path, [0, 2]) == pytest.approx([0, 2 * before[2]])
    assert named.receipt(1).rung.epsilon == 1.0
    assert named.verify().problems == []


def test_what_a_ledger_of_rows_promises_is_about_one_row(tmp_path):
    data = {"x": np.arange(2)}
    table_ledger(tmp_path / "rows", pp.Budgets([1.0, 1.0]), by_row(data))
    table_ledger(tmp_path / "people", pp.Budgets([1.0, 1.0], person=["ada", "bea"]), BY_ID)
    for name, person, unit in (("rows", 0, "record"), ("people", "ada", "person")):
        ledger = pp.Ledger.open(f"sqlite:///{tmp_path / name}", key=tmp_path / f"{name}.key")
        assert ledger.show().unit == unit
        receipt = ledger.receipt(person)
        assert receipt.json_ld()["pii_processing"][0]["unit"] == unit
        assert ("all your records together" in receipt.text()) == (unit == "person")
        assert ("this one row; other rows of yours have purses of their own" in receipt.text()) == (unit == "record")


def test_new_purses_by_row_number_alone_would_be_somebody_elses(tmp_path):
    """The broken twin: without the fingerprint ada pays on from bea's purse, and bea has a full one again."""
    path, held = tmp_path / "ledger", pp.Budgets([1.0, 1.0])
    asking(path, {"who": np.array(["bea", "ada"]), "x": np.array([1, 0])}, held, {}).count("x == 1", noise=5.0)
    asks = asking(path, {"who": np.array(["ada", "bea"]), "x": np.array([1, 1])}, held, {})
    assert float(asks.count("who == 'bea'", noise=5.0)) == 1  # twice 0.66 of her purse
    assert shares(path, [0, 1]) == pytest.approx([0.664, 0.664], abs=0.001)


def test_grants_follow_the_table_and_whoever_left_stays_out(tmp_path):
    path = tmp_path / "ledger"

    def brought(*epsilons):
        return table_ledger(path, pp.Budgets(epsilons, person=IDS), BY_ID)

    def granted():
        ledger = opened(path)
        return [ledger.rungs[place].epsilon for place in ledger.members(IDS).rung.tolist()]

    brought(1.0, 2.0, 4.0)
    ledger = opened(path)
    ledger.change(["bea"], 2.0, purpose="buses", valid_until="2199-01-01")
    ledger.withdraw(["cyd"])
    assert brought(4.0, 1.5, 1.0).news == "raised: 1, lowered: 1"
    assert granted() == [4.0, 1.0, 4.0]  # 1.5 is rounded down; cyd has left, and is not brought back by a table
    latest = opened(path).history("bea")[-1]
    assert (latest.meta["purpose"], latest.meta["valid_until"] // 10**6) == ("buses", 7226668799)
    assert opened(path).balances(opened(path).members(["cyd"])).tolist() == [0]
    with pytest.raises(pp.InvalidInput, match=r"'ada' allows .* below every rung"):
        brought(0.5, 1.0, 4.0)


def test_whoever_lowered_their_own_grant_is_not_raised_again_by_the_table(tmp_path):
    """`privypurse ledger consent` lowered them, and the next question raised them, without a word."""
    path = tmp_path / "ledger"

    def brought(*epsilons):
        return table_ledger(path, pp.Budgets(epsilons, person=IDS), BY_ID).news

    def granted():
        ledger = opened(path)
        return [ledger.rungs[place].epsilon for place in ledger.members(IDS).rung.tolist()]

    brought(1.0, 2.0, 4.0)
    opened(path).change(["cyd"], 1.0, recorded_by="the desk")
    for _ in range(2):
        assert brought(1.0, 2.0, 4.0) == "not raised above what was recorded by another way: 1"
        assert granted() == [1.0, 2.0, 1.0]
    assert brought(2.0, 2.0, 4.0) == "raised: 1, not raised above what was recorded by another way: 1"
    assert granted() == [2.0, 2.0, 1.0]
    assert brought(1.0, 1.0, 4.0).startswith("lowered: 2")
    assert brought(1.0, 2.0, 4.0).startswith("raised: 1")  # whom the table lowered it raises
    opened(path).change(["cyd"], 4.0, recorded_by="the desk")
    assert brought(1.0, 2.0, 4.0) == ""
    assert brought(1.0, 2.0, 2.0) == "lowered: 1"
    assert granted() == [1.0, 2.0, 2.0]


def test_what_it_was_made_for_is_kept_to(tmp_path):
    path = tmp_path / "ledger"
    held = pp.Budgets([1.0, 2.0, 1.0], person=IDS)
    table_ledger(path, held, BY_ID)
    for name, other in (("people", "column 'age'"), ("ε", "9.0")):
        with pytest.raises(pp.InvalidInput, match=f"made for {name}: {BY_ID[name]}, not {other}"):
            table_ledger(path, held, {**BY_ID, name: other})
    with pytest.raises(pp.InvalidInput, match="made for people"):
        table_ledger(path, pp.Budgets(np.ones(3)), {"people": "rows by number", DATA_SET: "a"})
    assert opened(path).show().entries == 2


def test_files_are_their_owners_and_a_ledger_is_never_begun_anew(tmp_path):
    before = os.umask(0)
    try:
        table_ledger(tmp_path / "ledger", pp.Budgets([1.0]), {})
    finally:
        os.umask(before)
    assert {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()} == {
        "ledger": 0o600,
        "ledger.key": 0o600,
        "ledger.anchor": 0o600,
    }
    kept = (tmp_path / "ledger").read_bytes()
    asking(tmp_path / "ledger", {"x": np.ones(1)}, pp.Budgets([1.0]), {}).count(noise=9.0)
    (tmp_path / "ledger").unlink()
    with pytest.raises(pp.InvalidInput, match="A new one would fill everybody's purse again"):
        table_ledger(tmp_path / "ledger", pp.Budgets([1.0]), {})
    (tmp_path / "ledger").write_bytes(kept)
    with pytest.raises(pp.InvalidInput, match="old or forked copy"):
        table_ledger(tmp_path / "ledger", pp.Budgets([1.0]), {})


def test_a_ledger_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    with pytest.raises(pp.InvalidInput, match="holds nothing at any Rényi order"):
        table_ledger(tmp_path / "ledger", pp.Budgets([1e-9]), {})
    with pytest.raises(pp.InvalidInput, match="cannot be made"):
        table_ledger(tmp_path / "nowhere" / "ledger", pp.Budgets([1.0]), {})

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", denied)
        with pytest.raises(pp.InvalidInput, match="cannot be made: Permission denied"):
            table_ledger(tmp_path / "ledger", pp.Budgets([1.0]), {})
    assert {one.name for one in tmp_path.iterdir()} <= {"ledger.key"}
    assert table_ledger(tmp_path / "ledger", pp.Budgets([1.0]), {}).news.startswith("new purses for 1 rows")


def test_two_who_begin_at_once_make_one_ledger(tmp_path):
    begin, made, refused = threading.Barrier(4), [], []

    def work():
        begin.wait()
        try:
            made.append(table_ledger(tmp_path / "ledger", pp.Budgets([1.0, 2.0]), {}).ledger.id)
        except pp.InvalidInput as error:
            refused.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1
    assert opened(tmp_path / "ledger").id == made[0]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["ledger", "ledger.anchor", "ledger.key"]


def test_purses_that_moved_are_refused(tmp_path):
    path = tmp_path / "ledger"
    kept = table_ledger(path, pp.Budgets([1.0, 1.0]), {})
    close_for(kept.ledger, np.arange(2), "there")
    close_for(kept.ledger, np.arange(2), "there")  # twice does no harm
    with pytest.raises(pp.InvalidInput, match="have moved to the ledger there"):
        table_ledger(path, pp.Budgets([1.0, 1.0]), {})
    asks = silenced(Analyst({"x": np.ones(2)}, kept.budgets, person=kept.budgets.person, ledger=kept.ledger))
    assert float(asks.count(noise=50.0)) == 0
    assert kept.ledger.verify().problems == []


@pytest.mark.slow
def test_a_killed_process_has_paid_for_all_that_it_said(tmp_path):
    path = tmp_path / "ledger"
    kept = table_ledger(path, pp.Budgets(np.ones(5)), {})
    code = (
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from privypurse.budgets import Budgets\n"
        "from privypurse.queries import Analyst\n"
        "from privypurse.queries.table_ledger import table_ledger\n"
        f"kept = table_ledger(Path({str(path)!r}), Budgets(np.ones(5)), {{}})\n"
        "asks = Analyst({'x': np.ones(5)}, kept.budgets, person=kept.budgets.person, ledger=kept.ledger)\n"
        "while True: print(float(asks.count(noise=1000.0)), flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(20)]
    process.kill()
    said += process.stdout.readlines()
    process.wait()
    answers = sum(line.endswith("\n") for line in said)
    [rung] = kept.ledger.rungs
    one = rung.order / (2 * 1000**2) * 2**40
    assert answers <= round(int(kept.ledger.spent(kept.ledger.members([0]))[0, 0]) / one) <= answers + 2
    assert kept.ledger.verify().problems == []


_FULL = """
import resource, signal, sys
import numpy as np
from pathlib import Path
from privypurse.budgets import Budgets
from privypurse.errors import PrivyPurseError
from privypurse.queries import Analyst
from privypurse.queries.table_ledger import table_ledger
kept = table_ledger(Path(sys.argv[1]), Budgets(np.ones(5)), {})
asks = Analyst({'x': np.ones(5)}, kept.budgets, person=kept.budgets.person, ledger=kept.ledger)
asks.count(noise=1000.0)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try: print(float(asks.count(noise=1000.0)))
except PrivyPurseError as error: print(error)
"""


@pytest.mark.slow
def test_a_full_disk_tells_nothing(tmp_path):
    path = tmp_path / "ledger"
    done = subprocess.run([sys.executable, "-c", _FULL, str(path)], capture_output=True, text=True, check=True)
    assert "could not be written" in done.stdout
    assert "nothing may be released" in done.stdout
    ledger = opened(path)
    assert len(ledger.runs()) == 1
    assert ledger.verify().problems == []


# --- Without a ledger --------------------------------------------------------------------------------------------


def test_threads_pay_for_each_answer():
    asks = Analyst({"x": np.ones(50)}, pp.Budgets(np.full(50, 3.0)))
    workers = [threading.Thread(target=lambda: [asks.count(noise=100.0) for _ in range(50)]) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert float(asks.purses.spent[0]) == pytest.approx(400 / 100**2)


def test_closed_and_forked_analysts_answer_nothing(monkeypatch):
    table, budgets = people()
    asks = Analyst(table, budgets, person=budgets.person)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(pp.InvalidInput, match="another process"):
            asks.count(noise=5.0)
    asks.close()
    with pytest.raises(pp.InvalidInput, match="closed"):
        asks.count(noise=5.0)
    assert not asks.purses.spent.any()


def test_columns_without_bytes_have_no_fingerprint(tmp_path):
    table = {"x": np.ones(2), "odd": np.array([1, "a"], dtype=object)}
    assert float(silenced(Analyst(table, pp.Budgets([1.0, 1.0]))).count(noise=10)) == 2
    with pytest.raises(pp.InvalidInput, match=r"'odd'.*mix"):
        by_row(table)
