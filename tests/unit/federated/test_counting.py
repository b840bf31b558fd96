"""A round is on disk before it is trained, an answer before it is given: forks, full disks, others' budgets."""

import errno
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from everybody_drawn import made
from federation import STATE, book_in, granted, raises

import privypurse as pp
from privypurse import _storage
from privypurse.federated import client as client_module
from privypurse.federated.book import Book

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests


def test_a_fork_of_a_client_answers_nothing(tmp_path: Path) -> None:
    """It has inherited the lock and the count: both would answer, and neither would know of the other."""
    client = made(tmp_path, seed=None)
    child = os.fork()
    if not child:
        signal.alarm(20)
        refused = 0
        for ask in (lambda: client.answer(1, STATE), lambda: client.held(2)):
            try:
                ask()
            except pp.InvalidInput as error:
                refused += "opened by another process" in str(error)
            except BaseException:
                pass
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert not list(tmp_path.glob("answer-*"))
    assert book_in(tmp_path)["begun"] == []
    client.answer(1, STATE)
    assert client.joined == 1


def noted(patch: pytest.MonkeyPatch, where: Any, name: str, events: list[str]) -> None:
    """Writes down each call of a function, and calls it."""
    real = getattr(where, name)

    def called(*a: Any, **k: Any) -> Any:
        events.append(name)
        return real(*a, **k)

    patch.setattr(where, name, called)


FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_round_that_cannot_be_counted_is_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = made(tmp_path)
    calls: list[str] = []
    noted(monkeypatch, client_module, "train", calls)
    with monkeypatch.context() as patch:
        patch.setattr(Book, "_write", raises(FULL))
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                client.answer(1, STATE)
    assert calls == []
    assert not list(tmp_path.glob("answer-*"))
    client.answer(1, STATE)
    assert calls == ["train"]
    client.close()
    assert made(tmp_path).joined >= 1


@pytest.mark.parametrize("where", ["write", "replace"])
def test_an_answer_that_cannot_be_kept_is_not_given(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next request for the same round would get another one, for which nobody has paid."""
    client = made(tmp_path, seed=None)
    given: list[Any] = []
    with monkeypatch.context() as patch:
        if where == "write":
            patch.setattr(np.lib.format, "write_array", raises(FULL))
        else:
            real, fails = os.replace, raises(FULL)
            patch.setattr(os, "replace", lambda old, new: fails() if "answer" in str(new) else real(old, new))
        with pytest.raises(OSError, match="No space"):
            given.append(client.answer(1, STATE))
    assert given == []
    assert client.joined == 1
    client.answer(1, STATE)
    assert client.joined == 2  # paid for again


def test_the_same_budgets_in_another_order_are_refused(tmp_path: Path) -> None:
    """Somebody would go on with another's rate, and with what another has spent."""
    epsilon = np.arange(1.0, 10.0)
    made(tmp_path, budgets=granted(epsilon)).close()
    epsilon[[2, 6]] = epsilon[[6, 2]]
    with pytest.raises(pp.InvalidInput, match="other records or budgets"):
        made(tmp_path, budgets=granted(epsilon))


def test_every_file_is_on_disk_under_its_name_before_anything_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure undoes a rename that the folder does not know of."""
    events: list[str] = []
    for name in ("link", "replace"):
        noted(monkeypatch, os, name, events)
    noted(monkeypatch, _storage, "synchronise_folder", events)
    client = made(tmp_path / "client")
    assert events == ["synchronise_folder", "link", "synchronise_folder", "replace", "synchronise_folder"]
    events.clear()
    noted(monkeypatch, os, "fsync", events)
    noted(monkeypatch, client_module, "train", events)
    client.answer(1, STATE)
    counted = ["fsync", "fsync"]  # the content, then what says that it is valid
    kept = ["fsync", "replace", "synchronise_folder", "fsync"]  # the file, its name, and the folder
    assert events == [*counted, "train", *kept]
    assert (tmp_path / "client" / "answer-1.npz").exists()
