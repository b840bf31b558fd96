"""A SuperLink and SuperNodes as processes on this machine, for the tests that run Flower for real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from held_files import read_held

APP = Path(__file__).parents[2] / "examples" / "federated"
BIN = Path(sys.executable).parent
CEILING = 900.0  # seconds until an event is given up: one that a machine keeps which is busy with other things

# A client of the example that can be made to stand still in the middle of a round, whatever the speed of the machine.
STANDS_STILL = """

import time

from privypurse.federated.book import Book

begin = Book.begin


def standing_still(context: Context, offer: Offer) -> Client:
    sign = Path(str(context.node_config["folder"])) / f"stop-{context.node_config['silo']}"

    def paid_for_and_then_nothing(*arguments):
        begin(*arguments)
        while sign.exists():
            time.sleep(0.1)

    Book.begin = paid_for_and_then_nothing
    return client_of(context, offer)


app = flower.client_app(standing_still)
"""


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
        self.until(lambda: "Uvicorn running" in self.said("link"), "the SuperLink to start")

    def start_node(self, name: str, silo: int, *how: str, config: str = "") -> subprocess.Popen[bytes]:
        return self.start(
            name,
            *("flower-supernode", "--superlink", self.address),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f"silo={silo} folder='{self.folder}/books' {config}".strip()),
            *how,
        )

    def kill(self, name: str) -> None:
        process = self.started.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def app(self) -> Path:
        """A copy of the example whose clients can be stopped."""
        copy = shutil.copytree(APP, self.folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
        with (copy / "silos" / "client_app.py").open("a") as text:
            text.write(STANDS_STILL)
        return copy

    def stop(self, silo: int) -> None:
        """From now on this silo pays for a round, and does not answer until it may go on."""
        (self.folder / "books").mkdir(exist_ok=True)
        (self.folder / "books" / f"stop-{silo}").touch()

    def go_on(self, silo: int) -> None:
        (self.folder / "books" / f"stop-{silo}").unlink()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for an event; not on when the SuperLink or the run has ended, for then it cannot come any more."""
        begun = time.monotonic()
        while True:
            ended = [
                name for name in ("link", "run") if name in self.started and self.started[name].poll() is not None
            ]
            if holds():
                return
            assert not ended, f"waited in vain for {what}: {ended[0]} has ended and said {self.said(ended[0])}"
            assert time.monotonic() - begun < CEILING, f"waited in vain for {what}"
            time.sleep(0.1)

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
