"""All trainings of a table, side by side in several processes on one device, none of them twice."""

import gc
import hashlib
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from privypurse._validate import integer, real
from privypurse.errors import InvalidInput, PrivyPurseError
from privypurse.training.devices import device_of
from reproductions import results, rival_training, train_cell
from reproductions.choice import Choice, Rivals
from reproductions.grid import Grid
from reproductions.results import Job, Line
from reproductions.train_cell import Until


@dataclass(frozen=True)
class Where:
    """What does not change a result: folders, device, processes, and when to stop."""

    out: Path
    device: str = "cpu"
    jobs: int = 1
    minutes: float | None = None
    features: Path = Path("data/features")


class TrainingsFailed(PrivyPurseError):
    """Some trainings ended by an error; all others are kept."""


def run(table: Grid | Rivals, where: Where) -> Iterator[tuple[Job, Line]]:
    """Train what is left, and give each training when its line is written; broken off, call it again.

    A training that fails, for want of memory say, is left out and the others go on; which ones failed is the error
    at the end. Wrong input ends the run at once.
    """
    integer(where.jobs, "jobs")
    if where.minutes is not None:
        real(where.minutes, "minutes", least=0)
    device = str(device_of(where.device))
    ends = None if where.minutes is None else time.monotonic() + 60 * where.minutes
    if isinstance(table, Grid):
        for (row, column), cell in table.cells.items():
            with _named(f"{row} / {column}"):
                train_cell.check(cell)
    else:
        rival_training.prepare(table, where.features, device)
    path = results.path_of(table, where.out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{where.out} cannot hold results: {error}; name another folder") from None
    failed: dict[str, str] = {}

    def until(job: Job) -> Until | None:
        """Where a training that the time may break off leaves what it has done, or has left it before."""
        folder = path.with_suffix("." + hashlib.sha256(job.key.encode()).hexdigest()[:16])
        if isinstance(table, Rivals) or (ends is None and not folder.exists()):
            return None
        return Until(folder, math.inf if ends is None else ends)

    with _pool(where.jobs) as pool:
        while jobs := [job for job in table.left(results.read(path)) if job.key not in failed]:
            state = Choice.of(table, results.read(path)) if isinstance(table, Rivals) else None
            tasks = [
                _Task(job, state, device, where.features, _threads(table, where.jobs), until(job)) for job in jobs
            ]
            for task, line in _outcomes(pool, tasks, ends):
                if isinstance(line, train_cell.BrokenOff):
                    print(f"broken off: {task.job.name}, seed {task.job.seed}, {line}", flush=True)
                    continue
                if isinstance(line, Exception):
                    failed[task.job.key] = f"{task.job.name}, seed {task.job.seed}: {line or type(line).__name__}"
                    print(f"failed: {failed[task.job.key]}", flush=True)
                    continue
                results.append(path, line)
                if task.until is not None:
                    shutil.rmtree(task.until.folder, ignore_errors=True)
                yield task.job, line
            if ends is not None and time.monotonic() > ends:
                break
    if failed:
        raise TrainingsFailed(
            f"{len(failed)} trainings of {table.name} failed, all others are kept; call it again to try them once "
            "more:\n" + "\n".join(failed.values())
        )


def _threads(table: Grid | Rivals, jobs: int) -> int:
    """For a hundred records more threads only wait for each other."""
    return 1 if table.quick else max(1, (os.cpu_count() or 1) // jobs)


@dataclass(frozen=True)
class _Task:
    """One job with all that a process needs for it."""

    job: Job
    choice: Choice | None
    device: str
    features: Path
    threads: int
    until: Until | None = None

    def line(self) -> Line:
        torch.set_num_threads(self.threads)
        if self.device != "cpu":  # other processes want the memory that the last training leaves behind
            gc.collect()
            torch.cuda.empty_cache()
        with _named(self.job.name):
            if self.choice is None:
                outcome = train_cell.outcome(self.job.settings, self.job.seed, self.device, self.until)
            else:
                outcome = rival_training.outcome(self.choice, self.job, self.features, self.device)
        return {**self.job.plain(), **outcome, "versions": results.versions(self.device)}


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Errors about the input say where in the table it stands."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error}") from None


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes; for one job at a time, this one alone. Leaving early ends what still runs."""
    if jobs == 1:
        yield None
        return
    spawn = get_context("spawn")
    executor = ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_end_with, initargs=(os.getpid(),))
    try:
        yield executor
    finally:
        running = list((executor._processes or {}).values())
        executor.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()


def _end_with(parent: int) -> None:
    """Leave when the process that asked for work is gone: killed, it cannot say so."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _outcomes(
    pool: ProcessPoolExecutor | None, tasks: list[_Task], ends: float | None
) -> Iterator[tuple[_Task, Line | Exception]]:
    """The lines, or what went wrong, as they come, until the time is over."""
    if pool is None:
        for task in tasks:
            yield task, _attempt(task.line)
            if ends is not None and time.monotonic() > ends:
                return
        return
    waiting: dict[Future[Line], _Task] = {pool.submit(task.line): task for task in tasks}
    while waiting:
        left = None if ends is None else max(0.0, ends - time.monotonic())
        done, _ = wait(waiting, timeout=left, return_when=FIRST_COMPLETED)
        if not done:
            return
        for each in done:
            yield waiting.pop(each), _attempt(each.result)


def _attempt(training: Callable[[], Line]) -> Line | Exception:
    try:
        return training()
    except InvalidInput:
        raise
    except Exception as error:
        return error
