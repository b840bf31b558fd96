"""Against the public a client's own coins say which rounds it joins (rule 8): each is flipped once, and lasts."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import STATE, book_in, flat, granted, joins_all, maker, records, terms_with
from flower_node import Node, said
from paying_client import PUBLIC
from paying_client import client as paying
from scipy import stats

import privypurse as pp
from privypurse.accounting import CertifiedTable
from privypurse.federated import client as client_module
from privypurse.federated import simulation
from privypurse.federated.book import Book
from privypurse.federated.client import Client, Declined
from privypurse.federated.terms import Offer

pytestmark = pytest.mark.filterwarnings("ignore::privypurse.errors.PrivyPurseWarning")  # seeded: for tests
RATE, ROUNDS = 0.2, 120
TERMS = terms_with(
    rounds=ROUNDS, client_rate=RATE, clients=1, adversary="public", most_joined=ROUNDS, noise_multiplier=5.0
)
OFFER = Offer(TERMS, CertifiedTable(np.array([0.01]), np.array([5.0])))
made = maker(OFFER, 5.0, adversary="public", seed=None)


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that are counted and answered; what is in the answer does not matter."""
    monkeypatch.setattr(client_module, "train", lambda *_, **__: None)


def joined_in(client: Client, numbers: Any = range(1, ROUNDS + 1)) -> set[int]:
    """The rounds of these that the client answers now."""
    found = set()
    for number in numbers:
        with contextlib.suppress(Declined):
            client.answer(number, STATE)
            found.add(number)
    return found


def restarted(folder: Path, starts: int) -> Iterator[set[int]]:
    """What a client joined, start after start; every other time the client's own process is a new one too."""
    client = made(folder)
    for start in range(starts):
        yield joined_in(client)
        client.close()
        if start % 2:
            client = made(folder)
        else:
            client.reopen()
    client.close()


def too_often(joined: int) -> bool:
    return bool(stats.binomtest(joined, ROUNDS, RATE, alternative="greater").pvalue < 1e-6)


@pytest.mark.usefixtures("untrained")
def test_a_server_that_begins_again_meets_the_same_coins(tmp_path: Path) -> None:
    first, *others = restarted(tmp_path, 4)
    assert others == [first] * 3
    assert book_in(tmp_path)["begun"] == sorted(first)
    assert book_in(tmp_path)["out"] == sorted({*range(1, ROUNDS + 1)} - first)
    assert not too_often(len(first))


@pytest.mark.usefixtures("untrained")
def test_coins_flipped_anew_at_each_start_join_more_than_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twin: no coin of a round that was declined is kept."""
    monkeypatch.setattr(Client, "_stays_out", lambda self, number: np.random.default_rng().random() > RATE)
    *_, last = restarted(tmp_path, 4)
    assert too_often(len(last))
    assert stats.binomtest(len(last), ROUNDS, 1 - (1 - RATE) ** 4).pvalue > 1e-6


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("seed", [None, 7], ids=["secure", "seeded"])
def test_a_round_is_joined_with_the_rate_of_the_terms_whoever_is_here(tmp_path: Path, seed: int | None) -> None:
    many = 4000
    offer = Offer(replace(TERMS, rounds=many, most_joined=many), OFFER.table)

    def out(name: str, own: int, **whose: Any) -> list[int]:
        client = made(tmp_path / name, offer=offer, seed=None if seed is None else seed + own, **whose)
        joined_in(client, [1])
        found: list[int] = book_in(tmp_path / name)["out"]
        return found

    every = [out(str(own), own, dataset=records(seed=own)) for own in range(3)]
    joined = 3 * many - sum(map(len, every))
    assert stats.binomtest(joined, 3 * many, RATE).pvalue > 1e-6
    for wrong in (0.16, 0.24):  # ten deviations away
        assert stats.binomtest(joined, 3 * many, wrong).pvalue < 1e-6
    assert len(set(map(tuple, every))) == 3  # each client has its own
    if seed is not None:  # the same whatever records and budgets there are
        assert out("other", 0, dataset=records(4, seed=9), budgets=granted([0.01, 1, 2, 9])) == every[0]


def test_coins_are_in_the_book_before_anything_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def looks(*_: Any, **__: Any) -> None:
        seen.append(book_in(tmp_path)["out"])

    monkeypatch.setattr(client_module, "train", looks)
    client = made(tmp_path)
    assert "out" not in book_in(tmp_path)
    own = joined_in(client, range(1, 30))
    assert len(own) == len(seen) > 0
    assert all(out == seen[0] for out in seen)
    assert own == {*range(1, 30)} - {*seen[0]}


@pytest.mark.usefixtures("untrained")
def test_coins_that_cannot_be_kept_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither joined nor declined: a full disk must not let a client flip until it joins."""
    client = made(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Book, "_write", lambda *_: (_ for _ in ()).throw(OSError("No space left on device")))
        for number in range(1, 60):
            with pytest.raises(OSError, match="No space"):
                client.answer(number, STATE)
    assert "out" not in book_in(tmp_path)
    assert client.joined == 0


def test_a_round_that_a_client_stays_out_of_has_been_seen(tmp_path: Path) -> None:
    client = made(tmp_path)
    client._book.keep_out(range(1, ROUNDS + 1))
    with pytest.raises(Declined, match="own coin keeps it out of round 3"):
        client.answer(3, STATE)
    client.held(2)
    assert book_in(tmp_path)["seen"] == 3
    account = client.spent()
    assert account.against_server.max() == 0 < account.against_public.min()


def test_a_round_that_broke_off_is_joined_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = made(tmp_path)
    client._book.keep_out([1, 3])
    with monkeypatch.context() as patch:
        patch.setattr(client_module, "train", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            client.answer(2, STATE)
    client.close()
    assert joined_in(made(tmp_path), [1, 2, 3]) == {2}
    assert book_in(tmp_path)["begun"] == [2, 2]


@pytest.mark.usefixtures("untrained")
def test_the_cap_holds_whatever_the_coins_say(tmp_path: Path) -> None:
    offer = Offer(terms_with(adversary="public", most_joined=3), OFFER.table)
    client = made(tmp_path, offer=offer)
    joins_all(client)
    assert joined_in(client, [1, 2, 5]) == {1, 2, 5}
    with pytest.raises(Declined, match="all 3 rounds"):
        client.answer(3, STATE)


@pytest.mark.usefixtures("untrained")
def test_against_the_server_a_client_has_no_coins(tmp_path: Path) -> None:
    client = made(tmp_path, offer=Offer(terms_with(client_rate=1e-9, most_joined=5), OFFER.table), adversary="server")
    assert joined_in(client, range(1, 6)) == {1, 2, 3, 4, 5}
    assert "out" not in book_in(tmp_path)


@pytest.mark.usefixtures("untrained")
def test_a_book_of_an_earlier_version_opens_and_its_rounds_stay_as_they_fell(tmp_path: Path) -> None:
    """There the server had flipped a coin for each round that was held: for those no second one is flipped."""
    client = made(tmp_path)
    for number in (2, 40):
        client._book.begin(number, "parameters")
    client.close()
    assert "out" not in book_in(tmp_path)
    again = made(tmp_path)
    assert joined_in(again, range(1, 41)) == {2, 40}  # begun, and never answered
    assert 0 < len(joined_in(again, range(41, ROUNDS + 1))) < ROUNDS - 41


@pytest.mark.usefixtures("untrained")
def test_a_book_that_has_forgotten_its_coins_is_an_old_copy(tmp_path: Path) -> None:
    client = made(tmp_path)
    before = (tmp_path / "book").read_bytes()
    client._book.keep_out(range(1, ROUNDS + 1))
    client.close()
    (tmp_path / "book").write_bytes(before)
    with pytest.raises(pp.InvalidInput, match=r"stays out of: it is an old copy"):
        client.reopen()


@pytest.mark.usefixtures("untrained")
def test_copies_of_a_folder_have_the_same_coins(tmp_path: Path) -> None:
    client = made(tmp_path / "a")
    joined_in(client, [1])
    client.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert joined_in(made(tmp_path / "a")) == joined_in(made(tmp_path / "b"))


@pytest.mark.usefixtures("untrained")
def test_under_a_ledger_a_copy_from_before_the_coins_is_refused(
    tmp_path: Path, new_ledger: Callable[..., pp.Ledger]
) -> None:
    """Else its coins would be flipped a second time."""
    ledger = new_ledger("public")
    ours = paying(tmp_path / "a", ledger=ledger, offer=PUBLIC)
    ours.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    ours.reopen()
    joined_in(ours, [1, 2])
    ours.close()
    copy = paying(tmp_path / "b", ledger=ledger, offer=PUBLIC)
    with pytest.raises(pp.InvalidInput, match="went on elsewhere"):
        copy.answer(3, STATE)
    assert "out" not in book_in(tmp_path / "b")
    copy.close()


@pytest.mark.usefixtures("at_home")
def test_on_flower_a_coin_says_only_that_the_client_declines(tmp_path: Path) -> None:
    """As at the cap; what it was is in the client's own log."""
    client = made(tmp_path, seed=7)
    client._book.keep_out([2])
    client.close()
    home = Node(tmp_path, lambda folder, offer: made(folder, offer=offer, seed=7), OFFER)
    assert [said(home.ask(2)) for _ in range(2)] == [{"metrics": {"declined": 1}}] * 2
    assert home.begun() == []


@pytest.mark.usefixtures("untrained")
def test_a_simulation_asks_everybody_and_a_second_one_gives_the_same_model(tmp_path: Path) -> None:
    client = made(tmp_path)
    state = {name: value.copy() for name, value in STATE.items()}
    once, again = ([*simulation.rounds(TERMS, state, [client])] for _ in range(2))
    assert {one.asked for one in once} == {(0,)}
    assert [one.declined for one in once] == [one.declined for one in again]
    assert {one.declined for one in once} == {(), (0,)}
    assert flat(once[-1].state).tolist() == flat(again[-1].state).tolist()
