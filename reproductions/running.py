"""All trainings of a table, side by side in several processes on one device, none of them twice."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproductions import data, features, results, score
from reproductions.budgets import epsilon_of
from reproductions.choice import Choice, Job, final_jobs
from reproductions.specs import Spec
from reproductions.training import trained


@dataclass(frozen=True)
class Where:
    """What does not change a result: folders, device, processes, and when to stop."""

    features: Path
    results: Path
    device: str
    workers: int = 1
    minutes: float | None = None
    records: int | None = None


Outcome = tuple[dict[str, float], dict[str, Any]]


def run(spec: Spec, where: Where) -> bool:
    """Choose, then train every row with every seed. Whether all of that is done; else call it again."""
    begun = time.monotonic()
    ends = None if where.minutes is None else begun + 60 * where.minutes
    views = {view for each in _values(spec, "views") for view in features.VIEWS[each]}
    device = torch.device(where.device)
    features.prepare(spec.data, views, where.features, device, where.records)
    path = results.path_of(spec, where.results)
    with _pool(where.workers) as pool:
        while jobs := _left(spec, path):
            choice = results.choice_of(spec, results.read(path))
            for job, (scores, said) in _outcomes(pool, spec, choice, jobs, where, ends):
                results.append(path, job, scores, said)
                best = max(scores, key=lambda decay: scores[decay])
                text = f"{job.purpose} {job.method} seed {job.seed} {_differs(job, spec)} {best}: {scores[best]:.2f}"
                print(f"{time.monotonic() - begun:6.1f} s  {spec.name}  {text}", flush=True)
            if ends is not None and time.monotonic() > ends:
                break
    return not _left(spec, path)


def _values(spec: Spec, name: str) -> set[str]:
    """What a setting may become while choosing."""
    return {getattr(spec.settings, name)} | {v for stage in spec.stages for v in stage.grid.get(name, ())}


def _left(spec: Spec, path: Path) -> list[Job]:
    lines = results.read(path)
    choice = results.choice_of(spec, lines)
    if missing := choice.missing():
        return missing
    done = {results.key_of(line) for line in lines}
    return [job for job in final_jobs(choice) if job.key not in done]


def _differs(job: Job, spec: Spec) -> str:
    usual = spec.settings.plain()
    return " ".join(f"{name}={value}" for name, value in job.settings.plain().items() if usual[name] != value)


class _pool:
    """Worker processes; with one worker, this process. Leaving early ends what still runs."""

    def __init__(self, workers: int) -> None:
        spawn = get_context("spawn")
        self.executor = ProcessPoolExecutor(workers, mp_context=spawn) if workers > 1 else None

    def __enter__(self) -> _pool:
        return self

    def __exit__(self, *_: object) -> None:
        if self.executor is not None:
            running = list((self.executor._processes or {}).values())
            self.executor.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()


def _outcomes(
    pool: _pool, spec: Spec, choice: Choice, jobs: list[Job], where: Where, ends: float | None
) -> Iterator[tuple[Job, Outcome]]:
    """What jobs gave, as they come, until the time is over. One that fails ends the run after the others are in."""
    if pool.executor is None:
        for job in jobs:
            yield job, outcome(spec, choice, job, where)
            if ends is not None and time.monotonic() > ends:
                return
        return
    waiting: dict[Future[Outcome], Job] = {
        pool.executor.submit(outcome, spec, choice, job, where): job for job in jobs
    }
    failed: BaseException | None = None
    while waiting:
        left = None if ends is None else max(0.0, ends - time.monotonic())
        done, _ = wait(waiting, timeout=left, return_when=FIRST_COMPLETED)
        if not done:
            return
        for each in done:
            job = waiting.pop(each)
            if (error := each.exception()) is None:
                yield job, each.result()
            else:
                print(f"failed: {job.method} {_differs(job, spec)}: {error}", flush=True)
                failed = failed or error
    if failed is not None:
        raise failed


def outcome(spec: Spec, choice: Choice, job: Job, where: Where) -> Outcome:
    """One training and its score."""
    torch.set_num_threads(1)
    if where.device != "cpu":  # other processes want the memory that the last training leaves behind
        gc.collect()
        torch.cuda.empty_cache()
    begun = time.monotonic()
    settings = job.settings
    held = spec.validation if job.purpose == "choice" else 0
    x, y, other_x, other_y = _records(spec.data, settings.views, settings.scaling, where.features, where.device, held)
    epsilon = epsilon_of(spec.budgets, len(y), job.seed)
    model, averages, said = trained(job.method, settings, x, y, epsilon, spec.delta, job.seed)
    if job.purpose == "choice":
        found = score.validation_accuracies(model, averages, job, other_x, other_y)
    else:
        found = score.test_accuracy(choice, job, model, averages, where.features)
    made_with = results.versions(torch.device(where.device))
    return found, {**said, "records": len(y), "wall": time.monotonic() - begun, "versions": made_with}


@lru_cache(maxsize=2)
def _records(
    name: str, views: str, scaling: str, folder: Path, device: str, held: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training records, and those of them held back to choose by; kept on the device from one job to the next."""
    x, y = features.load(name, "train", views, scaling, folder, torch.device(device))
    if not held:
        return x, y, x[:0], y[:0]
    trains, chooses = (torch.as_tensor(rows, device=device) for rows in data.split(len(y), held))
    return x[trains], y[trains], x[chooses], y[chooses]
