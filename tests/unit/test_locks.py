"""What holds a count is locked itself: no removed file, second name, close or thread lets two pay with one purse.

Each test is an attack that took more than one purse, or joined more rounds than allowed, where the lock lay on a file
beside the count. ``taken`` is in purses: 1 is what people granted.
"""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from privypurse import _storage
from privypurse._storage import HeldFile
from privypurse.accounting.filters import Filter
from privypurse.accounting.pure_filter import PureDPFilter
from privypurse.errors import PrivyPurseError
from privypurse.queries import Analyst, statistics
from privypurse.queries.table_ledger import opened, table_ledger
from privypurse.training.journal import Journal

PEOPLE = {"age": np.arange(20.0)}


def held(path: Path) -> HeldFile:
    return HeldFile(path, "purses", b"0")


def analyst(path: Path) -> Analyst:
    kept = table_ledger(path, pp.Budgets(np.ones(20), delta=1e-5), {})
    return Analyst(PEOPLE, kept.budgets, person=kept.budgets.person, ledger=kept.ledger)


def ask(path: Path, share: float = 0.9, asks: Analyst | None = None) -> float:
    """A count that costs this share of everybody's purse; how much of it person 0 really paid."""
    asks = asks or analyst(path)
    ledger = opened(path)
    members, [rung] = ledger.members([0]), ledger.rungs
    before = int(ledger.spent(members)[0, 0])
    asks.count(noise=np.sqrt(rung.order / (2 * share * rung.limit * 2.0**-40)))
    return (int(ledger.spent(members)[0, 0]) - before) / rung.limit


def test_nothing_beside_the_ledger_is_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "purses"
    first, second = analyst(path), analyst(path)
    taken = ask(path, asks=first)
    for one in tmp_path.iterdir():
        if not one.name.startswith(path.name):
            one.unlink()
    assert taken + ask(path, asks=second) + ask(path) == pytest.approx(0.9, rel=1e-6)


def test_a_link_is_the_same_purse_and_a_second_name_is_refused(tmp_path: Path) -> None:
    """A hard link has a write-ahead log of its own: two who write by two names would not see each other."""
    path, alias = tmp_path / "purses", tmp_path / "other"
    taken = ask(path, 0.05)
    alias.symlink_to(path)
    taken += ask(alias) + ask(path)
    assert taken == pytest.approx(0.95, rel=1e-6)
    asks = analyst(path)
    alias.unlink()
    os.link(path, alias)
    with pytest.raises(pp.InvalidInput, match="other names"):
        asks.count(noise=1e3)
    with pytest.raises(pp.InvalidInput, match="other names"):
        pp.Ledger.open(f"sqlite:///{alias}", key=f"{path}.key")


def test_a_ledger_that_was_removed_or_replaced_is_not_written_past(tmp_path: Path) -> None:
    path = tmp_path / "purses"
    asks = analyst(path)
    kept = path.read_bytes()
    ask(path, 0.1, asks)
    latest = path.read_bytes()
    path.unlink()
    with pytest.raises(pp.InvalidInput, match="is not there"):
        asks.count(noise=1e3)
    with pytest.raises(pp.InvalidInput, match="put it back"):
        analyst(path)  # no new one, with full purses
    path.write_bytes(kept)  # from a backup
    with pytest.raises(pp.PrivyPurseError, match="not the one it was"):
        asks.count(noise=1e3)
    with pytest.raises(pp.InvalidInput, match="old or forked copy"):
        analyst(path)
    path.write_bytes(latest)
    assert ask(path, 0.8, asks) + ask(path, 0.8) == pytest.approx(0.8, rel=1e-6)


def test_a_change_by_somebody_who_does_not_lock_is_found(tmp_path: Path) -> None:
    path = tmp_path / "purses"
    with closing(held(path)) as file:
        file.write(b"1")
        old = path.read_bytes()
        file.write(b"2")
        with path.open("r+b") as whole:  # the same inode with old content
            whole.write(old)
        with pytest.raises(pp.InvalidInput, match="somebody else changed"):
            file.write(b"3")


def test_a_count_whose_last_sync_fails_stays_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on disk or not; so nothing follows it, and whoever opens the file again finds it counted at worst."""
    path, calls, honest = tmp_path / "purses", [], os.fsync

    def second_fails(file: int) -> None:
        calls.append(file)
        if len(calls) == 2:
            raise OSError("input/output error")
        honest(file)

    file = held(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", second_fails)
        with pytest.raises(OSError, match="input/output"):
            file.write(b"1")
    with pytest.raises(pp.InvalidInput, match="somebody else changed"):  # what is on disk is not what it knows
        file.write(b"1")
    file.close()
    with closing(held(path)) as again:
        assert again.content == b"1"


@pytest.mark.slow
def test_processes_that_open_at_once_take_turns(tmp_path: Path) -> None:
    """Processes begin a new file together: one at a time adds its share, and nothing gets lost."""
    path = tmp_path / "purses"
    code = (
        "import privypurse as pp, time\n"
        "from privypurse._storage import HeldFile\n"
        "for _ in range(5):\n"
        "    while True:\n"
        "        try:\n"
        f"            file = HeldFile({str(path)!r}, 'purses', b'0')\n"
        "            break\n"
        "        except pp.InvalidInput as error:\n"
        "            assert 'somebody else holds' in str(error), error\n"
        "            time.sleep(0.002)\n"
        "    file.write(str(int(file.content) + 1).encode())\n"
        "    file.close()\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [worker.wait(120) for worker in workers] == [0] * 4
    with closing(held(path)) as file:
        assert file.content == b"20"
    assert [one.name for one in tmp_path.iterdir()] == ["purses"]


# --- Threads -------------------------------------------------------------------------------------------------------


@pytest.fixture
def eager() -> Iterator[None]:
    """Threads that change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def accepted(charge: Callable[[], None], threads: int = 4, times: int = 40) -> int:
    """How many charges went through."""
    count, begin = [0] * threads, threading.Barrier(threads)

    def work(place: int) -> None:
        begin.wait()
        for _ in range(times):
            try:
                charge()
                count[place] += 1
            except PrivyPurseError:
                pass

    workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(count)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("times", [10, 40])
def test_threads_never_take_more_than_a_filter_holds(times: int) -> None:
    """Four threads took 1.52 purses out of a filter that said 0.96."""
    purses = Filter(np.ones(40_000), np.full(40_000, 1e-5))
    cost = purses.total / 50.5
    taken = accepted(lambda: purses.charge(cost), times=times)
    assert taken == min(4 * times, 50)
    assert purses.spent[0] == pytest.approx(taken * cost[0])
    assert (purses.spent <= purses.total).all()


def test_a_filter_without_its_lock_is_overdrawn() -> None:
    """The broken twin: check and charge as two steps, with another thread in between."""
    purses = Filter(np.ones(1), np.full(1, 1e-5))
    cost, both_asked = purses.total * 0.9, threading.Barrier(2)
    paid = []

    def unlocked() -> None:
        fits = bool(purses.affords(cost)[0])
        both_asked.wait(10)
        if fits:
            purses.spent = purses.spent * 0 + cost  # what a lost update leaves
            paid.append(0.9)

    threads = [threading.Thread(target=unlocked) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(paid) > 1 > float(purses.spent[0] / purses.total[0])


@pytest.mark.usefixtures("eager")
def test_threads_that_release_statistics_pay_with_different_coins() -> None:
    purses = Filter(np.ones(40_000), np.full(40_000, 1e-5))
    noise = 1 / np.sqrt(float(purses.total[0]) / 10.5)
    flags = np.ones(40_000, dtype=bool)
    counted: list[float] = []
    accepted(lambda: counted.append(statistics.count(flags, purses, noise=noise).value), times=5)
    assert len(counted) == 20
    assert sum(value > 20_000 for value in counted) == 10  # the others found empty purses


@pytest.mark.usefixtures("eager")
def test_threads_never_take_more_than_a_purse_of_pure_steps_holds() -> None:
    purse = PureDPFilter(1.0, 1e-5)
    step = np.sqrt(2 * purse.total / 50.5)
    assert accepted(lambda: purse.charge(step), times=100) == 50


def test_a_filter_is_not_copied() -> None:
    import copy

    purses = Filter(np.ones(2), np.full(2, 1e-5))
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(PrivyPurseError, match="spent twice"):
            copied(purses)


# --- Other files ---------------------------------------------------------------------------------------------------


def test_a_journal_that_was_removed_counts_no_further_step(tmp_path: Path) -> None:
    """The next run would find no journal, and take all steps again."""
    path = tmp_path / "steps"
    journal = Journal(path, "p", 10)
    journal.count(1)
    path.unlink()
    with pytest.raises(pp.InvalidInput, match="removed or replaced"):
        journal.count(10)
    assert journal.counted == 1
    with pytest.warns(pp.PrivyPurseWarning, match="removed or replaced"):
        journal.close()


@pytest.mark.parametrize("how", [os.link, os.symlink])
def test_a_journal_by_another_name_is_the_same_journal(tmp_path: Path, how: Callable[..., None]) -> None:
    path = tmp_path / "steps"
    journal = Journal(path, "p", 10)
    how(path, tmp_path / "other")
    with pytest.raises(pp.InvalidInput, match="another run holds"):
        Journal(tmp_path / "other", "p", 10)
    journal.count(4)
    journal.close()
    assert Journal(tmp_path / "other", "p", 10).counted == 4


def test_files_that_everybody_may_read_become_their_owners(tmp_path: Path) -> None:
    def written(path: Path) -> None:
        with closing(held(path)) as file:
            file.write(b"1")

    ways: dict[str, Callable[[Path], object]] = {
        "purses": written,
        "ledger": lambda path: analyst(path).count(noise=1e3),
        "steps": lambda path: Journal(path, "p", 3).close(),
        "whole": lambda path: _storage.replace_text(path, "x"),
    }
    for name, write in ways.items():
        write(tmp_path / name)
        (tmp_path / name).chmod(0o644)
        write(tmp_path / name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name


def test_a_replaced_file_is_whole_synchronised_and_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "file", []
    honest = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(stat.S_ISDIR(os.fstat(file).st_mode)), honest(file)))
    _storage.replace_text(path, "old")
    assert synced == [False, True]  # the file, then its name
    (tmp_path / ".file.new").write_text("what a killed process left")
    with pytest.raises(RuntimeError):
        _storage.replace_file(path, lambda file: (file.write(b"half"), (_ for _ in ()).throw(RuntimeError))[1])
    assert path.read_text() == "old"
    _storage.replace_text(path, "new")
    assert path.read_text() == "new"
    (tmp_path / "link").symlink_to(path)
    _storage.replace_text(tmp_path / "link", "by its link")
    assert path.read_text() == "by its link"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.slow
def test_without_locks_of_the_system_importing_works_and_counts_on_disk_are_refused(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['fcntl'] = None\n"
        "import numpy as np, privypurse as pp, privypurse.training.journal, privypurse.federated.book\n"
        "table, budgets = {'x': np.ones(3)}, pp.Budgets(np.ones(3))\n"
        "print(float(pp.Analyst(table, budgets).count(noise=10.0)))\n"
        f"try: privypurse.training.journal.Journal({str(tmp_path / 'purses')!r}, 'p', 3)\n"
        "except pp.PrivyPurseError as error: print(error)\n"
        f"pp.plan(budgets, steps=2, batch_size=1, clip_norm=1.0).save({str(tmp_path / 'plan.json')!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no fcntl" in done.stdout
    assert (tmp_path / "plan.json").exists()
    assert not (tmp_path / "purses").exists()


def test_purses_of_another_version_are_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "purses").write_bytes(b"privypurse-purses 1 sha256 0\n{}")
    with pytest.raises(pp.InvalidInput, match="is of another version"):
        held(tmp_path / "purses")


def test_a_checkpoint_has_its_name_on_disk_before_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure undoes a rename that the folder does not know of."""
    import torch

    folder, events = tmp_path / "run", []
    sync, replace = os.fsync, os.replace

    def synced(file: int) -> None:
        if folder.exists() and os.path.samestat(os.fstat(file), folder.stat()):
            events.append("folder")
        sync(file)

    def replaced(old: Path, new: Path) -> None:
        events.append(Path(new).name)
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    plan = pp.plan(pp.Budgets(np.ones(20), delta=1e-3), steps=3, batch_size=5, clip_norm=1.0, method="uniform")
    model = torch.nn.Linear(2, 2)
    data = torch.utils.data.TensorDataset(torch.randn(20, 2), torch.zeros(20, dtype=torch.int64))
    losses = torch.nn.CrossEntropyLoss(reduction="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pp.train(model, optimizer, data, plan, losses, checkpoint=folder, execution=pp.Execution(checkpoint_every=1))
    places = [place for place, name in enumerate(events) if name == "checkpoint.pt"]
    assert len(places) >= 3
    assert all(events[place + 1 : place + 2] == ["folder"] for place in places)
    assert stat.S_IMODE((folder / "checkpoint.pt").stat().st_mode) == 0o600


# ------------------------------------------------------------------------------------------ what is no file at all


def saved_plan(path: Path) -> None:
    pp.plan(pp.Budgets(np.ones(9)), "uniform", steps=2, batch_size=2, accountant="rdp").save(path)


@pytest.mark.parametrize("keep", [held, saved_plan, lambda path: Journal(path, "a", 3)])
def test_pipes_and_devices_are_refused_and_stay_what_they_are(tmp_path: Path, keep: Callable[[Path], object]) -> None:
    """As root, /dev/null would become a file of mode 0600 for everybody on the machine."""
    os.mkfifo(tmp_path / "pipe", 0o644)
    os.chmod(tmp_path / "pipe", 0o644)
    with pytest.raises(pp.InvalidInput, match="device or a pipe"):
        keep(tmp_path / "pipe")
    found = (tmp_path / "pipe").stat().st_mode
    assert stat.S_ISFIFO(found)
    assert stat.S_IMODE(found) == 0o644
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("keep", [held, saved_plan, lambda path: Journal(path, "a", 3)])
def test_links_in_a_circle_are_refused(tmp_path: Path, keep: Callable[[Path], object]) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    with pytest.raises(pp.InvalidInput, match=r"leads back to itself|cannot be"):
        keep(tmp_path / "one")
