"""A PostgreSQL server of one's own, on loopback, for as long as the tests take."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def programs() -> Path | None:
    """The folder of initdb and postgres: that of Debian's newest version, or the one on the path."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = debian[-1] if debian else shutil.which("initdb")
    return None if found is None else Path(found).parent


def why_not() -> str | None:
    """Why there is no server to be had here."""
    if programs() is None:
        return "PostgreSQL is not installed (Debian's package postgresql)"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL does not run as root, and there is no user postgres"
        if shutil.which("runuser") is None:
            return "PostgreSQL does not run as root, and there is no runuser"
    return None


@contextmanager
def server() -> Iterator[str]:
    """Start one; gives the url of a database to make others from."""
    where = programs()
    assert where is not None
    folder = Path(tempfile.mkdtemp(prefix="privypurse-postgres-"))
    as_user: list[str] = []
    if os.geteuid() == 0:  # initdb refuses root
        as_user = ["runuser", "-u", "postgres", "--"]
        shutil.chown(folder, "postgres")
    data = folder / "data"
    make = [*as_user, str(where / "initdb"), "-D", str(data), "-U", "tests", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run(make, check=True, capture_output=True, cwd=folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder)]
    run = [*as_user, str(where / "postgres"), "-D", str(data), *options]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(run, stdout=log, stderr=log, cwd=folder)
    try:
        url = f"postgresql://tests@127.0.0.1:{port}/postgres"
        _wait(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    import psycopg

    until = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.05)


def database(url: str, name: str, template: str = "template1") -> str:
    """A new database of this name, instead of what was there: empty, or a copy of another."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    return url.rsplit("/", 1)[0] + f"/{name}"
