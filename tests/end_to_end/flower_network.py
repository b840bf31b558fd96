"""A SuperLink and SuperNodes as processes on this machine, for the tests that run Flower for real."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from privypurse._storage import read_held

APP = Path(__file__).parents[2] / "examples" / "federated"
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


class Network:
    """The processes, each in a group of its own so that it can be stopped or killed with its children."""

    def __init__(self, folder: Path, connection: str) -> None:
        """``connection`` is how the command line trusts the SuperLink, as a line of Flower's configuration."""
        self.folder, self.port = folder, free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",  # it would ask a server of Flower's
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        (folder / "flwr").mkdir()
        config = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{self.address}"\n{connection}\n'
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

    def start_link(self, *how: str) -> None:
        where = ("--host", "127.0.0.1", "--port", str(self.port))
        self.start("link", "flower-superlink", "--disable-runtime-dependency-installation", *where, *how)
        until(lambda: "Uvicorn running" in self.said("link"), 60, "the SuperLink to start")

    def start_node(self, name: str, silo: int, *how: str) -> subprocess.Popen[bytes]:
        return self.start(
            name,
            *("flower-supernode", "--superlink", self.address),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f"silo={silo} folder='{self.folder}/books'"),
            *how,
        )

    def kill(self, name: str) -> None:
        process = self.started.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def pause(self, name: str) -> None:
        os.killpg(self.started[name].pid, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        os.killpg(self.started[name].pid, signal.SIGCONT)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def book(self, silo: int) -> dict[str, list[int]]:
        path = self.folder / "books" / str(silo) / "book"
        content: dict[str, list[int]] = json.loads(read_held(path)) if path.exists() else {"begun": []}
        return content

    def answers(self, silo: int) -> list[str]:
        return sorted(path.name for path in (self.folder / "books" / str(silo)).glob("answer-*.npz"))


@contextmanager
def network_in(folder: Path, connection: str) -> Iterator[Network]:
    """A network without processes as yet; whatever is started in it ends with it."""
    made = Network(folder, connection)
    try:
        yield made
    finally:
        for name in list(made.started):
            made.kill(name)


def until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < seconds, f"waited in vain for {what}"
        time.sleep(0.1)
