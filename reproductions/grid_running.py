"""All cells of an experiment, each seed once: side by side in several processes, and never twice."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from privypurse.errors import InvalidInput
from privypurse.training.devices import device_of
from privypurse.version import __version__
from reproductions.cells import Outcome, check, run_cell
from reproductions.grid import Experiment, Settings
from reproductions.inputs import is_there


@dataclass(frozen=True)
class Task:
    """One cell for one seed, and the file for what comes of it."""

    row: str
    column: str
    settings: Settings
    seed: int
    path: Path

    @property
    def finished(self) -> Outcome | None:
        """What came of it, if it ran with these settings before."""
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(kept, dict) or kept.get("digest") != self.settings.digest:
            return None
        outcome = kept.get("outcome")
        return outcome if isinstance(outcome, dict) and "made_up" in outcome else None


def tasks(experiment: Experiment, seeds: int, folder: Path) -> list[Task]:
    """Every cell and seed; seed by seed, so that a run that is broken off has whole tables."""
    return [
        Task(
            row,
            column,
            settings := experiment.cells[row, column],
            seed,
            folder / "cells" / _file(row, column, settings, seed),
        )
        for seed in range(seeds)
        for row in experiment.rows
        for column in experiment.columns
    ]


def run(experiment: Experiment, *, seeds: int, device: str, jobs: int, folder: Path) -> Iterator[tuple[Task, bool]]:
    """Run what is not finished yet; gives each task when it is done, and whether it had been before.

    ``jobs`` processes train side by side, on one GPU too: small models leave most of it idle.
    """
    if seeds < 1 or jobs < 1:
        raise InvalidInput(f"seeds is {seeds} and jobs is {jobs}; both must be at least 1")
    device = str(device_of(device))
    for (row, column), settings in experiment.cells.items():
        try:
            check(settings)
        except InvalidInput as error:
            raise InvalidInput(f"{row} / {column}: {error}") from None
    try:
        (folder / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot hold results: {error}") from None
    waiting = []
    for task in tasks(experiment, seeds, folder):
        before = task.finished
        if before is None or (before["made_up"] and is_there(task.settings, task.seed)):
            waiting.append(task)
        else:
            yield task, True
    if jobs == 1:
        for task in waiting:
            _execute(task, device, 0)
            yield task, False
    else:
        yield from ((task, False) for task in _side_by_side(waiting, device, jobs))


def _side_by_side(waiting: list[Task], device: str, jobs: int) -> Iterator[Task]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_end_with, initargs=(os.getpid(),)
    ) as pool:
        running: dict[Future[None], Task] = {pool.submit(_execute, task, device, threads): task for task in waiting}
        try:
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    task = running.pop(future)
                    future.result()
                    yield task
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _end_with(parent: int) -> None:
    """Leave when the process that asked for work is gone: killed, it cannot say so."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _execute(task: Task, device: str, threads: int) -> None:
    """Run one task and write its file; whole or not at all, so that a run that is killed leaves nothing half done."""
    if threads or task.settings.quick:
        torch.set_num_threads(threads or 1)  # for a hundred records more threads only wait for each other
    try:
        outcome = run_cell(task.settings, task.seed, device)
    except InvalidInput as error:
        raise InvalidInput(f"{task.row} / {task.column}: {error}") from None
    content = {
        "row": task.row,
        "column": task.column,
        "digest": task.settings.digest,
        "settings": asdict(task.settings),
        "versions": versions(device),
        "outcome": outcome,
    }
    fresh = task.path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(fresh, task.path)


def versions(device: str) -> dict[str, str]:
    """What the figures depend on."""
    where = torch.cuda.get_device_name() if device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
    return {
        "privypurse": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "device": where,
    }


def collected(experiment: Experiment, seeds: int, folder: Path) -> dict[tuple[str, str], list[Outcome]]:
    """What has been finished of every cell."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    for task in tasks(experiment, seeds, folder):
        if (outcome := task.finished) is not None:
            found.setdefault((task.row, task.column), []).append(outcome)
    return found


def versions_of(experiment: Experiment, seeds: int, folder: Path) -> list[dict[str, str]]:
    """The different machines and versions that the finished cells were run with."""
    kept = _read(task.path for task in tasks(experiment, seeds, folder) if task.finished is not None)
    return [json.loads(text) for text in sorted({json.dumps(each["versions"], sort_keys=True) for each in kept})]


def _read(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    return (json.loads(path.read_text(encoding="utf-8")) for path in paths)


def _file(row: str, column: str, settings: Settings, seed: int) -> str:
    """Named by the settings too: what was finished with others, or quickly, stays."""

    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9.+-]+", "-", name.lower()).strip("-")

    which = hashlib.sha256(f"{row}\n{column}\n{settings.digest}".encode()).hexdigest()[:8]
    return f"{plain(row)}--{plain(column)}--{which}--{seed}.json"
