"""The journal: on disk before a step, never back, one run at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

import privypurse as pp
from privypurse.training.journal import Journal

PLAN = "a" * 64


def test_counts_before_and_never_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "steps"
    journal = Journal(path, PLAN, 1000)
    for step in range(1, 301):
        journal.count(step)
        on_disk = int(path.read_text().split()[-1])
        assert on_disk >= step
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


def test_an_entry_that_was_being_written_does_not_count_and_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    Journal(path, PLAN, 1000).close()
    for torn in ("reser", "reserved 1", "stopped 1"):
        with path.open("a") as file:
            file.write("reserved 128\n" + torn)
        journal = Journal(path, PLAN, 1000)
        assert journal.counted == 128
        journal.count(129)
        journal.close()
        assert path.read_text().endswith("\n")


def test_never_reserves_more_than_the_plan_has(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    journal = Journal(path, PLAN, 50)
    for step in range(1, 51):
        journal.count(step)
    assert max(int(line.split()[1]) for line in path.read_text().splitlines()[1:]) == 50


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
    with path.open("a") as file:
        file.write("reserved minus one\n")
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
    """A short write is no entry: the steps it was to reserve must not be taken."""
    journal = Journal(tmp_path / "steps", PLAN, 1000)
    journal.count(1)
    monkeypatch.setattr("os.write", lambda file, entry: len(entry) - 1)
    step = journal._reserved + 1
    with pytest.raises(OSError, match="in full"):
        journal.count(step)
    assert journal.counted <= journal._reserved < step
    monkeypatch.undo()
