"""The book: wherever a client breaks, and whoever else comes, no round is given for nothing."""

import contextlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import EPSILON, OFFER, STATE, TERMS, PowerFailure, bits, book_in, linear, losses, made, records
from torch import nn

import privypurse as pp
from privypurse.federated import client as client_module
from privypurse.federated.book import Book
from privypurse.federated.client import Client, Declined
from privypurse.federated.terms import Offer

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests


def test_a_round_that_broke_off_is_paid_for_and_paid_for_again(tmp_path: Path) -> None:
    seen: list[Any] = []
    clients: list[Client] = []

    def breaks(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        if clients and clients[0].joined == 2 and len(seen) < 1:
            seen.append(book_in(tmp_path)["begun"])  # what is on disk while training
            raise PowerFailure
        return losses(output, label)

    clients.append(client := made(tmp_path, loss_fn=breaks))
    client.answer(1, STATE)
    with pytest.raises(PowerFailure):
        client.answer(2, STATE)
    assert seen == [[1, 2]]
    assert client.joined == 2
    client.answer(2, STATE)
    assert book_in(tmp_path)["begun"] == [1, 2, 2]
    with pytest.raises(Declined):
        client.answer(3, STATE)
    assert (client.spent().against_server <= EPSILON).all()


POINTS = ["model", "optimizer", "write book", "point book", "train", "write answer", "replace answer", "last"]


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_anywhere_never_gives_a_round_for_nothing(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was computed is counted on disk before; and what may have been sent is never computed again."""
    client = made(tmp_path, seed=None)
    sent = bits(client.answer(1, STATE))
    trained = []

    def fails(*_: Any, **__: Any) -> Any:
        raise PowerFailure

    def only_then(real: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
        return lambda *a, **k: fails() if when(*a) else real(*a, **k)

    real_train = client_module.train

    def training(*a: Any, **k: Any) -> Any:
        trained.append(book_in(tmp_path)["begun"].count(2))
        return real_train(*a, **k)

    monkeypatch.setattr(client_module, "train", training)
    with monkeypatch.context() as patch:
        if point == "model":
            client._new_model = fails
        elif point == "optimizer":
            patch.setattr(torch.optim, "SGD", fails)
        elif point == "train":
            patch.setattr(client_module, "train", fails)
        elif point == "write answer":
            patch.setattr(np.lib.format, "write_array", fails)
        elif point == "last":  # all is on disk, nothing was sent
            patch.setattr(
                Book, "keep", lambda self, number, update, keep=Book.keep: (keep(self, number, update), fails())
            )
        elif point == "write book":
            patch.setattr(os, "fsync", fails)
        elif point == "point book":  # the new content is on disk, what says so is not
            patch.setattr(os, "pwrite", only_then(os.pwrite, lambda file, data, offset: offset == 0))
        else:
            patch.setattr(os, "replace", only_then(os.replace, lambda old, new: "answer" in str(new)))
        with pytest.raises(PowerFailure):
            client.answer(2, STATE)
    client.close()
    counted = book_in(tmp_path)["begun"].count(2)
    assert counted == (point not in ("model", "write book", "point book"))
    assert trained == ([1] if point in ("write answer", "replace answer", "last") else [])
    client = made(tmp_path, seed=None)
    assert client.joined == 1 + counted
    assert bits(client.answer(1, STATE)) == sent
    update = bits(client.answer(2, STATE))
    assert client.joined == 2 + (counted and point != "last")
    assert bits(client.answer(2, STATE)) == update


@pytest.mark.slow
def test_a_killed_process_has_counted_and_lets_the_next_one_in(tmp_path: Path) -> None:
    """For real: the process dies in its first step, with no chance to tidy up."""
    code = f"""
import os, sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[2])]!r}
import federation as t
loss = t.losses
client = t.made(t.Path({str(tmp_path)!r}), loss_fn=lambda output, label: loss(output, label), seed=None)
def loss(output, label):
    os.kill(os.getpid(), 9)
client.answer(2, t.STATE)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == -9, done.stderr
    client = made(tmp_path)
    assert client.joined == 1
    client.answer(2, STATE)
    assert client.joined == 2


def test_a_new_client_on_the_same_folder_goes_on(tmp_path: Path) -> None:
    first = made(tmp_path, seed=None)
    answers = {number: bits(first.answer(number, STATE)) for number in (1, 4)}
    before = first.spent()
    first.close()
    second = made(tmp_path, seed=None)
    assert second.joined == 2
    assert second.spent().against_server.tolist() == before.against_server.tolist()
    assert second.spent().against_public.tolist() == before.against_public.tolist()
    assert {number: bits(second.answer(number, STATE)) for number in answers} == answers
    second.answer(2, STATE)
    with pytest.raises(Declined):
        second.answer(3, STATE)


def strangers() -> dict[str, dict[str, Any]]:
    return {
        "terms": {"offer": Offer(replace(TERMS, most_joined=4), OFFER.table)},
        "adversary": {"offer": Offer(replace(TERMS, adversary="public"), OFFER.table), "adversary": "public"},
        "data": {"dataset": records(seed=1)},
        "epsilon": {"budgets": pp.Budgets(np.maximum(EPSILON, 1), delta=1e-3)},
        "delta": {"budgets": pp.Budgets(EPSILON, delta=1e-2)},
    }


@pytest.mark.parametrize("which", strangers())
def test_other_terms_data_or_budgets_in_the_same_folder_are_refused(tmp_path: Path, which: str) -> None:
    client = made(tmp_path)
    client.answer(1, STATE)
    client.close()
    before = (tmp_path / "book").read_bytes()
    with pytest.raises(pp.InvalidInput, match=r"begun with other (terms|records).*spent again"):
        made(tmp_path, **strangers()[which])
    assert (tmp_path / "book").read_bytes() == before


def test_other_people_with_the_same_budgets_are_refused(tmp_path: Path) -> None:
    made(tmp_path, budgets=pp.Budgets(np.ones(9), delta=1e-3)).close()
    person = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    with pytest.raises(pp.InvalidInput, match="begun with other"):
        made(tmp_path, budgets=pp.Budgets(np.ones(9), delta=1e-3, person=person), person=person)


def test_a_refused_offer_does_not_lock_the_client_out(tmp_path: Path) -> None:
    """One wrong message from the server, and the right ones still get their answers."""
    made(tmp_path).close()
    with pytest.raises(pp.InvalidInput, match="begun with other terms"):
        made(tmp_path, offer=strangers()["terms"]["offer"])
    made(tmp_path).answer(1, STATE)


def test_two_clients_in_one_folder_are_refused(tmp_path: Path) -> None:
    first = made(tmp_path)
    with pytest.raises(pp.InvalidInput, match="in use by another client"):
        made(tmp_path)
    first.answer(1, STATE)  # it was not disturbed
    first.close()
    second = made(tmp_path)
    assert second.joined == 1


@pytest.mark.slow
def test_two_processes_on_one_folder_are_refused(tmp_path: Path) -> None:
    client = made(tmp_path)
    code = (
        "from privypurse.federated.book import Book\nfrom pathlib import Path\n"
        f"try: Book(Path({str(tmp_path)!r}), 't', 'r')\nexcept ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True)
    assert "in use by another client" in done.stdout
    client.answer(1, STATE)


def test_two_threads_do_not_join_more_rounds_than_the_terms_allow(tmp_path: Path) -> None:
    """The check and the count are one: nobody gets in between."""
    offer = Offer.of(replace(TERMS, most_joined=1))
    meeting = threading.Barrier(2)

    def slow() -> nn.Module:
        with contextlib.suppress(threading.BrokenBarrierError):  # the other one waits outside, as it should
            meeting.wait(0.5)
        return linear()

    client = made(tmp_path, offer=offer, new_model=slow)
    outcome: list[Any] = []

    def ask(number: int) -> None:
        try:
            outcome.append(client.answer(number, STATE))
        except Exception as error:
            outcome.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.joined == 1
    assert sorted(type(one).__name__ for one in outcome) == ["Declined", "dict"]


def test_after_close_there_are_no_answers(tmp_path: Path) -> None:
    client = made(tmp_path)
    client.close()
    other = made(tmp_path)
    with pytest.raises(pp.InvalidInput, match="closed"):
        client.answer(1, STATE)
    other.close()
    client.close()  # twice does no harm


def test_only_the_owner_may_look(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        client = made(tmp_path / "client")
        client.answer(1, STATE)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "client").stat().st_mode) == 0o700
    files = list((tmp_path / "client").iterdir())
    assert {path.name for path in files} == {"book", "offer.json", "answer-1.npz"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b'{"terms": "x"}', b"\xff\xfe", b"[]", b"null"],
)
def test_a_damaged_book_is_refused(tmp_path: Path, damage: bytes) -> None:
    client = made(tmp_path)
    client.answer(1, STATE)
    client.close()
    (tmp_path / "book").write_bytes(damage)
    with pytest.raises(pp.InvalidInput, match=r"holds no book"):
        made(tmp_path)


def test_a_lost_count_beside_answers_is_refused(tmp_path: Path) -> None:
    """Somebody removed the count alone: what was spent is not known any more."""
    client = made(tmp_path)
    client.answer(1, STATE)
    client.close()
    (tmp_path / "book").unlink()
    with pytest.raises(pp.InvalidInput):
        made(tmp_path)


def test_a_parameter_may_be_called_anything(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.file = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.file(x)

    client = made(tmp_path, new_model=Odd)
    state = {f"file.{name}": value for name, value in STATE.items()}
    first = client.answer(1, state)
    assert bits(client.answer(1, state)) == bits(first)


def test_an_account_can_be_read_later(tmp_path: Path) -> None:
    client = made(tmp_path, seed=None)
    client.answer(2, STATE)
    before = client.spent()
    client.close()
    later = made(tmp_path, seed=None, offer=Offer.load(tmp_path / "offer.json"))
    assert later.spent().against_server.tolist() == before.against_server.tolist()
    with pytest.raises(pp.InvalidInput, match="holds no offer"):
        Offer.load(tmp_path / "book")


def test_a_folder_that_cannot_hold_a_book_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(pp.InvalidInput, match="cannot hold a book"):
            made(folder)
