"""Counts on disk: replaced whole or not at all, one holder at a time."""

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
from privypurse._storage import HeldFile, digest_of_arrays

OPENS = "from privypurse._storage import HeldFile; file = HeldFile({!r}, 'purses', b'')"


def opened(path: Path) -> HeldFile:
    return HeldFile(path, "purses", b"")


def held(path: Path) -> bytes:
    with closing(opened(path)) as file:
        return file.content


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "purses"
    spent = np.random.default_rng(0).bytes(1000)
    with closing(HeldFile(path, "purses", b"first")) as file:
        assert file.content == b"first"
        file.write(bytes(1000))
        file.write(spent)
    assert held(path) == spent


def test_only_the_owner_may_look(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with closing(opened(tmp_path / "purses")) as file:
            file.write(b"00")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.slow
def test_one_holder_at_a_time_also_after_a_write(tmp_path: Path) -> None:
    path = tmp_path / "purses"
    code = OPENS.format(str(path))
    with closing(opened(path)) as file:
        for _ in range(2):
            with pytest.raises(pp.InvalidInput, match="somebody else holds"):
                opened(path)
            (tmp_path / "link").unlink(missing_ok=True)
            (tmp_path / "link").symlink_to(path)
            with pytest.raises(pp.InvalidInput, match="somebody else holds"):
                opened(tmp_path / "link")
            other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert "somebody else holds" in other.stderr
            file.write(b"00")  # a file that was replaced would take the lock with it
    assert held(path) == b"00"


def test_damage_is_refused_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "purses"
    with closing(opened(path)) as file:
        file.write(np.arange(40.0).tobytes())
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
            opened(path)
        assert path.read_bytes() == bad


@pytest.mark.parametrize("call", ["os.pwrite", "os.fsync"])
def test_a_write_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "purses"

    def fails(*arguments: object, **options: object) -> None:
        raise OSError("disk full")

    with closing(opened(path)) as file:
        file.write(b"1")
        with monkeypatch.context() as patch:
            patch.setattr(call, fails)
            with pytest.raises(OSError, match="disk full"):
                file.write(b"0")
    assert held(path) == b"1"


@pytest.mark.slow
@pytest.mark.parametrize("call", ["pwrite", "fsync"])
@pytest.mark.parametrize("which", [1, 2])
def test_a_process_killed_while_it_writes_leaves_the_old_content(tmp_path: Path, call: str, which: int) -> None:
    """Killed before each system call of a write: content, then what says that it is valid."""
    path = tmp_path / "purses"
    code = (
        "import os\n"
        f"{OPENS.format(str(path))}\n"
        "file.write(b'1')\n"
        f"real, calls = os.{call}, []\n"
        "def dies(*given):\n"
        "    calls.append(1)\n"
        f"    return real(*given) if len(calls) < {which} else os.kill(os.getpid(), 9)\n"
        f"os.{call} = dies\n"
        "file.write(b'2')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with closing(opened(path)) as file:
        # Before the last call everything is written, and only a power failure could undo it.
        assert file.content == (b"2" if (call, which) == ("fsync", 2) else b"1")
        file.write(b"3")
    assert held(path) == b"3"


def test_the_file_stays_small_and_holds_what_was_last_written(tmp_path: Path) -> None:
    path = tmp_path / "purses"
    generator = np.random.default_rng(0)
    with closing(opened(path)) as file:
        for size in [*generator.integers(1, 40_000, 60).tolist(), *[5_000] * 10]:
            last = generator.bytes(8 * size)
            file.write(last)
    assert held(path) == last
    assert path.stat().st_size < 4 * 8 * 40_000


def test_closed_files_and_forked_processes_do_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(tmp_path / "purses")
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        with pytest.raises(pp.InvalidInput, match="another process"):
            file.write(b"1")
    file.close()
    file.close()
    with pytest.raises(pp.InvalidInput, match="closed"):
        file.write(b"1")


def test_no_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(pp.InvalidInput, match="cannot be opened"):
        opened(tmp_path / "nowhere" / "purses")


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
