"""The journal: on disk before a step, never back, one run at a time."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import privypurse as pp
from privypurse.training.journal import Journal
from training_tools import count_on_disk, steps_on_disk

PLAN = "a" * 64


def test_counts_before_and_never_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "steps"
    journal = Journal(path, PLAN, 1000)
    for step in range(1, 301):
        journal.count(step)
        assert steps_on_disk(path) >= step
    journal.close()
    assert Journal(path, PLAN, 1000).counted == 300


def test_what_a_killed_run_reserved_stays_counted(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    code = (
        "import os\n"
        "from privypurse.training.journal import Journal\n"
        f"journal = Journal({str(path)!r}, {PLAN!r}, 1000)\n"
        "for step in range(1, 38): journal.count(step)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    again = Journal(path, PLAN, 1000)
    assert 37 <= again.counted <= 1000
    before = again.counted
    again.count(10)  # a seeded run repeats steps that are counted already
    again.close()
    assert Journal(path, PLAN, 1000).counted == before


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_an_entry_that_was_being_written_does_not_count_and_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Torn in the new content, before the first sector points to it, or in that: the old count or the new one."""
    path = tmp_path / "steps"
    journal = Journal(path, PLAN, 1000)
    journal.count(1)
    left, honest = writes, os.pwrite

    def torn(file: int, content: Any, place: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            honest(file, bytes(content)[:10], place)
            raise KeyboardInterrupt
        return honest(file, content, place)

    monkeypatch.setattr(os, "pwrite", torn)
    before, step = steps_on_disk(path), journal._reserved + 1
    if writes < 2:
        with pytest.raises(KeyboardInterrupt):
            journal.count(step)
        assert journal.counted == 1
    else:
        journal.count(step)
    monkeypatch.undo()
    (tmp_path / "left").write_bytes(path.read_bytes())  # what there is if the process is killed now
    again = Journal(tmp_path / "left", PLAN, 1000)
    assert again.counted == before if writes < 2 else again.counted >= step
    again.count(again.counted + 1)
    again.close()
    journal.close()


def test_never_reserves_more_than_the_plan_has(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    journal = Journal(path, PLAN, 50)
    found = []
    for step in range(1, 51):
        journal.count(step)
        found.append(steps_on_disk(path))
    assert max(found) == 50


def test_slow_steps_are_on_disk_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is reserved ahead, the step itself still is."""
    clock = itertools.count(step=10.0)
    monkeypatch.setattr("privypurse.training.journal.time", SimpleNamespace(monotonic=lambda: next(clock)))
    path = tmp_path / "steps"
    journal = Journal(path, PLAN, 1000)
    for step in range(1, 21):
        journal.count(step)
        assert steps_on_disk(path) == step


def test_one_run_at_a_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "steps", PLAN, 10)
    with pytest.raises(pp.InvalidInput, match="another run holds"):
        Journal(tmp_path / "steps", PLAN, 10)
    journal.close()
    Journal(tmp_path / "steps", PLAN, 10).close()


def test_another_plans_journal_and_damage_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    Journal(path, PLAN, 10).close()
    with pytest.raises(pp.InvalidInput, match="another plan"):
        Journal(path, "b" * 64, 10)
    count_on_disk(path, 7)
    path.write_bytes(path.read_bytes().replace(b" 7", b" 6"))
    with pytest.raises(pp.InvalidInput, match="damaged"):
        Journal(path, PLAN, 10)
    with pytest.raises(pp.InvalidInput, match="cannot be opened"):
        Journal(tmp_path, PLAN, 10)


def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    for text in ("no line end", "two\nlines\n"):
        path.write_text(text)
        with pytest.raises(pp.InvalidInput, match="no journal"):
            Journal(path, PLAN, 10)
        assert path.read_text() == text


def test_a_disk_that_is_full_stops_the_run_before_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written is no entry: the steps it was to reserve must not be taken."""
    journal = Journal(tmp_path / "steps", PLAN, 1000)
    journal.count(1)

    def full(*_: Any) -> int:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.pwrite", full)
    step = journal._reserved + 1
    with pytest.raises(OSError, match="no space left"):
        journal.count(step)
    assert journal.counted <= journal._reserved < step
    monkeypatch.undo()


def _over_it(path: Path, old: bytes) -> None:
    path.write_bytes(old)  # past the lock, into the same file


def _in_its_place(path: Path, old: bytes) -> None:
    (path.parent / "copy").write_bytes(old)
    (path.parent / "copy").replace(path)


@pytest.mark.parametrize("restored", [_over_it, _in_its_place])
@pytest.mark.parametrize("ahead", [False, True])
def test_an_old_journal_that_was_put_back_meanwhile_is_said(
    tmp_path: Path, restored: Callable[[Path, bytes], None], ahead: bool
) -> None:
    """Steps that are reserved are taken without looking; at the end it shows, and is not passed over in silence."""
    path = tmp_path / "steps"
    journal = Journal(path, PLAN, 1000)
    old = path.read_bytes()
    for step in range(1, 4):
        journal.count(step)
    while (journal._reserved > journal.counted) != ahead:
        journal.count(journal.counted + 1)
    restored(path, old)
    with pytest.warns(pp.PrivyPurseWarning, match=f"up to number {journal.counted}"):
        journal.close()
    journal.close()  # twice does no harm
    assert Journal(path, PLAN, 1000).counted == 0  # which is why
    with pytest.raises(pp.InvalidInput, match="was closed"):
        journal.count(journal.counted + 1)
