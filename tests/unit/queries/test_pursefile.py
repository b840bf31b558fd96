"""Purses on disk: replaced whole or not at all, one holder at a time, refused to strangers."""

import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import privypurse as pp
from held_files import read_held
from privypurse._storage import digest_of_arrays
from privypurse.queries.pursefile import PurseFile

MINE = {"data set": "a" * 64, "list of budgets": "b" * 64}


def held(path: Path) -> dict[str, np.ndarray] | None:
    with closing(PurseFile(path, MINE)) as file:
        return file.arrays


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "purses"
    spent = np.random.default_rng(0).random(1000)
    with closing(PurseFile(path, MINE)) as file:
        assert file.arrays is None
        file.write(spent=np.zeros(1000))
        file.write(spent=spent, epoch=np.array(3))
    again = held(path)
    assert again is not None
    assert sorted(again) == ["epoch", "spent"]
    assert again["spent"].tobytes() == spent.tobytes()
    assert int(again["epoch"]) == 3


def test_only_the_owner_may_look(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with closing(PurseFile(tmp_path / "purses", MINE)) as file:
            file.write(spent=np.zeros(2))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_one_holder_at_a_time_also_after_a_write(tmp_path: Path) -> None:
    path = tmp_path / "purses"
    code = f"from privypurse.queries.pursefile import PurseFile; PurseFile({str(path)!r}, {MINE!r})"
    with closing(PurseFile(path, MINE)) as file:
        for _ in range(2):
            with pytest.raises(pp.InvalidInput, match="somebody else holds"):
                PurseFile(path, MINE)
            (tmp_path / "link").unlink(missing_ok=True)
            (tmp_path / "link").symlink_to(path)
            with pytest.raises(pp.InvalidInput, match="somebody else holds"):
                PurseFile(tmp_path / "link", MINE)
            other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert "somebody else holds" in other.stderr
            file.write(spent=np.zeros(2))  # a file that was replaced would take the lock with it
    assert held(path) is not None


@pytest.mark.parametrize("name", MINE)
def test_another_identity_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "purses"
    with closing(PurseFile(path, MINE)) as file:
        file.write(spent=np.ones(2))
    for other in ({**MINE, name: "c" * 64}, {key: MINE[key] for key in MINE if key != name}):
        with pytest.raises(pp.InvalidInput, match=f"belong to another {name}.*A new file starts with full purses"):
            PurseFile(path, other)
    again = held(path)  # and nothing happened to it, nor is it locked
    assert again is not None
    assert again["spent"].tolist() == [1, 1]


def test_damage_is_refused_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "purses"
    with closing(PurseFile(path, MINE)) as file:
        file.write(spent=np.arange(4.0))
    whole = path.read_bytes()
    content = read_held(path)
    begins = whole.index(content)  # what lies between is what was there before, and says nothing
    live = np.concatenate([np.arange(512), begins + np.arange(len(content))])
    places = np.random.default_rng(1).choice(live, 90, replace=False)
    cut = [whole[:length] for length in (0, 5, 30, 90, 91, 200, 512, begins, begins + len(content) - 1)]
    flipped = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in places]
    for bad in (*cut, *flipped, b"name,age\nanna,30\n"):
        path.write_bytes(bad)
        with pytest.raises(pp.InvalidInput, match=r"damaged|holds no purses"):
            PurseFile(path, MINE)
        assert path.read_bytes() == bad


@pytest.mark.parametrize("call", ["os.pwrite", "os.fsync", "numpy.savez"])
def test_a_write_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "purses"

    def fails(*arguments: object, **options: object) -> None:
        raise OSError("disk full")

    with closing(PurseFile(path, MINE)) as file:
        file.write(spent=np.ones(3))
        with monkeypatch.context() as patch:
            patch.setattr(call, fails)
            with pytest.raises(OSError, match="disk full"):
                file.write(spent=np.zeros(3))
    again = held(path)
    assert again is not None
    assert again["spent"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
@pytest.mark.parametrize("which", [1, 2])
def test_a_process_killed_while_it_writes_leaves_the_old_content(tmp_path: Path, call: str, which: int) -> None:
    """Killed before each system call of a write: content, then what says that it is valid."""
    path = tmp_path / "purses"
    code = (
        "import os, numpy as np\n"
        "from privypurse.queries.pursefile import PurseFile\n"
        f"file = PurseFile({str(path)!r}, {MINE!r})\n"
        "file.write(spent=np.ones(3))\n"
        f"real, calls = os.{call}, []\n"
        "def dies(*given):\n"
        "    calls.append(1)\n"
        f"    return real(*given) if len(calls) < {which} else os.kill(os.getpid(), 9)\n"
        f"os.{call} = dies\n"
        "file.write(spent=np.full(3, 2.0))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with closing(PurseFile(path, MINE)) as file:
        assert file.arrays is not None
        # Before the last call everything is written, and only a power failure could undo it.
        assert file.arrays["spent"].tolist() == [2.0 if (call, which) == ("fsync", 2) else 1.0] * 3
        file.write(spent=np.full(3, 3.0))
    again = held(path)
    assert again is not None
    assert again["spent"].tolist() == [3, 3, 3]


def test_the_file_stays_small_and_holds_what_was_last_written(tmp_path: Path) -> None:
    path = tmp_path / "purses"
    generator = np.random.default_rng(0)
    with closing(PurseFile(path, MINE)) as file:
        for size in [*generator.integers(1, 40_000, 60).tolist(), *[5_000] * 10]:
            last = generator.random(size)
            file.write(spent=last)
    again = held(path)
    assert again is not None
    assert again["spent"].tobytes() == last.tobytes()
    assert path.stat().st_size < 4 * 8 * 40_000


def test_closed_files_and_forked_processes_do_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PurseFile(tmp_path / "purses", MINE)
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        with pytest.raises(pp.InvalidInput, match="another process"):
            file.write(spent=np.ones(1))
    file.close()
    file.close()
    with pytest.raises(pp.InvalidInput, match="closed"):
        file.write(spent=np.ones(1))


def test_no_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(pp.InvalidInput, match="cannot be opened"):
        PurseFile(tmp_path / "nowhere" / "purses", MINE)


def test_objects_are_never_pickled(tmp_path: Path) -> None:
    with closing(PurseFile(tmp_path / "purses", MINE)) as file, pytest.raises(ValueError, match=r"[Oo]bject"):
        file.write(spent=np.array([object()], dtype=object))


def test_fingerprints_tell_kind_shape_order_and_bytes_apart() -> None:
    one = np.array([1, 2, 3, 4])
    alike = [
        (one,),
        (one.astype(np.int32),),
        (one.astype(np.float64),),
        (one.reshape(2, 2),),
        (one[::-1],),
        (one[:2], one[2:]),
        (one, one),
        (one.astype("datetime64[s]"),),
        (np.array(["1", "2", "3", "4"]),),
        (np.array(1),),
        (np.empty(0),),
        (),
    ]
    assert len({digest_of_arrays(*arrays) for arrays in alike}) == len(alike)
    assert digest_of_arrays(one) == digest_of_arrays(np.array([0, 1, 9, 2, 9, 3, 9, 4])[[1, 3, 5, 7]])
    assert digest_of_arrays(one.reshape(2, 2).T) == digest_of_arrays(np.array([[1, 3], [2, 4]]))
    with pytest.raises(pp.InvalidInput, match="objects"):
        digest_of_arrays(np.array([None]))
