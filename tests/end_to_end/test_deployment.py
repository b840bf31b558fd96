"""Flower for real: a SuperLink and four SuperNodes as processes, one of which dies in the middle of a round."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
APP = Path(__file__).parents[2] / "examples" / "federated"
BIN = Path(sys.executable).parent
ROUNDS, TIMEOUT = 2, 45.0


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


class Network:
    """The processes, each in a group of its own so that it can be killed with its children."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        (folder / "flwr").mkdir()
        config = (
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        (folder / "flwr" / "config.toml").write_text(config)
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        self.started[name] = process
        return process

    def kill(self, name: str) -> None:
        process = self.started.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    try:
        where = ("--host", "127.0.0.1", "--port", str(made.port))
        made.start("link", "flower-superlink", "--insecure", "--disable-runtime-dependency-installation", *where)
        until(lambda: "Uvicorn running" in made.said("link"), 60, "the SuperLink to start")
        for k in range(4):
            made.start(
                f"node{k}",
                *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{made.port}"),
                *("--host", "127.0.0.1", "--port", str(free_port())),
                *("--node-config", f"silo={k} folder='{tmp_path}/books'"),
            )
        yield made
    finally:
        for name in list(made.started):
            made.kill(name)


def until(holds: object, seconds: float, what: str) -> None:
    begun = time.monotonic()
    while not holds():  # type: ignore[operator]
        assert time.monotonic() - begun < seconds, f"waited in vain for {what}"
        time.sleep(0.1)


def book(folder: Path, silo: int) -> dict[str, list[int]]:
    path = folder / "books" / str(silo) / "joined.json"
    content: dict[str, list[int]] = json.loads(path.read_text()) if path.exists() else {"begun": []}
    return content


def test_a_node_that_dies_in_a_round_has_paid_for_it_and_the_others_go_on(network: Network, tmp_path: Path) -> None:
    config = f"rounds={ROUNDS} local-steps=2 accountant='rdp' timeout={TIMEOUT} out='{tmp_path}/model.npz'"
    run = network.start("run", "flwr", "run", str(APP), "here", "--stream", "-c", config)
    until(lambda: book(tmp_path, 3)["begun"] == [1], 120, "silo 3 to begin round 1")
    network.kill("node3")  # with the process that trains: nothing of it is sent, or it was on its way
    until(lambda: run.poll() is not None, 240, "the run to end")

    said = network.said("run")
    assert (tmp_path / "model.npz").exists(), said
    with np.load(tmp_path / "model.npz") as state:
        assert all(np.isfinite(state[name]).all() for name in state.files)
    assert book(tmp_path, 3)["begun"] == [1]  # counted before it began, and not a round more
    for silo in range(3):
        assert book(tmp_path, silo)["begun"] == [1, 2]
        answers = sorted((tmp_path / "books" / str(silo)).glob("answer-*.npz"))
        assert len(answers) == ROUNDS
    assert "did not answer" in said or "failed" in said
