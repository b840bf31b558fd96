"""What it takes to capture passes of a model as CUDA graphs, and to see what no graph can hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar
from warnings import catch_warnings, simplefilter

import numpy as np
import torch

from privypurse.training.gradients import Recorder
from privypurse.training.gradients.silenced import own_memory
from privypurse.training.step_randomness import state_of, states

Made = TypeVar("Made")


class NotCapturable(Exception):
    """Something that a graph cannot hold."""


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all: libraries keep memory to work in for every stream that they have met."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def warmed_up(device: torch.device, make: Callable[[], Made]) -> tuple[Made, bool]:
    """What a pass gives outside of any graph, beside other work; and whether it drew numbers on the device.

    Raises `NotCapturable` if it draws from other generators, which a replay would not do again.
    """
    side = _side_stream(device)
    side.wait_stream(torch.cuda.current_stream())
    before, elsewhere = states(device), _elsewhere()
    with torch.cuda.stream(side):
        made = make()
    torch.cuda.current_stream().wait_stream(side)
    now = states(device)
    if elsewhere != _elsewhere() or not torch.equal(before[0], now[0]):
        raise NotCapturable("it draws from generators of Python, NumPy or the CPU")
    return made, not torch.equal(before[1], now[1])


def require_one_pass(recorder: Recorder) -> None:
    """Raise if the last forward pass does in its backward pass, or with other batches, what no graph can hold."""
    if recorder.runs_again:
        raise NotCapturable("gradient checkpointing puts random states back in the backward pass")
    if not recorder.one_shape:
        raise NotCapturable("a packed sequence has other shapes for every batch")


@contextmanager
def capturing(pool: Any) -> Iterator[Callable[[], Any]]:
    """Gives what captures the next graph into this memory: ``with graph() as captured: …``, and later its replay.

    Raises `NotCapturable` where something is asked of the device, which a graph cannot answer. A capture that is
    broken off leaves torch's allocator and generator waiting for its end; here it comes.
    """

    @contextmanager
    def graph() -> Iterator[torch.cuda.CUDAGraph]:
        made = torch.cuda.CUDAGraph()
        with own_memory(pool), torch.cuda.graph(made, pool=pool, capture_error_mode="thread_local"):
            yield made

    try:
        with catch_warnings():
            simplefilter("ignore")  # a graph may be empty: of a backward pass through a single layer
            yield graph
    except RuntimeError as error:
        with suppress(Exception):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.zeros((), device="cuda")
        raise NotCapturable(str(error).splitlines()[0]) from error


def _elsewhere() -> list[Any]:
    """The states of Python's and NumPy's generators."""
    return [state_of(random), [np.asarray(part).tolist() for part in state_of(np.random)]]
