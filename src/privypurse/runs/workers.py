"""Processes that train side by side. They start, and load torch, while whoever asks for them still loads it too."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol


class Submit(Protocol):
    """Takes a job, and gives what will come of it."""

    def __call__(self, job: Callable[[], Any], /) -> Future[Any]: ...


@contextmanager
def workers(jobs: int) -> Iterator[Submit]:
    """Runs what is submitted: at once where there is one job, else in processes of their own, started afresh.

    A forked process would have its parent's random state, and two of them the same noise.
    """
    if jobs == 1:
        yield at_once
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_begin) as pool:
        try:
            for _ in range(jobs):
                pool.submit(_nothing)  # starts a process
            yield pool.submit
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def at_once(job: Callable[[], Any]) -> Future[Any]:
    """Runs it here and now."""
    future: Future[Any] = Future()
    future.set_result(job())
    return future


def _begin() -> None:
    import torch

    from privypurse import _totals
    from privypurse.runs import training_run  # noqa: F401 what a training needs, before there is one

    torch.set_num_threads(1)  # a small network is no faster on more
    _totals.said()  # by the command, in its own words


def _nothing() -> None:
    """Takes a process that is not busy."""
