"""Flower for real: a SuperLink and four SuperNodes as processes, one of which dies in the middle of a round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flower_network import CEILING, Network, network_in
from scipy.optimize import brentq
from scipy.stats import norm

import privypurse as pp

pytestmark = [pytest.mark.flower, pytest.mark.needs("flower")]
ROUNDS, STEPS = 2, 5


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with network_in(tmp_path, "insecure = true") as made:
        made.start_link("--insecure")
        paying = f"ledger='{tmp_path}/purses' at-most=0.6 purpose='to plan bus lines'"
        for k in range(4):
            made.start_node(f"node{k}", k, "--insecure", config=paying)
        yield made


def test_a_node_that_dies_in_a_round_has_paid_for_it_and_the_others_go_on(network: Network, tmp_path: Path) -> None:
    config = f"rounds={ROUNDS} local-steps={STEPS} accountant='rdp' timeout={CEILING} out='{tmp_path}/model.npz'"
    network.stop(3)
    run = network.start("run", "flwr", "run", str(network.app()), "here", "--stream", "-c", config)
    network.until(lambda: network.book(3)["begun"] == [1], "silo 3 to begin round 1")
    network.kill("node3")  # with the process that trains
    assert network.answers(3) == []  # nothing of it was ready to be sent
    # Flower takes a node for gone after a minute of silence, and the round ends without it.
    network.until(lambda: run.poll() is not None, "the run to end")

    said = network.said("run")
    assert (tmp_path / "model.npz").exists(), said
    with np.load(tmp_path / "model.npz") as state:
        assert all(np.isfinite(state[name]).all() for name in state.files)
    assert network.book(3)["begun"] == [1]  # counted before it began, and not a round more
    for silo in range(3):
        assert network.book(silo)["begun"] == [1, 2]
        assert network.answers(silo) == ["answer-1.npz", "answer-2.npz"]
    assert "did not answer" in said or "failed" in said
    for silo in range(4):  # each in a ledger of its own, before the first round; also who died in it
        assert_reserved(tmp_path / "purses" / str(silo))


def assert_reserved(home: Path) -> None:
    """Everybody on ε = 1 and 5 has paid for two rounds in full, nobody beyond their purse or the cap."""
    ledger = pp.Ledger.open(f"sqlite:///{home}/purses.db", key=home / "purses.key", anchor=home / "purses.anchor")
    [run] = ledger.runs()
    assert (run.what, run.purpose, run.at_most, run.settled) == ("federated", "to plan bus lines", 0.6, None)
    assert ledger.verify().problems == []
    reserved = ledger.reservation(run.run_id).reserved
    [_, one, five] = ledger.rungs
    charges = np.array(reserved.entry.charged(reserved.values[None], 3))[1:, reserved.admitted]
    mu = float(brentq(lambda mu: gaussian_delta(0.6, mu) - 1e-5, 1e-3, 10))
    caps = np.array([[one.order], [five.order]]) * mu**2 / 2 * 2**40
    assert charges.min() > 0
    assert (charges <= caps * (1 + 1e-5)).any(axis=0).all()


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle & Wang 2018, arXiv 1805.06530, Theorem 8."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))
