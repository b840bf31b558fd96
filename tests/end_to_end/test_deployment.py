"""Flower for real: a SuperLink and four SuperNodes as processes, one of which dies in the middle of a round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from flower_network import CEILING, Network, network_in

pytestmark = [pytest.mark.flower, pytest.mark.needs("flower")]
ROUNDS, STEPS = 2, 5


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with network_in(tmp_path, "insecure = true") as made:
        made.start_link("--insecure")
        for k in range(4):
            made.start_node(f"node{k}", k, "--insecure")
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
