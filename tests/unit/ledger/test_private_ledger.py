"""A party's own ledger: made once with its people, joined by who is new, never begun anew beside its remains."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privypurse as pp
from privypurse import cli
from privypurse.ledger import private, private_ledger, row_ids

IDS = np.array([f"P{number}" for number in range(9)])
EPSILON = np.array([0.5, 0.5, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0])


def budgets(epsilon: object = EPSILON, ids: object = IDS, delta: float = 1e-5) -> pp.Budgets:
    return pp.Budgets(epsilon, delta=delta, person=ids)


def granted(ledger: pp.Ledger, ids: object = IDS) -> list[float]:
    return [ledger.rungs[rung].epsilon for rung in ledger.members(ids).rung]


def spend(ledger: pp.Ledger, who: list[str], units: int) -> None:
    charge = np.full((1, ledger.lifetime.columns), units)
    ledger.charge(f"run {ledger.show().entries}", ledger.members(who), charge, np.zeros(len(who), dtype=int))


def test_everybody_joins_once_and_keeps_what_they_spent(tmp_path: Path) -> None:
    ledger = private_ledger(tmp_path / "home", budgets(), purpose="to find a cure")
    assert granted(ledger) == EPSILON.tolist()
    spend(ledger, ["P3"], 1000)
    more = budgets(np.append(EPSILON, 1.5), np.append(IDS, "new"))
    again = private_ledger(tmp_path / "home", more)
    assert again.id == ledger.id
    assert granted(again, ["P3", "new"]) == [1.0, 1.0]  # 1.5 is rounded down to a rung
    left = again.balances(again.members(["P3", "P4"]))
    assert left[0] == left[1] - 1000
    again.withdraw(["P4"])
    assert private_ledger(tmp_path / "home", more).balances(again.members(["P4"])).tolist() == [0]
    assert again.verify().problems == []


def test_only_the_owner_may_look(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private_ledger(tmp_path / "home", budgets())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "home").iterdir()}
    assert files == dict.fromkeys(("purses.db", "purses.key", "purses.anchor"), 0o600)


def test_who_grants_less_than_there_is_cannot_join(tmp_path: Path) -> None:
    private_ledger(tmp_path, budgets())
    for epsilon, delta in ((0.2, 1e-5), (2.0, 1e-6)):
        with pytest.raises(pp.InvalidInput, match=r"'new' allows .* below every rung"):
            private_ledger(tmp_path, budgets([epsilon], ["new"], delta))
    with pytest.raises(pp.InvalidInput, match="adversary is 'public'"):
        private_ledger(tmp_path, budgets(), adversary="public")
    with pytest.raises(pp.InvalidInput, match="knows people by id"):
        private_ledger(tmp_path, pp.Budgets(EPSILON))


def test_a_client_may_leave_out_who_grants_less_than_there_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    private_ledger(tmp_path, budgets())
    with_two = budgets([*EPSILON, 0.2, 2.0], [*IDS, "little", "new"])
    ledger = private_ledger(tmp_path, with_two, leave_out=True)
    assert "1 people grant less than every rung" in caplog.text
    assert "little" not in caplog.text
    assert ledger.known(["little", "new", IDS[0]]).tolist() == [False, True, True]
    assert private_ledger(tmp_path, with_two, leave_out=True).id == ledger.id


def test_nobody_is_promised_less_than_they_grant(tmp_path: Path) -> None:
    """However many different ε and δ there are."""
    rng = np.random.default_rng(0)
    each = pp.Budgets(rng.uniform(0.1, 5, 200), delta=10 ** rng.uniform(-6, -4, 200), person=np.arange(200))
    ledger = private_ledger(tmp_path, each)
    assert len(ledger.rungs) == 8
    rungs = [ledger.rungs[rung] for rung in ledger.members(np.arange(200)).rung]
    assert (np.array([rung.epsilon for rung in rungs]) <= each.epsilon).all()
    assert (np.array([rung.delta for rung in rungs]) <= each.delta).all()


def test_rows_of_changed_data_are_no_new_people(tmp_path: Path) -> None:
    ledger = private_ledger(tmp_path, budgets(ids=row_ids("abc", 9)), by_row=True)
    assert private_ledger(tmp_path, budgets(ids=row_ids("abc", 9)), by_row=True).id == ledger.id
    for changed in (row_ids("abd", 9), row_ids("abc", 10)[1:]):
        with pytest.raises(pp.InvalidInput, match="made for other rows"):
            private_ledger(tmp_path, budgets(ids=changed), by_row=True)
    assert ledger.show().entries == 2


def test_people_do_not_join_rows_by_another_way(tmp_path: Path) -> None:
    rows = budgets(ids=row_ids("abc", 9))
    ledger = private_ledger(tmp_path / "rows", rows, by_row=True)
    assert (ledger.unit, len(ledger.members(row_ids("abc", 9)))) == ("record", 9)
    with pytest.raises(pp.InvalidInput, match=r"ids has 'P0', .* are new, but this ledger has a purse for each row"):
        private_ledger(tmp_path / "rows", budgets())
    with pytest.raises(pp.InvalidInput, match="make another ledger, and mind that ε's of both add up"):
        ledger.import_table({"person": IDS, "epsilon": EPSILON})
    assert ledger.show().entries == 2
    private_ledger(tmp_path / "before", rows)  # as it was made before it said so itself
    assert private_ledger(tmp_path / "before", rows, by_row=True).unit == "person"


def test_an_older_copy_or_a_missing_one_is_refused(tmp_path: Path) -> None:
    ledger = private_ledger(tmp_path, budgets())
    shutil.copy(tmp_path / "purses.db", tmp_path / "old")
    spend(ledger, ["P3"], 1000)
    new = (tmp_path / "purses.db").read_bytes()
    for broken, said in (
        (lambda: shutil.copy(tmp_path / "old", tmp_path / "purses.db"), "old or forked copy"),
        ((tmp_path / "purses.db").unlink, "missing beside its anchor"),
    ):
        broken()
        with pytest.raises(pp.InvalidInput, match=said):
            private_ledger(tmp_path, budgets())
    (tmp_path / "purses.db").write_bytes(new)
    (tmp_path / "purses.anchor").unlink()
    with pytest.raises(pp.InvalidInput, match=r"purses\.anchor is missing") as refused:
        private_ledger(tmp_path, budgets())
    command = str(refused.value).split("begin it anew: ")[1]
    assert cli.main(shlex.split(command)[1:]) == 0
    assert private_ledger(tmp_path, budgets()).id == ledger.id


def test_a_lone_key_is_a_lost_ledger(tmp_path: Path) -> None:
    ledger = private_ledger(tmp_path, budgets())
    spend(ledger, ["P3"], 1000)
    key = (tmp_path / "purses.key").read_bytes()
    for name in ("purses.db", "purses.anchor"):
        (tmp_path / name).unlink()
    for _ in range(2):
        with pytest.raises(pp.InvalidInput, match=r"missing beside its key .*put it back"):
            private_ledger(tmp_path, budgets())
    assert [path.name for path in tmp_path.iterdir()] == ["purses.key"]
    assert (tmp_path / "purses.key").read_bytes() == key


def test_a_new_one_without_its_anchor_may_be_an_old_copy(tmp_path: Path) -> None:
    """It has its anchor from the first moment on, so one that is missing was lost."""
    private_ledger(tmp_path, budgets())
    (tmp_path / "purses.anchor").unlink()
    with pytest.raises(pp.InvalidInput, match=r"purses\.anchor is missing"):
        private_ledger(tmp_path, budgets())


def test_what_a_broken_making_left_does_not_hide_that_a_ledger_is_lost(tmp_path: Path) -> None:
    ledger = private_ledger(tmp_path, budgets())
    place = private.Place.in_folder(tmp_path)
    at = private.Place.at(tmp_path / "table.ledger")
    for one, other in zip(vars(place).values(), vars(at).values(), strict=True):
        one.rename(other)
    assert private.is_there(at)
    assert ledger.id == private.opened(at).id
    left = tmp_path / f".table.ledger.{'0' * 16}"
    pp.Ledger.create(private.url_of(left), [(1.0, 1e-5)], key=bytes(32))
    at.file.unlink()
    with pytest.raises(pp.InvalidInput, match="missing beside its anchor"):
        private.is_there(at)


def test_links_into_a_place_that_is_not_mounted_are_a_lost_ledger(tmp_path: Path) -> None:
    """A new ledger would take the place of the links, with everybody's purse full."""
    private_ledger(tmp_path / "volume", budgets())
    names = sorted(path.name for path in (tmp_path / "volume").iterdir())
    (tmp_path / "here").mkdir()
    for name in names:
        (tmp_path / "here" / name).symlink_to(tmp_path / "volume" / name)
    spend(private_ledger(tmp_path / "here", budgets()), ["P3"], 1000)
    assert all((tmp_path / "here" / name).is_symlink() for name in names)
    (tmp_path / "volume").rename(tmp_path / "away")
    with pytest.raises(pp.InvalidInput, match=r"missing beside its anchor .*put it back"):
        private_ledger(tmp_path / "here", budgets())
    (tmp_path / "away").rename(tmp_path / "volume")
    private_ledger(tmp_path / "here", budgets())


def test_one_that_cannot_be_made_leaves_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would be refused ever after, as one that was lost."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("privypurse.ledger.private.os.rename", full)
        with pytest.raises(pp.InvalidInput, match="cannot be made: No space left"):
            private_ledger(tmp_path, budgets())
    assert list(tmp_path.iterdir()) == []
    private_ledger(tmp_path, budgets())


@pytest.mark.slow
def test_one_that_was_killed_while_it_was_made_is_made_whole(tmp_path: Path) -> None:
    """Before its people joined, before its anchor, and before it had its name."""
    for place in ("Ledger.join", "Ledger.write_anchor", "private.os.rename"):
        code = f"""
import os
import numpy as np
import privypurse as pp
from privypurse.ledger import private
from privypurse.ledger.ledger import Ledger
def die(*_, **__): os.kill(os.getpid(), 9)
{place} = die
private.private_ledger({str(tmp_path / place)!r}, pp.Budgets([1.0, 2.0], person=["a", "b"]))
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == -9, done.stderr
        ledger = private_ledger(tmp_path / place, budgets([1.0, 2.0], ["a", "b"]))
        assert granted(ledger, ["a", "b"]) == [1.0, 2.0]
        assert ledger.verify().problems == []
        assert {path.name for path in (tmp_path / place).iterdir()} == {"purses.db", "purses.key", "purses.anchor"}


def test_two_who_make_it_at_once_have_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes after the first has made it and before it looks again."""
    real = private.make

    def late(*given: Any, **more: Any) -> None:
        real(*given, **more)
        real(*given, **more)

    monkeypatch.setattr(private, "make", late)
    ledger = private_ledger(tmp_path, budgets())
    assert granted(ledger) == EPSILON.tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["purses.anchor", "purses.db", "purses.key"]


def test_ids_of_people_are_no_rows(tmp_path):
    with pytest.raises(pp.InvalidInput, match="by_row=True is for ids that row_ids made"):
        private_ledger(tmp_path, budgets(ids=np.array([f"patient {k}" for k in range(9)])), by_row=True)
    assert not (tmp_path / "purses.db").exists()
